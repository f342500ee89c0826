// The expected distance from each bin to a bin drawn from each row.
//
// Crossing an edge brings the mass on its far side nearer and the rest farther away.

// The masses of a tile, in place of which the expected distances of all bins are stored.
template <class T> Tile<T> load_masses(Task &task) {
    const Tile<T> tile(task, task.space->bins);
    load_tile(*task.space, task.call->first, Rows(task, task.call->first_stride), tile);
    return tile;
}
template <class T> bool store_results(const Task &task, Tile<T> tile) {
    store_tile(*task.space, tile, Rows(task, task.space->bins), task.call->gradients);
    return true;
}

// exp or powers of numbers, which tests compare with exact ones.
template <class T> bool exp_or_power(Task task) {
    const Tile<T> tile = load_masses<T>(task);
    const Exponent<T> y(task.call->option);
    for (int64_t j = 0; j < task.space->bins; ++j) tile.set(j, task.call->option == 0 ? exp(tile[j]) : power(tile[j], y));
    return store_results(task, tile);
}

template <class T> bool chain_expected(Task task) {
    const ew_space space = *task.space;
    const Tile<T> tile = load_masses<T>(task);
    Double mass = 0.0, total = 0.0, before = 0.0;
    double position = 0;
    for (int64_t j = 0; j < space.bins; position += space.costs.doubles[j++]) {
        const Double here = widen(tile[j]);
        mass = mass + here;
        total = here * position + total;
    }
    for (int64_t j = 0; j < space.bins; ++j) {
        before = before + widen(tile[j]);
        tile.set(j, narrow<T>(total));
        total = (before + before - mass) * space.costs.doubles[j] + total;
    }
    return store_results(task, tile);
}

// From sums of masses and of moments before each bin and before its far side.
template <class T> bool ring_expected(Task task) {
    const ew_space space = *task.space;
    const int64_t bins = space.bins;
    const Tile<T> tile = load_masses<T>(task);
    const Tile<double> masses(task, bins + 1), moments(task, bins + 1);
    Double mass = 0.0, moment = 0.0;
    for (int64_t j = 0; j < bins; ++j) {
        masses.set(j, mass);
        moments.set(j, moment);
        const Double here = widen(tile[j]);
        mass = mass + here;
        moment = here * space.positions[j] + moment;
    }
    masses.set(bins, mass);
    moments.set(bins, moment);
    const double length = space.positions[bins];
    for (int64_t j = 0; j < bins; ++j) {
        const int64_t far = space.far_sides[j];
        const double x = space.positions[j], sign = space.signs[j];
        const Double forwards = moments[far] - moments[j];
        Double expected = forwards + forwards - moment * sign;
        expected = masses[j] * (2 * x) + expected;
        expected = masses[far] * (-2 * x - sign * length) + expected;
        expected = mass * (sign * x + (sign > 0 ? length : 0.0)) + expected;
        tile.set(j, narrow<T>(expected));
    }
    return store_results(task, tile);
}

template <class T> bool tree_expected(Task task) {
    const ew_space space = *task.space;
    const Tile<T> tile = load_masses<T>(task);
    const Tile<double> sums(task, space.nodes);
    // Upwards: the mass of each subtree, and the expected distance to the root.
    Double total = 0.0;
    for (int64_t k = space.nodes - 1; k >= 0; --k) {
        Double below = 0.0;
        each_in(space.leaves, k, [&](int64_t j) EW_ALWAYS {
            const Double inside = widen(tile[j]);
            below = below + inside;
            total = inside * space.costs.doubles[j] + total;
        });
        each_in(space.children, k, [&](int64_t c) EW_ALWAYS {
            below = below + sums[c];
            total = sums[c] * space.node_costs.doubles[c] + total;
        });
        sums.set(k, below);
    }
    const Double mass = sums[0];
    for (int64_t k = 1; k < space.nodes; ++k) sums.set(k, (mass - (sums[k] + sums[k])) * space.node_costs.doubles[k]);
    sums.set(0, total);
    const T *costs = numbers<T>(space.costs);
    const Vector<T> all = narrow<T>(mass);
    sum_from_root<T>(space, sums,
                     [&](int64_t j, Vector<T> here) EW_ALWAYS { tile.set(j, (all - (tile[j] + tile[j])) * costs[j] + here); });
    return store_results(task, tile);
}
