// The cost of moving the softmax of each row to its label, and its gradient with respect to the logits.
//
// With the slope g of the cost in each bin, the derivative is p * (g - <p, g>). By Euler's theorem on homogeneous functions
// <p, g> is rho times the cost plus the slope at the label, so at the label it is -p * rho * cost.
#pragma once

#include "pairs.h"
#include "softmax.h"

namespace {

template <class T, int RHO> bool chain_labels(const Task &task, int64_t t) {
    typedef Vector<T> V;
    const ew_space &space = *task.space;
    const ew_call &call = *task.call;
    const Slope<RHO> slope_of(call.option);
    const T *costs = numbers<T>(space.costs);
    T *tile = static_cast<T *>(task.scratch), *slopes = tile + space.bins * LANES;
    V largest = load_tile(space, static_cast<const T *>(call.first), Rows(t, call.rows, call.first_stride), tile);
    Rows rows(t, call.rows, space.bins);
    Labels labels(task, rows);
    Double sums = exponentials(tile, space.bins, largest);
    set_shares(labels, tile, sums);
    subtract_labels(labels, tile, sums);
    const V scale = narrow<T>(Double(1.0) / sums);
    const Index<T> label(labels.label);
    Double flow = 0.0;
    Sum<T> total, after;
    for (int64_t j = 0; j < space.bins - 1; ++j) {
        flow = flow + widen(V::load(tile + j * LANES) * scale);
        V here = narrow<T>(flow), slope = slope_of(here, costs[j]);
        total.add(slope * here);
        after.add(select(label > j, T(0), slope));
        slope.store(slopes + j * LANES);
    }
    Double cost = total.value();
    write_losses<T>(task, rows, labels, cost * Double(1 / call.option));
    if (!call.gradients) return labels.valid;
    const V factor = narrow<T>(labels.weights()) * scale;
    Double above = Double(0.0) - (cost + after.value());
    V(T(0)).store(slopes + (space.bins - 1) * LANES);
    for (int64_t j = space.bins - 1; j >= 0; --j) {
        above = above + widen(V::load(slopes + j * LANES));
        (V::load(tile + j * LANES) * factor * narrow<T>(above)).store(tile + j * LANES);
    }
    store_tile<T>(space, rows, call.gradients, [&](int64_t at) { return V::load(tile + at); });
    set_label_gradients<T>(task, rows, labels, Double(0.0) - cost * labels.shares() * labels.weights());
    return labels.valid;
}

template <class T, int RHO> bool tree_labels(const Task &task, int64_t t) {
    typedef Vector<T> V;
    const ew_space &space = *task.space;
    const ew_call &call = *task.call;
    const Slope<RHO> slope_of(call.option);
    const T *costs = numbers<T>(space.costs);
    double *sums = static_cast<double *>(task.scratch);
    T *tile = reinterpret_cast<T *>(sums + space.nodes * LANES), *slopes = tile + space.bins * LANES;
    V largest = load_tile(space, static_cast<const T *>(call.first), Rows(t, call.rows, call.first_stride), tile);
    Rows rows(t, call.rows, space.bins);
    Labels labels(task, rows);
    Double exps = exponentials(tile, space.bins, largest);
    set_shares(labels, tile, exps);
    subtract_labels(labels, tile, exps);
    const V scale = narrow<T>(Double(1.0) / exps);
    Double cost = sum_flows<T, RHO>(space, slope_of, tile, scale, sums, RHO == 0 ? slopes : nullptr, nullptr);
    write_losses<T>(task, rows, labels, cost * Double(1 / call.option));
    if (!call.gradients) return labels.valid;
    sum_slopes(space, sums);
    // The slope at the label, from its edge up to the root.
    double edge[LANES], above_label[LANES];
    for (int lane = 0; lane < LANES; ++lane) {
        int64_t leaf = labels.place[lane] / LANES;
        edge[lane] = space.costs.doubles[leaf];
        above_label[lane] = sums[space.node_of[leaf] * LANES + lane];
    }
    Double at_label = slope_of(labels.shares() - Double(1.0), 1.0) * Double::load(edge) + Double::load(above_label);
    const T *above = subtract_mean<T>(space, sums, cost + at_label);
    const V factor = narrow<T>(labels.weights());
    store_tile<T>(space, rows, call.gradients, [&](int64_t at) {
        int64_t leaf = at / LANES;
        V p = V::load(tile + at) * scale;
        V slope = RHO == 0 ? V::load(slopes + at) : slope_of(p, costs[leaf]);
        return p * factor * (V::load(above + space.node_of[leaf] * LANES) + slope);
    });
    set_label_gradients<T>(task, rows, labels, Double(0.0) - cost * labels.shares() * labels.weights());
    return labels.valid;
}

} // namespace
