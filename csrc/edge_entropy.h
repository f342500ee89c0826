// Edge cross entropy: on which side of each edge is the label?
//
// With the mass s_e on the label's side of edge e, the loss is -sum_e w_e * log s_e, and its gradient with respect to the
// logit of bin j is p_j * (d(label, j) - sum of b_e over the edges that have j on the label's side), b_e = w_e * (1 - s_e) / s_e.
//
// On a tree, an edge is *light* if the mass below it is at most 1/2, otherwise *heavy*; the heavy edges are a path down
// from the root. Most edges are light and do not lie above the label, so that s_e = 1 - m_e: these are summed for all rows
// of a tile at once, the label's path and the heavy path for each row. The mass beyond a heavy edge is the sum of the light
// masses beside its path. Their b_e can be huge, so they are only ever added to each other, from the bottom of the path up.
#pragma once

#include "softmax.h"

namespace {

// ---- tree -----------------------------------------------------------------------------------------------------------

template <class T> struct TreeEdges {
    typedef Vector<T> V;
    const ew_space &space;
    const Labels &labels;
    double *masses, *sides; // of the nodes
    T *tile, *odds;         // of the leaves: p, and p / (1 - p)
    T *node_odds;           // of the nodes: m / (1 - m)
    Double loss = 0.0, light_slopes = 0.0;
    // Of each row: the loss of the edges above the label, less their part in `loss`; the sum of their slopes b; their part
    // in `light_slopes`; their costs; the slopes of the heavy edges that are not above the label.
    Double path_loss = 0.0, path_slope = 0.0, path_light = 0.0, path_cost = 0.0;
    double heavy_loss[LANES], heavy_slope[LANES];
    // The deepest heavy node (-1: none), and the leaf of that node that is heavy, if one is, and its mass.
    int64_t heavy_node[LANES], heavy_leaf[LANES];
    double heavy_share[LANES];

    TreeEdges(const ew_space &space, const Labels &labels, double *sums, T *tile, T *odds)
        : space(space), labels(labels), masses(sums), sides(sums + space.nodes * LANES), tile(tile), odds(odds),
          node_odds(odds + space.bins * LANES) {
        for (int lane = 0; lane < LANES; ++lane) heavy_node[lane] = heavy_leaf[lane] = -1;
    }

    // Remember, for each row, the first heavy edge that is met. Deeper levels come first.
    template <class U> void note_heavy(const U *mass, int64_t node, int64_t leaf) {
        for (int lane = 0; lane < LANES; ++lane) {
            if (mass[lane] > U(0.5) && heavy_node[lane] < 0) {
                heavy_node[lane] = node;
                heavy_leaf[lane] = leaf;
                heavy_share[lane] = double(mass[lane]);
            }
        }
    }

    // The loss and the slopes b of all light edges, as if the label were above each of them. Writes the mass of each node to
    // `masses`, and the light part of it, right below the node, to `sides`.
    EW_INLINE void sum_light_edges(V scale) {
        const T *costs = numbers<T>(space.costs);
        Sum<T> losses, slopes;
        for (int64_t k = space.nodes - 1; k >= 0; --k) {
            Double light = 0.0, heavy = 0.0;
            for (int64_t j = space.leaves[k]; j < space.leaves[k + 1]; ++j) {
                V v = V::load(tile + j * LANES) * scale, ratio;
                v.store(tile + j * LANES);
                if (__builtin_expect(any_above(v, T(0.5)), 0)) {
                    note_heavy(tile + j * LANES, k, j);
                    V lighter = select(v > V(T(0.5)), T(0), v);
                    heavy = heavy + widen(v - lighter);
                    v = lighter;
                }
                light = light + widen(v);
                losses.add(V(costs[j]) * minus_log1m(v, ratio));
                slopes.add(V(costs[j]) * ratio);
                ratio.store(odds + j * LANES);
            }
            for (int64_t c = space.children[k]; c < space.children[k + 1]; ++c) {
                Double mass = Double::load(masses + c * LANES);
                if (__builtin_expect(any_above(mass, 0.5), 0)) {
                    note_heavy(masses + c * LANES, c, -1);
                    Double lighter = select(mass > Double(0.5), 0.0, mass);
                    heavy = heavy + (mass - lighter);
                    mass = lighter;
                }
                light = light + mass;
                V ratio, cost = numbers<T>(space.node_costs)[c];
                losses.add(cost * minus_log1m(narrow<T>(mass), ratio));
                slopes.add(cost * ratio);
                ratio.store(node_odds + c * LANES);
            }
            (light + heavy).store(masses + k * LANES);
            light.store(sides + k * LANES);
        }
        loss = losses.value();
        light_slopes = slopes.value();
    }

    // Add to `sides` of each heavy node the mass beyond it: all that is not below its heavy child.
    void sum_beside() {
        for (int64_t k = 0; k < space.nodes; ++k)
            for (int64_t c = space.children[k]; c < space.children[k + 1]; ++c)
                if (any_above(Double::load(masses + c * LANES), 0.5))
                    (Double::load(sides + c * LANES) + Double::load(sides + k * LANES)).store(sides + c * LANES);
    }

    // Add up the edges above the labels, in place of what they contribute as light edges. From here on the masses below them
    // are negative. A row that has reached the root waits there for the others.
    void follow_labels() {
        int64_t node[LANES];
        double cost[LANES], share[LANES], beyond[LANES];
        bool climbing = false;
        for (int lane = 0; lane < LANES; ++lane) {
            int64_t leaf = labels.place[lane] / LANES;
            node[lane] = space.node_of[leaf];
            cost[lane] = space.costs.doubles[leaf];
            share[lane] = double(tile[labels.place[lane]]);
            beyond[lane] = sides[node[lane] * LANES + lane];
            tile[labels.place[lane]] = T(-share[lane]);
            climbing = climbing || node[lane] > 0;
        }
        add_path_edges(cost, share, beyond);
        while (climbing) {
            climbing = false;
            for (int lane = 0; lane < LANES; ++lane) {
                int64_t here = node[lane];
                if (here == 0) {
                    cost[lane] = 0;
                    share[lane] = 0.5;
                    continue;
                }
                node[lane] = space.parents[here];
                cost[lane] = space.node_costs.doubles[here];
                share[lane] = masses[here * LANES + lane];
                beyond[lane] = sides[node[lane] * LANES + lane];
                masses[here * LANES + lane] = -share[lane];
                node_odds[here * LANES + lane] = T(-1 / share[lane] - 1);
                climbing = climbing || node[lane] > 0;
            }
            add_path_edges(cost, share, beyond);
        }
    }

    EW_INLINE void add_path_edges(const double *costs, const double *shares, const double *others) {
        const Double cost = Double::load(costs), share = Double::load(shares), half = 0.5, zero = 0.0;
        const Mask64 heavy = share > half;
        Double odds_of, least = select(heavy, Double::load(others), share);
        Double log1m = minus_log1m(least, odds_of);
        path_loss = path_loss + cost * select(heavy, log1m, zero - log1m - log2(share) * Double(LN2));
        path_slope = path_slope + cost * select(heavy, odds_of, (Double(1.0) - share) / share);
        path_light = path_light + select(heavy, zero, cost * odds_of);
        path_cost = path_cost + cost;
    }

    // The loss and the slopes of the heavy edges that are not above the label. Writes to `sides`, for the root and each heavy
    // node, the sum of their slopes below that node.
    void follow_heavy() {
        for (int lane = 0; lane < LANES; ++lane) {
            int64_t node = heavy_node[lane], leaf = heavy_leaf[lane];
            double below = 0, sum = 0;
            if (leaf >= 0 && leaf * LANES + lane != labels.place[lane]) {
                double beyond = sides[node * LANES + lane], cost = space.costs.doubles[leaf];
                sum -= cost * __builtin_log(beyond);
                below = cost * (1 - beyond) / beyond;
            }
            while (node > 0) {
                int64_t parent = space.parents[node];
                sides[node * LANES + lane] = below;
                if (masses[node * LANES + lane] > 0) {
                    double beyond = sides[parent * LANES + lane], cost = space.node_costs.doubles[node];
                    sum -= cost * __builtin_log(beyond);
                    below += cost * (1 - beyond) / beyond;
                }
                node = parent;
            }
            sides[lane] = below;
            heavy_loss[lane] = sum;
            heavy_slope[lane] = below;
        }
    }

    EW_INLINE Double losses() const { return loss + path_loss + Double::load(heavy_loss); }

    // From the root down, `masses` become the sums of w/s over the light edges above each node, less those above the label,
    // and `sides` the slopes of the heavy edges that are not above the node; then `sides` what is common to its leaves.
    EW_INLINE const T *sum_from_root(Double constant) {
        Double(0.0).store(masses);
        T *common = reinterpret_cast<T *>(sides);
        for (int64_t k = 0; k < space.nodes; ++k) {
            const Double above = Double::load(masses + k * LANES), heavy = Double::load(sides + k * LANES);
            for (int64_t c = space.children[k]; c < space.children[k + 1]; ++c) {
                // The odds of a heavy edge are 0; those of an edge above the label make its slope -w/s.
                const V slope = V(numbers<T>(space.node_costs)[c]) * (V(T(1)) + V::load(node_odds + c * LANES));
                const Double size = absolute(Double::load(masses + c * LANES));
                Double others = heavy;
                if (__builtin_expect(any_above(size, 0.5), 0))
                    others = select(size > Double(0.5), Double::load(sides + c * LANES), heavy);
                (above + widen(slope)).store(masses + c * LANES);
                others.store(sides + c * LANES);
            }
            narrow<T>(constant + above - heavy).store(common + k * LANES);
        }
        return common;
    }

    // Overwrite the gradients at the heavy leaves: their edges are not above the bins on the label's side.
    void set_heavy_gradients(T *gradients, const Rows &rows, Double constant) const {
        double constants[LANES];
        constant.store(constants);
        for (int lane = 0; lane < LANES; ++lane) {
            int64_t leaf = heavy_leaf[lane];
            if (leaf < 0) continue;
            double slope = constants[lane] + masses[heavy_node[lane] * LANES + lane] + space.costs.doubles[leaf];
            gradients[rows.offsets[lane] + space.bin_of[leaf]] = T(slope * heavy_share[lane] * labels.weight[lane]);
        }
    }
};

template <class T> bool tree_edges(const Task &task, int64_t t) {
    typedef Vector<T> V;
    const ew_space &space = *task.space;
    const ew_call &call = *task.call;
    double *sums = static_cast<double *>(task.scratch);
    T *tile = reinterpret_cast<T *>(sums + 2 * space.nodes * LANES), *odds = tile + space.bins * LANES;
    V largest = load_tile(space, static_cast<const T *>(call.first), Rows(t, call.rows, call.first_stride), tile);
    Rows rows(t, call.rows, space.bins);
    Labels labels(task, rows);
    Double exps = exponentials(tile, space.bins, largest);
    set_shares(labels, tile, exps);
    TreeEdges<T> edges(space, labels, sums, tile, odds);
    edges.sum_light_edges(narrow<T>(Double(1.0) / exps));
    edges.sum_beside();
    edges.follow_labels();
    edges.follow_heavy();
    write_log_losses<T>(task, rows, labels, edges.losses());
    if (!call.gradients) return labels.valid;
    const Double light = edges.light_slopes - edges.path_light, constant = edges.path_cost - light;
    const Double slopes = light + Double::load(edges.heavy_slope) + edges.path_slope;
    const T *common = edges.sum_from_root(constant), *costs = numbers<T>(space.costs);
    const V factor = narrow<T>(labels.weights());
    store_tile<T>(space, rows, call.gradients, [&](int64_t at) {
        int64_t leaf = at / LANES;
        V slope = V::load(common + int64_t(space.node_of[leaf]) * LANES) + V(costs[leaf]) * (V(T(1)) + V::load(odds + at));
        return V::load(tile + at) * factor * slope;
    });
    edges.set_heavy_gradients(static_cast<T *>(call.gradients), rows, constant);
    set_label_gradients<T>(task, rows, labels, Double(0.0) - slopes * labels.shares() * labels.weights());
    return labels.valid;
}

// ---- chain ----------------------------------------------------------------------------------------------------------

// -log(own) for own + other = 1, accurate where either is tiny; and other / own.
template <class T> EW_INLINE Vector<T> minus_log(Vector<T> own, Vector<T> other, Vector<T> &odds) {
    typedef Vector<T> V;
    const auto lighter = other > own; // is the label's side
    const V one = T(1), v = select(lighter, own, other);
    V m, e = exponent(own, m) - V(Format<T>::big);
    // Either -log(1 - v), by s = v/(2 - v), or -log(v), by the mantissa m of v.
    V s = select(lighter, one - m, v) / select(lighter, one + m, one + (one - v));
    odds = other / own;
    return log1m_polynomial(s) - select(lighter, e * V(T(LN2)), T(0));
}

template <class T> bool chain_edges(const Task &task, int64_t t) {
    typedef Vector<T> V;
    const ew_space &space = *task.space;
    const ew_call &call = *task.call;
    const int64_t bins = space.bins;
    const T *costs = numbers<T>(space.costs);
    T *tile = static_cast<T *>(task.scratch), *steps = tile + bins * LANES, *parts = steps + bins * LANES;
    V largest = load_tile(space, static_cast<const T *>(call.first), Rows(t, call.rows, call.first_stride), tile);
    Rows rows(t, call.rows, bins);
    Labels labels(task, rows);
    Double exps = exponentials(tile, bins, largest);
    set_shares(labels, tile, exps);
    const V scale = narrow<T>(Double(1.0) / exps);
    const Index<T> label(labels.label);
    // The mass after each edge, from the last bin on.
    Double after = 0.0, before = 0.0, part = 0.0;
    for (int64_t j = bins - 1; j >= 0; --j) {
        narrow<T>(after).store(steps + j * LANES);
        V p = V::load(tile + j * LANES) * scale;
        p.store(tile + j * LANES);
        after = after + widen(p);
    }
    // On the way to bin j the gradient changes at each edge by w if j moves away from the label, and by -b if j stays on its
    // side: `parts` are the sums over the edges before each bin, `steps` the changes at the edges after it.
    Sum<T> loss, slopes;
    for (int64_t i = 0; i < bins - 1; ++i) {
        narrow<T>(part).store(parts + i * LANES);
        before = before + widen(V::load(tile + i * LANES));
        const auto label_after = label > i;
        const V left = narrow<T>(before), right = V::load(steps + i * LANES), cost = costs[i];
        V odds;
        loss.add(cost * minus_log(select(label_after, right, left), select(label_after, left, right), odds));
        const V slope = cost * odds, back = V(T(0)) - slope;
        slopes.add(slope);
        part = part + widen(select(label_after, back, cost));
        select(label_after, cost, back).store(steps + i * LANES);
    }
    narrow<T>(part).store(parts + (bins - 1) * LANES);
    write_log_losses<T>(task, rows, labels, loss.value());
    if (!call.gradients) return labels.valid;
    const V factor = narrow<T>(labels.weights());
    part = 0.0;
    for (int64_t j = bins - 1; j >= 0; --j) {
        const V slope = V::load(parts + j * LANES) + narrow<T>(part);
        (V::load(tile + j * LANES) * factor * slope).store(tile + j * LANES);
        if (j > 0) part = part + widen(V::load(steps + (j - 1) * LANES));
    }
    store_tile<T>(space, rows, call.gradients, [&](int64_t at) { return V::load(tile + at); });
    set_label_gradients<T>(task, rows, labels, Double(0.0) - slopes.value() * labels.shares() * labels.weights());
    return labels.valid;
}

} // namespace
