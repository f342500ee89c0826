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
    const double *costs = space.costs.doubles;
    T *tile = static_cast<T *>(task.scratch), *slopes = tile + space.bins * LANES;
    V largest = load_tile(space, static_cast<const T *>(call.first), Rows(t, call.rows, call.first_stride), tile);
    Rows rows(t, call.rows, space.bins);
    Labels labels(task, rows);
    Double exps = exponentials(tile, space.bins, largest);
    set_shares(labels, tile, exps);
    const Softmax<T> softmax(labels, tile, exps);
    const Index<double> label(labels.label);
    Double before = 0.0, cost = 0.0, after = 0.0;
    for (int64_t j = 0; j < space.bins - 1; ++j) {
        before = before + widen(V::load(tile + j * LANES) * softmax.scale);
        const Mask64 label_after = label > j;
        const Double flow = before + select(label_after, 0.0, softmax.at_label);
        const Double slope = slope_of_sum<T>(slope_of, flow, costs[j]);
        cost = slope * flow + cost;
        after = after + select(label_after, 0.0, slope);
        narrow<T>(slope).store(slopes + j * LANES);
    }
    const Double weights = labels.weights() * softmax.correction(call.option);
    write_losses<T>(task, rows, labels, cost * softmax.correction(call.option) * Double(1 / call.option));
    if (!call.gradients) return labels.valid;
    const V factor = narrow<T>(weights * widen(softmax.scale));
    Double above = Double(0.0) - (cost / softmax.excess + after);
    V(T(0)).store(slopes + (space.bins - 1) * LANES);
    for (int64_t j = space.bins - 1; j >= 0; --j) {
        above = above + widen(V::load(slopes + j * LANES));
        (V::load(tile + j * LANES) * factor * narrow<T>(above)).store(tile + j * LANES);
    }
    store_tile<T>(space, rows, call.gradients, [&](int64_t at) { return V::load(tile + at); });
    set_label_gradients<T>(task, rows, labels, Double(0.0) - cost * labels.shares() * weights);
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
    const Softmax<T> softmax(labels, tile, exps);
    // The label of each row goes to the sum of the node above it, and its edge is added to the cost.
    double flow[LANES], edge[LANES], above_label[LANES];
    int64_t node[LANES];
    softmax.at_label.store(flow);
    for (int64_t k = 0; k < space.nodes; ++k) Double(0.0).store(sums + k * LANES);
    for (int lane = 0; lane < LANES; ++lane) {
        int64_t leaf = labels.place[lane] / LANES;
        edge[lane] = space.costs.doubles[leaf];
        node[lane] = int64_t(space.node_of[leaf]) * LANES + lane;
        sums[node[lane]] = flow[lane];
    }
    const Double edge_slope = slope_of(softmax.at_label, 1.0) * Double::load(edge);
    const Double cost = edge_slope * softmax.at_label +
                        sum_flows<T, RHO>(space, slope_of, tile, softmax.scale, sums, KEEPS_SLOPES<RHO> ? slopes : nullptr, nullptr);
    const Double weights = labels.weights() * softmax.correction(call.option);
    write_losses<T>(task, rows, labels, cost * softmax.correction(call.option) * Double(1 / call.option));
    if (!call.gradients) return labels.valid;
    sum_slopes(space, sums);
    for (int lane = 0; lane < LANES; ++lane) above_label[lane] = sums[node[lane]];
    const T *above = narrowed<T>(space, sums, cost / softmax.excess + edge_slope + Double::load(above_label));
    const V factor = narrow<T>(weights * widen(softmax.scale));
    store_tile<T>(space, rows, call.gradients, [&](int64_t at) {
        int64_t leaf = at / LANES;
        V e = V::load(tile + at);
        V slope = KEEPS_SLOPES<RHO> ? V::load(slopes + at) : slope_of(e * softmax.scale, costs[leaf]);
        return e * factor * (V::load(above + int64_t(space.node_of[leaf]) * LANES) + slope);
    });
    set_label_gradients<T>(task, rows, labels, Double(0.0) - cost * labels.shares() * weights);
    return labels.valid;
}

} // namespace
