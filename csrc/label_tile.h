// What the losses against class indices share: softmax, labels and weights, and what is written for each row.
#pragma once

#include "tile.h"

namespace {

// A tile of logits with the class index, weight and probability of each row. A row that does not count has class 0 and
// weight 0.
template <class T> struct LabelTile {
    const ew_space space; // a copy: stores to a tile cannot change it
    const ew_call &call;
    const Rows rows; // of the gradients
    const Tile<T> tile;
    bool valid = true;
    int64_t label[LANES], leaf[LANES];
    double weight[LANES], share[LANES];
    Vector<T> largest;
    Double total; // of the exponentials

    explicit LabelTile(Task &task)
        : space(*task.space), call(*task.call), rows(task, space.bins), tile(task, space.bins),
          largest(load_tile(space, call.first, Rows(task, call.first_stride), tile)) {
        for (int lane = 0; lane < LANES; ++lane) {
            // Another thread may write to the labels meanwhile, so the value that is checked must be the value that is
            // used: an atomic load is never repeated by the compiler.
            const int64_t found =
                __atomic_load_n(static_cast<const int64_t *>(call.second) + rows.index[lane], __ATOMIC_RELAXED);
            const bool inside = 0 <= found && found < space.bins, counts = inside && found != call.ignore;
            valid = valid && (inside || found == call.ignore);
            label[lane] = counts ? found : 0;
            leaf[lane] = leaf_of(space.places, label[lane]);
            weight[lane] = counts ? task.scale * (call.weights ? call.weights[label[lane]] : 1.0) : 0.0;
        }
    }

    EW_INLINE Double weights() const { return load(weight); }
    EW_INLINE Double shares() const { return load(share); }

    // Replace the logits by the exponentials of their distances from the largest of their row.
    EW_INLINE void exponentiate() {
        Double sum = 0.0;
        for (int64_t j = 0; j < space.bins; ++j) {
            const Vector<T> e = exp(tile[j] - largest);
            tile.set(j, e);
            sum = sum + widen(e);
        }
        set_total(sum);
    }

    EW_INLINE void set_total(Double sum) {
        double totals[LANES];
        total = sum;
        store(sum, totals);
        for (int lane = 0; lane < LANES; ++lane) share[lane] = double(tile.at(leaf[lane], lane)) / totals[lane];
    }

    // Write the weighted losses: 0 for a row that does not count, even if its logits are NaN.
    EW_INLINE void write_losses(Double losses) const {
        double values[LANES];
        store(losses * weights(), values);
        for (int lane = 0; lane < LANES; ++lane)
            static_cast<T *>(call.values)[rows.index[lane]] = T(weight[lane] != 0 ? values[lane] : 0.0);
    }

    // The same for losses that were computed from masses, not from their logarithms. They take logarithms of masses that
    // contain the label. If the probability of the label is so small that what underflows in the softmax may matter, the
    // loss is NaN, which tells the caller to compute it from logarithms.
    EW_INLINE void write_log_losses(Double losses) const {
        const double least = double(space.bins) * (sizeof(T) == 4 ? 0x1p-103 : 0x1p-970);
        write_losses(select(shares() > least, losses, __builtin_nan("")));
    }

    // Write the gradients, gradient_of(j) for every bin from the last to the first, and those of the labels: `at_label` times
    // their weight. Those of rows that do not count are 0, even if their logits are NaN.
    template <class F> EW_INLINE void write_gradients(Double at_label, F gradient_of) const {
        double values[LANES];
        store_columns<T>(space.bins, rows, call.gradients, gradient_of);
        store(at_label * weights(), values);
        for (int lane = 0; lane < LANES; ++lane) {
            T *row = static_cast<T *>(call.gradients) + rows.offsets[lane];
            row[label[lane]] = T(values[lane]);
            if (weight[lane] == 0) memset(row, 0, size_t(space.bins) * sizeof(T));
        }
    }

    // The same with the gradients in the tile.
    EW_INLINE void write_gradients(Double at_label) const {
        const int32_t *places = space.places;
        write_gradients(at_label, [&](int64_t j) EW_ALWAYS { return tile[leaf_of(places, j)]; });
    }
};

// Sums of weighted logarithms for each row, which are computed a vector at a time.
struct LogSums {
    double sum[LANES] = {}, weight[LANES], own[LANES], other[LANES];
    int lane[LANES], count = 0;
    LogSums() {
        for (int i = 0; i < LANES; ++i) own[i] = other[i] = 0.5;
    }
    // Add -weight * log(own) to the sum of a row; own + other = 1.
    EW_INLINE void add(int row, double factor, double share, double rest) {
        lane[count] = row;
        weight[count] = factor;
        own[count] = share;
        other[count] = rest;
        if (++count == LANES) flush();
    }
    void flush() {
        double logs[LANES];
        Double odds;
        store(minus_log(load(own), load(other), odds), logs);
        for (int i = 0; i < count; ++i) sum[lane[i]] += weight[i] * logs[i];
        count = 0;
    }
    Double sums() {
        flush();
        return load(sum);
    }
};

} // namespace
