/* The C interface of the kernels: losses and distances on chains, trees and rings, with their gradients, in one pass.
 *
 * Nothing here knows Python or PyTorch. A space owns copies of its tables, which are checked when it is made. Every call
 * checks what it is given except for the addresses and lengths of the buffers. */
#ifndef EARTHWORK_H
#define EARTHWORK_H

#include <stdint.h>

#ifdef _WIN32
#define EW_API __declspec(dllexport)
#else
#define EW_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ew_space ew_space;

/* A chain of `bins` bins; costs[bins - 1]. */
EW_API ew_space *ew_chain(int64_t bins, const double *costs);

/* A ring, for expected distances: the position of each bin and the length of the ring, positions[bins + 1]; the first bin
 * past the far side of each bin, far_sides[bins], and on which side of position 0 that is, signs[bins]. */
EW_API ew_space *ew_ring(int64_t bins, const double *positions, const int64_t *far_sides, const double *signs);

/* A tree. The nodes that are not leaves are numbered level by level, so that the children of node k are
 * children[k] : children[k + 1] and the leaves below it leaves[k] : leaves[k + 1]; both tables have nodes + 1 entries. The
 * leaves are numbered in that order, and bin i is leaf places[i]. A bin that is an inner node counts as a leaf of that
 * node whose edge costs nothing. leaf_costs[bins] and node_costs[nodes] belong to the edge above each; node 0 is the
 * root. Some operations take other numbers in place of costs. All three: NULL if tables do not fit together or memory ends. */
EW_API ew_space *ew_tree(int64_t bins, int64_t nodes, const int64_t *places, const int64_t *leaves, const int64_t *children,
                         const double *leaf_costs, const double *node_costs);

EW_API void ew_free(ew_space *space);

/* Those before EW_EXPECTED have a second input and values. */
enum { EW_PAIRS, EW_LABELS, EW_EDGES, EW_HIERARCHY, EW_SOFT_LABELS, EW_EXPECTED, EW_POWERS, EW_OPERATIONS };
enum { EW_FLOAT, EW_DOUBLE };
enum { EW_OK, EW_NOT_IMPLEMENTED, EW_WRONG_ARGUMENT, EW_NO_MEMORY };

/* What to do, in words of eight bytes. `first` are the logits or masses of all rows, `values` the losses or distances of
 * the rows, `gradients` their derivatives with respect to `first` (dense; NULL if they are not required). The sum of the
 * values is returned in `sum`, and written to `sum_to` unless that is NULL.
 *
 * EW_PAIRS: the cost of moving the masses `first` to the masses `second`; `option` is the exponent rho, `tolerance` the
 *   relative difference in mass that is allowed. `invalid` says whether a mass is < 0 or not finite or a sum differs.
 * EW_LABELS: the cost of moving the softmax of `first` to the class index `second` (int64); `option` is rho.
 * EW_EDGES: edge cross entropy against class indices. The value is NaN, and the gradient undefined, where the probability
 *   of the label underflows.
 * EW_HIERARCHY: hierarchical cross entropy; the costs are the weights of the nodes. NaN as in EW_EDGES.
 * EW_SOFT_LABELS: cross entropy against soft labels; the costs are what crossing an edge multiplies a soft label by, 1
 *   for the missing edge of a bin that is an inner node. `option` is the label smoothing.
 * EW_EXPECTED: to `gradients`, the expected distance from each bin to a bin drawn from `first`; there are no values.
 * EW_POWERS, for tests: to `gradients`, exp of `first` <= 0 if `option` is 0, otherwise `first` >= 0 to that power.
 *
 * For class indices: `weights` (one for each class, or NULL) multiply losses and gradients; rows with the label `ignore`
 * or an out-of-range label have loss and gradient 0; `invalid` says whether there was one out of range. If `mean`, the
 * weights are divided by their total over the rows that count, which is returned in `total`. */
typedef struct {
    const ew_space *space;
    int64_t operation, type, rows, bins;
    int64_t threads; /* of the thread pool */
    const void *first;
    int64_t first_stride;
    const void *second;
    int64_t second_stride; /* of masses */
    const double *weights;
    void *values, *gradients, *sum_to;
    int64_t ignore, mean;
    double option, tolerance;
    int64_t invalid; /* results */
    double total, sum;
} ew_call;

EW_API int ew_run(ew_call *call);

/* The build of the kernels in use: "avx512", "avx2", "neon" or "baseline". */
EW_API const char *ew_build(void);

/* Use this build from now on, or the best one if NULL. Returns 0 if the processor cannot run it. */
EW_API int ew_use_build(const char *name);

/* Run loops in parallel by torch_parallel_for(begin, end, grain, callback, context); if NULL, and in a forked process,
 * which has lost the threads behind it, on threads of this library, which end with the call. */
EW_API void ew_use_parallel_for(void *function);

/* Below this many elements for each thread a call uses fewer threads. 0 for the default. For tests. */
EW_API void ew_set_elements_per_thread(int64_t elements);

#ifdef __cplusplus
}
#endif
#endif
