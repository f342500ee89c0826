// Cross entropy against soft labels.
//
// The soft label of bin j is the product of h_e = exp(-beta * w_e / diameter) over the edges between j and the label,
// divided by the sum of these products over all bins. Products are built from the label outwards, so they cannot overflow,
// and those that underflow do not count. The loss needs no logarithm but that of the softmax's sum, so it is finite for any
// finite logits. In place of costs the space holds the factors h_e.
#pragma once

#include "label_tile.h"

namespace {

// Write losses and gradients. `each(f)` calls f(j, product) for every bin, whose product is in any case 1 at the label;
// `missing` is what the sums of the products and of the products times the logits lack.
template <class T, class F> EW_INLINE bool finish(LabelTile<T> &rows, F each, Double missing, Double missing_dots) {
    typedef Vector<T> V;
    const Tile<T> tile = rows.tile;
    const V largest = rows.largest;
    const double smoothing = rows.call.option;
    // Of each row: the products, the products times the logits, and the logits, which count from the largest one.
    Sum<T> products, dots, logits;
    Double exponentials = 0.0;
    each([&](int64_t j, V product) EW_ALWAYS {
        const V x = tile[j] - largest, e = exp(x);
        products.add(product);
        dots.add(product * x);
        if (smoothing > 0) logits.add(x);
        exponentials = exponentials + widen(e);
        tile.set(j, e);
    });
    rows.set_total(exponentials);
    const Double sum = products.value() + missing, dot = dots.value() + missing_dots;
    const Double sharpness = 1 - smoothing, share = smoothing / double(rows.space.bins);
    Double loss = log2(exponentials) * Double(LN2) - sharpness * dot / sum;
    if (smoothing > 0) loss = loss - share * logits.value();
    rows.write_losses(loss);
    if (!rows.call.gradients) return rows.valid;
    const Double weights = rows.weights(), soft = weights * sharpness / sum, even = weights * share;
    const V p = narrow<T>(weights / exponentials), q = narrow<T>(soft), rest = narrow<T>(even);
    each([&](int64_t j, V product) EW_ALWAYS { tile.set(j, tile[j] * p - (product * q + rest)); });
    store_tile(rows.space, tile, rows.rows, rows.call.gradients);
    rows.set_label_gradients(rows.shares() * weights - soft - even);
    return rows.valid;
}

// Write the product of the factors between each node and the label of each row.
EW_INLINE void spread(const ew_space &space, const int64_t *labels, Tile<double> reach) {
    const double *node_factors = space.node_costs.doubles;
    for (int64_t k = 0; k < space.nodes; ++k) reach.set(k, -1.0);
    for (int lane = 0; lane < LANES; ++lane) {
        double product = space.costs.doubles[labels[lane]];
        for (int64_t node = space.node_of[labels[lane]]; node >= 0; node = space.parents[node]) {
            reach.at(node, lane) = product;
            product *= node_factors[node];
        }
    }
    for (int64_t k = 0; k < space.nodes; ++k) {
        const Double here = reach[k];
        each_child(space, k, [&](int64_t c) EW_ALWAYS {
            reach.set(c, select(Double(0.0) > reach[c], here * Double(node_factors[c]), reach[c]));
        });
    }
}

template <class T> bool tree_soft_labels(const Task &task, int64_t t) {
    typedef Vector<T> V;
    const ew_space space = *task.space;
    Memory memory(task);
    const Tile<double> reach = memory.take<double>(space.nodes);
    const Tile<T> tile = memory.take<T>(space.bins);
    LabelTile<T> rows(task, t, tile);
    // The way from the label to itself is not by its parent.
    double missing[LANES], dots[LANES], highest[LANES];
    store(widen(rows.largest), highest);
    for (int lane = 0; lane < LANES; ++lane) {
        const int64_t leaf = rows.leaf[lane];
        const double factor = space.costs.doubles[leaf];
        missing[lane] = 1 - factor * factor;
        dots[lane] = missing[lane] > 0 ? missing[lane] * (double(tile.at(leaf, lane)) - highest[lane]) : 0.0;
    }
    spread(space, rows.leaf, reach);
    const T *factors = numbers<T>(space.costs);
    const auto each = [&](auto f) EW_ALWAYS {
        for (int64_t k = 0; k < space.nodes; ++k) {
            const V product = narrow<T>(reach[k]);
            each_leaf(space, k, [&](int64_t j) EW_ALWAYS { f(j, product * V(factors[j])); });
        }
    };
    return finish(rows, each, load(missing), load(dots));
}

template <class T> bool chain_soft_labels(const Task &task, int64_t t) {
    const ew_space space = *task.space;
    const double *factors = space.costs.doubles;
    Memory memory(task);
    const Tile<T> tile = memory.take<T>(space.bins), reach = memory.take<T>(space.bins);
    LabelTile<T> rows(task, t, tile);
    const auto label = indices(rows.label, double());
    const Double one = 1.0;
    // The products from the label back, 1 after it; then those from the label on, 1 before it.
    Double product = one;
    for (int64_t j = space.bins - 1; j >= 0; --j) {
        if (j < space.bins - 1) product = select(label > j, product * Double(factors[j]), one);
        reach.set(j, narrow<T>(product));
    }
    product = one;
    for (int64_t j = 1; j < space.bins; ++j) {
        product = select(label > j - 1, one, product * Double(factors[j - 1]));
        reach.set(j, narrow<T>(product) * reach[j]);
    }
    const auto each = [&](auto f) EW_ALWAYS {
        for (int64_t j = 0; j < space.bins; ++j) f(j, reach[j]);
    };
    return finish(rows, each, 0.0, 0.0);
}

} // namespace
