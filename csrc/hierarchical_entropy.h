// Hierarchical cross entropy: masses from the leaves up, then a question for each node above the label.
//
// With the masses m of the nodes v from the label up to the root and the weights w of the questions, the loss is
// -sum_v w_v * log(m_v / m_parent(v)). Its gradient with respect to the logit of bin j is p_j times the sum of
// (w_child - w_v) / m_v over those v that are above j too. Weights do not decrease on the way down, so all terms but that
// of the label are >= 0.
#pragma once

#include "label_tile.h"

namespace {

template <class T> bool tree_hierarchy(const Task &task, int64_t t) {
    const ew_space space = *task.space;
    Memory memory(task);
    const Tile<double> masses = memory.take<double>(space.nodes), slopes = memory.take<double>(space.nodes);
    const Tile<T> tile = memory.take<T>(space.bins);
    LabelTile<T> rows(task, t, tile);
    rows.exponentiate();
    // The mass of each node, as a multiple of the sum of the exponentials.
    for (int64_t k = space.nodes - 1; k >= 0; --k) {
        Double below = 0.0;
        each_leaf(space, k, [&](int64_t j) EW_ALWAYS { below = below + widen(tile[j]); });
        each_child(space, k, [&](int64_t c) EW_ALWAYS { below = below + masses[c]; });
        masses.set(k, below);
        slopes.set(k, 0.0);
    }
    const Double scale = Double(1.0) / rows.total;
    double scales[LANES], at_label[LANES], weight[LANES], inside[LANES], mass[LANES], asked[LANES];
    int64_t node[LANES];
    store(scale, scales);
    for (int lane = 0; lane < LANES; ++lane) {
        node[lane] = space.node_of[rows.leaf[lane]];
        weight[lane] = space.costs.doubles[rows.leaf[lane]];
        mass[lane] = rows.share[lane];
        at_label[lane] = weight[lane] / mass[lane];
    }
    // The loss, and its derivative with respect to the log-mass of each node above the label, over that mass. A row that is
    // past the root waits for the others.
    Double loss = 0.0;
    for (bool climbing = true; climbing;) {
        climbing = false;
        for (int lane = 0; lane < LANES; ++lane) {
            const int64_t here = node[lane];
            inside[lane] = mass[lane];
            asked[lane] = weight[lane];
            if (here < 0) continue;
            mass[lane] = masses.at(here, lane) * scales[lane];
            weight[lane] = here > 0 ? space.node_costs.doubles[here] : 0.0;
            const double slope = (asked[lane] - weight[lane]) / mass[lane];
            slopes.at(here, lane) = slope;
            at_label[lane] -= slope;
            node[lane] = space.parents[here];
            climbing = climbing || node[lane] >= 0;
        }
        loss = loss - load(asked) * log2(load(inside) / load(mass));
    }
    rows.write_log_losses(loss * Double(LN2));
    if (!task.call->gradients) return rows.valid;
    const Double factor = scale * rows.weights();
    sum_from_root(space, slopes, [&](int64_t k, Double sum) EW_ALWAYS {
        const Vector<T> here = narrow<T>(sum * factor);
        each_leaf(space, k, [&](int64_t j) EW_ALWAYS { tile.set(j, tile[j] * here); });
    });
    rows.write_gradients(Double(0.0) - load(at_label));
    return rows.valid;
}

} // namespace
