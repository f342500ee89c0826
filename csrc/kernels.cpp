// All kernels for one instruction set. This file is compiled once for each, with EW_TABLE and EW_NAME.
#include <cmath>
#include <limits>
#include <string.h>
#include <type_traits>
#include <utility>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "kernels.h"

// The parts of this file, each of which uses those before it. The namespace keeps the linker from taking functions of one build
// for those of another.
namespace {
#include "simd.h"
#include "tile.h"
#include "label_tile.h"
#include "pairs.h"
#include "labels.h"
#include "edge_entropy.h"
#include "hierarchical_entropy.h"
#include "soft_labels.h"
#include "expected_distance.h"
} // namespace

#define EW_BOTH(kernel) kernel<float>, kernel<double>
#define EW_RHO(kernel, RHO) kernel<float, RHO>, kernel<double, RHO>
#define EW_BY_RHO(kernel)                                                                                                      \
    {EW_RHO(kernel, ANY)}, {EW_RHO(kernel, ONE)}, {EW_RHO(kernel, TWO)}, { EW_RHO(kernel, THREE_HALVES) }

extern const Build EW_TABLE;
const Build EW_TABLE = {
    EW_NAME,
    LANES,
    {
        // chain, tree, ring
        {{{EW_BY_RHO(chain_pairs)}, 1, 1}, {{EW_BY_RHO(tree_pairs)}, 2, 1}, {}},
        {{{EW_BY_RHO(chain_labels)}, 1, 1}, {{EW_BY_RHO(tree_labels)}, 2, 1}, {}},
        {{{{EW_BOTH(chain_edges)}}, 3, 0}, {{{EW_BOTH(tree_edges)}}, 1, 3}, {}},
        {{}, {{{EW_BOTH(tree_hierarchy)}}, 1, 2}, {}},
        {{{{EW_BOTH(chain_soft_labels)}}, 2, 0}, {{{EW_BOTH(tree_soft_labels)}}, 1, 1}, {}},
        {{{{EW_BOTH(chain_expected)}}, 1, 0}, {{{EW_BOTH(tree_expected)}}, 1, 1}, {{{EW_BOTH(ring_expected)}}, 1, 2}},
        {{{{EW_BOTH(exp_or_power)}}, 1, 0}, {}, {}},
    }};
