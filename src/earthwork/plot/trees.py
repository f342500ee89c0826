"""A tree as a picture: its nodes, the flow over its edges, and the content of its classes."""

from __future__ import annotations

import heapq
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from earthwork.extras import require
from earthwork.spaces import Tree
from earthwork.text import abbreviate, for_matplotlib, printable
from earthwork.transport import emd_gradient
from earthwork.trees.assemble import check_tree

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_UP, _DOWN, _STILL = "#b5531c", "#2f6690", "#9a9a9a"
_CROWDED = 30  # classes beyond which numbers at the edges are left out
_LINE, _TALL_LINE = 0.2, 0.34  # the height of a line in inches, without and with numbers at the edges
_COLUMN = 0.75  # the width of a column of numbers, in inches
_NAME, _NUMBER = 8.0, 7.0  # font sizes
_STILL_BELOW = 1e-9  # amounts that are only rounding errors
_LONGEST_INNER, _LONGEST_LEAF = 24, 60


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
    """Draw a tree from left to right, a line for each class; with two distributions also the flow over each edge.

    Beside each class are its ``p``, its ``q`` and the gradients of the distance, as in figure 1 of the paper. The
    number at an edge is the amount that crosses it, the arrow its direction, and the width of the edge shows the amount
    too; with more than 30 classes the numbers are left out. With more than ``most`` classes groups are folded, the
    smallest first; a folded group says how many classes it holds, and its ``p`` and ``q`` are their sums.

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
        >>> len(ax.lines) == tree.num_edges
        True
    """
    require("matplotlib", "plot", "plot_tree")
    check_tree(tree)
    if isinstance(most, bool) or not isinstance(most, int) or most < 2:
        raise ValueError(f"most: expected a number of classes ≥ 2, got {most!r}")
    rows = {}
    for name, given in (("p", p), ("q", q)):
        if given is not None:
            rows[name] = x = torch.as_tensor(given, dtype=torch.float64).detach().cpu()
            if x.shape != (tree.num_bins,):
                got = f"got shape {tuple(x.shape)}"
                raise ValueError(f"{name}: expected {tree.num_bins} values, one for each class, {got}")
    for exponent in rho if len(rows) == 2 else ():
        sign = "∇EMD" if exponent == 1 else f"∇EMD$^{{{exponent:g}}}$"
        rows[sign] = emd_gradient(rows["p"], rows["q"], tree, exponent)
    layout = _layout(tree)
    if layout.slots > most:
        tree, groups = _folded(tree, most)
        held = {name: rows[name] for name in ("p", "q") if name in rows}
        rows = {name: x.new_zeros(tree.num_bins).index_add(0, torch.from_numpy(groups), x) for name, x in held.items()}
        layout = _layout(tree)
    flow = None
    if p is not None and q is not None:
        flow = np.insert(tree.flow(rows["p"] - rows["q"]).numpy(), tree.root, 0.0)
    crowded = layout.slots > _CROWDED
    if costs is None:
        costs = not crowded and not bool((tree._costs == 1).all())
    # What is written at the edge above each node.
    numbers, lengths = [""] * tree.num_nodes, tree._node_costs()
    for node in np.flatnonzero(tree._parents >= 0).tolist():
        parts = [] if flow is None or crowded else [f"{_direction(flow[node])[0]}{_short(abs(flow[node]))}"]
        numbers[node] = ", ".join(parts + [f"cost {_short(lengths[node])}"] * costs)
    names = _names(tree) if labels is None or labels else [""] * tree.num_nodes
    with _fonts(names):
        return _draw(tree, layout, names, numbers, rows, flow, ax)


def _folded(tree: Tree, most: int) -> tuple[Tree, NDArray[np.int64]]:
    """Return the tree with at most ``most`` leaves and classes, and which of its classes each class became part of.

    From the root down, the group with the most classes is unfolded, as long as its children fit.
    """
    children: list[list[int]] = [[] for _ in range(tree.num_nodes)]
    for node in np.flatnonzero(tree._parents >= 0).tolist():
        children[tree._parents[node]].append(node)
    place = np.sort(tree._order[tree._bins])
    counts = np.searchsorted(place, tree._order + tree._size) - np.searchsorted(place, tree._order)
    is_bin = np.bincount(tree._bins, minlength=tree.num_nodes) > 0
    slots, shown, more = 1, {tree.root: "whole"}, {}
    todo = [(-int(counts[tree.root]), tree.root)]
    while todo:
        node = heapq.heappop(todo)[1]
        kept, room = children[node], most - slots + 1 - int(is_bin[node])
        if len(kept) > room:
            # Of a group with too many children the largest are shown, unless there is hardly any room.
            if room < min(most, 10):
                continue
            kept = sorted(kept, key=lambda child: -int(counts[child]))
            kept, more[node] = kept[: room - 1], kept[room - 1 :]
        slots += len(kept) + (node in more) + int(is_bin[node]) - 1
        shown[node] = "open"
        for child in kept:
            shown[child] = "whole"
            if children[child]:
                heapq.heappush(todo, (-int(counts[child]), child))
    names, costs = _names(tree), tree._node_costs()
    # The new node that each node has become, or become part of.
    new = np.zeros(tree.num_nodes, dtype=np.int64)
    made: list[tuple[int, str, float]] = []
    for node in np.argsort(tree._order).tolist():
        parent = int(tree._parents[node])
        above = new[parent] if parent >= 0 else -1
        if node in shown:
            count = f" ({counts[node]:,} classes)" if shown[node] == "whole" and children[node] else ""
            made.append((above, names[node] + count, costs[node]))
            new[node] = len(made) - 1
        elif parent in more:
            rest = more.pop(parent)
            made.append((above, f"… {len(rest):,} more ({counts[rest].sum():,} classes)", 1.0))
            new[rest] = len(made) - 1
        else:
            new[node] = new[node] or above
    bins, groups = np.unique(new[tree._bins], return_inverse=True)
    parents, called, lengths = zip(*made, strict=True)
    return Tree(parents, lengths, bins, called), groups


def _names(tree: Tree) -> Sequence[str]:
    return tree.names or [str(node) for node in range(tree.num_nodes)]


class _Layout(NamedTuple):
    """Where each node is; the slots are the lines of the classes and leaves, the levels count from the leaves."""

    line: NDArray[np.float64]
    level: NDArray[np.int64]
    slots: int


def _layout(tree: Tree) -> _Layout:
    walk = np.argsort(tree._order)
    has_slot = (tree._size == 1) | (np.bincount(tree._bins, minlength=tree.num_nodes) > 0)
    line = np.full(tree.num_nodes, np.nan)
    line[walk[has_slot[walk]]] = np.arange(has_slot.sum())
    first, last = dict[int, float](), dict[int, float]()  # the lines of each node's first and last child
    for node in walk[::-1].tolist():  # children before their parent, the last child first
        if np.isnan(line[node]):
            line[node] = (first[node] + last[node]) / 2
        above = int(tree._parents[node])
        first[above] = line[node]
        last.setdefault(above, line[node])
    return _Layout(line, tree.heights().numpy(), int(has_slot.sum()))


def _draw(
    tree: Tree,
    layout: _Layout,
    names: Sequence[str],
    numbers: Sequence[str],
    rows: dict[str, Tensor],
    flow: NDArray[np.float64] | None,
    ax: Axes | None,
) -> Axes:
    leaf = tree._size == 1
    limits = np.where(leaf, _LONGEST_LEAF, _LONGEST_INNER).tolist()
    fitting = (x if len(x) <= limit else f"{x[: limit - 1]}…" for x, limit in zip(names, limits, strict=True))
    texts = list(map(for_matplotlib, fitting))
    # The place of each level, in inches: before it is room for the names of its inner nodes and the numbers below them.
    depth = int(layout.level.max())
    widths = [0.35] * (depth + 1)
    for node, level in enumerate(layout.level.tolist()):
        width = max(0.0 if leaf[node] else _width(texts[node], _NAME), _width(numbers[node], _NUMBER))
        widths[level] = max(widths[level], width + 0.2)
    x = np.array([sum(widths[level:depth]) for level in layout.level.tolist()])
    right = float(x.max()) + max((_width(texts[node], _NAME) for node in np.flatnonzero(leaf).tolist()), default=0.0)
    columns = [right + _COLUMN * (place + 1) for place in range(len(rows))]
    left, end = -widths[depth], columns[-1] + 0.15 if rows else right + 0.2
    if ax is None:
        height = (_TALL_LINE if any(numbers) else _LINE) * (layout.slots + 1 + bool(rows))
        size = max(5.0, end - left), max(1.0, height)
        ax = require("matplotlib.pyplot", "plot", "plot_tree").subplots(figsize=size)[1]
        ax.set_position((0.0, 0.0, 1.0, 1.0))
    amounts = np.zeros(tree.num_nodes) if flow is None else flow
    most = np.abs(amounts).max() or 1.0
    for node in np.flatnonzero(tree._parents >= 0).tolist():
        amount, parent = amounts[node], tree._parents[node]
        line = [x[parent], x[parent], x[node]], [layout.line[parent], layout.line[node], layout.line[node]]
        width = 0.8 + 3.0 * abs(amount) / most
        colour = "#777777" if flow is None else _direction(amount)[1]
        ax.plot(*line, color=colour, linewidth=width, zorder=1, solid_joinstyle="round")
        style: Any = {"size": _NUMBER, "ha": "right", "va": "top", "color": "#666666" if flow is None else colour}
        ax.annotate(numbers[node], (x[node], layout.line[node]), (-5, -3), textcoords="offset points", **style)
    ax.scatter(x, layout.line, s=8, color="#222222", zorder=2)
    for node, text in enumerate(texts):
        shift = (5, 0) if leaf[node] else (-4, 1)
        style = {"ha": "left", "va": "center_baseline"} if leaf[node] else {"ha": "right", "va": "bottom"}
        at = x[node], layout.line[node]
        ax.annotate(text, at, shift, textcoords="offset points", size=_NAME, zorder=3, **style)
    for column, (name, values) in zip(columns, rows.items(), strict=True):
        ax.text(column, -1, name, ha="right", va="center", size=9)
        for node, value in zip(tree.bins.tolist(), values.tolist(), strict=True):
            ax.text(column, layout.line[node], _short(value), ha="right", va="center", size=_NAME)
    ax.set_xlim(left, end)
    ax.set_ylim(layout.slots, -1.0 - bool(rows))
    ax.set_axis_off()
    return ax


def _direction(amount: float) -> tuple[str, str]:
    """Return the arrow and the colour of an edge."""
    return ("", _STILL) if abs(amount) < _STILL_BELOW else ("← ", _UP) if amount > 0 else ("→ ", _DOWN)


def _short(value: float) -> str:
    return f"{round(value, 3) + 0.0:g}".replace("-", "−")


def _width(text: str, size: float) -> float:
    """Return the width of a text in inches."""
    if not text.strip():
        return 0.0
    path = require("matplotlib.textpath", "plot", "plot_tree").TextPath((0, 0), text, size=size)
    # Hinted letters on a screen are a little wider.
    return 1.05 * float(path.get_extents().width) / 72


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
    usable = (font for font in manager.fontManager.ttflist if font.style == "normal" and "Last Resort" not in font.name)
    for font in usable:
        if missing and (found := missing & _letters(manager, font.fname)):
            families.append(font.name)
            missing -= found
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
