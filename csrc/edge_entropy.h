// Edge cross entropy: on which side of each edge is the label?
//
// With the mass s_e on the label's side of edge e, the loss is -sum_e w_e * log s_e, and its gradient with respect to the
// logit of bin j is p_j * (d(label, j) - sum of b_e over the edges that have j on the label's side), b_e = w_e * (1 - s_e) /
// s_e.
//
// On a tree, an edge is *light* if the mass below it is at most 1/2, otherwise *heavy*; the heavy edges are a path down
// from the root. Most edges are light and do not lie above the label, so that s_e = 1 - m_e: these are summed for all rows
// of a tile at once, the label's path and the heavy path for each row. The mass beyond a heavy edge is the sum of the light
// masses beside its path. Their b_e can be huge, so they are only ever added to each other, from the bottom of the path up.
#pragma once

#include "label_tile.h"

namespace {

// ---- tree -----------------------------------------------------------------------------------------------------------

template <class T> struct TreeEdges {
    typedef Vector<T> V;
    const ew_space space;
    const LabelTile<T> &rows;
    const Tile<double> masses, sides; // of the nodes
    const Tile<T> tile;               // of the leaves: p
    const Tile<T> odds;               // of the nodes: m / (1 - m)
    Double light_loss = 0.0, light_slope = 0.0;
    // Of each row: the loss of the edges above the label, less their part in `light_loss`; the sum of their slopes b; their
    // part in `light_slope`; their costs; the slopes of the heavy edges that are not above the label.
    Double path_loss = 0.0, path_slope = 0.0, path_light = 0.0, path_cost = 0.0;
    double heavy_loss[LANES], heavy_slope[LANES];
    // The deepest heavy node (-1: none), and the leaf of that node that is heavy, if one is, and its mass.
    int64_t heavy_node[LANES], heavy_leaf[LANES];
    double heavy_share[LANES];

    TreeEdges(const LabelTile<T> &rows, Tile<double> masses, Tile<double> sides, Tile<T> odds)
        : space(rows.space), rows(rows), masses(masses), sides(sides), tile(rows.tile), odds(odds) {
        for (int lane = 0; lane < LANES; ++lane) heavy_node[lane] = heavy_leaf[lane] = -1;
    }

    // Remember, for each row, the first heavy edge that is met. Deeper levels come first. Returns the light masses.
    template <class U> __attribute__((noinline)) Vector<U> note_heavy(Vector<U> mass, int64_t node, int64_t leaf) {
        U found[LANES];
        store(mass, found);
        for (int lane = 0; lane < LANES; ++lane) {
            if (found[lane] > U(0.5) && heavy_node[lane] < 0) {
                heavy_node[lane] = node;
                heavy_leaf[lane] = leaf;
                heavy_share[lane] = double(found[lane]);
            }
        }
        return select(mass > Vector<U>(U(0.5)), Vector<U>(U(0)), mass);
    }

    // Add up the losses and the slopes b of all light edges, as if the label were above each of them. Writes the mass of each
    // node to `masses`, and the light part of it, right below the node, to `sides`.
    EW_INLINE void sum_light_edges(V scale) {
        const T *costs = numbers<T>(space.costs), *node_costs = numbers<T>(space.node_costs);
        Sum<T> losses, slopes;
        for (int64_t k = space.nodes - 1; k >= 0; --k) {
            Double light = 0.0, heavy = 0.0;
            for (int64_t j = space.leaves[k]; j < space.leaves[k + 1]; ++j) {
                V v = tile[j] * scale, log1m, ratio;
                tile.set(j, v);
                if (__builtin_expect(any(v > V(T(SMALL_MASS))), 0)) {
                    if (any(v > V(T(0.5)))) {
                        const V lighter = note_heavy(v, k, j);
                        heavy = heavy + widen(v - lighter);
                        v = lighter;
                    }
                    log1m = minus_log1m(v, ratio);
                } else {
                    log1m = minus_log1m_of_small(v, ratio);
                }
                light = light + widen(v);
                losses.add(V(costs[j]) * log1m);
                slopes.add(V(costs[j]) * ratio);
            }
            for (int64_t c = space.children[k]; c < space.children[k + 1]; ++c) {
                Double mass = masses[c];
                if (__builtin_expect(any(mass > Double(0.5)), 0)) {
                    const Double lighter = note_heavy(mass, c, -1);
                    heavy = heavy + (mass - lighter);
                    mass = lighter;
                }
                light = light + mass;
                const V v = narrow<T>(mass);
                V ratio;
                losses.add(V(node_costs[c]) * minus_log1m(v, ratio));
                slopes.add(V(node_costs[c]) * ratio);
                odds.set(c, ratio);
            }
            masses.set(k, light + heavy);
            sides.set(k, light);
        }
        light_loss = losses.value();
        light_slope = slopes.value();
    }

    // Add to `sides` of each heavy node the mass beyond it: all that is not below its heavy child.
    void sum_beside() {
        for (int64_t k = 0; k < space.nodes; ++k)
            for (int64_t c = space.children[k]; c < space.children[k + 1]; ++c)
                if (any(masses[c] > Double(0.5))) sides.set(c, sides[c] + sides[k]);
    }

    // Add up the edges above the labels, in place of what they contribute as light edges. From here on the masses of the nodes
    // above them are negative. A row that has reached the root waits there for the others.
    void follow_labels() {
        int64_t node[LANES];
        double cost[LANES], share[LANES], beyond[LANES];
        for (int lane = 0; lane < LANES; ++lane) {
            node[lane] = space.node_of[rows.leaf[lane]];
            cost[lane] = space.costs.doubles[rows.leaf[lane]];
            share[lane] = double(tile.at(rows.leaf[lane], lane));
            beyond[lane] = sides.at(node[lane], lane);
        }
        for (bool climbing = true; climbing;) {
            add_path_edges(load(cost), load(share), load(beyond));
            climbing = false;
            for (int lane = 0; lane < LANES; ++lane) {
                const int64_t here = node[lane];
                cost[lane] = 0;
                share[lane] = 0.5;
                if (here == 0) continue;
                climbing = true;
                node[lane] = space.parents[here];
                cost[lane] = space.node_costs.doubles[here];
                share[lane] = masses.at(here, lane);
                beyond[lane] = sides.at(node[lane], lane);
                masses.at(here, lane) = -share[lane];
                odds.at(here, lane) = T(-1 / share[lane] - 1);
            }
        }
    }

    EW_INLINE void add_path_edges(Double cost, Double share, Double other) {
        const Mask64 heavy = share > Double(0.5);
        Double ratio;
        const Double log1m = minus_log1m(select(heavy, other, share), ratio);
        path_loss = path_loss + cost * select(heavy, log1m, Double(0.0) - log1m - log2(share) * Double(LN2));
        path_slope = path_slope + cost * select(heavy, ratio, (Double(1.0) - share) / share);
        path_light = path_light + select(heavy, 0.0, cost * ratio);
        path_cost = path_cost + cost;
    }

    // The loss and the slopes of the heavy edges that are not above the label. Writes to `sides`, for the root and each heavy
    // node, the sum of their slopes below that node.
    void follow_heavy() {
        for (int lane = 0; lane < LANES; ++lane) {
            double below = 0, sum = 0;
            const auto add = [&](double beyond, double cost) {
                sum -= cost * __builtin_log(beyond);
                below += cost * (1 - beyond) / beyond;
            };
            int64_t node = heavy_node[lane];
            const int64_t leaf = heavy_leaf[lane];
            if (leaf >= 0 && leaf != rows.leaf[lane]) add(sides.at(node, lane), space.costs.doubles[leaf]);
            while (node > 0) {
                const int64_t parent = space.parents[node];
                sides.at(node, lane) = below;
                if (masses.at(node, lane) > 0) add(sides.at(parent, lane), space.node_costs.doubles[node]);
                node = parent;
            }
            sides.at(0, lane) = below;
            heavy_loss[lane] = sum;
            heavy_slope[lane] = below;
        }
    }

    // From the root down, `masses` become the sums of w/s over the light edges above each node, less those above the label,
    // and `sides` the slopes of the heavy edges that are not above the node; the masses of the leaves become the gradients.
    EW_INLINE void sum_edges_from_root(Double constant) {
        const V factor = narrow<T>(rows.weights());
        masses.set(0, 0.0);
        for (int64_t k = 0; k < space.nodes; ++k) {
            const Double above = masses[k], heavy = sides[k];
            each_child(space, k, [&](int64_t c) EW_ALWAYS {
                // The odds of a heavy edge are 0; those of an edge above the label make its slope -w/s.
                const V slope = V(numbers<T>(space.node_costs)[c]) * (V(T(1)) + odds[c]);
                const Mask64 is_heavy = absolute(masses[c]) > Double(0.5);
                sides.set(c, __builtin_expect(any(is_heavy), 0) ? select(is_heavy, sides[c], heavy) : heavy);
                masses.set(c, above + widen(slope));
            });
            const V here = narrow<T>(constant + above - heavy);
            each_leaf(space, k, [&](int64_t j) EW_ALWAYS {
                const V p = tile[j];
                tile.set(j, p * factor * (here + V(numbers<T>(space.costs)[j]) * reciprocal(V(T(1)) - p)));
            });
        }
    }

    // Overwrite the gradients at the heavy leaves: their edges are not above the bins on the label's side.
    void set_heavy_gradients(Double constant) const {
        double constants[LANES];
        store(constant, constants);
        for (int lane = 0; lane < LANES; ++lane) {
            const int64_t leaf = heavy_leaf[lane];
            if (leaf < 0) continue;
            const double slope = constants[lane] + masses.at(heavy_node[lane], lane) + space.costs.doubles[leaf];
            T *row = static_cast<T *>(rows.call.gradients) + rows.rows.offsets[lane];
            row[space.bin_of[leaf]] = T(slope * heavy_share[lane] * rows.weight[lane]);
        }
    }
};

template <class T> bool tree_edges(const Task &task, int64_t t) {
    const ew_space space = *task.space;
    Memory memory(task);
    const Tile<double> masses = memory.take<double>(space.nodes), sides = memory.take<double>(space.nodes);
    const Tile<T> tile = memory.take<T>(space.bins), odds = memory.take<T>(space.nodes);
    LabelTile<T> rows(task, t, tile);
    rows.exponentiate();
    TreeEdges<T> edges(rows, masses, sides, odds);
    edges.sum_light_edges(narrow<T>(Double(1.0) / rows.total));
    edges.sum_beside();
    edges.follow_labels();
    edges.follow_heavy();
    rows.write_log_losses(edges.light_loss + edges.path_loss + load(edges.heavy_loss));
    if (!task.call->gradients) return rows.valid;
    const Double light = edges.light_slope - edges.path_light, constant = edges.path_cost - light;
    edges.sum_edges_from_root(constant);
    store_tile(space, tile, rows.rows, task.call->gradients);
    edges.set_heavy_gradients(constant);
    rows.write_label_gradients(Double(0.0) - (light + load(edges.heavy_slope) + edges.path_slope));
    return rows.valid;
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
    return log1m_series(s) - select(lighter, e * V(T(LN2)), T(0));
}

template <class T> bool chain_edges(const Task &task, int64_t t) {
    typedef Vector<T> V;
    const ew_space space = *task.space;
    const int64_t bins = space.bins;
    Memory memory(task);
    const Tile<T> tile = memory.take<T>(bins), steps = memory.take<T>(bins), parts = memory.take<T>(bins);
    LabelTile<T> rows(task, t, tile);
    rows.exponentiate();
    const V scale = narrow<T>(Double(1.0) / rows.total);
    const auto label = indices(rows.label, T());
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
        const auto label_after = label > i;
        const V left = narrow<T>(before), right = steps[i], cost = numbers<T>(space.costs)[i];
        V odds;
        loss.add(cost * minus_log(select(label_after, right, left), select(label_after, left, right), odds));
        const V slope = cost * odds, back = V(T(0)) - slope;
        slopes.add(slope);
        part = part + widen(select(label_after, back, cost));
        steps.set(i, select(label_after, cost, back));
    }
    rows.write_log_losses(loss.value());
    if (!task.call->gradients) return rows.valid;
    const V factor = narrow<T>(rows.weights());
    steps.set(bins - 1, T(0));
    store_from_end<T>(bins, rows.rows, task.call->gradients, 0.0, [&](int64_t j, Double &part) EW_ALWAYS {
        part = part + widen(steps[j]);
        return tile[j] * factor * (parts[j] + narrow<T>(part));
    });
    rows.write_label_gradients(Double(0.0) - slopes.value());
    return rows.valid;
}

} // namespace
