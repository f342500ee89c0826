// What the losses against class indices share: softmax, labels and weights, and what is written for each row.

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
    T logit[LANES]; // of the label
    Vector<T> largest;
    Double total; // of the exponentials

    explicit LabelTile(Task &task)
        : space(*task.space), call(*task.call), rows(task, space.bins), tile(task, space.bins),
          largest(load_tile(space, call.first, Rows(task, call.first_stride), tile)) {
        for (int lane = 0; lane < LANES; ++lane) {
            const Label found = read_label(call, rows.index[lane]);
            valid = valid && found.valid;
            label[lane] = found.index;
            leaf[lane] = leaf_of(space.places, found.index);
            logit[lane] = tile.at(leaf[lane], lane);
            weight[lane] = found.weight * task.scale;
        }
    }

    EW_INLINE Double weights() const { return load(weight); }
    EW_INLINE Double shares() const { return load(share); }

    // The exponential of the logit of each label.
    EW_INLINE Double at_labels() const { return widen(exp(load(logit) - largest)); }

    // Set the exponentials of the labels in the tile to 0: what others add up to must not be lost in rounding beside them.
    EW_INLINE void take_out_labels() {
        for (int lane = 0; lane < LANES; ++lane) tile.at(leaf[lane], lane) = T(-__builtin_inf());
    }

    // The exponentials of the logits of a bin, which count from the largest of their row. Meanwhile a part of the memory of
    // the gradients, another one for each bin, is brought into the cache.
    EW_INLINE Vector<T> exponential(int64_t j) const {
        constexpr int64_t LINE = 64 / sizeof(T);
        if (call.gradients)
            for (int64_t lane = j % LINE; lane < LANES; lane += LINE)
                __builtin_prefetch(static_cast<T *>(call.gradients) + rows.offsets[lane] + j / LINE * LINE, 1);
        return exp(tile[j] - largest);
    }

    // Set the sum of all exponentials; returns what makes them probabilities.
    EW_INLINE Double set_total(Double sum) {
        total = sum;
        store(at_labels() / total, share);
        return 1.0 / total;
    }

    // Replace the logits by their exponentials; returns what makes them probabilities.
    EW_INLINE Double exponentiate() {
        Double sum = 0.0;
        for (int64_t j = 0; j < space.bins; ++j) {
            const Vector<T> e = exponential(j);
            tile.set(j, e);
            sum = sum + widen(e);
        }
        return set_total(sum);
    }

    // Climb from the labels to the root of a tree, level by level: step(lane, node) for the next node above the label of every
    // row that has not passed the root, then finish() for all rows.
    template <class S, class F> EW_INLINE void climb(S step, F finish) const {
        int64_t node[LANES];
        for (int lane = 0; lane < LANES; ++lane) node[lane] = space.node_of[leaf[lane]];
        for (bool climbing = true; climbing; finish()) {
            climbing = false;
            for (int lane = 0; lane < LANES; ++lane) {
                if (node[lane] < 0) continue;
                step(lane, node[lane]);
                node[lane] = space.parents[node[lane]];
                climbing = climbing || node[lane] >= 0;
            }
        }
    }

    // Write the weighted losses: 0 for a row that does not count, even if its logits are NaN.
    EW_INLINE void write_losses(Double losses) const {
        const Scalars values(losses * weights());
        for (int lane = 0; lane < LANES; ++lane)
            static_cast<T *>(call.values)[rows.index[lane]] = T(weight[lane] != 0 ? values[lane] : 0.0);
    }

    // The same for losses that take logarithms of masses that contain the label. If its probability is so small that what
    // underflows in the softmax may matter, or `slopes`, which bound the gradients, may overflow, the loss is NaN, which tells
    // the caller to compute it from logarithms.
    EW_INLINE void write_log_losses(Double losses, Double slopes) const {
        const double least = double(space.bins) * (sizeof(T) == 4 ? 0x1p-103 : 0x1p-970);
        const double most = sizeof(T) == 4 ? 0x1p+125 : 0x1p+1020;
        write_losses(select((shares() > least) & (most > slopes), losses, __builtin_nan("")));
    }

    // Write the gradients, gradient_of(j) for every bin and `at_label` times the weight for the label. Those of rows that do
    // not count are 0, even if their logits are NaN. Returns whether the labels are valid.
    template <class F> EW_INLINE bool write_gradients(Double at_label, F gradient_of) const {
        store_columns<T>(space.bins, rows, call.gradients, gradient_of);
        const Scalars values(at_label * weights());
        for (int lane = 0; lane < LANES; ++lane) {
            T *row = static_cast<T *>(call.gradients) + rows.offsets[lane];
            row[label[lane]] = T(values[lane]);
            if (weight[lane] == 0) memset(row, 0, size_t(space.bins) * sizeof(T));
        }
        return valid;
    }

    // The same with the gradients in the tile.
    EW_INLINE bool write_gradients(Double at_label) const {
        const int32_t *places = space.places;
        return write_gradients(at_label, [&](int64_t j) EW_ALWAYS { return tile[leaf_of(places, j)]; });
    }
};
