// Hierarchical cross entropy: masses from the leaves up, then a question for each node above the label.
//
// With the masses m of the nodes v from the label up to the root and the weights w of the questions, the loss is
// -sum_v w_v * log(m_v / m_parent(v)). Its gradient with respect to the logit of bin j is p_j times the sum of
// (w_child - w_v) / m_v over those v that are above j too. Weights do not decrease on the way down, so all terms but that
// of the label are >= 0.

template <class T> bool tree_hierarchy(Task task) {
    const ew_space space = *task.space;
    LabelTile<T> rows(task);
    const Tile<T> tile = rows.tile;
    const Tile<double> masses(task, space.nodes), slopes(task, space.nodes);
    for (int64_t j = 0; j < space.bins; ++j) tile.set(j, rows.exponential(j));
    // The mass of each node; all masses are multiples of the sum of the exponentials.
    for (int64_t k = space.nodes - 1; k >= 0; --k) {
        Double below = 0.0;
        each_in(space.leaves, k, [&](int64_t j) EW_ALWAYS { below = below + widen(tile[j]); });
        each_in(space.children, k, [&](int64_t c) EW_ALWAYS { below = below + masses[c]; });
        masses.set(k, below);
        slopes.set(k, 0.0);
    }
    rows.set_total(masses[0]);
    // The loss, and its derivative with respect to the log-mass of each node above the label, over that mass.
    Double loss = 0.0;
    double weight[LANES], inside[LANES], mass[LANES], asked[LANES], at_label[LANES];
    store(rows.at_labels(), mass);
    for (int lane = 0; lane < LANES; ++lane) {
        weight[lane] = space.costs.doubles[rows.leaf[lane]];
        at_label[lane] = weight[lane] / mass[lane];
    }
    const auto step = [&](int lane, int64_t node) EW_ALWAYS {
        inside[lane] = mass[lane];
        asked[lane] = weight[lane];
        mass[lane] = masses.at(node, lane);
        weight[lane] = node > 0 ? space.node_costs.doubles[node] : 0.0;
        const double slope = (asked[lane] - weight[lane]) / mass[lane];
        slopes.at(node, lane) = slope;
        at_label[lane] -= slope;
    };
    rows.climb(step, [&]() EW_ALWAYS {
        loss = loss - load(asked) * log(load(inside) / load(mass));
        store(Double(0.0), asked);
    });
    rows.write_log_losses(loss, 0.0);
    if (!task.call->gradients) return rows.valid;
    const Vector<T> weights = narrow<T>(rows.weights());
    sum_from_root<T>(space, slopes, [&](int64_t j, Vector<T> here) EW_ALWAYS { tile.set(j, tile[j] * weights * here); });
    return rows.write_gradients(0.0 - load(at_label) * rows.at_labels());
}
