// Cross entropy against soft labels.
//
// The soft label of bin j is the product of h_e = exp(-beta * w_e / diameter) over the edges between j and the label,
// divided by the sum of these products over all bins. Products are built from the label outwards, so they cannot overflow,
// and those that underflow do not count. The loss needs no logarithm but that of the softmax's sum, so it is finite for any
// finite logits. In place of costs the space holds the factors h_e.

// Write losses and gradients. `each(f)` calls f(j, product) for every bin, whose product is in any case 1 at the label;
// `missing` is what the sums of the products and of the products times the logits lack.
template <class T, class F> EW_INLINE bool finish(LabelTile<T> &rows, F each, Double missing, Double missing_dots) {
    typedef Vector<T> V;
    const Tile<T> tile = rows.tile;
    const double smoothing = rows.call.option, sharpness = 1 - smoothing, even = smoothing / double(rows.space.bins);
    // Of each row: the products, the products times the logits, and the logits, which count from the largest one.
    Sum<T> products, dots, logits;
    Double exponentials = 0.0;
    each([&](int64_t j, V product) EW_ALWAYS {
        const V x = tile[j] - rows.largest, e = rows.exponential(j);
        products.add(j, product);
        dots.add(j, product * x);
        if (smoothing > 0) logits.add(j, x);
        exponentials = exponentials + widen(e);
        tile.set(j, e);
    });
    rows.set_total(exponentials);
    const Double sum = products.value() + missing, dot = dots.value() + missing_dots;
    Double loss = log(exponentials) - dot * sharpness / sum;
    if (smoothing > 0) loss = loss - logits.value() * even;
    rows.write_losses(loss);
    if (!rows.call.gradients) return rows.valid;
    const Double weights = rows.weights(), soft = sharpness / sum;
    const V p = narrow<T>(weights / exponentials), q = narrow<T>(weights * soft), rest = narrow<T>(weights * even);
    each([&](int64_t j, V product) EW_ALWAYS { tile.set(j, tile[j] * p - (product * q + rest)); });
    return rows.write_gradients(rows.shares() - soft - even);
}

template <class T> bool tree_soft_labels(Task task) {
    const ew_space space = *task.space;
    const double *node_factors = space.node_costs.doubles;
    LabelTile<T> rows(task);
    // The product of the factors between each node and the label; of the nodes above the label first.
    const Tile<double> reach(task, space.nodes);
    for (int64_t k = 0; k < space.nodes; ++k) reach.set(k, -1.0);
    const Scalars highest(widen(rows.largest));
    double missing[LANES], dots[LANES];
    for (int lane = 0; lane < LANES; ++lane) {
        const int64_t leaf = rows.leaf[lane];
        double product = space.costs.doubles[leaf];
        // The way from the label to itself is not by its parent.
        missing[lane] = 1 - product * product;
        dots[lane] = missing[lane] > 0 ? missing[lane] * (double(rows.tile.at(leaf, lane)) - highest[lane]) : 0.0;
        for (int64_t node = space.node_of[leaf]; node >= 0; product *= node_factors[node], node = space.parents[node])
            reach.at(node, lane) = product;
    }
    for (int64_t k = 0; k < space.nodes; ++k) {
        const Double here = reach[k];
        each_in(space.children, k,
                [&](int64_t c) EW_ALWAYS { reach.set(c, select(0.0 > reach[c], here * node_factors[c], reach[c])); });
    }
    const auto each = [&](auto f) EW_ALWAYS {
        for (int64_t k = 0; k < space.nodes; ++k) {
            const Vector<T> product = narrow<T>(reach[k]);
            each_in(space.leaves, k, [&](int64_t j) EW_ALWAYS { f(j, product * numbers<T>(space.costs)[j]); });
        }
    };
    return finish(rows, each, load(missing), load(dots));
}

template <class T> bool chain_soft_labels(Task task) {
    const ew_space space = *task.space;
    const double *factors = space.costs.doubles;
    LabelTile<T> rows(task);
    const Tile<T> reach(task, space.bins);
    const auto label = load(rows.label);
    // The products from the label back, 1 after it; then those from the label on, 1 before it.
    Double product = 1.0;
    for (int64_t j = space.bins - 1; j >= 0; --j) {
        if (j < space.bins - 1) product = select(label > j, product * factors[j], 1.0);
        reach.set(j, narrow<T>(product));
    }
    product = 1.0;
    for (int64_t j = 1; j < space.bins; ++j) {
        product = select(label > j - 1, 1.0, product * factors[j - 1]);
        reach.set(j, narrow<T>(product) * reach[j]);
    }
    const auto each = [&](auto f) EW_ALWAYS {
        for (int64_t j = 0; j < space.bins; ++j) f(j, reach[j]);
    };
    return finish(rows, each, 0.0, 0.0);
}
