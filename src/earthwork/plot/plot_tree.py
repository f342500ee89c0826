"""A tree as a picture: its nodes, the dirt on its edges, and what the leaves hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from earthwork.extras import require
from earthwork.spaces import Tree
from earthwork.transport import emd_gradient

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_UP, _DOWN, _STILL = "#b5531c", "#2f6690", "#9a9a9a"
_MANY = 12  # labels that stand side by side; more are turned upright
_CROWDED = 30  # classes beyond which numbers at the edges would cover each other
_ROW = 0.42
_STILL_BELOW = 1e-9  # dirt that is only a rounding error
_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}


def plot_tree(
    tree: Tree,
    p: Tensor | Sequence[float] | None = None,
    q: Tensor | Sequence[float] | None = None,
    *,
    rho: Sequence[float] = (1.0, 2.0),
    costs: bool | None = None,
    labels: bool | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw a tree and, with two distributions, the dirt that crosses each edge, as figure 1 of the paper does.

    Below each class stand its ``p``, its ``q`` and the gradients of the distance. An edge's number is the amount of
    dirt, its arrow the direction, its width the amount once more; with more than 30 classes the numbers are left out.

    Args:
        tree: The tree. About 200 classes fit one picture.
        p: What is in the bins, shape ``[num_bins]``.
        q: What should be there, shape ``[num_bins]``.
        rho: The exponents of the distances whose gradients are shown.
        costs: Whether to write the costs at the edges. Default: if they are not all 1 and there is room.
        labels: Whether to write the names. Default: those of all nodes up to 100, then only those of classes.
        ax: Where to draw. Default: new axes of a fitting size.

    Returns:
        The axes; ``ax.figure.savefig("tree.png")`` writes the picture.

    Example:
        >>> import earthwork as ew
        >>> from earthwork.plot import plot_tree
        >>> tree = ew.trees.from_paths(["animal/cat", "animal/dog", "vehicle/van"])
        >>> ax = plot_tree(tree, [0.5, 0.25, 0.25], [0.0, 1.0, 0.0])
        >>> len(ax.lines) > tree.num_edges
        True
    """
    require("matplotlib", "plot", "plot_tree")
    rows, flow = _results(tree, p, q, rho)
    layout = _layout(tree)
    if ax is None:
        ax = _new_axes(layout, len(rows))
    _draw_edges(ax, tree, layout, flow)
    if costs is None:
        costs = layout.slots <= _CROWDED and not bool((tree.costs == 1).all())
    _write_edges(ax, tree, layout, flow if layout.slots <= _CROWDED else None, costs)
    if labels is None or labels:
        _write_names(ax, tree, layout, inner=tree.num_nodes <= 100)
    _write_rows(ax, tree, layout, rows, named=labels is not False)
    ax.set_axis_off()
    return ax


class _Layout(NamedTuple):
    """Where each node is; the slots are the columns of the classes and leaves."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    slots: int


def _results(
    tree: Tree, p: Any, q: Any, rho: Sequence[float]
) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.float64] | None]:
    given = {
        name: torch.as_tensor(x, dtype=torch.float64).detach().cpu()
        for name, x in (("p", p), ("q", q))
        if x is not None
    }
    for name, x in given.items():
        if x.shape != (tree.num_bins,):
            raise ValueError(f"{name}: expected {tree.num_bins} values, one for each class, got shape {tuple(x.shape)}")
    rows = {name: x.numpy() for name, x in given.items()}
    if len(given) < 2:
        return rows, None
    for exponent in rho:
        sign = "∇EMD" if exponent == 1 else f"∇EMD$^{{{exponent:g}}}$"
        rows[sign] = emd_gradient(given["p"], given["q"], tree, exponent).numpy()
    return rows, tree.flow(given["p"] - given["q"]).numpy()


def _layout(tree: Tree) -> _Layout:
    parents, order = tree.parents.cpu().numpy(), tree._order.cpu().numpy()
    walk = np.argsort(order)
    has_slot = tree._size.cpu().numpy() == 1
    has_slot[tree.bins.cpu().numpy()] = True
    x = np.full(tree.num_nodes, np.nan)
    x[walk[has_slot[walk]]] = np.arange(has_slot.sum())
    y = np.zeros(tree.num_nodes)
    first, last = np.full(tree.num_nodes, np.inf), np.full(tree.num_nodes, -np.inf)
    for node in walk[::-1].tolist():  # children before their parent
        if np.isnan(x[node]):
            x[node] = (first[node] + last[node]) / 2
        above = parents[node]
        if above >= 0:
            first[above], last[above] = min(first[above], x[node]), max(last[above], x[node])
            y[above] = max(y[above], y[node] + 1)
    return _Layout(x, y, int(has_slot.sum()))


def _new_axes(layout: _Layout, rows: int) -> Axes:
    pyplot = require("matplotlib.pyplot", "plot", "plot_tree")
    width = min(max(5.0, 0.3 * layout.slots if layout.slots > _MANY else 1.3 * layout.slots), 60.0)
    height = min(1.3 * layout.y.max() + _ROW * (rows + 1) + 0.8, 40.0)
    ax: Axes = pyplot.subplots(figsize=(width, height), layout="constrained")[1]
    return ax


def _edges(tree: Tree) -> list[tuple[int, int, int]]:
    """(edge, child, parent) of each edge."""
    pairs = [(node, parent) for node, parent in enumerate(tree.parents.tolist()) if parent >= 0]
    return [(edge, *pair) for edge, pair in enumerate(pairs)]


def _draw_edges(ax: Axes, tree: Tree, layout: _Layout, flow: NDArray[np.float64] | None) -> None:
    most = 1.0 if flow is None or not np.abs(flow).max(initial=0.0) else np.abs(flow).max()
    for edge, node, parent in _edges(tree):
        amount = 0.0 if flow is None else float(flow[edge])
        colour = "#444444" if flow is None else _colour(amount)
        ends = ([layout.x[node], layout.x[parent]], [layout.y[node], layout.y[parent]])
        ax.plot(*ends, color=colour, linewidth=1.0 + 4.0 * abs(amount) / most, zorder=1, solid_capstyle="round")
    ax.scatter(layout.x, layout.y, s=14, color="#222222", zorder=2)


def _write_edges(ax: Axes, tree: Tree, layout: _Layout, flow: NDArray[np.float64] | None, with_costs: bool) -> None:
    """The dirt and the cost of each edge, one above the other in its middle."""
    costs = tree.costs.detach().cpu().tolist()
    for edge, node, parent in _edges(tree):
        middle = ((layout.x[node] + layout.x[parent]) / 2, (layout.y[node] + layout.y[parent]) / 2)
        if flow is not None:
            _write(ax, middle, 5 if with_costs else 0, _arrow(float(flow[edge])), _colour(float(flow[edge])), 9)
        if with_costs:
            _write(ax, middle, -6 if flow is not None else 0, f"cost {_short(costs[edge])}", "#666666", 7)


def _write(ax: Axes, at: tuple[float, float], lift: float, text: str, colour: str, size: float) -> None:
    ax.annotate(
        text,
        at,
        (0, lift),
        textcoords="offset points",
        color=colour,
        size=size,
        ha="center",
        va="center",
        bbox=_WHITE,
        zorder=3,
    )


def _arrow(amount: float) -> str:
    return _short(abs(amount)) + ("" if abs(amount) < _STILL_BELOW else " ↑" if amount > 0 else " ↓")


def _colour(amount: float) -> str:
    return _STILL if abs(amount) < _STILL_BELOW else _UP if amount > 0 else _DOWN


def _write_names(ax: Axes, tree: Tree, layout: _Layout, inner: bool) -> None:
    upright = layout.slots > _MANY
    leaf = tree._size.cpu().numpy() == 1
    bins = set(tree.bins.tolist())
    for node in range(tree.num_nodes):
        name = str(node) if tree.names is None else tree.names[node]
        at = (layout.x[node], layout.y[node])
        if leaf[node]:
            side = {"rotation": 90, "va": "top"} if upright else {"va": "top"}
            ax.annotate(name, at, (0, -5), textcoords="offset points", ha="center", size=9, **side)
        elif inner or node in bins:
            ax.annotate(name, at, (0, 6), textcoords="offset points", ha="center", va="bottom", size=9, bbox=_WHITE)


def _write_rows(ax: Axes, tree: Tree, layout: _Layout, rows: dict[str, NDArray[np.float64]], named: bool) -> None:
    upright = layout.slots > _MANY
    longest = max(map(len, tree.bin_names or ("0",)))
    top = -(0.13 * longest + 0.2 if upright else 0.35) if named else -0.1
    left, right = -0.5, layout.slots - 0.5
    step = 2 * _ROW if upright else _ROW
    for place, (name, values) in enumerate(rows.items()):
        middle = top - (place + 0.5) * step
        ax.plot([left - 0.9, right], [top - place * step] * 2, color="#cccccc", linewidth=0.8, zorder=0)
        ax.text(left - 0.1, middle, name, ha="right", va="center", size=10)
        for node, value in zip(tree.bins.tolist(), values.tolist(), strict=True):
            rotation, size = (90, 7) if upright else (0, 10)
            at = (layout.x[node], middle)
            ax.text(*at, _short(value), ha="center", va="center", rotation=rotation, size=size)
    bottom = top - len(rows) * step
    ax.set_xlim(left - (0.9 if rows else 0.0), right)
    ax.set_ylim(bottom - 0.1, layout.y.max() + 0.4)


def _short(value: float) -> str:
    return f"{round(value, 3) + 0.0:g}".replace("-", "−")
