// What the losses against class indices share: softmax, labels and weights, and what is written for each row.
#pragma once

#include "tile.h"

namespace {

// The class index, weight and probability of each row of a tile. A row that does not count has class 0 and weight 0.
struct Labels {
    bool valid = true;
    int64_t label[LANES], place[LANES]; // place: of the label in the tile
    double share[LANES], weight[LANES];

    Labels(const Task &task, const Rows &rows) {
        const ew_space &space = *task.space;
        const ew_call &call = *task.call;
        for (int lane = 0; lane < LANES; ++lane) {
            // Another thread may write to the labels meanwhile, so the value that is checked must be the value that is
            // used: an atomic load is never repeated by the compiler.
            int64_t found = __atomic_load_n(static_cast<const int64_t *>(call.second) + rows.index(lane), __ATOMIC_RELAXED);
            bool inside = 0 <= found && found < space.bins, counts = inside && found != call.ignore;
            valid = valid && (inside || found == call.ignore);
            label[lane] = counts ? found : 0;
            place[lane] = offset_of(space, label[lane]) + lane;
            weight[lane] = counts ? task.scale * (call.weights ? call.weights[label[lane]] : 1.0) : 0.0;
        }
    }

    EW_INLINE Double weights() const { return Double::load(weight); }
    EW_INLINE Double shares() const { return Double::load(share); }
    EW_INLINE bool counts(int lane) const { return weight[lane] != 0; }
};

// Replace the logits of a tile by the exponentials of their distances from the largest of their row; returns their sums.
template <class T> EW_INLINE Double exponentials(T *tile, int64_t bins, Vector<T> largest) {
    Double total = 0.0;
    for (int64_t j = 0; j < bins; ++j) {
        Vector<T> e = exp(Vector<T>::load(tile + j * LANES) - largest);
        e.store(tile + j * LANES);
        total = total + widen(e);
    }
    return total;
}

// Fill in the probabilities of the labels.
template <class T> EW_INLINE void set_shares(Labels &labels, const T *tile, Double total) {
    double sums[LANES];
    total.store(sums);
    for (int lane = 0; lane < LANES; ++lane) labels.share[lane] = double(tile[labels.place[lane]]) / sums[lane];
}

// The exponentials as probabilities in the type of the data. Rounding the factor 1/sum multiplies all of them by a number near
// 1, `excess`; the distances of kernels count from `excess` at the label, and are corrected for it in the end.
template <class T> struct Softmax {
    Vector<T> scale;
    Double excess, at_label; // the probability of the label less 1, both times `excess`

    // Sets the exponentials at the labels to 0: what moves there is kept in double precision.
    EW_INLINE Softmax(const Labels &labels, T *tile, Double total) {
        double exponential[LANES];
        for (int lane = 0; lane < LANES; ++lane) {
            exponential[lane] = double(tile[labels.place[lane]]);
            tile[labels.place[lane]] = 0;
        }
        scale = narrow<T>(Double(1.0) / total);
        excess = total * widen(scale);
        at_label = (Double::load(exponential) - total) * widen(scale);
    }
    // What a distance of exponent rho has to be multiplied by.
    EW_INLINE Double correction(double rho) const { return Double(1.0) + Double(rho) * (Double(1.0) - excess); }
};

// Write the weighted losses of a tile: 0 for a row that does not count, even if its logits are NaN.
template <class T> EW_INLINE void write_losses(const Task &task, const Rows &rows, const Labels &labels, Double losses) {
    double values[LANES];
    (losses * labels.weights()).store(values);
    for (int lane = 0; lane < LANES; ++lane)
        static_cast<T *>(task.call->values)[rows.index(lane)] = T(labels.counts(lane) ? values[lane] : 0.0);
}

// The same for losses that were computed from masses, not from their logarithms. They take logarithms of masses that
// contain the label. If the probability of the label is so small that what underflows in the softmax may matter, the loss
// is NaN, which tells the caller to compute it from logarithms.
template <class T> EW_INLINE void write_log_losses(const Task &task, const Rows &rows, const Labels &labels, Double losses) {
    const double least = double(task.space->bins) * (sizeof(T) == 4 ? 0x1p-103 : 0x1p-970);
    losses = select(labels.shares() > Double(least), losses, Double(__builtin_nan("")));
    write_losses<T>(task, rows, labels, losses);
}

// Overwrite the gradients at the labels, and set those of rows that do not count to 0, even if their logits are NaN.
template <class T> EW_INLINE void set_label_gradients(const Task &task, const Rows &rows, const Labels &labels, Double slopes) {
    double values[LANES];
    slopes.store(values);
    T *gradients = static_cast<T *>(task.call->gradients);
    for (int lane = 0; lane < LANES; ++lane) {
        T *row = gradients + rows.offsets[lane];
        row[labels.label[lane]] = T(values[lane]);
        if (!labels.counts(lane)) memset(row, 0, size_t(task.space->bins) * sizeof(T));
    }
}

} // namespace
