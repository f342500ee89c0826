r"""The kernel of hierarchical cross entropy: masses from the leaves up, then a question for each node above the label.

With the masses :math:`m` of the nodes :math:`v` from the label up to the root and the weights :math:`\lambda` of the
questions, the loss is :math:`-\sum_v \lambda_v \log (m_v / m_{\mathrm{parent}(v)})`. Its gradient with respect to the
logit of bin :math:`j` is :math:`p_j` times the sum of :math:`(\lambda_{\mathrm{child}} - \lambda_v) / m_v` over those
:math:`v` that are above :math:`j` too. Weights do not decrease on the way down, so all terms but that of the label are
≥ 0.

The nodes are numbered as `benchmarks.numba_kernels.tree` explains. In place of costs the layout holds the weights.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import math
from typing import Any

from benchmarks.numba_kernels.device_functions import (
    LABEL,
    OWN,
    PLACE,
    ROWS,
    SHARE,
    STATE_BYTES,
    TEMPORARY,
    WEIGHT,
    load_tile,
    read_labels,
    set_row_offsets,
    softmax_tile,
    store_tile,
    total_weight,
    weight_scale,
    write_label_gradients,
    write_log_losses,
)
from benchmarks.numba_kernels.loading import device_function, kernel
from benchmarks.numba_kernels.simd import WIDTH, convert, load, load_scalar, splat, store, store_scalar
from benchmarks.numba_kernels.threads import (
    BATCH,
    BATCH_WORDS,
    LAYOUT,
    address_of,
    run_tiles,
    task_words,
    zero_of,
)
from benchmarks.numba_kernels.tree import LAYOUT_WORDS

# The loss of each row, and its negative derivative with respect to the label's probability.
PATH_LOSS, PATH_SLOPE = OWN, OWN + WIDTH * 8


@device_function
def _sum_masses(zero: Any, tile: Any, masses: Any, slopes: Any, layout: Any) -> None:
    """Write the mass of each node to ``masses``, and 0 to ``slopes``."""
    nodes, leaves, children = layout[1], layout[3], layout[4]
    for k in range(nodes - 1, -1, -1):
        below = splat(0.0, 0.0)
        for j in range(load_scalar(0, leaves, k), load_scalar(0, leaves, k + 1)):
            below = below + convert(0.0, load(zero, tile, j * WIDTH))
        for c in range(load_scalar(0, children, k), load_scalar(0, children, k + 1)):
            below = below + load(0.0, masses, c * WIDTH)
        store(masses, k * WIDTH, below)
        store(slopes, k * WIDTH, splat(0.0, 0.0))


@device_function
def _ask_questions(masses: Any, slopes: Any, layout: Any, state: Any, lane: Any) -> None:
    """The loss of a row, and its derivative w.r.t. the log-mass of each node above the label, over that mass."""
    slots, leaf_costs, node_costs, parents = layout[5], layout[6], layout[7], layout[9]
    node = load_scalar(0, slots, load_scalar(0, state + LABEL, lane))
    weight = load_scalar(0.0, leaf_costs, load_scalar(0, state + PLACE, lane) // WIDTH)
    share, loss = load_scalar(0.0, state + SHARE, lane), 0.0
    store_scalar(0.0, state + PATH_SLOPE, lane, weight / share)
    while node >= 0:
        mass = load_scalar(0.0, masses, node * WIDTH + lane)
        loss -= weight * math.log(share / mass)
        above = load_scalar(0.0, node_costs, node) if node > 0 else 0.0
        store_scalar(0.0, slopes, node * WIDTH + lane, (weight - above) / mass)
        weight, share = above, mass
        node = load_scalar(0, parents, node)
    store_scalar(0.0, state + PATH_LOSS, lane, loss)


@device_function
def _hierarchical_tile(zero: Any, task: Any, scratch: Any, t: Any) -> Any:
    """The hierarchical cross entropy of a tile, and its gradients; whether the labels are valid.

    In place of costs the layout holds the weights of the questions.
    """
    layout = task_words(task, LAYOUT, LAYOUT_WORDS)
    bins, nodes, places, leaves, children, slots, _, _, _, _ = layout
    logits, labels, weights, results, gradients, count, ignore = task_words(task, BATCH, BATCH_WORDS)
    state, masses = scratch, scratch + STATE_BYTES
    slopes = masses + nodes * WIDTH * 8
    tile = slopes + nodes * WIDTH * 8
    set_row_offsets(state + ROWS, t, count, bins)
    load_tile(zero, tile, logits, state + ROWS, bins, places)
    softmax_tile(zero, tile, bins)
    valid = read_labels(zero, tile, (bins, places), state, (labels, weights, ignore, weight_scale(task)), t, count)
    _sum_masses(zero, tile, masses, slopes, layout)
    for lane in range(WIDTH):
        _ask_questions(masses, slopes, layout, state, lane)
    write_log_losses(zero, load(0.0, state + PATH_LOSS, 0), state, results, bins, t, count)
    if gradients == 0:
        return valid
    factor = convert(zero, load(0.0, state + WEIGHT, 0))
    for k in range(nodes):
        above = load(0.0, slopes, k * WIDTH)
        for c in range(load_scalar(0, children, k), load_scalar(0, children, k + 1)):
            store(slopes, c * WIDTH, load(0.0, slopes, c * WIDTH) + above)
        here = convert(zero, above) * factor
        for j in range(load_scalar(0, leaves, k), load_scalar(0, leaves, k + 1)):
            store(tile, j * WIDTH, load(zero, tile, j * WIDTH) * here)
    for lane in range(WIDTH):
        node = load_scalar(0, slots, load_scalar(0, state + LABEL, lane))
        store_scalar(0.0, state + TEMPORARY, lane, load_scalar(0.0, slopes, node * WIDTH + lane))
    at_label = load(0.0, state + PATH_SLOPE, 0) - load(0.0, state + TEMPORARY, 0)
    write_label_gradients(zero, tile, at_label, state, bins)
    store_tile(zero, tile, gradients, state + ROWS, bins, places)
    return valid


@kernel
def tree_questions(pointer: Any) -> None:
    """The hierarchical cross entropy of each row against its label, and its gradients."""
    total_weight(address_of(pointer), load_scalar(0, address_of(pointer), LAYOUT))
    run_tiles(_hierarchical_tile, zero_of(pointer), address_of(pointer))
