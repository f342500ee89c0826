// What the builds of the kernels share with the library around them.
#pragma once

#include "earthwork.h"

enum Kind { CHAIN, TREE, RING, KINDS };

// One table in both precisions.
struct Numbers {
    const float *floats;
    const double *doubles;
};

// The tables are those of earthwork.h; parents, node_of and bin_of (the node and the bin of each leaf) and contents (the
// number of bins below each node) follow from them. `places` of a chain or ring is NULL: the bins are in their own order.
// The positions of a chain are the number of bins up to each one.
struct ew_space {
    Kind kind;
    int64_t bins, nodes;
    const int32_t *places, *node_of, *bin_of; // smaller, because there is one entry for each bin
    const int64_t *leaves, *children, *parents, *far_sides;
    const double *contents, *positions, *signs;
    Numbers costs; // of the edges of a chain, and 0 after its last bin; of the leaves of a tree
    Numbers node_costs;
    void *memory;
};

struct Task {
    const ew_space *space;
    const ew_call *call;
    double scale;  // of the weights
    void *scratch; // of the thread
};

// Processes the rows of a tile; returns whether they are valid.
typedef bool (*Kernel)(const Task &task, int64_t tile);

struct Operation {
    Kernel kernel[2];    // by type
    int64_t tiles, sums; // how many vectors of each bin and of each node (chains: bin) it keeps; sums are doubles
};

struct Build {
    const char *name;
    int64_t lanes; // rows of a tile
    Operation operations[EW_OPERATIONS][KINDS];
};
