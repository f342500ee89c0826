// All kernels for one instruction set. This file is compiled once for each, with EW_BUILD as the name of the table.
#include "edge_entropy.h"
#include "expected_distance.h"
#include "hierarchical_entropy.h"
#include "labels.h"
#include "soft_labels.h"

#define EW_BOTH(kernel)                                                                                                        \
    {                                                                                                                          \
        {kernel<float>}, { kernel<double> }                                                                                    \
    }
#define EW_BY_RHO(kernel)                                                                                                      \
    { EW_RHOS(kernel, float), EW_RHOS(kernel, double) }
#define EW_RHOS(kernel, T)                                                                                                     \
    { kernel<T, ANY>, kernel<T, ONE>, kernel<T, TWO>, kernel<T, THREE_HALVES> }
#define EW_NONE                                                                                                                \
    { {{nullptr}, {nullptr}}, 0, 0 }
#define EW_STRING(name) EW_STRING_(name)
#define EW_STRING_(name) #name
#define EW_TABLE(name) EW_TABLE_(name)
#define EW_TABLE_(name) build_##name

extern const Build EW_TABLE(EW_BUILD);
const Build EW_TABLE(EW_BUILD) = {
#ifdef __aarch64__
    "neon",
#else
    EW_STRING(EW_BUILD),
#endif
    LANES,
    {
        // chain, tree, ring
        {{EW_BY_RHO(chain_pairs), 1, 0}, {EW_BY_RHO(tree_pairs), 2, 1}, EW_NONE},
        {{EW_BY_RHO(chain_labels), 2, 0}, {EW_BY_RHO(tree_labels), 2, 1}, EW_NONE},
        {{EW_BOTH(chain_edges), 3, 0}, {EW_BOTH(tree_edges), 1, 3}, EW_NONE},
        {EW_NONE, {EW_BOTH(tree_hierarchy), 1, 2}, EW_NONE},
        {{EW_BOTH(chain_soft_labels), 2, 0}, {EW_BOTH(tree_soft_labels), 1, 1}, EW_NONE},
        {{EW_BOTH(chain_expected), 1, 0}, {EW_BOTH(tree_expected), 1, 1}, {EW_BOTH(ring_expected), 1, 2}},
        {{EW_BOTH(exp_or_power), 1, 0}, EW_NONE, EW_NONE},
    },
};
