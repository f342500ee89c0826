// The cost of moving the masses of one row to those of another, and its gradient.
#pragma once

#include "slopes.h"
#include "tile.h"

namespace {

// ---- differences ----------------------------------------------------------------------------------------------------

// Load the differences of rows into a tile, and add up what `masses_are_valid` needs.
template <class T> struct DifferenceLoader {
    const ew_space &space;
    const T *p, *q;
    const Rows &p_rows, &q_rows;
    T *tile;
    Double excess = 0.0, size = 0.0, mass = 0.0;
    Vector<T> minimum = T(0);

    template <int N> EW_INLINE void operator()(int64_t j, int64_t repeated) {
        Vector<T> x[N], y[N];
        load_block<N>(p, p_rows.offsets, j, x);
        load_block<N>(q, q_rows.offsets, j, y);
#pragma GCC unroll 16
        for (int i = 0; i < N; ++i) {
            minimum = select(minimum > x[i], x[i], minimum);
            minimum = select(minimum > y[i], y[i], minimum);
            x[i] = x[i] - y[i];
            x[i].store(tile + offset_of(space, j + i));
            if (i < repeated) x[i] = y[i] = T(0);
        }
        // In the type of the data, pairwise; only the difference in mass has to be exact.
        Vector<T> sizes[N];
#pragma GCC unroll 16
        for (int i = 0; i < N; ++i) {
            excess = excess + widen(x[i]);
            sizes[i] = absolute(x[i]);
        }
#pragma GCC unroll 4
        for (int step = N / 2; step > 0; step /= 2) {
#pragma GCC unroll 16
            for (int i = 0; i < step; ++i) {
                sizes[i] = sizes[i] + sizes[i + step];
                y[i] = y[i] + y[i + step];
            }
        }
        size = size + widen(sizes[0]);
        mass = mass + widen(y[0]);
    }
};

// Load the differences of the rows of a tile; returns whether their masses are >= 0, finite and equal in sum. A
// difference in mass that is more than rounding is spread over all bins.
template <class T> bool load_differences(const Task &task, int64_t t, T *tile) {
    const ew_space &space = *task.space;
    const ew_call &call = *task.call;
    Rows p_rows(t, call.rows, call.first_stride), q_rows(t, call.rows, call.second_stride);
    DifferenceLoader<T> loader{
        space, static_cast<const T *>(call.first), static_cast<const T *>(call.second), p_rows, q_rows, tile};
    each_block<WIDTH<T>, SHORT<T>, DifferenceLoader<T> &>(space.bins, loader);
    const Double rounding = 32 * (sizeof(T) == 4 ? 0x1p-23 : 0x1p-52);
    Double shift = select(absolute(loader.excess) > rounding * loader.size, loader.excess * Double(1.0 / double(space.bins)), 0.0);
    double excess[LANES], mass[LANES], minimum[LANES], shifts[LANES];
    loader.excess.store(excess);
    loader.mass.store(mass);
    widen(loader.minimum).store(minimum);
    shift.store(shifts);
    bool valid = true, centred = true;
    for (int lane = 0; lane < LANES; ++lane) {
        double heavier = mass[lane] + (excess[lane] > 0 ? excess[lane] : 0.0);
        // Both comparisons are false for NaN.
        valid = valid && __builtin_fabs(excess[lane]) <= call.tolerance * heavier && heavier < __builtin_inf();
        valid = valid && minimum[lane] >= 0;
        centred = centred && shifts[lane] == 0;
    }
    if (!centred) {
        for (int64_t j = 0; j < space.bins; ++j) {
            T *x = tile + j * LANES;
            narrow<T>(widen(Vector<T>::load(x)) - shift).store(x);
        }
    }
    return valid;
}

template <class T> void write_distances(const Task &task, const Rows &rows, Double total) {
    double values[LANES];
    (total * Double(1 / task.call->option)).store(values);
    for (int lane = 0; lane < LANES; ++lane) static_cast<T *>(task.call->values)[rows.index(lane)] = T(values[lane]);
}

// ---- chain ----------------------------------------------------------------------------------------------------------

template <class T, int RHO> bool chain_pairs(const Task &task, int64_t t) {
    typedef Vector<T> V;
    const ew_space &space = *task.space;
    const Slope<RHO> slope_of(task.call->option);
    const T *costs = numbers<T>(space.costs);
    T *tile = static_cast<T *>(task.scratch);
    bool valid = load_differences(task, t, tile);
    Double flow = 0.0, weighted = 0.0;
    Sum<T> total;
    for (int64_t j = 0; j < space.bins - 1; ++j) {
        flow = flow + widen(V::load(tile + j * LANES));
        V here = narrow<T>(flow), slope = slope_of(here, costs[j]);
        total.add(slope * here);
        weighted = widen(slope) * Double(double(j + 1)) + weighted;
        slope.store(tile + j * LANES);
    }
    Rows rows(t, task.call->rows, space.bins);
    write_distances<T>(task, rows, total.value());
    if (!task.call->gradients) return valid;
    Double above = weighted * Double(-1.0 / double(space.bins));
    V(T(0)).store(tile + (space.bins - 1) * LANES);
    for (int64_t j = space.bins - 1; j >= 0; --j) {
        above = above + widen(V::load(tile + j * LANES));
        narrow<T>(above).store(tile + j * LANES);
    }
    store_tile<T>(space, rows, task.call->gradients, [&](int64_t at) { return V::load(tile + at); });
    return valid;
}

// ---- tree -----------------------------------------------------------------------------------------------------------

// The flow over each edge from the leaves up: rho * cost of all edges, and the sum of all bins' slopes. Leaves the slope of
// the edge above each node in `sums`. If not null, `slopes` gets those of the leaves. The tile is multiplied by `scale`.
template <class T, int RHO>
EW_INLINE Double sum_flows(const ew_space &space, const Slope<RHO> &slope_of, const T *tile, Vector<T> scale, double *sums,
                           T *slopes, Double *slope_sum) {
    typedef Vector<T> V;
    const T *costs = numbers<T>(space.costs);
    Sum<T> total, sum;
    Double node_total = 0.0, node_sum = 0.0;
    for (int64_t k = space.nodes - 1; k >= 0; --k) {
        Double below = 0.0;
        for (int64_t j = space.leaves[k]; j < space.leaves[k + 1]; ++j) {
            V flow = V::load(tile + j * LANES) * scale, slope = slope_of(flow, costs[j]);
            below = below + widen(flow);
            total.add(slope * flow);
            if (slope_sum) sum.add(slope);
            if (slopes) slope.store(slopes + j * LANES);
        }
        for (int64_t c = space.children[k]; c < space.children[k + 1]; ++c) {
            Double flow = Double::load(sums + c * LANES), slope = slope_of(flow, space.node_costs.doubles[c]);
            below = below + flow;
            node_total = slope * flow + node_total;
            if (slope_sum) node_sum = slope * Double(space.contents[c]) + node_sum;
            slope.store(sums + c * LANES);
        }
        below.store(sums + k * LANES);
    }
    Double(0.0).store(sums);
    if (slope_sum) *slope_sum = node_sum + sum.value();
    return node_total + total.value();
}

// Replace the slope of the edge above each node by the sum of all slopes between it and the root.
EW_INLINE void sum_slopes(const ew_space &space, double *sums) {
    for (int64_t k = 0; k < space.nodes; ++k) {
        Double above = Double::load(sums + k * LANES);
        for (int64_t c = space.children[k]; c < space.children[k + 1]; ++c)
            (Double::load(sums + c * LANES) + above).store(sums + c * LANES);
    }
}

// Replace the sums by their differences from `mean`, in the type of the data; they are moved to the front.
template <class T> EW_INLINE T *subtract_mean(const ew_space &space, double *sums, Double mean) {
    T *above = reinterpret_cast<T *>(sums);
    for (int64_t k = 0; k < space.nodes; ++k) narrow<T>(Double::load(sums + k * LANES) - mean).store(above + k * LANES);
    return above;
}

template <class T, int RHO> bool tree_pairs(const Task &task, int64_t t) {
    typedef Vector<T> V;
    const ew_space &space = *task.space;
    const Slope<RHO> slope_of(task.call->option);
    double *sums = static_cast<double *>(task.scratch);
    T *tile = reinterpret_cast<T *>(sums + space.nodes * LANES), *slopes = tile + space.bins * LANES;
    bool valid = load_differences(task, t, tile);
    Double slope_sum;
    Double total = sum_flows<T, RHO>(space, slope_of, tile, T(1), sums, RHO == 0 ? slopes : nullptr, &slope_sum);
    Rows rows(t, task.call->rows, space.bins);
    write_distances<T>(task, rows, total);
    if (!task.call->gradients) return valid;
    sum_slopes(space, sums);
    const T *above = subtract_mean<T>(space, sums, slope_sum * Double(1.0 / double(space.bins)));
    const T *costs = numbers<T>(space.costs);
    store_tile<T>(space, rows, task.call->gradients, [&](int64_t at) {
        int64_t leaf = at / LANES;
        V slope = RHO == 0 ? V::load(slopes + at) : slope_of(V::load(tile + at), costs[leaf]);
        return V::load(above + space.node_of[leaf] * LANES) + slope;
    });
    return valid;
}

} // namespace
