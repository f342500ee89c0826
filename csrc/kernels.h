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
// node) follow from them. `places` of a chain or ring is NULL: the bins are in their own order. The positions of a chain
// are the number of bins up to each one.
struct ew_space {
    Kind kind;
    int64_t bins, nodes;
    const int32_t *places, *node_of; // smaller, because there is one entry for each bin
    const int64_t *leaves, *children, *parents, *far_sides;
    const double *contents, *positions, *signs;
    Numbers costs; // of the edges of a chain, and 0 after its last bin; of the leaves of a tree
    Numbers node_costs;
};

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
    Kernel kernels[2][RHOS]; // by type; ANY, or by exponent if that is the option
    int64_t tiles, sums;     // how many vectors of each bin and of each node (chains: bin) it keeps; sums are doubles
};

struct Build {
    const char *name;
    int64_t lanes; // rows of a tile
    Operation operations[EW_OPERATIONS][KINDS];
};
