// The cost of moving the masses of one row to those of another, and its gradient.
#pragma once

#include "slopes.h"
#include "tile.h"

namespace {

// Load the differences of the rows of a tile; returns whether their masses are >= 0, finite and equal in sum. A
// difference in mass that is more than rounding is spread over all bins.
template <class T> EW_INLINE bool load_differences(const Task &task, int64_t t, Tile<T> tile) {
    typedef Vector<T> V;
    const ew_space space = *task.space;
    const ew_call &call = *task.call;
    const Rows p_rows(t, call.rows, call.first_stride), q_rows(t, call.rows, call.second_stride);
    // Only the difference in mass has to be exact: the mass and the sum of all sizes multiply tolerances, so that what blocks
    // have in common may count twice.
    Double excess = 0.0;
    V mass = T(0), size = T(0);
    // Of whole registers, before they are transposed: masses of parts of rows, and minima of any rows.
    Register<T> masses[LANES] = {}, least = {};
    with_block_size<T>(space.bins, [&](auto columns) EW_ALWAYS {
        constexpr int SIZE = decltype(columns)::value, PIECES = WIDTH<T> / SIZE;
        each_block<SIZE>(space.bins, [&](int64_t j, int64_t repeated) EW_ALWAYS {
            V x[SIZE];
            load_columns<SIZE>(x, [&](int row) EW_ALWAYS {
                const Register<T> p = gather<SIZE, PIECES>(static_cast<const T *>(call.first) + j, p_rows.offsets + row);
                const Register<T> q = gather<SIZE, PIECES>(static_cast<const T *>(call.second) + j, q_rows.offsets + row);
                least = p < least ? p : least;
                least = q < least ? q : least;
                masses[row] += q;
                return p - q;
            });
#pragma GCC unroll 16
            for (int i = 0; i < SIZE; ++i) {
                tile.set(leaf_of(space.places, j + i), x[i]);
                if (i < repeated) continue;
                excess = excess + widen(x[i]);
                size = size + absolute(x[i]);
            }
        });
        for (int h = 0; h < PARTS<T>; ++h) {
            transpose<SIZE>(masses + h * WIDTH<T>);
            for (int i = 0; i < SIZE; ++i) part(mass, h) += masses[h * WIDTH<T> + i];
        }
    });
    const Double rounding = 32 * (sizeof(T) == 4 ? 0x1p-23 : 0x1p-52), bins = double(space.bins);
    const Double shift = select(absolute(excess) > rounding * widen(size), excess / bins, 0.0);
    double excesses[LANES], mass_of[LANES];
    store(excess, excesses);
    store(widen(mass), mass_of);
    bool valid = true;
    for (int i = 0; i < WIDTH<T>; ++i) valid = valid && least[i] >= 0;
    for (int lane = 0; lane < LANES; ++lane) {
        const double heavier = mass_of[lane] + (excesses[lane] > 0 ? excesses[lane] : 0.0);
        // Both comparisons are false for NaN.
        valid = valid && __builtin_fabs(excesses[lane]) <= call.tolerance * heavier && heavier < __builtin_inf();
    }
    if (any(absolute(shift) > Double(0.0)))
        for (int64_t j = 0; j < space.bins; ++j) tile.set(j, narrow<T>(widen(tile[j]) - shift));
    return valid;
}

template <class T> EW_INLINE void write_distances(const ew_call &call, const Rows &rows, Double total) {
    double values[LANES];
    store(total * Double(1 / call.option), values);
    for (int lane = 0; lane < LANES; ++lane) static_cast<T *>(call.values)[rows.index(lane)] = T(values[lane]);
}

// ---- chain ----------------------------------------------------------------------------------------------------------

template <class T, int RHO> bool chain_pairs(const Task &task, int64_t t) {
    const ew_space space = *task.space;
    const Slope<T, RHO> slope_of(task.call->option);
    const Tile<T> tile = Memory(task).take<T>(space.bins);
    const bool valid = load_differences(task, t, tile);
    Double flow = 0.0, weighted = 0.0, total = 0.0;
    for (int64_t j = 0; j < space.bins - 1; ++j) {
        flow = flow + widen(tile[j]);
        const Double slope = slope_of.of_sum(flow, space.costs.doubles[j]);
        total = slope * flow + total;
        weighted = slope * Double(double(j + 1)) + weighted;
        tile.set(j, narrow<T>(slope));
    }
    const Rows rows(t, task.call->rows, space.bins);
    write_distances<T>(*task.call, rows, total);
    if (!task.call->gradients) return valid;
    Double above = weighted * Double(-1.0 / double(space.bins));
    tile.set(space.bins - 1, T(0));
    for (int64_t j = space.bins - 1; j >= 0; --j) {
        above = above + widen(tile[j]);
        tile.set(j, narrow<T>(above));
    }
    store_tile<T>(space, rows, task.call->gradients, [&](int64_t j) EW_ALWAYS { return tile[j]; });
    return valid;
}

// ---- tree -----------------------------------------------------------------------------------------------------------

// The flow over each edge from the leaves up: returns rho * cost of all edges, and leaves the slope of the edge above each
// node in `sums`. What `sums` hold is added to the flow of each node; the tile is multiplied by `scale`. `slopes` gets those
// of the leaves if they are kept, `slope_sum`, if not null, the sum of the slopes of all bins.
template <class T, int RHO> EW_INLINE Double sum_flows(const ew_space &space, const Slope<T, RHO> &slope_of, Tile<T> tile,
                                                       Vector<T> scale, Tile<double> sums, Tile<T> slopes, Double *slope_sum) {
    typedef Vector<T> V;
    const T *costs = numbers<T>(space.costs);
    Sum<T> sum, leaf_total;
    Double total = 0.0, node_sum = 0.0;
    if constexpr (KEEPS_SLOPES<RHO>) {
        for (int64_t j = 0; j < space.bins; ++j) {
            const V flow = tile[j] * scale, slope = slope_of(flow, costs[j]);
            slopes.set(j, slope);
            if (slope_sum) sum.add(slope);
            total = widen(slope) * widen(flow) + total;
        }
    }
    for (int64_t k = space.nodes - 1; k >= 0; --k) {
        Double below = sums[k];
        for (int64_t j = space.leaves[k]; j < space.leaves[k + 1]; ++j) {
            const V flow = tile[j] * scale;
            below = below + widen(flow);
            if constexpr (!KEEPS_SLOPES<RHO>) {
                const V slope = slope_of(flow, costs[j]);
                if (slope_sum) sum.add(slope);
                leaf_total.add(slope * flow);
            }
        }
        for (int64_t c = space.children[k]; c < space.children[k + 1]; ++c) {
            const Double flow = sums[c], slope = slope_of.of_sum(flow, space.node_costs.doubles[c]);
            below = below + flow;
            total = slope * flow + total;
            if (slope_sum) node_sum = slope * Double(space.contents[c]) + node_sum;
            sums.set(c, slope);
        }
        sums.set(k, below);
    }
    sums.set(0, 0.0);
    if (slope_sum) *slope_sum = node_sum + sum.value();
    return total + leaf_total.value();
}

template <class T, int RHO> bool tree_pairs(const Task &task, int64_t t) {
    const ew_space space = *task.space;
    const Slope<T, RHO> slope_of(task.call->option);
    Memory memory(task);
    const Tile<double> sums = memory.take<double>(space.nodes);
    const Tile<T> tile = memory.take<T>(space.bins), slopes = memory.take<T>(space.bins);
    const bool valid = load_differences(task, t, tile);
    for (int64_t k = 0; k < space.nodes; ++k) sums.set(k, 0.0);
    Double slope_sum;
    const Double total = sum_flows(space, slope_of, tile, Vector<T>(T(1)), sums, slopes, &slope_sum);
    const Rows rows(t, task.call->rows, space.bins);
    write_distances<T>(*task.call, rows, total);
    if (!task.call->gradients) return valid;
    sum_slopes(space, sums);
    const Tile<T> above = narrowed_sums<T>(space, sums, slope_sum * Double(1.0 / double(space.bins)));
    const T *costs = numbers<T>(space.costs);
    store_tile<T>(space, rows, task.call->gradients, [&](int64_t leaf) EW_ALWAYS {
        return above[space.node_of[leaf]] + (KEEPS_SLOPES<RHO> ? slopes[leaf] : slope_of(tile[leaf], costs[leaf]));
    });
    return valid;
}

} // namespace
