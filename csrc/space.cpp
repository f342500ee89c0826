// Spaces: copies of tables, checked once, so that no kernel can be led out of bounds by them.
#include <stddef.h>

#include <memory>
#include <new>
#include <vector>

#include "kernels.h"

namespace {

constexpr int64_t MOST_BINS = INT32_MAX; // kernels compare class indices as 32-bit integers

// The tables of a space.
struct Tables {
    std::vector<std::shared_ptr<void>> owned;

    template <class T, class U> const T *keep(const std::vector<U> &table) {
        const auto kept = std::make_shared<std::vector<T>>();
        for (U entry : table) kept->push_back(T(entry));
        owned.push_back(kept);
        return kept->data();
    }
    Numbers numbers(const std::vector<double> &table) { return {keep<float>(table), keep<double>(table)}; }
};

// The entries of a table that somebody else may be writing to meanwhile are read once.
template <class T> std::vector<T> copied(const T *from, int64_t count) { return {from, from + count}; }

bool are_indices(const std::vector<int64_t> &table, int64_t end) {
    for (int64_t index : table)
        if (index < 0 || index >= end) return false;
    return true;
}

bool are_ranges(const std::vector<int64_t> &table, int64_t begin, int64_t end) {
    if (table.front() != begin || table.back() != end) return false;
    for (size_t i = 1; i < table.size(); ++i)
        if (table[i] < table[i - 1]) return false;
    return true;
}

// Make a space, or NULL if `fill` says that its tables do not fit together, or there is no memory.
template <class F> ew_space *make(Kind kind, int64_t bins, int64_t nodes, F fill) {
    if (bins < 1 || bins > MOST_BINS || nodes < 0 || nodes > MOST_BINS) return nullptr;
    Tables *tables = nullptr;
    try {
        tables = new Tables;
        ew_space space = {};
        space.kind = kind;
        space.bins = bins;
        space.nodes = nodes;
        space.memory = tables;
        if (fill(space, *tables)) return new ew_space(space);
    } catch (const std::bad_alloc &) {}
    delete tables;
    return nullptr;
}

} // namespace

ew_space *ew_chain(int64_t bins, const double *costs) {
    return make(CHAIN, bins, 0, [&](ew_space &space, Tables &tables) {
        std::vector<double> padded = copied(costs, bins - 1);
        padded.push_back(0);
        space.costs = tables.numbers(padded);
        std::vector<double> ends(padded.size());
        for (size_t j = 0; j < ends.size(); ++j) ends[j] = double(j + 1);
        space.positions = tables.keep<double>(ends);
        return true;
    });
}

ew_space *ew_ring(int64_t bins, const double *positions, const int64_t *far_sides, const double *signs) {
    return make(RING, bins, 0, [&](ew_space &space, Tables &tables) {
        std::vector<int64_t> far = copied(far_sides, bins);
        if (!are_indices(far, bins + 1)) return false;
        space.far_sides = tables.keep<int64_t>(far);
        space.positions = tables.keep<double>(copied(positions, bins + 1));
        space.signs = tables.keep<double>(copied(signs, bins));
        return true;
    });
}

ew_space *ew_tree(int64_t bins, int64_t nodes, const int64_t *places, const int64_t *leaves, const int64_t *children,
                  const double *leaf_costs, const double *node_costs) {
    return make(TREE, bins, nodes, [&](ew_space &space, Tables &tables) {
        if (nodes < 1) return false;
        const auto place = copied(places, bins), leaf = copied(leaves, nodes + 1), child = copied(children, nodes + 1);
        // Every leaf belongs to a node, and every node but the root is a child.
        if (!are_indices(place, bins) || !are_ranges(leaf, 0, bins) || !are_ranges(child, 1, nodes)) return false;
        std::vector<int64_t> bin_of(size_t(bins), -1), node_of(static_cast<size_t>(bins)), parents(size_t(nodes), -1);
        std::vector<double> contents(static_cast<size_t>(nodes));
        for (size_t i = 0; i < place.size(); ++i) {
            int64_t &bin = bin_of[size_t(place[i])];
            if (bin >= 0) return false;
            bin = int64_t(i);
        }
        for (size_t k = size_t(nodes); k-- > 0;) {
            contents[k] = double(leaf[k + 1] - leaf[k]);
            for (int64_t j = leaf[k]; j < leaf[k + 1]; ++j) node_of[size_t(j)] = int64_t(k);
            for (int64_t c = child[k]; c < child[k + 1]; ++c) {
                // A parent comes before its children.
                if (c <= int64_t(k)) return false;
                parents[size_t(c)] = int64_t(k);
                contents[k] += contents[size_t(c)];
            }
        }
        space.places = tables.keep<int32_t>(place);
        space.leaves = tables.keep<int64_t>(leaf);
        space.children = tables.keep<int64_t>(child);
        space.parents = tables.keep<int64_t>(parents);
        space.node_of = tables.keep<int32_t>(node_of);
        space.bin_of = tables.keep<int32_t>(bin_of);
        space.contents = tables.keep<double>(contents);
        space.costs = tables.numbers(copied(leaf_costs, bins));
        space.node_costs = tables.numbers(copied(node_costs, nodes));
        return true;
    });
}

void ew_free(ew_space *space) {
    if (!space) return;
    delete static_cast<Tables *>(space->memory);
    delete space;
}
