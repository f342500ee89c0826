// The cost of moving the masses of one row to those of another, and its gradient.

// Whether slopes take so long that those of leaves are kept, and powers are computed in the type of the data.
template <int RHO> constexpr bool KEEPS_SLOPES = RHO == ANY || RHO == THREE_HALVES;

// The derivative of the cost of an edge: rho * w * sgn(flow) * |flow|^(rho - 1), 0 at flow = 0. Times the flow it is rho
// times the cost.
template <class T, int RHO> struct Slope {
    const double rho;
    const std::pair<Exponent<float>, Exponent<double>> exponents;
    EW_INLINE explicit Slope(double rho) : rho(rho), exponents(rho - 1, rho - 1) {}

    template <class U> EW_INLINE Vector<U> operator()(Vector<U> flow, U cost) const {
        if constexpr (RHO == TWO) return of_mass(flow, cost);
        // NaN is propagated.
        if constexpr (RHO == ONE) return select(absolute(flow) > U(0), with_sign(Vector<U>(cost), flow), flow * U(0));
        if constexpr (KEEPS_SLOPES<RHO>) return with_sign(of_mass(absolute(flow), cost), flow);
    }

    // The slope for a flow >= 0 that it will be multiplied by, so that at 0 any finite slope will do.
    template <class U> EW_INLINE Vector<U> of_mass(Vector<U> mass, U cost) const {
        if constexpr (RHO == ONE) return cost;
        if constexpr (RHO == TWO) return mass * (cost + cost);
        if constexpr (RHO == THREE_HALVES) return square_root(mass) * (U(1.5) * cost);
        if constexpr (RHO == ANY) return power(mass, std::get<Exponent<U>>(exponents)) * (U(rho) * cost);
    }

    // The slope for a flow that is a sum, and thus a double.
    EW_INLINE Double of_sum(Double flow, double cost) const {
        if constexpr (KEEPS_SLOPES<RHO>)
            return widen((*this)(narrow<T>(flow), T(cost)));
        else
            return (*this)(flow, cost);
    }
};

// The differences of the rows of a tile.
template <class T> struct Differences {
    typedef Vector<T> V;
    const ew_space space;
    const ew_call &call;
    const T *const p, *const q;
    const Rows p_rows, q_rows, results;
    V size;            // the sums of their absolute values
    Register<T> least; // the least of all masses, or 0

    EW_INLINE explicit Differences(const Task &task)
        : space(*task.space), call(*task.call), p(static_cast<const T *>(call.first)), q(static_cast<const T *>(call.second)),
          p_rows(task, call.first_stride), q_rows(task, call.second_stride), results(task, space.bins) {}

    // Call f(j, difference) for every bin in turn.
    template <class F> EW_INLINE void each(F f) {
        V sum = T(0);
        Register<T> lowest = {};
        const auto read = [&](auto columns, int64_t j, int i) EW_ALWAYS {
            const Register<T> a = gather<WIDTH<T>>(columns, p + j, p_rows.offsets + i);
            const Register<T> b = gather<WIDTH<T>>(columns, q + j, q_rows.offsets + i);
            lowest = a < lowest ? a : lowest;
            lowest = b < lowest ? b : lowest;
            return a - b;
        };
        load_columns<T, true>(space.bins, read, [&](int64_t j, V x) EW_ALWAYS {
            sum = sum + absolute(x);
            f(j, x);
        });
        size = sum;
        least = lowest;
    }

    // Load them into a tile; returns their sums.
    __attribute__((noinline)) Double load_into(Tile<T> tile) {
        Double excess = 0.0;
        each([&](int64_t j, V x) EW_ALWAYS {
            tile.set(leaf_of(space.places, j), x);
            excess = excess + widen(x);
        });
        return excess;
    }

    // A difference in mass that is more than rounding is spread over all bins: what has to be subtracted from each of them.
    EW_INLINE Double shift(Double excess) const {
        const double rounding = 32 * (sizeof(T) == 4 ? 0x1p-23 : 0x1p-52);
        return select(absolute(excess) > widen(size) * rounding, excess / double(space.bins), 0.0);
    }

    EW_INLINE void write_costs(Double total) const {
        const Scalars values(total * (1 / call.option));
        for (int lane = 0; lane < LANES; ++lane) static_cast<T *>(call.values)[results.index[lane]] = T(values[lane]);
    }

    // Whether the masses are >= 0, finite and equal in sum.
    bool are_valid(Double excess) const {
        const Scalars excesses(excess), sizes(widen(size));
        bool valid = true;
        for (int i = 0; i < WIDTH<T>; ++i) valid = valid && least[i] >= 0;
        for (int lane = 0; lane < LANES && valid; ++lane) {
            // All masses together are at least `size`, so that half of it is a lower bound of the larger sum. All
            // comparisons are false for NaN.
            const double difference = __builtin_fabs(excesses[lane]), bound = sizes[lane] / 2;
            if (difference <= call.tolerance * bound && bound < __builtin_inf()) continue;
            double mass = excesses[lane] > 0 ? excesses[lane] : 0.0;
            for (int64_t j = 0; j < space.bins; ++j) mass += double(q[q_rows.offsets[lane] + j]);
            valid = difference <= call.tolerance * mass && mass < __builtin_inf();
        }
        return valid;
    }
};

template <class T, int RHO> bool chain_pairs(Task task) {
    const ew_space space = *task.space;
    const Slope<T, RHO> slope_of(task.call->option);
    const Tile<double> before(task, space.bins); // the sums of the slopes of the edges before each bin
    Differences<T> rows(task);
    Double flow = 0.0, slopes = 0.0, sums = 0.0, total = 0.0;
    const auto add = [&](int64_t j, Double x) EW_ALWAYS {
        before.set(j, slopes);
        sums = sums + slopes;
        flow = flow + x;
        const Double slope = slope_of.of_sum(flow, space.costs.doubles[j]);
        total = slope * flow + total;
        slopes = slopes + slope;
    };
    rows.each([&](int64_t j, Vector<T> x) EW_ALWAYS { add(j, widen(x)); });
    const Double excess = flow, shift = rows.shift(excess);
    if (any_above(absolute(shift), 0.0)) {
        const Tile<T> tile(task, space.bins);
        rows.load_into(tile);
        flow = slopes = sums = total = 0.0;
        for (int64_t j = 0; j < space.bins; ++j) add(j, widen(tile[j]) - shift);
    }
    rows.write_costs(total);
    if (task.call->gradients) {
        const Double mean = sums / double(space.bins);
        store_columns<T>(space.bins, rows.results, task.call->gradients,
                         [&](int64_t j) EW_ALWAYS { return narrow<T>(mean - before[j]); });
    }
    return rows.are_valid(excess);
}

template <class T, int RHO> bool tree_pairs(Task task) {
    const ew_space space = *task.space;
    const Slope<T, RHO> slope_of(task.call->option);
    const T *costs = numbers<T>(space.costs);
    const Tile<double> sums(task, space.nodes);
    const Tile<T> tile(task, space.bins), slopes(task, space.bins);
    Differences<T> rows(task);
    const Double excess = rows.load_into(tile), shift = rows.shift(excess);
    if (any_above(absolute(shift), 0.0))
        for (int64_t j = 0; j < space.bins; ++j) tile.set(j, narrow<T>(widen(tile[j]) - shift));
    // The flow over each edge from the leaves up, rho * cost of all edges, and the sum of the slopes of all bins.
    Sum<T> leaf_total, leaf_slopes;
    Double total = 0.0, node_slopes = 0.0;
    for (int64_t k = space.nodes - 1; k >= 0; --k) {
        Double below = 0.0;
        each_in(space.leaves, k, [&](int64_t j) EW_ALWAYS {
            const Vector<T> flow = tile[j], slope = slope_of(flow, costs[j]);
            below = below + widen(flow);
            leaf_total.add(j, slope * flow);
            leaf_slopes.add(j, slope);
            if (KEEPS_SLOPES<RHO>) slopes.set(j, slope);
        });
        each_in(space.children, k, [&](int64_t c) EW_ALWAYS {
            const Double flow = sums[c], slope = slope_of.of_sum(flow, space.node_costs.doubles[c]);
            below = below + flow;
            total = slope * flow + total;
            node_slopes = slope * space.contents[c] + node_slopes;
            sums.set(c, slope);
        });
        sums.set(k, below);
    }
    rows.write_costs(total + leaf_total.value());
    if (task.call->gradients) {
        sums.set(0, (node_slopes + leaf_slopes.value()) * (-1.0 / double(space.bins)));
        sum_from_root<T>(space, sums, [&](int64_t j, Vector<T> here) EW_ALWAYS {
            tile.set(j, here + (KEEPS_SLOPES<RHO> ? slopes[j] : slope_of(tile[j], costs[j])));
        });
        store_tile(space, tile, rows.results, task.call->gradients);
    }
    return rows.are_valid(excess);
}
