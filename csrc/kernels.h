// What the builds of the kernels share with the library around them.
#pragma once

#include "earthwork.h"

enum Kind { CHAIN, TREE, RING, KINDS };

// The exponents 1, 1.5 and 2 have code of their own.
enum Rho { ANY, ONE, TWO, THREE_HALVES, RHOS };

// One table in both precisions.
struct Numbers {
    const float *floats;
    const double *doubles;
};

// The tables are those of earthwork.h; parents, node_of (the node of each leaf) and contents (the number of bins below each
// node) follow from them. `places` of a chain or ring is NULL: the bins are in their own order.
struct ew_space {
    Kind kind;
    int64_t bins, nodes;
    const int32_t *places, *node_of; // smaller, because there is one entry for each bin
    const int64_t *leaves, *children, *parents, *far_sides;
    const double *contents, *positions, *signs;
    Numbers costs; // of the edges of a chain, and 0 after its last bin; of the leaves of a tree
    Numbers node_costs;
};

// The label of a row: its class index and weight, both 0 for a row that does not count, and whether it is in range or ignored.
struct Label {
    int64_t index;
    double weight;
    bool valid;
};
static inline Label read_label(const ew_call &call, int64_t row) {
    // Another thread may write to the labels meanwhile, so the value that is checked must be the value that is used: an atomic
    // load is never repeated by the compiler.
    const int64_t found = __atomic_load_n(static_cast<const int64_t *>(call.second) + row, __ATOMIC_RELAXED);
    const bool ignored = found == call.ignore, inside = 0 <= found && found < call.bins;
    if (ignored || !inside) return {0, 0.0, ignored};
    return {found, call.weights ? call.weights[found] : 1.0, true};
}

struct Task {
    const ew_space *space;
    const ew_call *call;
    double scale;  // of the weights
    char *scratch; // of the thread, from which the kernel takes its memory
    int64_t tile;
};

// Processes the rows of a tile; returns whether they are valid.
typedef bool (*Kernel)(Task task);

struct Operation {
    Kernel kernels[RHOS][2]; // by exponent if that is the option, otherwise ANY; by type
    int64_t tiles, sums;     // how many vectors of each bin and of each node (chains: bin) it keeps; sums are doubles
};

struct Build {
    const char *name;
    int64_t lanes; // rows of a tile
    Operation operations[EW_OPERATIONS][KINDS];
};
