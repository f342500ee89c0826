// The expected distance from each bin to a bin drawn from each row.
//
// Crossing an edge brings the mass on its far side nearer and the rest farther away.
#pragma once

#include "tile.h"

namespace {

template <class T> bool chain_expected(const Task &task, int64_t t) {
    typedef Vector<T> V;
    const ew_space &space = *task.space;
    const ew_call &call = *task.call;
    const double *costs = space.costs.doubles;
    T *tile = static_cast<T *>(task.scratch);
    load_tile(space, static_cast<const T *>(call.first), Rows(t, call.rows, call.first_stride), tile);
    Double mass = 0.0, total = 0.0, before = 0.0;
    double position = 0;
    for (int64_t j = 0; j < space.bins; ++j) {
        Double here = widen(V::load(tile + j * LANES));
        mass = mass + here;
        total = here * Double(position) + total;
        if (j < space.bins - 1) position += costs[j];
    }
    for (int64_t j = 0; j < space.bins; ++j) {
        before = before + widen(V::load(tile + j * LANES));
        narrow<T>(total).store(tile + j * LANES);
        if (j < space.bins - 1) total = (before + before - mass) * Double(costs[j]) + total;
    }
    store_tile<T>(space, Rows(t, call.rows, space.bins), call.gradients, [&](int64_t at) { return V::load(tile + at); });
    return true;
}

// From sums of masses and of moments before each bin and before its far side.
template <class T> bool ring_expected(const Task &task, int64_t t) {
    typedef Vector<T> V;
    const ew_space &space = *task.space;
    const ew_call &call = *task.call;
    double *masses = static_cast<double *>(task.scratch), *moments = masses + (space.bins + 1) * LANES;
    T *tile = reinterpret_cast<T *>(moments + (space.bins + 1) * LANES);
    load_tile(space, static_cast<const T *>(call.first), Rows(t, call.rows, call.first_stride), tile);
    Double mass = 0.0, moment = 0.0;
    for (int64_t j = 0; j <= space.bins; ++j) {
        mass.store(masses + j * LANES);
        moment.store(moments + j * LANES);
        if (j == space.bins) break;
        Double here = widen(V::load(tile + j * LANES));
        mass = mass + here;
        moment = here * Double(space.positions[j]) + moment;
    }
    const double length = space.positions[space.bins];
    for (int64_t j = 0; j < space.bins; ++j) {
        const int64_t far = space.far_sides[j] * LANES;
        const double x = space.positions[j], sign = space.signs[j];
        Double forwards = Double::load(moments + far) - Double::load(moments + j * LANES);
        Double expected = forwards + forwards - moment * Double(sign);
        expected = Double::load(masses + j * LANES) * Double(2 * x) + expected;
        expected = Double::load(masses + far) * Double(-2 * x - sign * length) + expected;
        expected = mass * Double(sign * x + (sign > 0 ? length : 0.0)) + expected;
        narrow<T>(expected).store(tile + j * LANES);
    }
    store_tile<T>(space, Rows(t, call.rows, space.bins), call.gradients, [&](int64_t at) { return V::load(tile + at); });
    return true;
}

template <class T> bool tree_expected(const Task &task, int64_t t) {
    typedef Vector<T> V;
    const ew_space &space = *task.space;
    const ew_call &call = *task.call;
    const double *costs = space.costs.doubles, *node_costs = space.node_costs.doubles;
    double *sums = static_cast<double *>(task.scratch);
    T *tile = reinterpret_cast<T *>(sums + space.nodes * LANES);
    load_tile(space, static_cast<const T *>(call.first), Rows(t, call.rows, call.first_stride), tile);
    // Upwards: the mass of each subtree, and the expected distance to the root.
    Double total = 0.0;
    for (int64_t k = space.nodes - 1; k >= 0; --k) {
        Double below = 0.0;
        for (int64_t j = space.leaves[k]; j < space.leaves[k + 1]; ++j) {
            Double inside = widen(V::load(tile + j * LANES));
            below = below + inside;
            total = inside * Double(costs[j]) + total;
        }
        for (int64_t c = space.children[k]; c < space.children[k + 1]; ++c) {
            Double inside = Double::load(sums + c * LANES);
            below = below + inside;
            total = inside * Double(node_costs[c]) + total;
        }
        below.store(sums + k * LANES);
    }
    const Double mass = Double::load(sums);
    total.store(sums);
    for (int64_t k = 0; k < space.nodes; ++k) {
        Double here = Double::load(sums + k * LANES);
        for (int64_t c = space.children[k]; c < space.children[k + 1]; ++c) {
            Double inside = Double::load(sums + c * LANES);
            ((mass - inside - inside) * Double(node_costs[c]) + here).store(sums + c * LANES);
        }
    }
    const T *here = narrowed<T>(space, sums), *leaf_costs = numbers<T>(space.costs);
    const V all = narrow<T>(mass);
    store_tile<T>(space, Rows(t, call.rows, space.bins), call.gradients, [&](int64_t at) {
        const int64_t leaf = at / LANES;
        const V inside = V::load(tile + at);
        return (all - (inside + inside)) * V(leaf_costs[leaf]) + V::load(here + int64_t(space.node_of[leaf]) * LANES);
    });
    return true;
}

} // namespace
