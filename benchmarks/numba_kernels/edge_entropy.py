r"""Kernels of edge cross entropy, on a tree and on a chain.

With the mass :math:`s_e` on the label's side of edge :math:`e`, the loss is :math:`-\sum_e w_e
\log s_e`, and its gradient with respect to the logit of bin :math:`j` is

.. math:: p_j \Big(d(y, j) - \sum_{e:\, j \text{ on the label's side}} b_e\Big), \qquad b_e = w_e (1 - s_e) / s_e.

An edge is *light* if the mass below it is at most ½, otherwise *heavy*; the heavy edges are a path down from the root.
Most edges are light and do not lie above the label, so that :math:`s_e = 1 - m_e`: these are summed for ``WIDTH`` rows
at once, the label's path and the heavy path for each row on its own. The mass beyond a heavy edge is the sum of the
light masses beside its path. Their :math:`b_e` can be huge, so they are only ever added to each other, from the bottom
of the path up.

The nodes of a tree are numbered as `benchmarks.numba_kernels.tree` explains, and the batch is that of its ``_label_tile``.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import math
from typing import Any

from numba import types
from numba.extending import overload

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
    log2,
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
from benchmarks.numba_kernels.simd import (
    WIDTH,
    Vector,
    absolute,
    any_greater,
    convert,
    fma,
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
    task_words,
    zero_of,
)
from benchmarks.numba_kernels.tree import LAYOUT_WORDS

# What the kernel of edge cross entropy keeps about each row: the loss of the edges above the label, less that of the
# sum over all edges; the sum of their slopes b; what they contribute to the slopes of the light edges; their costs; the
# deepest heavy node (-1: none); and the leaf of that node that is heavy, if one is, and its mass.
PATH_LOSS, PATH_SLOPE, PATH_LIGHT, PATH_COST, HEAVY_NODE, HEAVY_LEAF, HEAVY_SHARE = (
    OWN + WIDTH * 8 * i for i in range(7)
)


# -log(1 - v) = 2·(s + s³/3 + s⁵/5 + …) with s = v/(2 - v) ≤ 1/3.
_TERMS_FLOAT, _TERMS_DOUBLE = 7, 17


def minus_log1m(v: Any) -> Any:
    """``-log(1 - v)`` of a vector, for ``0 ≤ v ≤ ½``, accurate also where ``v`` is tiny."""
    raise NotImplementedError


@overload(minus_log1m, inline="never")
def _minus_log1m(v: Any) -> Any:
    if not isinstance(v, Vector):
        return None
    zero = v.dtype
    count = _TERMS_FLOAT if zero == types.float32 else _TERMS_DOUBLE
    coefficients = tuple(2 / k for k in range(2 * count - 1, 0, -2))
    head, rest = coefficients[0], coefficients[1:]

    def impl(v: Any) -> Any:
        s = v / (splat(zero(0), 2.0) - v)
        square = s * s
        series = splat(zero(0), head)
        for c in rest:
            series = fma(series, square, splat(zero(0), c))
        return series * s

    return impl


@device_function
def _note_heavy(zero: Any, masses: Any, place: Any, node: Any, leaf: Any, state: Any) -> None:
    """Remember, for each row, the first heavy edge that is met. Deeper levels come first."""
    for lane in range(WIDTH):
        share = load_scalar(zero, masses, place * WIDTH + lane)
        if share > 0.5 and load_scalar(0, state + HEAVY_NODE, lane) < 0:
            store_scalar(0, state + HEAVY_NODE, lane, node)
            store_scalar(0, state + HEAVY_LEAF, lane, leaf)
            store_scalar(0.0, state + HEAVY_SHARE, lane, share)


@device_function
def _sum_light_edges(zero: Any, tile: Any, masses: Any, sides: Any, layout: Any, state: Any) -> tuple[Any, Any]:
    """The loss and the slopes b of all light edges, as if the label were above each of them.

    Writes the mass of each node to ``masses``, and the light part of it, right below the node, to ``sides``.
    """
    _, nodes, _, leaves, children, _, leaf_costs, node_costs, _, _ = layout
    loss = slopes = splat(0.0, 0.0)
    one, half = splat(zero, 1.0), splat(zero, 0.5)
    for lane in range(WIDTH):
        store_scalar(0, state + HEAVY_NODE, lane, -1)
        store_scalar(0, state + HEAVY_LEAF, lane, -1)
    for k in range(nodes - 1, -1, -1):
        below = light = splat(0.0, 0.0)
        for j in range(load_scalar(0, leaves, k), load_scalar(0, leaves, k + 1)):
            v = load(zero, tile, j * WIDTH)
            below = below + convert(0.0, v)
            if any_greater(v, half):
                _note_heavy(zero, tile, j, k, j, state)
                v = where_greater(v, half, splat(zero, 0.0), v)
            light = light + convert(0.0, v)
            cost = splat(zero, load_scalar(0.0, leaf_costs, j))
            loss = loss + convert(0.0, cost * minus_log1m(v))
            slopes = slopes + convert(0.0, cost * v / (one - v))
        for c in range(load_scalar(0, children, k), load_scalar(0, children, k + 1)):
            mass = load(0.0, masses, c * WIDTH)
            below = below + mass
            if any_greater(mass, splat(0.0, 0.5)):
                _note_heavy(0.0, masses, c, c, -1, state)
                mass = where_greater(mass, splat(0.0, 0.5), splat(0.0, 0.0), mass)
            light = light + mass
            v = convert(zero, mass)
            cost = splat(zero, load_scalar(0.0, node_costs, c))
            loss = loss + convert(0.0, cost * minus_log1m(v))
            slopes = slopes + convert(0.0, cost * v / (one - v))
        store(masses, k * WIDTH, below)
        store(sides, k * WIDTH, light)
    return loss, slopes


@device_function
def _sum_beside(masses: Any, sides: Any, layout: Any) -> None:
    """Add to ``sides`` of each heavy node the mass beyond it: all that is not below its heavy child."""
    nodes, children = layout[1], layout[4]
    for k in range(nodes):
        for c in range(load_scalar(0, children, k), load_scalar(0, children, k + 1)):
            if any_greater(load(0.0, masses, c * WIDTH), splat(0.0, 0.5)):
                store(sides, c * WIDTH, load(0.0, sides, c * WIDTH) + load(0.0, sides, k * WIDTH))


@device_function
def _add_path_edge(state: Any, lane: Any, cost: Any, share: Any, beyond: Any) -> None:
    """Add an edge above the label to the sums of a row, in place of what it contributes as a light edge."""
    light = 0.0
    if share > 0.5:
        loss, slope = -cost * math.log1p(-beyond), cost * beyond / (1 - beyond)
    else:
        loss, slope = cost * (math.log1p(-share) - math.log(share)), cost * (1 - share) / share
        light = cost * share / (1 - share)
    _add(state + PATH_LOSS, lane, loss)
    _add(state + PATH_SLOPE, lane, slope)
    _add(state + PATH_LIGHT, lane, light)
    _add(state + PATH_COST, lane, cost)


@device_function
def _add(sums: Any, lane: Any, term: Any) -> None:
    store_scalar(0.0, sums, lane, load_scalar(0.0, sums, lane) + term)


@device_function
def _follow_label(zero: Any, tile: Any, masses: Any, sides: Any, layout: Any, state: Any, lane: Any) -> None:
    """Add up the edges above the label of a row. From here on the masses below them are negative."""
    slots, leaf_costs, node_costs, parents = layout[5], layout[6], layout[7], layout[9]
    for sums in (PATH_LOSS, PATH_SLOPE, PATH_LIGHT, PATH_COST):
        store_scalar(0.0, state + sums, lane, 0.0)
    place, share = load_scalar(0, state + PLACE, lane), load_scalar(0.0, state + SHARE, lane)
    node = load_scalar(0, slots, load_scalar(0, state + LABEL, lane))
    cost = load_scalar(0.0, leaf_costs, place // WIDTH)
    _add_path_edge(state, lane, cost, share, load_scalar(0.0, sides, node * WIDTH + lane))
    store_scalar(zero, tile, place, -share)
    while node > 0:
        parent = load_scalar(0, parents, node)
        share = load_scalar(0.0, masses, node * WIDTH + lane)
        cost = load_scalar(0.0, node_costs, node)
        _add_path_edge(state, lane, cost, share, load_scalar(0.0, sides, parent * WIDTH + lane))
        store_scalar(0.0, masses, node * WIDTH + lane, -share)
        node = parent


@device_function
def _follow_heavy(zero: Any, tile: Any, masses: Any, sides: Any, layout: Any, state: Any, lane: Any) -> None:
    """Add the loss of the heavy edges that are not above the label of a row to that of its path.

    Writes to ``sides``, for the root and each heavy node, the sum of their slopes below that node.
    """
    leaf_costs, node_costs, parents = layout[6], layout[7], layout[9]
    node, leaf, below = load_scalar(0, state + HEAVY_NODE, lane), load_scalar(0, state + HEAVY_LEAF, lane), 0.0
    if leaf >= 0 and leaf * WIDTH + lane != load_scalar(0, state + PLACE, lane):
        beyond, cost = load_scalar(0.0, sides, node * WIDTH + lane), load_scalar(0.0, leaf_costs, leaf)
        _add(state + PATH_LOSS, lane, -cost * math.log(beyond))
        below = cost * (1 - beyond) / beyond
    while node > 0:
        parent = load_scalar(0, parents, node)
        store_scalar(0.0, sides, node * WIDTH + lane, below)
        if load_scalar(0.0, masses, node * WIDTH + lane) > 0:
            beyond, cost = load_scalar(0.0, sides, parent * WIDTH + lane), load_scalar(0.0, node_costs, node)
            _add(state + PATH_LOSS, lane, -cost * math.log(beyond))
            below += cost * (1 - beyond) / beyond
        node = parent
    store_scalar(0.0, sides, lane, below)


@device_function
def _edge_gradients(zero: Any, tile: Any, masses: Any, sides: Any, layout: Any, state: Any, constant: Any) -> None:
    """Write the gradients of all bins but the labels to the tile.

    From the root down, ``masses`` become the sums of w/s over the light edges above each node, less those above the
    label, and ``sides`` the slopes of the heavy edges that are not above the node.
    """
    _, nodes, _, leaves, children, _, leaf_costs, node_costs, _, _ = layout
    zeros, half, one = splat(0.0, 0.0), splat(0.0, 0.5), splat(zero, 1.0)
    factor = convert(zero, load(0.0, state + WEIGHT, 0))
    store(masses, 0, zeros)
    for k in range(nodes):
        above, heavy = load(0.0, masses, k * WIDTH), load(0.0, sides, k * WIDTH)
        for c in range(load_scalar(0, children, k), load_scalar(0, children, k + 1)):
            mass = load(0.0, masses, c * WIDTH)
            cost = splat(0.0, load_scalar(0.0, node_costs, c))
            # Above the label the mass is negative, and so is this slope.
            slope = cost / where_greater(zeros, mass, mass, splat(0.0, 1.0) - mass)
            others = heavy
            if any_greater(absolute(mass), half):
                slope = where_greater(mass, half, cost, slope)
                others = where_greater(absolute(mass), half, load(0.0, sides, c * WIDTH), heavy)
            store(masses, c * WIDTH, above + slope)
            store(sides, c * WIDTH, others)
        here = convert(zero, constant + above - heavy)
        for j in range(load_scalar(0, leaves, k), load_scalar(0, leaves, k + 1)):
            v = load(zero, tile, j * WIDTH)
            slope = here + splat(zero, load_scalar(0.0, leaf_costs, j)) / (one - v)
            store(tile, j * WIDTH, v * factor * slope)
    store(state + TEMPORARY, 0, constant)
    for lane in range(WIDTH):
        leaf = load_scalar(0, state + HEAVY_LEAF, lane)
        if leaf >= 0:
            above = load_scalar(0.0, masses, load_scalar(0, state + HEAVY_NODE, lane) * WIDTH + lane)
            slope = load_scalar(0.0, state + TEMPORARY, lane) + above + load_scalar(0.0, leaf_costs, leaf)
            slope *= load_scalar(0.0, state + HEAVY_SHARE, lane) * load_scalar(0.0, state + WEIGHT, lane)
            store_scalar(zero, tile, leaf * WIDTH + lane, slope)


@device_function
def _edge_tile(zero: Any, task: Any, scratch: Any, t: Any) -> Any:
    """The edge cross entropy of a tile of logits against labels, and its gradients; whether the labels are valid."""
    layout = task_words(task, LAYOUT, LAYOUT_WORDS)
    bins, nodes, places = layout[0], layout[1], layout[2]
    logits, labels, weights, results, gradients, count, ignore = task_words(task, BATCH, BATCH_WORDS)
    state, masses = scratch, scratch + STATE_BYTES
    sides = masses + nodes * WIDTH * 8
    tile = sides + nodes * WIDTH * 8
    set_row_offsets(state + ROWS, t, count, bins)
    load_tile(zero, tile, logits, state + ROWS, bins, places)
    softmax_tile(zero, tile, bins)
    valid = read_labels(zero, tile, (bins, places), state, (labels, weights, ignore, weight_scale(task)), t, count)
    loss, light = _sum_light_edges(zero, tile, masses, sides, layout, state)
    _sum_beside(masses, sides, layout)
    for lane in range(WIDTH):
        _follow_label(zero, tile, masses, sides, layout, state, lane)
        _follow_heavy(zero, tile, masses, sides, layout, state, lane)
    write_log_losses(zero, loss + load(0.0, state + PATH_LOSS, 0), state, results, bins, t, count)
    if gradients == 0:
        return valid
    light = light - load(0.0, state + PATH_LIGHT, 0)
    slopes = light + load(0.0, sides, 0) + load(0.0, state + PATH_SLOPE, 0)
    _edge_gradients(zero, tile, masses, sides, layout, state, load(0.0, state + PATH_COST, 0) - light)
    write_label_gradients(zero, tile, slopes, state, bins)
    store_tile(zero, tile, gradients, state + ROWS, bins, places)
    return valid


@kernel
def tree_edges(pointer: Any) -> None:
    """The edge cross entropy of each row against its label, and its gradients."""
    total_weight(address_of(pointer), load_scalar(0, address_of(pointer), LAYOUT))
    run_tiles(_edge_tile, zero_of(pointer), address_of(pointer))


# ---- chain -----------------------------------------------------------------------------------------------------------


@device_function
def _sum_after(zero: Any, tile: Any, after: Any, bins: Any) -> None:
    """Write the mass after each edge of a chain, added up from the last bin."""
    mass = splat(0.0, 0.0)
    for j in range(bins - 1, 0, -1):
        mass = mass + convert(0.0, load(zero, tile, j * WIDTH))
        store(after, (j - 1) * WIDTH, convert(zero, mass))


@device_function
def _sum_edges(zero: Any, tile: Any, steps: Any, parts: Any, costs: Any, bins: Any, label: Any) -> tuple[Any, Any]:
    """The loss and the sum of the slopes b of all edges of a chain.

    ``steps`` come with the masses after the edges. On the way to bin j the gradient changes at each edge by w if j
    moves away from the label, and by -b if j stays on its side: ``parts`` are the sums over the edges before each bin,
    ``steps`` the changes at the edges after it.
    """
    loss = slopes = before = part = splat(0.0, 0.0)
    half, one = splat(0.0, 0.5), splat(0.0, 1.0)
    store(parts, 0, splat(zero, 0.0))
    for i in range(bins - 1):
        before = before + convert(0.0, load(zero, tile, i * WIDTH))
        after, edge = convert(0.0, load(zero, steps, i * WIDTH)), splat(0.0, i)
        other = where_greater(edge, label, after, before)
        own = where_greater(edge, label, before, after)
        own = where_greater(half, other, one - other, own)
        cost = splat(0.0, load_scalar(0.0, costs, i))
        loss = fma(cost, log2(own), loss)
        slope = cost * other / own
        slopes = slopes + slope
        part = where_greater(edge, label, part + cost, part - slope)
        store(parts, (i + 1) * WIDTH, convert(zero, part))
        store(steps, i * WIDTH, convert(zero, where_greater(edge, label, splat(0.0, 0.0) - slope, cost)))
    return loss * splat(0.0, -math.log(2)), slopes


@device_function
def _chain_edge_tile(zero: Any, task: Any, scratch: Any, t: Any) -> Any:
    """The edge cross entropy of a tile on a chain, and its gradients; whether the labels are valid."""
    bins, places, costs = task_words(task, LAYOUT, 3)
    logits, labels, weights, results, gradients, count, ignore = task_words(task, BATCH, BATCH_WORDS)
    state, tile = scratch, scratch + STATE_BYTES
    steps = tile + bins * WIDTH * size_of(zero)
    parts = steps + bins * WIDTH * size_of(zero)
    set_row_offsets(state + ROWS, t, count, bins)
    load_tile(zero, tile, logits, state + ROWS, bins, places)
    softmax_tile(zero, tile, bins)
    valid = read_labels(zero, tile, (bins, places), state, (labels, weights, ignore, weight_scale(task)), t, count)
    for lane in range(WIDTH):
        store_scalar(0.0, state + TEMPORARY, lane, load_scalar(0, state + LABEL, lane) - 0.5)
    label = load(0.0, state + TEMPORARY, 0)
    _sum_after(zero, tile, steps, bins)
    loss, slopes = _sum_edges(zero, tile, steps, parts, costs, bins, label)
    write_log_losses(zero, loss, state, results, bins, t, count)
    if gradients == 0:
        return valid
    factor, part = convert(zero, load(0.0, state + WEIGHT, 0)), splat(0.0, 0.0)
    for j in range(bins - 1, -1, -1):
        slope = load(zero, parts, j * WIDTH) + convert(zero, part)
        store(tile, j * WIDTH, load(zero, tile, j * WIDTH) * factor * slope)
        if j > 0:
            part = part + convert(0.0, load(zero, steps, (j - 1) * WIDTH))
    write_label_gradients(zero, tile, slopes, state, bins)
    store_tile(zero, tile, gradients, state + ROWS, bins, places)
    return valid


@kernel
def chain_edges(pointer: Any) -> None:
    """The edge cross entropy of each row against its label, and its gradients."""
    total_weight(address_of(pointer), load_scalar(0, address_of(pointer), LAYOUT))
    run_tiles(_chain_edge_tile, zero_of(pointer), address_of(pointer))
