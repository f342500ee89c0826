// The cost of moving the softmax of each row to its label, and its gradient with respect to the logits.
//
// With the slope g of the cost in each bin, the derivative is p * (g - <p, g>). By Euler's theorem on homogeneous functions
// <p, g> is rho times the cost plus the slope at the label, so at the label it is -p * rho * cost.

// The exponentials of a tile as probabilities in the type of the data. Rounding the factor 1/sum multiplies all of them by a
// number near 1, `excess`; distances count from `excess` at the label, and are corrected for it in the end.
template <class T> struct Softmax {
    Vector<T> scale, factor; // factor: scale, weight and correction
    Double excess, at_label; // the probability of the label less 1, both times `excess`
    Double correction;       // what a distance has to be multiplied by

    // Sets the exponentials at the labels to 0: what moves there is kept in double precision.
    EW_INLINE explicit Softmax(LabelTile<T> &rows) {
        double exponential[LANES];
        rows.exponentiate();
        for (int lane = 0; lane < LANES; ++lane) {
            exponential[lane] = double(rows.tile.at(rows.leaf[lane], lane));
            rows.tile.at(rows.leaf[lane], lane) = 0;
        }
        scale = narrow<T>(1.0 / rows.total);
        excess = rows.total * widen(scale);
        at_label = (load(exponential) - rows.total) * widen(scale);
        correction = 1.0 + (1.0 - excess) * rows.call.option;
        factor = narrow<T>(rows.weights() * correction * widen(scale));
    }
};

template <class T, int RHO> bool chain_labels(Task task) {
    const ew_space space = *task.space;
    const Slope<T, RHO> slope_of(task.call->option);
    LabelTile<T> rows(task);
    const Tile<T> tile = rows.tile, slopes(task, space.bins);
    const Softmax<T> softmax(rows);
    const auto label = load(rows.label);
    Double before = 0.0, cost = 0.0, after = 0.0;
    for (int64_t j = 0; j < space.bins; ++j) {
        before = before + widen(tile[j] * softmax.scale);
        const auto label_after = label > j;
        const Double flow = before + select(label_after, 0.0, softmax.at_label);
        const Double slope = slope_of.of_sum(flow, space.costs.doubles[j]);
        cost = slope * flow + cost;
        after = after + select(label_after, 0.0, slope);
        slopes.set(j, narrow<T>(slope));
    }
    rows.write_losses(cost * softmax.correction * (1 / task.call->option));
    if (!task.call->gradients) return rows.valid;
    Double above = 0.0 - (cost / softmax.excess + after);
    return rows.write_gradients(0.0 - cost * softmax.correction * rows.shares(), [&](int64_t j) EW_ALWAYS {
        above = above + widen(slopes[j]);
        return tile[j] * softmax.factor * narrow<T>(above);
    });
}

template <class T, int RHO> bool tree_labels(Task task) {
    const ew_space space = *task.space;
    const Slope<T, RHO> slope_of(task.call->option);
    const T *costs = numbers<T>(space.costs);
    LabelTile<T> rows(task);
    const Tile<T> tile = rows.tile, slopes(task, space.bins);
    const Tile<double> sums(task, space.nodes);
    const Softmax<T> softmax(rows);
    // The label of each row goes to the sum of the node above it, and its edge is added to the cost.
    const Scalars flow(softmax.at_label);
    double edge[LANES], above[LANES] = {};
    for (int64_t k = 0; k < space.nodes; ++k) sums.set(k, 0.0);
    for (int lane = 0; lane < LANES; ++lane) {
        edge[lane] = space.costs.doubles[rows.leaf[lane]];
        sums.at(space.node_of[rows.leaf[lane]], lane) = flow[lane];
    }
    const Double edge_slope = slope_of(softmax.at_label, 1.0) * load(edge);
    const Double cost = edge_slope * softmax.at_label + sum_flows(space, slope_of, tile, softmax.scale, sums, slopes, nullptr);
    rows.write_losses(cost * softmax.correction * (1 / task.call->option));
    if (!task.call->gradients) return rows.valid;
    for (int lane = 0; lane < LANES; ++lane)
        for (int64_t k = space.node_of[rows.leaf[lane]]; k > 0; k = space.parents[k]) above[lane] += sums.at(k, lane);
    sums.set(0, 0.0 - (cost / softmax.excess + edge_slope + load(above)));
    sum_from_root<T>(space, sums, [&](int64_t j, Vector<T> here) EW_ALWAYS {
        const Vector<T> e = tile[j], slope = KEEPS_SLOPES<RHO> ? slopes[j] : slope_of(e * softmax.scale, costs[j]);
        tile.set(j, e * softmax.factor * (here + slope));
    });
    return rows.write_gradients(0.0 - cost * softmax.correction * rows.shares());
}
