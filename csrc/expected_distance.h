// The expected distance from each bin to a bin drawn from each row.
//
// Crossing an edge brings the mass on its far side nearer and the rest farther away.
#pragma once

#include "tile.h"

namespace {

// The masses of a tile, in place of which the expected distances of all bins are stored.
template <class T> struct Masses {
    const Task &task;
    const int64_t t;
    const Tile<T> tile;
    EW_INLINE Masses(const Task &task, int64_t t, Memory &memory) : task(task), t(t), tile(memory.take<T>(task.space->bins)) {
        load_tile(*task.space, task.call->first, Rows(t, task.call->rows, task.call->first_stride), tile);
    }
    EW_INLINE bool store() const {
        store_tile(*task.space, tile, Rows(t, task.call->rows, task.space->bins), task.call->gradients);
        return true;
    }
};

// exp or powers of numbers, which tests compare with exact ones.
template <class T> bool exp_or_power(const Task &task, int64_t t) {
    Memory memory(task);
    const Masses<T> rows(task, t, memory);
    const Exponent<T> y(task.call->option);
    for (int64_t j = 0; j < task.space->bins; ++j)
        rows.tile.set(j, task.call->option == 0 ? exp(rows.tile[j]) : power(rows.tile[j], y));
    return rows.store();
}

template <class T> bool chain_expected(const Task &task, int64_t t) {
    const ew_space space = *task.space;
    const double *costs = space.costs.doubles;
    Memory memory(task);
    const Masses<T> rows(task, t, memory);
    const Tile<T> tile = rows.tile;
    Double mass = 0.0, total = 0.0, before = 0.0;
    double position = 0;
    for (int64_t j = 0; j < space.bins; position += costs[j++]) {
        const Double here = widen(tile[j]);
        mass = mass + here;
        total = here * Double(position) + total;
    }
    for (int64_t j = 0; j < space.bins; ++j) {
        before = before + widen(tile[j]);
        tile.set(j, narrow<T>(total));
        total = (before + before - mass) * Double(costs[j]) + total;
    }
    return rows.store();
}

// From sums of masses and of moments before each bin and before its far side.
template <class T> bool ring_expected(const Task &task, int64_t t) {
    const ew_space space = *task.space;
    const int64_t bins = space.bins;
    Memory memory(task);
    const Tile<double> masses = memory.take<double>(bins + 1), moments = memory.take<double>(bins + 1);
    const Masses<T> rows(task, t, memory);
    const Tile<T> tile = rows.tile;
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
    return rows.store();
}

template <class T> bool tree_expected(const Task &task, int64_t t) {
    typedef Vector<T> V;
    const ew_space space = *task.space;
    const double *node_costs = space.node_costs.doubles;
    Memory memory(task);
    const Tile<double> sums = memory.take<double>(space.nodes);
    const Masses<T> rows(task, t, memory);
    const Tile<T> tile = rows.tile;
    // Upwards: the mass of each subtree, and the expected distance to the root.
    Double total = 0.0;
    for (int64_t k = space.nodes - 1; k >= 0; --k) {
        Double below = 0.0;
        each_leaf(space, k, [&](int64_t j) EW_ALWAYS {
            const Double inside = widen(tile[j]);
            below = below + inside;
            total = inside * Double(space.costs.doubles[j]) + total;
        });
        each_child(space, k, [&](int64_t c) EW_ALWAYS {
            below = below + sums[c];
            total = sums[c] * Double(node_costs[c]) + total;
        });
        sums.set(k, below);
    }
    const Double mass = sums[0];
    for (int64_t k = 1; k < space.nodes; ++k) sums.set(k, (mass - (sums[k] + sums[k])) * Double(node_costs[k]));
    sums.set(0, total);
    const T *costs = numbers<T>(space.costs);
    const V all = narrow<T>(mass);
    sum_from_root(space, sums, [&](int64_t k, Double sum) EW_ALWAYS {
        const V here = narrow<T>(sum);
        each_leaf(space, k, [&](int64_t j) EW_ALWAYS { tile.set(j, (all - (tile[j] + tile[j])) * V(costs[j]) + here); });
    });
    return rows.store();
}

} // namespace
