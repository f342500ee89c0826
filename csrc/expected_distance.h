// The expected distance from each bin to a bin drawn from each row.
//
// Crossing an edge brings the mass on its far side nearer and the rest farther away.
#pragma once

#include "tile.h"

namespace {

// Load the masses of a tile, and later store f(leaf), the expected distance of every bin.
template <class T> EW_INLINE void load_masses(const Task &task, int64_t t, Tile<T> tile) {
    load_tile(*task.space, task.call->first, Rows(t, task.call->rows, task.call->first_stride), tile);
}
template <class T, class F> EW_INLINE bool store_distances(const Task &task, int64_t t, F f) {
    store_tile<T>(*task.space, Rows(t, task.call->rows, task.space->bins), task.call->gradients, f);
    return true;
}

template <class T> bool chain_expected(const Task &task, int64_t t) {
    const ew_space space = *task.space;
    const double *costs = space.costs.doubles;
    const Tile<T> tile = Memory(task).take<T>(space.bins);
    load_masses(task, t, tile);
    Double mass = 0.0, total = 0.0, before = 0.0;
    double position = 0;
    for (int64_t j = 0; j < space.bins; ++j) {
        const Double here = widen(tile[j]);
        mass = mass + here;
        total = here * Double(position) + total;
        if (j < space.bins - 1) position += costs[j];
    }
    for (int64_t j = 0; j < space.bins; ++j) {
        before = before + widen(tile[j]);
        tile.set(j, narrow<T>(total));
        if (j < space.bins - 1) total = (before + before - mass) * Double(costs[j]) + total;
    }
    return store_distances<T>(task, t, [&](int64_t j) EW_ALWAYS { return tile[j]; });
}

// From sums of masses and of moments before each bin and before its far side.
template <class T> bool ring_expected(const Task &task, int64_t t) {
    const ew_space space = *task.space;
    const int64_t bins = space.bins;
    Memory memory(task);
    const Tile<double> masses = memory.take<double>(bins + 1), moments = memory.take<double>(bins + 1);
    const Tile<T> tile = memory.take<T>(bins);
    load_masses(task, t, tile);
    Double mass = 0.0, moment = 0.0;
    for (int64_t j = 0; j < bins; ++j) {
        masses.set(j, mass);
        moments.set(j, moment);
        const Double here = widen(tile[j]);
        mass = mass + here;
        moment = here * Double(space.positions[j]) + moment;
    }
    masses.set(bins, mass);
    moments.set(bins, moment);
    const double length = space.positions[bins];
    for (int64_t j = 0; j < bins; ++j) {
        const int64_t far = space.far_sides[j];
        const double x = space.positions[j], sign = space.signs[j];
        const Double forwards = moments[far] - moments[j];
        Double expected = forwards + forwards - moment * Double(sign);
        expected = masses[j] * Double(2 * x) + expected;
        expected = masses[far] * Double(-2 * x - sign * length) + expected;
        expected = mass * Double(sign * x + (sign > 0 ? length : 0.0)) + expected;
        tile.set(j, narrow<T>(expected));
    }
    return store_distances<T>(task, t, [&](int64_t j) EW_ALWAYS { return tile[j]; });
}

template <class T> bool tree_expected(const Task &task, int64_t t) {
    typedef Vector<T> V;
    const ew_space space = *task.space;
    const double *node_costs = space.node_costs.doubles;
    Memory memory(task);
    const Tile<double> sums = memory.take<double>(space.nodes);
    const Tile<T> tile = memory.take<T>(space.bins);
    load_masses(task, t, tile);
    // Upwards: the mass of each subtree, and the expected distance to the root.
    Double total = 0.0;
    for (int64_t k = space.nodes - 1; k >= 0; --k) {
        Double below = 0.0;
        for (int64_t j = space.leaves[k]; j < space.leaves[k + 1]; ++j) {
            const Double inside = widen(tile[j]);
            below = below + inside;
            total = inside * Double(space.costs.doubles[j]) + total;
        }
        for (int64_t c = space.children[k]; c < space.children[k + 1]; ++c) {
            below = below + sums[c];
            total = sums[c] * Double(node_costs[c]) + total;
        }
        sums.set(k, below);
    }
    const Double mass = sums[0];
    sums.set(0, total);
    for (int64_t k = 0; k < space.nodes; ++k) {
        const Double here = sums[k];
        for (int64_t c = space.children[k]; c < space.children[k + 1]; ++c)
            sums.set(c, (mass - (sums[c] + sums[c])) * Double(node_costs[c]) + here);
    }
    const Tile<T> here = narrowed_sums<T>(space, sums);
    const T *costs = numbers<T>(space.costs);
    const V all = narrow<T>(mass);
    return store_distances<T>(task, t, [&](int64_t leaf) EW_ALWAYS {
        return (all - (tile[leaf] + tile[leaf])) * V(costs[leaf]) + here[space.node_of[leaf]];
    });
}

} // namespace
