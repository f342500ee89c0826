// The cost of moving the masses of one row to those of another, and its gradient.
#pragma once

#include "slopes.h"
#include "tile.h"

namespace {

// ---- differences ----------------------------------------------------------------------------------------------------

// Load the differences of rows into a tile, and add up what is needed to check their masses. Only the difference in mass has
// to be exact: the mass itself and the sum of all sizes multiply tolerances.
template <class T> struct DifferenceLoader {
    typedef Vector<T> V;
    typedef typename Register<T>::Type R;
    const ew_space &space;
    const T *p, *q;
    const Rows &p_rows, &q_rows;
    T *tile;
    Double excess = 0.0;
    V size = T(0), mass = T(0), minimum = T(0);
    // Of whole registers, before they are transposed: masses of parts of each row, and minima of any rows.
    R masses[LANES] = {}, least = {};

    template <int N> EW_INLINE void operator()(int64_t j, int64_t repeated) {
        V x[N];
        if constexpr (N == WIDTH<T>) {
            if (repeated)
                load_wide<true>(j, repeated, x);
            else
                load_wide<false>(j, 0, x);
        } else {
            V y[N];
            load_block<N>(p, p_rows.offsets, j, x);
            load_block<N>(q, q_rows.offsets, j, y);
            for (int i = 0; i < N; ++i) {
                minimum = select(minimum > x[i], x[i], minimum);
                minimum = select(minimum > y[i], y[i], minimum);
                x[i] = x[i] - y[i];
                if (i >= repeated) mass = mass + y[i];
            }
        }
#pragma GCC unroll 16
        for (int i = 0; i < N; ++i) {
            x[i].store(tile + offset_of(space, j + i));
            if (i < repeated) continue;
            excess = excess + widen(x[i]);
            size = size + absolute(x[i]);
        }
    }

    // The difference of two blocks, which is taken before it is transposed.
    template <bool OVERLAPS> EW_INLINE void load_wide(int64_t j, int64_t repeated, V *columns) {
        constexpr int N = WIDTH<T>;
        R counted = {};
        if constexpr (OVERLAPS)
            for (int i = 0; i < N; ++i) counted[i] = i < repeated ? T(0) : T(1);
#pragma GCC unroll 2
        for (int h = 0; h < PARTS<T>; ++h) {
            R v[N];
#pragma GCC unroll 16
            for (int i = 0; i < N; ++i) {
                const int row = h * N + i;
                R a = load_register<R>(p + p_rows.offsets[row] + j), b = load_register<R>(q + q_rows.offsets[row] + j);
                least = a < least ? a : least;
                least = b < least ? b : least;
                v[i] = a - b;
                masses[row] += OVERLAPS ? b * counted : b;
            }
            transpose<N, N>(v);
#pragma GCC unroll 16
            for (int i = 0; i < N; ++i) part(columns[i], h) = v[i];
        }
    }

    // Bring together what was added up in different ways.
    EW_INLINE void finish() {
        constexpr int N = WIDTH<T>;
        for (int h = 0; h < PARTS<T>; ++h) {
            transpose<N, N>(masses + h * N);
            for (int i = 0; i < N; ++i) part(mass, h) += masses[h * N + i];
        }
        T lowest = 0;
        for (int i = 0; i < N; ++i) lowest = least[i] < lowest ? least[i] : lowest;
        minimum = select(minimum > V(lowest), V(lowest), minimum);
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
    loader.finish();
    const Double rounding = 32 * (sizeof(T) == 4 ? 0x1p-23 : 0x1p-52), bins = double(space.bins);
    Double shift = select(absolute(loader.excess) > rounding * widen(loader.size), loader.excess / bins, 0.0);
    double excess[LANES], mass[LANES], minimum[LANES], shifts[LANES];
    loader.excess.store(excess);
    widen(loader.mass).store(mass);
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
    const double *costs = space.costs.doubles;
    T *tile = static_cast<T *>(task.scratch);
    bool valid = load_differences(task, t, tile);
    Double flow = 0.0, weighted = 0.0, total = 0.0;
    for (int64_t j = 0; j < space.bins - 1; ++j) {
        flow = flow + widen(V::load(tile + j * LANES));
        const Double slope = slope_of_sum<T>(slope_of, flow, costs[j]);
        total = slope * flow + total;
        weighted = slope * Double(double(j + 1)) + weighted;
        narrow<T>(slope).store(tile + j * LANES);
    }
    Rows rows(t, task.call->rows, space.bins);
    write_distances<T>(task, rows, total);
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

// The flow over each edge from the leaves up: rho * cost of all edges, and the sum of all bins' slopes. Leaves the slope of the
// edge above each node in `sums`. If not
// null, `slopes` gets those of the leaves. The tile is multiplied by `scale`; what `sums` hold is added to the flow of each node.
template <class T, int RHO>
EW_INLINE Double sum_flows(const ew_space &space, const Slope<RHO> &slope_of, const T *tile, Vector<T> scale, double *sums,
                           T *slopes, Double *slope_sum) {
    typedef Vector<T> V;
    const T *costs = numbers<T>(space.costs);
    const double *node_costs = space.node_costs.doubles;
    Sum<T> sum, leaf_total;
    Double total = 0.0, node_sum = 0.0;
    if constexpr (KEEPS_SLOPES<RHO>) {
        for (int64_t j = 0; j < space.bins; ++j) {
            const V flow = V::load(tile + j * LANES) * scale, slope = slope_of(flow, costs[j]);
            slope.store(slopes + j * LANES);
            if (slope_sum) sum.add(slope);
            total = widen(slope) * widen(flow) + total;
        }
    }
    for (int64_t k = space.nodes - 1; k >= 0; --k) {
        Double below = Double::load(sums + k * LANES);
        for (int64_t j = space.leaves[k]; j < space.leaves[k + 1]; ++j) {
            const V flow = V::load(tile + j * LANES) * scale;
            below = below + widen(flow);
            if constexpr (!KEEPS_SLOPES<RHO>) {
                const V slope = slope_of(flow, costs[j]);
                if (slope_sum) sum.add(slope);
                leaf_total.add(slope * flow);
            }
        }
        for (int64_t c = space.children[k]; c < space.children[k + 1]; ++c) {
            const Double flow = Double::load(sums + c * LANES), slope = slope_of_sum<T>(slope_of, flow, node_costs[c]);
            below = below + flow;
            total = slope * flow + total;
            if (slope_sum) node_sum = slope * Double(space.contents[c]) + node_sum;
            slope.store(sums + c * LANES);
        }
        below.store(sums + k * LANES);
    }
    Double(0.0).store(sums);
    if (slope_sum) *slope_sum = node_sum + sum.value();
    return total + leaf_total.value();
}

// Replace the slope of the edge above each node by the sum of all slopes between it and the root.
EW_INLINE void sum_slopes(const ew_space &space, double *sums) {
    for (int64_t k = 0; k < space.nodes; ++k) {
        Double above = Double::load(sums + k * LANES);
        for (int64_t c = space.children[k]; c < space.children[k + 1]; ++c)
            (Double::load(sums + c * LANES) + above).store(sums + c * LANES);
    }
}

template <class T, int RHO> bool tree_pairs(const Task &task, int64_t t) {
    typedef Vector<T> V;
    const ew_space &space = *task.space;
    const Slope<RHO> slope_of(task.call->option);
    double *sums = static_cast<double *>(task.scratch);
    T *tile = reinterpret_cast<T *>(sums + space.nodes * LANES), *slopes = tile + space.bins * LANES;
    bool valid = load_differences(task, t, tile);
    for (int64_t k = 0; k < space.nodes; ++k) Double(0.0).store(sums + k * LANES);
    Double slope_sum;
    Double total = sum_flows<T, RHO>(space, slope_of, tile, T(1), sums, KEEPS_SLOPES<RHO> ? slopes : nullptr, &slope_sum);
    Rows rows(t, task.call->rows, space.bins);
    write_distances<T>(task, rows, total);
    if (!task.call->gradients) return valid;
    sum_slopes(space, sums);
    const T *above = narrowed<T>(space, sums, slope_sum * Double(1.0 / double(space.bins)));
    const T *costs = numbers<T>(space.costs);
    store_tile<T>(space, rows, task.call->gradients, [&](int64_t at) {
        int64_t leaf = at / LANES;
        V slope = KEEPS_SLOPES<RHO> ? V::load(slopes + at) : slope_of(V::load(tile + at), costs[leaf]);
        return V::load(above + int64_t(space.node_of[leaf]) * LANES) + slope;
    });
    return valid;
}

} // namespace
