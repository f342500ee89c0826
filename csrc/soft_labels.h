// Cross entropy against soft labels.
//
// The soft label of bin j is the product of h_e = exp(-beta * w_e / diameter) over the edges between j and the label,
// divided by the sum of these products over all bins. Products are built from the label outwards, so they cannot overflow,
// and those that underflow do not count. The loss needs no logarithm but that of the softmax's sum, so it is finite for any
// finite logits. In place of costs the space holds the factors h_e.
#pragma once

#include "softmax.h"

namespace {

// Sums over the bins of a row: of the products, of the products times the logits, of the logits and of their exponentials,
// where the logits count from the largest one.
struct SoftSums {
    Double products = 0.0, dots = 0.0, logits = 0.0, exponentials = 0.0;
};

// What turns exponentials into weighted probabilities, products into weighted soft labels, and the weighted smoothing.
template <class T> struct SoftFactors {
    Double softmax, soft, even;
    EW_INLINE SoftFactors(const Task &task, const Labels &labels, const SoftSums &sums) {
        const double smoothing = task.call->option;
        softmax = labels.weights() / sums.exponentials;
        soft = labels.weights() * Double(1 - smoothing) / sums.products;
        even = labels.weights() * Double(smoothing / double(task.space->bins));
    }
};

template <class T> EW_INLINE void write_soft_losses(const Task &task, const Rows &rows, const Labels &labels, const SoftSums &sums) {
    const double smoothing = task.call->option;
    Double loss = log2(sums.exponentials) * Double(LN2) - Double(1 - smoothing) * sums.dots / sums.products;
    if (smoothing > 0) loss = loss - Double(smoothing / double(task.space->bins)) * sums.logits;
    write_losses<T>(task, rows, labels, loss);
}

// The product at the label is 1.
template <class T> EW_INLINE void set_soft_gradients(const Task &task, const Rows &rows, const Labels &labels, const SoftFactors<T> &factors) {
    set_label_gradients<T>(task, rows, labels, labels.shares() * labels.weights() - factors.soft - factors.even);
}

// ---- tree -----------------------------------------------------------------------------------------------------------

// Write the product of the factors between each node and the label of each row.
EW_INLINE void spread(const ew_space &space, const Labels &labels, double *reach) {
    const double *node_factors = space.node_costs.doubles;
    for (int64_t k = 0; k < space.nodes; ++k) Double(-1.0).store(reach + k * LANES);
    for (int lane = 0; lane < LANES; ++lane) {
        int64_t leaf = labels.place[lane] / LANES;
        double product = space.costs.doubles[leaf];
        for (int64_t node = space.node_of[leaf]; node >= 0; node = space.parents[node]) {
            reach[node * LANES + lane] = product;
            product *= node_factors[node];
        }
    }
    for (int64_t k = 0; k < space.nodes; ++k) {
        Double here = Double::load(reach + k * LANES);
        for (int64_t c = space.children[k]; c < space.children[k + 1]; ++c) {
            Double known = Double::load(reach + c * LANES);
            select(Double(0.0) > known, here * Double(node_factors[c]), known).store(reach + c * LANES);
        }
    }
}

// Replace the logits by their exponentials, and add up everything; `reach` of the nodes is in the type of the data.
template <class T> EW_INLINE SoftSums sum_tree(const Task &task, const Labels &labels, Vector<T> largest, const T *reach, T *tile) {
    typedef Vector<T> V;
    const ew_space &space = *task.space;
    const T *factors = numbers<T>(space.costs);
    const bool smoothed = task.call->option > 0;
    double at_label[LANES], highest[LANES];
    widen(largest).store(highest);
    for (int lane = 0; lane < LANES; ++lane) at_label[lane] = double(tile[labels.place[lane]]) - highest[lane];
    SoftSums sums;
    Sum<T> products, dots, logits;
    for (int64_t j = 0; j < space.bins; ++j) {
        const V x = V::load(tile + j * LANES) - largest, e = exp(x);
        const V product = V::load(reach + int64_t(space.node_of[j]) * LANES) * V(factors[j]);
        if (smoothed) logits.add(x);
        products.add(product);
        dots.add(product * x);
        sums.exponentials = sums.exponentials + widen(e);
        e.store(tile + j * LANES);
    }
    // The way from the label to itself is not by its parent.
    double missing[LANES], terms[LANES];
    for (int lane = 0; lane < LANES; ++lane) {
        double factor = space.costs.doubles[labels.place[lane] / LANES];
        missing[lane] = 1 - factor * factor;
        terms[lane] = missing[lane] > 0 ? missing[lane] * at_label[lane] : 0.0;
    }
    sums.products = products.value() + Double::load(missing);
    sums.dots = dots.value() + Double::load(terms);
    sums.logits = logits.value();
    return sums;
}

template <class T> bool tree_soft_labels(const Task &task, int64_t t) {
    typedef Vector<T> V;
    const ew_space &space = *task.space;
    const ew_call &call = *task.call;
    double *reach = static_cast<double *>(task.scratch);
    T *tile = reinterpret_cast<T *>(reach + space.nodes * LANES);
    V largest = load_tile(space, static_cast<const T *>(call.first), Rows(t, call.rows, call.first_stride), tile);
    Rows rows(t, call.rows, space.bins);
    Labels labels(task, rows);
    spread(space, labels, reach);
    const T *products = narrowed<T>(space, reach);
    const SoftSums sums = sum_tree(task, labels, largest, products, tile);
    set_shares(labels, tile, sums.exponentials);
    write_soft_losses<T>(task, rows, labels, sums);
    if (!call.gradients) return labels.valid;
    const SoftFactors<T> factors(task, labels, sums);
    const V share = narrow<T>(factors.softmax), even = narrow<T>(factors.even), soft = narrow<T>(factors.soft);
    const T *leaf_factors = numbers<T>(space.costs);
    store_tile<T>(space, rows, call.gradients, [&](int64_t at) {
        int64_t leaf = at / LANES;
        V product = V::load(products + int64_t(space.node_of[leaf]) * LANES) * V(leaf_factors[leaf]);
        return V::load(tile + at) * share - (product * soft + even);
    });
    set_soft_gradients(task, rows, labels, factors);
    return labels.valid;
}

// ---- chain ----------------------------------------------------------------------------------------------------------

template <class T> bool chain_soft_labels(const Task &task, int64_t t) {
    typedef Vector<T> V;
    const ew_space &space = *task.space;
    const ew_call &call = *task.call;
    const int64_t bins = space.bins;
    const double *factors = space.costs.doubles;
    T *tile = static_cast<T *>(task.scratch), *reach = tile + bins * LANES;
    V largest = load_tile(space, static_cast<const T *>(call.first), Rows(t, call.rows, call.first_stride), tile);
    Rows rows(t, call.rows, bins);
    Labels labels(task, rows);
    const Index<double> label(labels.label);
    const Double one = 1.0;
    // The products from the label back, 1 after it; then those from the label on, 1 before it.
    Double product = one;
    for (int64_t j = bins - 1; j >= 0; --j) {
        if (j < bins - 1) product = select(label > j, product * Double(factors[j]), one);
        narrow<T>(product).store(reach + j * LANES);
    }
    SoftSums sums;
    Sum<T> products, dots, logits;
    product = one;
    for (int64_t j = 0; j < bins; ++j) {
        if (j > 0) product = select(label > j - 1, one, product * Double(factors[j - 1]));
        V target = narrow<T>(product) * V::load(reach + j * LANES);
        target.store(reach + j * LANES);
        V x = V::load(tile + j * LANES) - largest, e = exp(x);
        products.add(target);
        if (call.option > 0) logits.add(x);
        dots.add(target * x);
        sums.exponentials = sums.exponentials + widen(e);
        e.store(tile + j * LANES);
    }
    sums.products = products.value();
    sums.dots = dots.value();
    sums.logits = logits.value();
    set_shares(labels, tile, sums.exponentials);
    write_soft_losses<T>(task, rows, labels, sums);
    if (!call.gradients) return labels.valid;
    const SoftFactors<T> weighted(task, labels, sums);
    const V share = narrow<T>(weighted.softmax), soft = narrow<T>(weighted.soft), even = narrow<T>(weighted.even);
    store_tile<T>(space, rows, call.gradients, [&](int64_t at) {
        return V::load(tile + at) * share - (V::load(reach + at) * soft + even);
    });
    set_soft_gradients(task, rows, labels, weighted);
    return labels.valid;
}

} // namespace
