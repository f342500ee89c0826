// Hierarchical cross entropy: masses from the leaves up, then a question for each node above the label.
//
// With the masses m of the nodes v from the label up to the root and the weights w of the questions, the loss is
// -sum_v w_v * log(m_v / m_parent(v)). Its gradient with respect to the logit of bin j is p_j times the sum of
// (w_child - w_v) / m_v over those v that are above j too. Weights do not decrease on the way down, so all terms but that
// of the label are >= 0.
#pragma once

#include "softmax.h"

namespace {

template <class T> bool tree_hierarchy(const Task &task, int64_t t) {
    typedef Vector<T> V;
    const ew_space &space = *task.space;
    const ew_call &call = *task.call;
    double *masses = static_cast<double *>(task.scratch), *slopes = masses + space.nodes * LANES;
    T *tile = reinterpret_cast<T *>(slopes + space.nodes * LANES);
    V largest = load_tile(space, static_cast<const T *>(call.first), Rows(t, call.rows, call.first_stride), tile);
    Rows rows(t, call.rows, space.bins);
    Labels labels(task, rows);
    Double exps = exponentials(tile, space.bins, largest);
    set_shares(labels, tile, exps);
    // The mass of each node, as a multiple of the sum of the exponentials.
    for (int64_t k = space.nodes - 1; k >= 0; --k) {
        Double below = 0.0;
        for (int64_t j = space.leaves[k]; j < space.leaves[k + 1]; ++j) below = below + widen(V::load(tile + j * LANES));
        for (int64_t c = space.children[k]; c < space.children[k + 1]; ++c) below = below + Double::load(masses + c * LANES);
        below.store(masses + k * LANES);
        Double(0.0).store(slopes + k * LANES);
    }
    const Double share = Double(1.0) / exps;
    double shares[LANES], at_label[LANES], weight[LANES], inside[LANES], mass[LANES], asked[LANES];
    int64_t node[LANES];
    share.store(shares);
    for (int lane = 0; lane < LANES; ++lane) {
        int64_t leaf = labels.place[lane] / LANES;
        node[lane] = space.node_of[leaf];
        weight[lane] = space.costs.doubles[leaf];
        mass[lane] = labels.share[lane];
        at_label[lane] = weight[lane] / mass[lane];
    }
    // The loss, and its derivative with respect to the log-mass of each node above the label, over that mass. A row that is
    // past the root waits for the others.
    Double loss = 0.0;
    for (bool climbing = true; climbing;) {
        climbing = false;
        for (int lane = 0; lane < LANES; ++lane) {
            int64_t here = node[lane];
            inside[lane] = mass[lane];
            asked[lane] = weight[lane];
            if (here < 0) continue;
            mass[lane] = masses[here * LANES + lane] * shares[lane];
            weight[lane] = here > 0 ? space.node_costs.doubles[here] : 0.0;
            slopes[here * LANES + lane] = (asked[lane] - weight[lane]) / mass[lane];
            node[lane] = space.parents[here];
            climbing = climbing || node[lane] >= 0;
        }
        loss = loss - Double::load(asked) * log2(Double::load(inside) / Double::load(mass));
    }
    loss = loss * Double(LN2);
    write_log_losses<T>(task, rows, labels, loss);
    if (!call.gradients) return labels.valid;
    for (int64_t k = 0; k < space.nodes; ++k) {
        Double above = Double::load(slopes + k * LANES);
        for (int64_t c = space.children[k]; c < space.children[k + 1]; ++c)
            (Double::load(slopes + c * LANES) + above).store(slopes + c * LANES);
    }
    for (int lane = 0; lane < LANES; ++lane)
        at_label[lane] -= slopes[int64_t(space.node_of[labels.place[lane] / LANES]) * LANES + lane];
    const T *above = narrowed<T>(space, slopes, 0.0, labels.weights());
    const V scale = narrow<T>(share);
    store_tile<T>(space, rows, call.gradients, [&](int64_t at) {
        return V::load(tile + at) * scale * V::load(above + int64_t(space.node_of[at / LANES]) * LANES);
    });
    set_label_gradients<T>(task, rows, labels, Double(0.0) - Double::load(at_label) * labels.shares() * labels.weights());
    return labels.valid;
}

} // namespace
