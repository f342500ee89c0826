// The cost of moving the softmax of each row to its label, and its gradient with respect to the logits.
//
// With the slope g of the cost in each bin, the derivative is p * (g - <p, g>). By Euler's theorem on homogeneous functions
// <p, g> is rho times the cost plus the slope at the label, so at the label it is -p * rho * cost.

template <class T, int RHO> bool chain_labels(Task task) {
    const ew_space space = *task.space;
    const Slope<T, RHO> slope_of(task.call->option);
    LabelTile<T> rows(task);
    const Tile<T> tile = rows.tile;
    const Tile<double> sums(task, space.bins); // of the exponentials up to each bin, then of the slopes of the edges before it
    rows.take_out_labels();
    Double others = 0.0, cost = 0.0, slopes = 0.0;
    for (int64_t j = 0; j < space.bins; ++j) {
        const Vector<T> e = rows.exponential(j);
        tile.set(j, e);
        others = others + widen(e);
        sums.set(j, others);
    }
    const Double scale = rows.set_total(others + rows.at_labels());
    const auto label = load(rows.label);
    for (int64_t j = 0; j < space.bins; ++j) {
        const Double flow = (sums[j] - select(label > j, 0.0, others)) * scale;
        const Double slope = slope_of.of_sum(flow, space.costs.doubles[j]);
        cost = slope * flow + cost;
        sums.set(j, slopes);
        slopes = slopes + slope;
    }
    rows.write_losses(cost * (1 / task.call->option));
    if (!task.call->gradients) return rows.valid;
    double at_label[LANES];
    for (int lane = 0; lane < LANES; ++lane) at_label[lane] = sums.at(rows.label[lane], lane);
    const Double above = load(at_label) - cost;
    const Vector<T> factor = narrow<T>(rows.weights() * scale);
    return rows.write_gradients(0.0 - cost * rows.shares(),
                                [&](int64_t j) EW_ALWAYS { return tile[j] * factor * narrow<T>(above - sums[j]); });
}

template <class T, int RHO> bool tree_labels(Task task) {
    const ew_space space = *task.space;
    const Slope<T, RHO> slope_of(task.call->option);
    const T *costs = numbers<T>(space.costs);
    LabelTile<T> rows(task);
    const Tile<T> tile = rows.tile, slopes(task, space.bins);
    const Tile<double> sums(task, space.nodes);
    rows.take_out_labels();
    for (int64_t j = 0; j < space.bins; ++j) tile.set(j, rows.exponential(j));
    // Up to the nodes all numbers are multiples of the sum of the exponentials.
    Sum<T> leaf_costs;
    for (int64_t k = space.nodes - 1; k >= 0; --k) {
        Sum<T> leaves;
        each_in(space.leaves, k, [&](int64_t j) EW_ALWAYS {
            const Vector<T> e = tile[j], slope = slope_of.of_mass(e, costs[j]);
            leaves.add(j, e);
            leaf_costs.add(j, slope * e);
            if (KEEPS_SLOPES<RHO>) slopes.set(j, slope);
        });
        Double below = leaves.value();
        each_in(space.children, k, [&](int64_t c) EW_ALWAYS { below = below + sums[c]; });
        sums.set(k, below);
    }
    // What has to move to the label flows down from the root to it.
    const Double others = sums[0], scale = rows.set_total(others + rows.at_labels()), to_label = 0.0 - others * scale;
    const Scalars outside(others);
    double edge[LANES], above[LANES] = {};
    for (int lane = 0; lane < LANES; ++lane) edge[lane] = space.costs.doubles[rows.leaf[lane]];
    rows.climb([&](int lane, int64_t k) EW_ALWAYS { sums.at(k, lane) -= outside[lane]; }, []() {});
    const Double edge_slope = slope_of(to_label, 1.0) * load(edge), unit = slope_of(scale, 1.0) * (1 / task.call->option);
    Double cost = edge_slope * to_label + leaf_costs.value() * scale * unit;
    for (int64_t k = 1; k < space.nodes; ++k) {
        const Double flow = sums[k] * scale, slope = slope_of.of_sum(flow, space.node_costs.doubles[k]);
        cost = slope * flow + cost;
        sums.set(k, slope);
    }
    rows.write_losses(cost * (1 / task.call->option));
    if (!task.call->gradients) return rows.valid;
    rows.climb([&](int lane, int64_t k) EW_ALWAYS { above[lane] += sums.at(k, lane); }, []() {});
    sums.set(0, 0.0 - (cost + edge_slope + load(above)));
    const Vector<T> share = narrow<T>(scale), factor = narrow<T>(rows.weights() * scale), units = narrow<T>(unit);
    sum_from_root<T>(space, sums, [&](int64_t j, Vector<T> here) EW_ALWAYS {
        const Vector<T> e = tile[j], slope = KEEPS_SLOPES<RHO> ? slopes[j] * units : slope_of.of_mass(e * share, costs[j]);
        tile.set(j, e * factor * (here + slope));
    });
    return rows.write_gradients(0.0 - cost * rows.shares());
}
