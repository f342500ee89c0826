// Hierarchical cross entropy: masses from the leaves up, then a question for each node above the label.
//
// With the masses m of the nodes v from the label up to the root and the weights w of the questions, the loss is
// -sum_v w_v * log(m_v / m_parent(v)). Its gradient with respect to the logit of bin j is p_j times the sum of
// (w_child - w_v) / m_v over those v that are above j too. Weights do not decrease on the way down, so all terms but that
// of the label are >= 0.
#pragma once

#include "label_tile.h"

namespace {

template <class T> bool tree_hierarchy(Task task) {
    const ew_space space = *task.space;
    LabelTile<T> rows(task);
    const Tile<T> tile = rows.tile;
    const Tile<double> masses(task, space.nodes), slopes(task, space.nodes);
    rows.exponentiate();
    // The mass of each node, as a multiple of the sum of the exponentials.
    for (int64_t k = space.nodes - 1; k >= 0; --k) {
        Double below = 0.0;
        each_leaf(space, k, [&](int64_t j) EW_ALWAYS { below = below + widen(tile[j]); });
        each_child(space, k, [&](int64_t c) EW_ALWAYS { below = below + masses[c]; });
        masses.set(k, below);
        slopes.set(k, 0.0);
    }
    // The loss, and its derivative with respect to the log-mass of each node above the label, over that mass.
    const Double scale = 1.0 / rows.total;
    double scales[LANES], at_label[LANES];
    LogSums logs;
    store(scale, scales);
    for (int lane = 0; lane < LANES; ++lane) {
        double weight = space.costs.doubles[rows.leaf[lane]], mass = rows.share[lane];
        at_label[lane] = 0.0 - weight;
        for (int64_t node = space.node_of[rows.leaf[lane]]; node >= 0; node = space.parents[node]) {
            const double outer = masses.at(node, lane) * scales[lane], next = node > 0 ? space.node_costs.doubles[node] : 0.0;
            const double share = mass / outer, slope = (weight - next) / outer;
            logs.add(lane, weight, share, 1 - share);
            slopes.at(node, lane) = slope;
            at_label[lane] += slope * rows.share[lane];
            weight = next;
            mass = outer;
        }
    }
    rows.write_log_losses(logs.sums());
    if (!task.call->gradients) return rows.valid;
    const Double factor = scale * rows.weights();
    sum_from_root(space, slopes, [&](int64_t k, Double sum) EW_ALWAYS {
        const Vector<T> here = narrow<T>(sum * factor);
        each_leaf(space, k, [&](int64_t j) EW_ALWAYS { tile.set(j, tile[j] * here); });
    });
    rows.write_gradients(load(at_label));
    return rows.valid;
}

} // namespace
