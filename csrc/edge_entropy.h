// Edge cross entropy: on which side of each edge is the label?
//
// With the mass s_e on the label's side of edge e, the loss is -sum_e w_e * log s_e. Its gradient with respect to the logit of
// bin j is p_j * (d(label, j) - sum of b_e over the edges with j on the label's side), where b_e = w_e * (1 - s_e) / s_e.
//
// On a tree, an edge is *light* if the mass below it is at most about 1/2, otherwise *heavy*; the heavy edges are a path
// down from the root. Most edges are light and not above the label, so that s_e = 1 - m_e: these are summed for all rows at
// once, the label's path and the heavy one for each row. The mass beyond a heavy edge is the sum of the light masses beside
// its path. Their b_e can be huge, so they are only ever added to each other, from the bottom up.

constexpr double HEAVY = 0.5 + 0x1p-10; // so that rounding cannot make two edges heavy that are not above each other

template <class T> struct TreeEdges {
    typedef Vector<T> V;
    LabelTile<T> rows;
    const ew_space space;
    const Tile<double> masses, sides; // of the nodes
    const Tile<T> tile;               // of the leaves: the exponentials
    const Tile<T> node_slopes;        // w / (1 - m)
    const V scale;                    // of the exponentials
    // Of each row: the loss, the sum of the slopes b, and what the edges above the label and the light edges contribute to the
    // gradient of every bin, over p, if all were on the far side of the former and on the label's side of the latter.
    Double loss, slope, constant;
    // The deepest heavy node (-1: none), and the leaf of that node that is heavy, if one is, and its mass.
    int64_t heavy_node[LANES], heavy_leaf[LANES];
    double heavy_share[LANES];

    explicit TreeEdges(Task &task)
        : rows(task), space(rows.space), masses(task, space.nodes), sides(task, space.nodes), tile(rows.tile),
          node_slopes(task, space.nodes), scale(narrow<T>(rows.exponentiate())) {
        for (int lane = 0; lane < LANES; ++lane) heavy_node[lane] = heavy_leaf[lane] = -1;
    }

    // Remember, for each row, the first heavy edge that is met. Deeper levels come first. Returns the light masses.
    template <class U> __attribute__((noinline)) Vector<U> note_heavy(Vector<U> mass, int64_t node, int64_t leaf) {
        const Scalars found(mass);
        for (int lane = 0; lane < LANES; ++lane) {
            if (found[lane] > U(HEAVY) && heavy_node[lane] < 0) {
                heavy_node[lane] = node;
                heavy_leaf[lane] = leaf;
                heavy_share[lane] = double(found[lane]);
            }
        }
        return select(mass > U(HEAVY), U(0), mass);
    }

    // Add up the losses and the slopes b of all light edges, as if the label were above each of them. Writes the mass of each
    // node to `masses`, and the light part of it, right below the node, to `sides`.
    EW_INLINE void sum_light_edges() {
        const T *costs = numbers<T>(space.costs), *node_costs = numbers<T>(space.node_costs);
        Sum<T> losses, slopes;
        for (int64_t k = space.nodes - 1; k >= 0; --k) {
            Sum<T> leaves;
            Sum<double> nodes;
            Double heavy = 0.0;
            const auto add = [&](auto mass, T cost, int64_t number, int64_t node, int64_t leaf, auto &light) EW_ALWAYS {
                const bool small = !any_above(mass, SMALL_MASS);
                if (__builtin_expect(!small && any_above(mass, HEAVY), 0)) {
                    const auto lighter = note_heavy(mass, node, leaf);
                    heavy = heavy + widen(mass - lighter);
                    mass = lighter;
                }
                light.add(number, mass);
                V inverse, v = narrow<T>(mass), log1m = small ? minus_log1m_of_small(v, inverse) : minus_log1m(v, inverse);
                losses.add(number, log1m * cost);
                slopes.add(number, inverse * v * cost);
                return inverse * cost;
            };
            each_in(space.leaves, k, [&](int64_t j) EW_ALWAYS { add(tile[j] * scale, costs[j], j, k, j, leaves); });
            each_in(space.children, k,
                    [&](int64_t c) EW_ALWAYS { node_slopes.set(c, add(masses[c], node_costs[c], c, c, -1, nodes)); });
            const Double light = nodes.value() + leaves.value();
            masses.set(k, light + heavy);
            sides.set(k, light);
        }
        loss = losses.value();
        slope = slopes.value();
        constant = 0.0 - slope;
    }

    // Add to `sides` of each heavy node the mass beyond it: all that is not below its heavy child.
    void sum_beside() {
        // Nodes are numbered level by level, and what is above a heavy node is heavy.
        for (int64_t k = 0, last = 0; k <= last; ++k)
            for (int64_t c = space.children[k]; c < space.children[k + 1]; ++c) {
                if (!any_above(masses[c], HEAVY)) continue;
                sides.set(c, sides[c] + sides[k]);
                last = c;
            }
    }

    // Add up the edges above the labels, in place of what they contribute as light edges. From here on the masses of the nodes
    // above them are negative.
    void follow_labels() {
        double cost[LANES], share[LANES], edge[LANES], own[LANES], beyond[LANES];
        store(widen(narrow<T>(rows.at_labels()) * scale), share); // rounded as where heavy edges were found
        for (int lane = 0; lane < LANES; ++lane) cost[lane] = space.costs.doubles[rows.leaf[lane]];
        const auto step = [&](int lane, int64_t node) EW_ALWAYS {
            edge[lane] = cost[lane];
            own[lane] = share[lane];
            beyond[lane] = sides.at(node, lane);
            cost[lane] = space.node_costs.doubles[node];
            share[lane] = masses.at(node, lane);
            masses.at(node, lane) = -share[lane];
            node_slopes.at(node, lane) = T(-cost[lane] / share[lane]);
        };
        rows.climb(step, [&]() EW_ALWAYS {
            const Double w = load(edge), s = load(own);
            const auto heavy = s > HEAVY;
            const Double v = select(heavy, load(beyond), s);
            Double inverse;
            const Double log1m = minus_log1m(v, inverse), odds = v * inverse, light = w * select(heavy, 0.0, odds);
            loss = loss + w * select(heavy, log1m, 0.0 - log1m - log(s));
            constant = constant + w + light;
            slope = slope + w * select(heavy, odds, (1.0 - s) / s) - light;
            store(Double(0.0), edge);
        });
    }

    // Add up the heavy edges that are not above the label. Writes to `sides`, for the root and each heavy node, the sum of
    // their slopes below that node.
    void follow_heavy() {
        double losses[LANES];
        for (int lane = 0; lane < LANES; ++lane) {
            double below = 0, sum = 0;
            const auto add = [&](double beyond, double cost) {
                sum -= cost * __builtin_log(beyond);
                below += cost * (1 - beyond) / beyond;
            };
            int64_t node = heavy_node[lane];
            const int64_t leaf = heavy_leaf[lane];
            if (leaf >= 0 && leaf != rows.leaf[lane]) add(sides.at(node, lane), space.costs.doubles[leaf]);
            for (; node > 0; node = space.parents[node]) {
                sides.at(node, lane) = below;
                if (masses.at(node, lane) > 0) add(sides.at(space.parents[node], lane), space.node_costs.doubles[node]);
            }
            sides.at(0, lane) = below;
            losses[lane] = sum;
        }
        loss = loss + load(losses);
        slope = slope + sides[0];
    }

    // From the root down, `masses` become the sums of w/s over the light edges above each node, less those above the label,
    // and `sides` the slopes of the heavy edges that are not above the node; the masses of the leaves become the gradients.
    EW_INLINE void sum_edges_from_root() {
        const T *costs = numbers<T>(space.costs);
        const V weights = narrow<T>(rows.weights());
        masses.set(0, 0.0);
        for (int64_t k = 0; k < space.nodes; ++k) {
            const Double above = masses[k], heavy = sides[k];
            each_in(space.children, k, [&](int64_t c) EW_ALWAYS {
                const Double mass = absolute(masses[c]);
                sides.set(c, __builtin_expect(any_above(mass, HEAVY), 0) ? select(mass > HEAVY, sides[c], heavy) : heavy);
                masses.set(c, above + widen(node_slopes[c]));
            });
            const V here = narrow<T>(constant + above - heavy);
            each_in(space.leaves, k, [&](int64_t j) EW_ALWAYS {
                const V p = tile[j] * scale, inverse = any_above(p, SMALL_MASS) ? T(1) / (T(1) - p) : inverse_of_small(p);
                tile.set(j, p * weights * (here + inverse * costs[j]));
            });
        }
    }

    // Overwrite the gradients at the heavy leaves: their edges are not above the bins on the label's side.
    void set_heavy_gradients() const {
        const Scalars here(constant);
        for (int lane = 0; lane < LANES; ++lane) {
            const int64_t leaf = heavy_leaf[lane];
            if (leaf < 0) continue;
            const double slope = here[lane] + masses.at(heavy_node[lane], lane) + space.costs.doubles[leaf];
            tile.at(leaf, lane) = T(slope * heavy_share[lane] * rows.weight[lane]);
        }
    }
};

template <class T> bool tree_edges(Task task) {
    TreeEdges<T> edges(task);
    const LabelTile<T> &rows = edges.rows;
    edges.sum_light_edges();
    edges.sum_beside();
    edges.follow_labels();
    edges.follow_heavy();
    rows.write_log_losses(edges.loss, edges.slope);
    if (!task.call->gradients) return rows.valid;
    edges.sum_edges_from_root();
    edges.set_heavy_gradients();
    return rows.write_gradients(0.0 - edges.slope * rows.shares());
}

template <class T> bool chain_edges(Task task) {
    typedef Vector<T> V;
    const ew_space space = *task.space;
    const int64_t bins = space.bins;
    LabelTile<T> rows(task);
    const Tile<T> tile = rows.tile, steps(task, bins), parts(task, bins);
    const V scale = narrow<T>(rows.exponentiate());
    Bits<T> labels[LANES]; // as wide as the numbers that comparisons with them select
    for (int lane = 0; lane < LANES; ++lane) labels[lane] = Bits<T>(rows.label[lane]);
    const auto label = load(labels);
    // The mass after each edge, from the last bin on.
    Double after = 0.0, before = 0.0, part = 0.0;
    for (int64_t j = bins - 1; j >= 0; --j) {
        const V p = tile[j] * scale;
        steps.set(j, narrow<T>(after));
        tile.set(j, p);
        after = after + widen(p);
    }
    // On the way to bin j the gradient changes at each edge by w if j moves away from the label, and by -b if j stays on its
    // side: `parts` are the sums over the edges before each bin, `steps` the changes at the edges after it.
    Sum<T> loss, slopes;
    for (int64_t i = 0; i < bins; ++i) {
        parts.set(i, narrow<T>(part));
        if (i == bins - 1) break;
        before = before + widen(tile[i]);
        const auto label_after = label > Bits<T>(i);
        const V left = narrow<T>(before), right = steps[i], cost = numbers<T>(space.costs)[i];
        V odds;
        loss.add(i, cost * minus_log(select(label_after, right, left), select(label_after, left, right), odds));
        const V slope = cost * odds, back = T(0) - slope;
        slopes.add(i, slope);
        part = part + widen(select(label_after, back, cost));
        steps.set(i, select(label_after, cost, back));
    }
    rows.write_log_losses(loss.value(), slopes.value());
    if (!task.call->gradients) return rows.valid;
    const V factor = narrow<T>(rows.weights());
    part = 0.0;
    steps.set(bins - 1, T(0));
    for (int64_t j = bins - 1; j >= 0; --j) {
        part = part + widen(steps[j]);
        tile.set(j, tile[j] * factor * (parts[j] + narrow<T>(part)));
    }
    return rows.write_gradients(0.0 - slopes.value() * rows.shares());
}
