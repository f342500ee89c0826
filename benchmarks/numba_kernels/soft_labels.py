r"""Kernels of cross entropy against soft labels, on a tree and on a chain.

The soft label of bin :math:`j` is the product of :math:`h_e = e^{-\beta w_e / \mathrm{diameter}}` over the edges
between :math:`j` and the label, divided by the sum of these products over all bins. Products are built from the label
outwards, so they cannot overflow, and those that underflow do not count. The loss needs no logarithm but that of the
softmax's sum, so it is finite for any finite logits.

In place of costs the layout holds the factors :math:`h_e`. The first option of a task is the label smoothing. The nodes
of a tree are numbered as `benchmarks.numba_kernels.tree` explains, and the batch is that of its ``_label_tile``.
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
    exp,
    load_tile,
    log2,
    read_labels,
    row_maxima,
    set_label_gradients,
    set_row_offsets,
    store_tile,
    total_weight,
    weight_scale,
    write_costs,
)
from benchmarks.numba_kernels.loading import device_function, kernel
from benchmarks.numba_kernels.simd import (
    WIDTH,
    convert,
    load,
    load_scalar,
    size_of,
    splat,
    store,
    store_scalar,
    where_greater,
)
from benchmarks.numba_kernels.threads import (
    BATCH,
    BATCH_WORDS,
    LAYOUT,
    address_of,
    run_tiles,
    task_options,
    task_words,
    zero_of,
)
from benchmarks.numba_kernels.tree import LAYOUT_WORDS

# What a kernel keeps about each row: its largest logit; the sums of the products, of the products times the logits, of
# the logits and of their exponentials, where the logits count from the largest one.
MAXIMUM, PRODUCTS, DOTS, LOGITS, EXPONENTIALS = (OWN + WIDTH * 8 * i for i in range(5))


@device_function
def _write_losses(zero: Any, state: Any, results: Any, smoothing: Any, bins: Any, t: Any, count: Any) -> None:
    """Write the losses from the sums in the state."""
    loss = log2(load(0.0, state + EXPONENTIALS, 0)) * splat(0.0, math.log(2))
    loss = loss - splat(0.0, 1 - smoothing) * load(0.0, state + DOTS, 0) / load(0.0, state + PRODUCTS, 0)
    if smoothing > 0:
        loss = loss - splat(0.0, smoothing / bins) * load(0.0, state + LOGITS, 0)
    write_costs(zero, loss, state, results, 1.0, t, count)


@device_function
def _factors(state: Any, smoothing: Any) -> tuple[Any, Any]:
    """What turns exponentials into weighted probabilities, and products into weighted soft labels."""
    weight = load(0.0, state + WEIGHT, 0)
    softmax = weight / load(0.0, state + EXPONENTIALS, 0)
    return softmax, weight * splat(0.0, 1 - smoothing) / load(0.0, state + PRODUCTS, 0)


@device_function
def _finish(zero: Any, tile: Any, state: Any, smoothing: Any, bins: Any) -> None:
    """Write the gradient at the labels, whose product is 1, and 0 in all bins of ignored rows."""
    softmax, soft = _factors(state, smoothing)
    exponentials = exp(load(0.0, state + SHARE, 0) - load(0.0, state + MAXIMUM, 0))
    slopes = exponentials * softmax - soft - splat(0.0, smoothing / bins) * load(0.0, state + WEIGHT, 0)
    set_label_gradients(zero, tile, slopes, state, bins)


# ---- tree ------------------------------------------------------------------------------------------------------------


@device_function
def _spread(reach: Any, layout: Any, state: Any) -> None:
    """Write the product of the factors between each node and the label of each row."""
    _, nodes, _, _, children, slots, leaf_factors, node_factors, _, parents = layout
    for k in range(nodes):
        store(reach, k * WIDTH, splat(0.0, -1.0))
    for lane in range(WIDTH):
        product = load_scalar(0.0, leaf_factors, load_scalar(0, state + PLACE, lane) // WIDTH)
        node = load_scalar(0, slots, load_scalar(0, state + LABEL, lane))
        while node >= 0:
            store_scalar(0.0, reach, node * WIDTH + lane, product)
            product *= load_scalar(0.0, node_factors, node)
            node = load_scalar(0, parents, node)
    zeros = splat(0.0, 0.0)
    for k in range(nodes):
        here = load(0.0, reach, k * WIDTH)
        for c in range(load_scalar(0, children, k), load_scalar(0, children, k + 1)):
            known = load(0.0, reach, c * WIDTH)
            beyond = here * splat(0.0, load_scalar(0.0, node_factors, c))
            store(reach, c * WIDTH, where_greater(zeros, known, beyond, known))


@device_function
def _add_up(zero: Any, tile: Any, reach: Any, layout: Any, state: Any) -> None:
    """Replace the logits by their exponentials, and write all sums to the state."""
    bins, nodes, _, leaves, _, _, leaf_factors, _, _, _ = layout
    highest = row_maxima(zero, tile, bins)
    products = dots = logits = exponentials = splat(0.0, 0.0)
    for k in range(nodes):
        product, factors = load(0.0, reach, k * WIDTH), 0.0
        here = convert(zero, product)
        for j in range(load_scalar(0, leaves, k), load_scalar(0, leaves, k + 1)):
            x = load(zero, tile, j * WIDTH) - highest
            factor = load_scalar(0.0, leaf_factors, j)
            factors += factor
            logits = logits + convert(0.0, x)
            dots = dots + convert(0.0, here * splat(zero, factor) * x)
            e = exp(x)
            exponentials = exponentials + convert(0.0, e)
            store(tile, j * WIDTH, e)
        products = products + product * splat(0.0, factors)
    store(state + MAXIMUM, 0, convert(0.0, highest))
    store(state + PRODUCTS, 0, products)
    store(state + DOTS, 0, dots)
    store(state + LOGITS, 0, logits)
    store(state + EXPONENTIALS, 0, exponentials)
    # The way from the label to itself is not by its parent.
    for lane in range(WIDTH):
        factor = load_scalar(0.0, leaf_factors, load_scalar(0, state + PLACE, lane) // WIDTH)
        missing = 1 - factor * factor
        if missing > 0:
            x = load_scalar(0.0, state + SHARE, lane) - load_scalar(0.0, state + MAXIMUM, lane)
            store_scalar(0.0, state + PRODUCTS, lane, load_scalar(0.0, state + PRODUCTS, lane) + missing)
            store_scalar(0.0, state + DOTS, lane, load_scalar(0.0, state + DOTS, lane) + missing * x)


@device_function
def _tree_tile(zero: Any, task: Any, scratch: Any, t: Any) -> Any:
    """The loss of a tile against soft labels on a tree, and its gradients; whether the labels are valid."""
    layout = task_words(task, LAYOUT, LAYOUT_WORDS)
    bins, nodes, places, leaves, _, _, leaf_factors, _, _, _ = layout
    logits, labels, weights, results, gradients, count, ignore = task_words(task, BATCH, BATCH_WORDS)
    smoothing, _ = task_options(task)
    state, reach = scratch, scratch + STATE_BYTES
    tile = reach + nodes * WIDTH * 8
    set_row_offsets(state + ROWS, t, count, bins)
    load_tile(zero, tile, logits, state + ROWS, bins, places)
    valid = read_labels(zero, tile, (bins, places), state, (labels, weights, ignore, weight_scale(task)), t, count)
    _spread(reach, layout, state)
    _add_up(zero, tile, reach, layout, state)
    _write_losses(zero, state, results, smoothing, bins, t, count)
    if gradients == 0:
        return valid
    softmax, soft = _factors(state, smoothing)
    share, even = convert(zero, softmax), convert(zero, splat(0.0, smoothing / bins) * load(0.0, state + WEIGHT, 0))
    for k in range(nodes):
        here = convert(zero, load(0.0, reach, k * WIDTH) * soft)
        for j in range(load_scalar(0, leaves, k), load_scalar(0, leaves, k + 1)):
            target = here * splat(zero, load_scalar(0.0, leaf_factors, j)) + even
            store(tile, j * WIDTH, load(zero, tile, j * WIDTH) * share - target)
    _finish(zero, tile, state, smoothing, bins)
    store_tile(zero, tile, gradients, state + ROWS, bins, places)
    return valid


@kernel
def tree_soft_labels(pointer: Any) -> None:
    """The cross entropy of each row against the soft label around its label, and its gradients."""
    total_weight(address_of(pointer), load_scalar(0, address_of(pointer), LAYOUT))
    run_tiles(_tree_tile, zero_of(pointer), address_of(pointer))


# ---- chain -----------------------------------------------------------------------------------------------------------


@device_function
def _add_up_chain(zero: Any, tile: Any, reach: Any, factors: Any, state: Any, bins: Any) -> None:
    """Write the product for each bin, replace the logits by their exponentials, and write all sums to the state."""
    for lane in range(WIDTH):
        store_scalar(0.0, state + TEMPORARY, lane, load_scalar(0, state + LABEL, lane))
    label, half, one = load(0.0, state + TEMPORARY, 0), splat(0.0, 0.5), splat(0.0, 1.0)
    product = one
    for j in range(bins - 1, -1, -1):
        if j < bins - 1:
            here = product * splat(0.0, load_scalar(0.0, factors, j))
            product = where_greater(splat(0.0, j), label - half, one, here)
        store(reach, j * WIDTH, convert(zero, product))
    highest = row_maxima(zero, tile, bins)
    products = dots = logits = exponentials = splat(0.0, 0.0)
    product = one
    for j in range(bins):
        if j > 0:
            here = product * splat(0.0, load_scalar(0.0, factors, j - 1))
            product = where_greater(label + half, splat(0.0, j), one, here)
        # Before the label the first product is 1, after it the second.
        target = convert(zero, product) * load(zero, reach, j * WIDTH)
        store(reach, j * WIDTH, target)
        x = load(zero, tile, j * WIDTH) - highest
        products = products + convert(0.0, target)
        logits = logits + convert(0.0, x)
        dots = dots + convert(0.0, target * x)
        e = exp(x)
        exponentials = exponentials + convert(0.0, e)
        store(tile, j * WIDTH, e)
    store(state + MAXIMUM, 0, convert(0.0, highest))
    store(state + PRODUCTS, 0, products)
    store(state + DOTS, 0, dots)
    store(state + LOGITS, 0, logits)
    store(state + EXPONENTIALS, 0, exponentials)


@device_function
def _chain_tile(zero: Any, task: Any, scratch: Any, t: Any) -> Any:
    """The loss of a tile against soft labels on a chain, and its gradients; whether the labels are valid."""
    bins, places, factors = task_words(task, LAYOUT, 3)
    logits, labels, weights, results, gradients, count, ignore = task_words(task, BATCH, BATCH_WORDS)
    smoothing, _ = task_options(task)
    state, tile = scratch, scratch + STATE_BYTES
    reach = tile + bins * WIDTH * size_of(zero)
    set_row_offsets(state + ROWS, t, count, bins)
    load_tile(zero, tile, logits, state + ROWS, bins, places)
    valid = read_labels(zero, tile, (bins, places), state, (labels, weights, ignore, weight_scale(task)), t, count)
    _add_up_chain(zero, tile, reach, factors, state, bins)
    _write_losses(zero, state, results, smoothing, bins, t, count)
    if gradients == 0:
        return valid
    softmax, soft = _factors(state, smoothing)
    share, own = convert(zero, softmax), convert(zero, soft)
    even = convert(zero, splat(0.0, smoothing / bins) * load(0.0, state + WEIGHT, 0))
    for j in range(bins):
        target = load(zero, reach, j * WIDTH) * own + even
        store(tile, j * WIDTH, load(zero, tile, j * WIDTH) * share - target)
    _finish(zero, tile, state, smoothing, bins)
    store_tile(zero, tile, gradients, state + ROWS, bins, places)
    return valid


@kernel
def chain_soft_labels(pointer: Any) -> None:
    """The cross entropy of each row against the soft label around its label, and its gradients."""
    total_weight(address_of(pointer), load_scalar(0, address_of(pointer), LAYOUT))
    run_tiles(_chain_tile, zero_of(pointer), address_of(pointer))
