// Spaces: copies of tables, checked once, so that no kernel can be led out of bounds by them.
#include <algorithm>
#include <memory>
#include <new>
#include <vector>

#include "kernels.h"

namespace {

constexpr int64_t MOST_BINS = INT32_MAX; // kernels compare class indices as 32-bit integers

// A space with the memory of its tables.
struct Owner : ew_space {
    std::vector<std::shared_ptr<void>> tables;

    template <class T, class U> const T *keep(const std::vector<U> &table) {
        const auto kept = std::make_shared<std::vector<T>>(table.begin(), table.end());
        tables.push_back(kept);
        return kept->data();
    }
    Numbers numbers(const std::vector<double> &table) { return {keep<float>(table), keep<double>(table)}; }
};

// The entries of a table that somebody else may be writing to meanwhile are read once.
template <class T> std::vector<T> copied(const T *from, int64_t count) { return {from, from + count}; }

bool are_ranges(const std::vector<int64_t> &table, int64_t begin, int64_t end) {
    return table.front() == begin && table.back() == end && std::is_sorted(table.begin(), table.end());
}

// Make a space, or NULL if `fill` says that its tables do not fit together, or there is no memory.
template <class F> ew_space *make(Kind kind, int64_t bins, int64_t nodes, F fill) {
    if (bins < 1 || bins > MOST_BINS || nodes < (kind == TREE) || nodes > MOST_BINS) return nullptr;
    try {
        auto space = std::make_unique<Owner>();
        space->kind = kind;
        space->bins = bins;
        space->nodes = nodes;
        return fill(*space) ? space.release() : nullptr;
    } catch (const std::bad_alloc &) { return nullptr; }
}

} // namespace

ew_space *ew_chain(int64_t bins, const double *costs) {
    return make(CHAIN, bins, 0, [&](Owner &space) {
        std::vector<double> padded = copied(costs, bins - 1);
        padded.push_back(0);
        space.costs = space.numbers(padded);
        return true;
    });
}

ew_space *ew_ring(int64_t bins, const double *positions, const int64_t *far_sides, const double *signs) {
    return make(RING, bins, 0, [&](Owner &space) {
        const std::vector<int64_t> far = copied(far_sides, bins);
        space.far_sides = space.keep<int64_t>(far);
        space.positions = space.keep<double>(copied(positions, bins + 1));
        space.signs = space.keep<double>(copied(signs, bins));
        return std::all_of(far.begin(), far.end(), [&](int64_t j) { return 0 <= j && j <= bins; });
    });
}

ew_space *ew_tree(int64_t bins, int64_t nodes, const int64_t *places, const int64_t *leaves, const int64_t *children,
                  const double *leaf_costs, const double *node_costs) {
    return make(TREE, bins, nodes, [&](Owner &space) {
        const auto place = copied(places, bins), leaf = copied(leaves, nodes + 1), child = copied(children, nodes + 1);
        // Every leaf belongs to a node, and every node but the root is a child.
        if (!are_ranges(leaf, 0, bins) || !are_ranges(child, 1, nodes)) return false;
        std::vector<bool> taken(static_cast<size_t>(bins));
        for (int64_t j : place) {
            if (j < 0 || j >= bins || taken[size_t(j)]) return false;
            taken[size_t(j)] = true;
        }
        std::vector<int64_t> node_of(static_cast<size_t>(bins)), parents(size_t(nodes), -1);
        std::vector<double> contents(static_cast<size_t>(nodes));
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
        space.places = space.keep<int32_t>(place);
        space.leaves = space.keep<int64_t>(leaf);
        space.children = space.keep<int64_t>(child);
        space.parents = space.keep<int64_t>(parents);
        space.node_of = space.keep<int32_t>(node_of);
        space.contents = space.keep<double>(contents);
        space.costs = space.numbers(copied(leaf_costs, bins));
        space.node_costs = space.numbers(copied(node_costs, nodes));
        return true;
    });
}

void ew_free(ew_space *space) { delete static_cast<Owner *>(space); }
