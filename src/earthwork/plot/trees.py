"""A tree as a picture: its nodes, the flow over its edges, and the content of its classes."""

from __future__ import annotations

import heapq
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from earthwork.extras import require
from earthwork.spaces import Tree
from earthwork.text import abbreviate, for_matplotlib, printable
from earthwork.transport import emd_gradient

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_UP, _DOWN, _STILL = "#b5531c", "#2f6690", "#9a9a9a"
_MANY = 12  # classes whose names are written side by side; more are written upright
_CROWDED = 30  # classes beyond which each is a line, and numbers at the edges are left out
_LEVEL = 1.3  # inches between two levels of the tree
_ROW = 0.42  # the height of a row of numbers, in levels
_LINE = 0.2  # the height of a line of a class, in inches
_STILL_BELOW = 1e-9  # amounts that are only rounding errors
_LONGEST_INNER, _LONGEST_LEAF = 24, 40
_LONGEST_IN_LINE = 60
_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}


def plot_tree(
    tree: Tree,
    p: Tensor | Sequence[float] | None = None,
    q: Tensor | Sequence[float] | None = None,
    *,
    rho: Sequence[float] = (1.0, 2.0),
    costs: bool | None = None,
    labels: bool | None = None,
    most: int = 100,
    ax: Axes | None = None,
) -> Axes:
    """Draw a tree and, with two distributions, the flow over each edge, as in figure 1 of the paper.

    Below each class are its ``p``, its ``q`` and the gradients of the distance. The number at an edge is the amount
    that crosses it, the arrow its direction, and the width of the edge shows the amount too. With more than 30 classes
    the tree grows from left to right, each class is a line, and the numbers at the edges are left out. With more than
    ``most`` classes groups are folded, the smallest first; a folded group says how many classes it holds, and its ``p``
    and ``q`` are their sums. New axes are large enough for names and numbers not to overlap.

    Args:
        tree: The tree. For one beyond a screen see also :func:`tree_page`.
        p: The content of the bins, shape ``[num_bins]``.
        q: The content to compare with, shape ``[num_bins]``.
        rho: The exponents of the distances whose gradients are shown.
        costs: Whether to write the costs at the edges. Default: if they are not all 1 and there are at most 30 classes.
        labels: Whether to write the names. Default: yes.
        most: The most classes and folded groups to show, at least 2.
        ax: The axes to draw in. Default: new axes of suitable size.

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
    if isinstance(most, bool) or not isinstance(most, int) or most < 2:
        raise ValueError(f"most: expected a number of classes ≥ 2, got {most!r}")
    rows, flow = _results(tree, p, q, rho)
    layout = _layout(tree)
    if layout.slots > most:
        tree, groups = _folded(tree, most)
        held = {name: rows[name] for name in ("p", "q") if name in rows}
        rows = {name: np.bincount(groups, x, tree.num_bins).astype(np.float64) for name, x in held.items()}
        flow = None if flow is None else tree.flow(torch.from_numpy(rows["p"] - rows["q"])).numpy()
        layout = _layout(tree)
    named = labels is None or labels
    with _fonts(tree.names or ()):
        if layout.slots > _CROWDED:
            return _draw_lines(tree, layout, rows, flow, named, ax)
        if costs is None:
            costs = not bool((tree._costs == 1).all())
        marks = _edge_marks(tree, layout, flow, costs)
        names = _names(tree, layout) if named else []
        if ax is None:
            ax = _new_axes(layout, names, marks, len(rows))
        _draw_edges(ax, tree, layout, flow)
        for mark in (*marks, *names):
            _write(ax, mark)
        _write_rows(ax, tree, layout, rows, names)
    ax.set_axis_off()
    return ax


def _folded(tree: Tree, most: int) -> tuple[Tree, NDArray[np.int64]]:
    """Return the tree with at most ``most`` leaves and classes, and which of its classes each class became part of.

    From the root down, the group with the most classes is unfolded, as long as its children fit.
    """
    children: list[list[int]] = [[] for _ in range(tree.num_nodes)]
    for _, node, parent in _edges(tree):
        children[parent].append(node)
    place = np.sort(tree._order[tree._bins])
    counts = np.searchsorted(place, tree._order + tree._size) - np.searchsorted(place, tree._order)
    is_bin = np.zeros(tree.num_nodes, dtype=bool)
    is_bin[tree._bins] = True
    slots, shown, more = 1, {tree.root: "whole"}, {}
    todo = [(-int(counts[tree.root]), tree.root)]
    while todo:
        node = heapq.heappop(todo)[1]
        kept, room = children[node], most - slots + 1 - int(is_bin[node])
        if len(kept) > room:
            # Of a group with too many children the largest are shown, unless there is hardly any room.
            if room < min(most, 10):
                continue
            largest = sorted(kept, key=lambda child: -int(counts[child]))[: room - 1]
            kept = [child for child in kept if child in set(largest)]
            more[node] = [child for child in children[node] if child not in set(kept)]
        slots += len(kept) + (node in more) + int(is_bin[node]) - 1
        shown[node] = "open"
        for child in kept:
            shown[child] = "whole"
            if children[child]:
                heapq.heappush(todo, (-int(counts[child]), child))
    return _shown_tree(tree, children, counts, is_bin, shown, more)


def _shown_tree(
    tree: Tree,
    children: list[list[int]],
    counts: NDArray[np.int64],
    is_bin: NDArray[np.bool_],
    shown: dict[int, str],
    more: dict[int, list[int]],
) -> tuple[Tree, NDArray[np.int64]]:
    called = tree.names or tuple(map(str, range(tree.num_nodes)))
    new: dict[int, int] = {}
    parents: list[int] = []
    names: list[str] = []
    costs: list[float] = []
    bins: list[int] = []
    group_of = np.zeros(tree.num_nodes, dtype=np.int64)
    cost = np.insert(tree._costs, tree.root, 0.0)
    order = np.argsort(tree._order)

    def add(parent: int, name: str, cost: float, members: Sequence[int], has_class: bool) -> None:
        if has_class:
            group_of[members] = len(bins)
            bins.append(len(parents))
        parents.append(parent)
        names.append(name)
        costs.append(cost)

    for node in order.tolist():
        if node not in shown:
            continue
        new[node] = len(parents)
        above = new.get(int(tree._parents[node]), -1)
        start, end = int(tree._order[node]), int(tree._order[node] + tree._size[node])
        whole = shown[node] == "whole"
        count = f" ({counts[node]:,} classes)" if whole and children[node] else ""
        members = order[start:end].tolist() if whole else [node]
        has_class = counts[node] > 0 if whole else bool(is_bin[node])
        add(above, called[node] + count, float(cost[node]), members, bool(has_class))
        if node in more:
            rest = [n for c in more[node] for n in order[tree._order[c] : tree._order[c] + tree._size[c]].tolist()]
            total = int(counts[more[node]].sum())
            add(new[node], f"… {len(more[node]):,} more ({total:,} classes)", 1.0, rest, total > 0)
    return Tree(parents, costs, bins, names), group_of[tree._bins]


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
    parents, order = tree._parents, tree._order
    walk = np.argsort(order)
    has_slot = tree._size == 1
    has_slot[tree._bins] = True
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


class _Mark(NamedTuple):
    """A text at a node or an edge.

    Attributes:
        text: What to write.
        x: The place, in slots.
        y: The place, in levels.
        lift: By how many points the text is moved up, or to the left if it is upright.
        size: The font size.
        colour: The colour.
        upright: Whether it is written from bottom to top.
        align: Where the place is: at the text's center, bottom or top.
    """

    text: str
    x: float
    y: float
    lift: float
    size: float
    colour: str = "black"
    upright: bool = False
    align: str = "center"

    @property
    def extent(self) -> tuple[float, float]:
        """The width and the height of the text in inches, as if it were written from left to right."""
        path = require("matplotlib.textpath", "plot", "plot_tree").TextPath((0, 0), self.text, size=self.size)
        return float(path.get_extents().width) / 72, 1.35 * self.size / 72

    @property
    def width(self) -> float:
        """The width that the text takes up, in inches."""
        sideways = 2 * abs(self.lift) / 72 if self.upright and self.align == "center" else 0.0
        return self.extent[1 if self.upright else 0] + sideways + 0.06


def _new_axes(layout: _Layout, names: Sequence[_Mark], marks: Sequence[_Mark], rows: int) -> Axes:
    """Make axes in which neighbouring texts do not overlap, up to 60 inches wide."""
    pyplot = require("matplotlib.pyplot", "plot", "plot_tree")
    slot = 0.3 if layout.slots > _MANY else 1.3
    levels: dict[tuple[float, float], list[_Mark]] = {}
    for mark in (*names, *marks):
        levels.setdefault((round(mark.y, 6), 0.0 if mark.upright else mark.lift), []).append(mark)
    for level in levels.values():
        level.sort(key=lambda mark: mark.x)
        for left, right in pairwise(level):
            if right.x - left.x > 1e-9:
                slot = max(slot, (left.width + right.width) / 2 / (right.x - left.x))
    width = min(max(5.0, slot * (layout.slots + (0.9 if rows else 0.0))), 60.0)
    top, bottom = _limits(layout, names, rows)
    ax: Axes = pyplot.subplots(figsize=(width, min(_LEVEL * (top - bottom), 40.0)), layout="constrained")[1]
    return ax


def _below_names(names: Sequence[_Mark]) -> float:
    """Return where the rows of numbers begin: below the names of the leaves."""
    lengths = [mark.extent[0 if mark.upright else 1] for mark in names if mark.align == "top"]
    return -(max(lengths) + 0.2) / _LEVEL if lengths else -0.1


def _row_height(layout: _Layout) -> float:
    return 1.3 * _ROW if layout.slots > _MANY else _ROW


def _limits(layout: _Layout, names: Sequence[_Mark], rows: int) -> tuple[float, float]:
    return float(layout.y.max()) + 0.4, _below_names(names) - rows * _row_height(layout) - 0.1


def _edges(tree: Tree) -> list[tuple[int, int, int]]:
    """Return (edge, child, parent) of each edge."""
    pairs = [(node, parent) for node, parent in enumerate(tree.parents.tolist()) if parent >= 0]
    return [(edge, *pair) for edge, pair in enumerate(pairs)]


def _draw_edges(ax: Axes, tree: Tree, layout: _Layout, flow: NDArray[np.float64] | None) -> None:
    most = 1.0 if flow is None or not np.abs(flow).max(initial=0.0) else np.abs(flow).max()
    for edge, node, parent in _edges(tree):
        amount = 0.0 if flow is None else float(flow[edge])
        colour = "#444444" if flow is None else _colour(amount)
        # Upright except for the highest level, so that edges neither cross nor run through other nodes.
        x = [layout.x[node], layout.x[node], layout.x[parent]]
        y = [layout.y[node], layout.y[parent] - 1, layout.y[parent]]
        width = 1.0 + 4.0 * abs(amount) / most
        ax.plot(x, y, color=colour, linewidth=width, zorder=1, solid_capstyle="round", solid_joinstyle="round")
    ax.scatter(layout.x, layout.y, s=14, color="#222222", zorder=2)


def _edge_marks(tree: Tree, layout: _Layout, flow: NDArray[np.float64] | None, with_costs: bool) -> list[_Mark]:
    """Draw the amount and the cost of each edge, one above the other, half a level above its lower end."""
    costs = tree._costs.tolist()
    leaf = tree._size == 1
    marks = []
    for edge, node, parent in _edges(tree):
        upright = layout.slots > _MANY and bool(leaf[node])
        rise = 0.5 if layout.y[parent] - layout.y[node] == 1 else 0.0
        at = (layout.x[node] + rise * (layout.x[parent] - layout.x[node]), layout.y[node] + 0.5)
        if flow is not None:
            amount = float(flow[edge])
            marks.append(_Mark(_arrow(amount), *at, 5.0 if with_costs else 0.0, 9.0, _colour(amount), upright))
        if with_costs:
            lift = -6.0 if flow is not None else 0.0
            marks.append(_Mark(f"cost {_short(costs[edge])}", *at, lift, 7.0, "#666666", upright))
    return marks


def _names(tree: Tree, layout: _Layout) -> list[_Mark]:
    """Draw the names of the leaves below them, and of the inner nodes above them."""
    leaf = tree._size == 1
    marks = []
    for node in range(tree.num_nodes):
        name = str(node) if tree.names is None else tree.names[node]
        at = (layout.x[node], layout.y[node])
        if leaf[node]:
            upright = layout.slots > _MANY
            marks.append(_Mark(_fit(name, _LONGEST_LEAF), *at, -5.0, 9.0, upright=upright, align="top"))
        else:
            marks.append(_Mark(_fit(name, _LONGEST_INNER), *at, 6.0, 9.0, align="bottom"))
    return marks


def _fit(name: str, longest: int) -> str:
    return for_matplotlib(name if len(name) <= longest else f"{name[: longest - 1]}…")


def _write(ax: Axes, mark: _Mark) -> None:
    sideways = mark.upright and mark.align == "center"
    ax.annotate(
        mark.text,
        (mark.x, mark.y),
        (-mark.lift, 0) if sideways else (0, mark.lift),
        textcoords="offset points",
        color=mark.colour,
        size=mark.size,
        rotation=90 if mark.upright else 0,
        ha="center",
        va=mark.align,
        bbox=None if mark.align == "top" else _WHITE,
        zorder=3,
    )


def _arrow(amount: float) -> str:
    return _short(abs(amount)) + ("" if abs(amount) < _STILL_BELOW else " ↑" if amount > 0 else " ↓")


def _colour(amount: float) -> str:
    return _STILL if abs(amount) < _STILL_BELOW else _UP if amount > 0 else _DOWN


def _write_rows(
    ax: Axes, tree: Tree, layout: _Layout, rows: dict[str, NDArray[np.float64]], names: Sequence[_Mark]
) -> None:
    upright = layout.slots > _MANY
    below, step = _below_names(names), _row_height(layout)
    left, right = -0.5, layout.slots - 0.5
    for place, (name, values) in enumerate(rows.items()):
        middle = below - (place + 0.5) * step
        ax.plot([left - 0.9, right], [below - place * step] * 2, color="#cccccc", linewidth=0.8, zorder=0)
        ax.text(left - 0.1, middle, name, ha="right", va="center", size=10)
        for node, value in zip(tree.bins.tolist(), values.tolist(), strict=True):
            rotation, size = (90, 7) if upright else (0, 10)
            at = (layout.x[node], middle)
            ax.text(*at, _short(value), ha="center", va="center", rotation=rotation, size=size)
    top, bottom = _limits(layout, names, len(rows))
    ax.set_xlim(left - (0.9 if rows else 0.0), right)
    ax.set_ylim(bottom, top)


def _short(value: float) -> str:
    return f"{round(value, 3) + 0.0:g}".replace("-", "−")


# ---- a line for each class -------------------------------------------------------------------------------------------


def _draw_lines(
    tree: Tree,
    layout: _Layout,
    rows: dict[str, NDArray[np.float64]],
    flow: NDArray[np.float64] | None,
    named: bool,
    ax: Axes | None,
) -> Axes:
    """Return the tree from left to right, the classes below each other, and what they hold beside them."""
    leaf = tree._size == 1
    names = [str(node) for node in range(tree.num_nodes)] if tree.names is None else list(tree.names)
    texts = [_fit(name, _LONGEST_IN_LINE if leaf[node] else _LONGEST_INNER) for node, name in enumerate(names)]
    # The place of each level, in inches: above a level is room for the longest name of its nodes.
    depth = int(layout.y.max())
    widths = [0.35] * (depth + 1)
    for node in np.flatnonzero(~leaf).tolist() if named else ():
        level = int(layout.y[node])
        widths[level] = max(widths[level], _width(texts[node], 8.0) + 0.2)
    places = [sum(widths[level:depth]) for level in range(depth + 1)] if depth else [0.0]
    x = np.array([places[int(level)] for level in layout.y])
    right = max((_width(texts[node], 8.0) for node in np.flatnonzero(leaf).tolist()), default=0.0) if named else 0.0
    columns = [float(x.max()) + right + 0.75 + 0.75 * place for place in range(len(rows))]
    left, end = -widths[depth], (columns[-1] + 0.15 if rows else float(x.max()) + right + 0.2)
    if ax is None:
        pyplot = require("matplotlib.pyplot", "plot", "plot_tree")
        size = (end - left, _LINE * (layout.slots + 1 + bool(rows)))
        ax = pyplot.subplots(figsize=(max(5.0, size[0]), size[1]))[1]
        ax.set_position((0.0, 0.0, 1.0, 1.0))
    most = 1.0 if flow is None or not np.abs(flow).max(initial=0.0) else np.abs(flow).max()
    for edge, node, parent in _edges(tree):
        amount = 0.0 if flow is None else float(flow[edge])
        line = [x[parent], x[parent], x[node]], [layout.x[parent], layout.x[node], layout.x[node]]
        colour = "#777777" if flow is None else _colour(amount)
        ax.plot(*line, color=colour, linewidth=0.8 + 3.0 * abs(amount) / most, zorder=1, solid_joinstyle="round")
    ax.scatter(x, layout.x, s=8, color="#222222", zorder=2)
    for node in range(tree.num_nodes) if named else ():
        at, shift = (x[node], layout.x[node]), (5, 0) if leaf[node] else (-4, 1)
        ax.annotate(
            texts[node],
            at,
            shift,
            textcoords="offset points",
            size=8,
            ha="left" if leaf[node] else "right",
            va="center_baseline" if leaf[node] else "bottom",
            zorder=3,
        )
    for column, (name, values) in zip(columns, rows.items(), strict=True):
        ax.text(column, -1, name, ha="right", va="center", size=9)
        for node, value in zip(tree.bins.tolist(), values.tolist(), strict=True):
            ax.text(column, layout.x[node], _short(value), ha="right", va="center", size=8)
    ax.set_xlim(left, end)
    ax.set_ylim(layout.slots, -1.0 - bool(rows))
    ax.set_axis_off()
    return ax


def _width(text: str, size: float) -> float:
    """Return the width of a text in inches."""
    path = require("matplotlib.textpath", "plot", "plot_tree").TextPath((0, 0), text, size=size)
    return float(path.get_extents().width) / 72 if text.strip() else 0.0


@contextmanager
def _fonts(names: Iterable[str]) -> Iterator[None]:
    """Draw with the fonts that the user has set and, for letters that they lack, others that are installed."""
    matplotlib = require("matplotlib", "plot", "plot_tree")
    manager = require("matplotlib.font_manager", "plot", "plot_tree")
    families = list(matplotlib.rcParams["font.family"])
    missing = {sign for name in names for sign in printable(name) if not sign.isascii()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = manager.findfont(manager.FontProperties(family=families))
    missing -= _letters(manager, first)
    for entry in manager.fontManager.ttflist if missing else ():
        if entry.name != "Last Resort" and "Last Resort" not in entry.name and entry.style == "normal":
            found = missing & _letters(manager, entry.fname)
            if found:
                families.append(entry.name)
                missing -= found
        if not missing:
            break
    if missing:
        shown = abbreviate(sorted(missing), 5)
        warnings.warn(f"tree: no installed font has {shown}; install one, such as Noto Sans, for these", stacklevel=4)
    with matplotlib.rc_context({"font.family": families}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def _letters(manager: Any, path: str) -> set[str]:
    try:
        return set(map(chr, manager.get_font(path).get_charmap()))
    except (OSError, RuntimeError):
        return set()
