"""Edge costs by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from earthwork.spaces import Tree
from earthwork.trees.assemble import check_tree, node_costs
from earthwork.trees.classes import abbreviate, find_nodes

Floats = NDArray[np.float64]


def with_costs(
    tree: Tree,
    scheme: str | Callable[[Tree], Any],
    *,
    decay: float = 0.5,
    counts: Sequence[float] | Mapping[str, float] | Tensor | None = None,
    normalize: bool = False,
) -> Tree:
    r"""The same tree with other edge costs.

    | scheme | cost of the edge above node :math:`i` |
    |---|---|
    | `"keep"` | as it is (with `normalize`) |
    | `"unit"` | 1 |
    | `"hops"` | the WordNet edges that it stands for, `node_data["hops"]` |
    | `"depth"` | :math:`\text{decay}^{d - 1}` at depth :math:`d`: a mistake near the root costs most |
    | `"height"` | :math:`h_\text{parent} - h_i`, with :math:`h` the edges down to the deepest leaf (an ultrametric) |
    | `"information"` | :math:`\log P_\text{parent} - \log P_i`, with :math:`P` the share of `counts` below |
    | a function | what it returns for the tree: a number, or one for each edge |

    With heights all leaves are equally far from the root. With information content distances are those of Jiang and
    Conrath.

    Args:
        tree: The tree.
        scheme: One of the above.
        decay: Of the scheme ``"depth"``; > 0.
        counts: Of the scheme ``"information"``: how often each class occurs, in the order of the classes or by name;
            > 0, so add one where a class may not occur.
        normalize: Whether to scale the costs so that the diameter is 1.

    Example:
        >>> import earthwork as ew
        >>> tree = ew.trees.from_paths(["animal/cat/tabby", "animal/dog"])
        >>> ew.trees.with_costs(tree, "depth", decay=0.1).costs
        tensor([1.0000, 0.1000, 1.0000], dtype=torch.float64)
        >>> ew.trees.with_costs(tree, "unit", normalize=True).diameter().item()
        1.0
    """
    check_tree(tree)
    if callable(scheme):
        shaped = tree.with_costs(scheme(tree))
    elif scheme == "keep":
        shaped = tree
    elif scheme == "depth":
        shaped = tree.with_costs(_depth_costs(tree, decay))
    elif scheme == "information":
        shaped = tree.with_costs(_information_costs(tree, counts))
    elif scheme in _PLAIN:
        shaped = tree.with_costs(_PLAIN[scheme](tree))
    else:
        names = ", ".join(["keep", *_PLAIN, "depth", "information"])
        raise ValueError(f"scheme: expected one of {names} or a function, got {scheme!r}")
    return _normalized(shaped) if normalize else shaped


def _unit_costs(tree: Tree) -> float:
    return 1.0


def _hops_costs(tree: Tree) -> Floats:
    hops = tree.node_data.get("hops")
    if hops is None:
        raise ValueError('scheme: "hops" needs node_data["hops"], which trees from WordNet have')
    return np.asarray(hops, dtype=np.float64)


def _height_costs(tree: Tree) -> Floats:
    parents, depth = tree.parents.cpu().numpy(), tree.depths.cpu().numpy()
    none = tree.num_nodes
    up = np.append(np.where(parents < 0, none, parents), none)
    # Round k hands the deepest depth known so far to the 2^k-th ancestor, so a path of a million nodes takes 20 rounds.
    deepest = np.append(depth, 0)
    while (up < none).any():
        known = deepest.copy()
        np.maximum.at(deepest, up, known)
        up = up[up]
    height = (deepest[:-1] - depth).astype(np.float64)
    return np.where(parents < 0, 0.0, height[parents] - height)


_PLAIN: dict[str, Callable[[Tree], float | Floats]] = {
    "unit": _unit_costs,
    "hops": _hops_costs,
    "height": _height_costs,
}


def _depth_costs(tree: Tree, decay: float) -> Floats:
    if not (isinstance(decay, int | float) and 0 < decay < float("inf")):
        raise ValueError(f"decay: expected a number > 0, got {decay!r}")
    depth = tree.depths.cpu().numpy()
    return np.where(depth == 0, 0.0, float(decay) ** (np.maximum(depth, 1) - 1.0))


def _information_costs(tree: Tree, counts: Sequence[float] | Mapping[str, float] | Tensor | None) -> Floats:
    if counts is None:
        raise ValueError('counts: the scheme "information" needs how often each class occurs')
    values = torch.from_numpy(_counts(tree, counts))
    share = np.insert((tree.flow(values) / values.sum()).numpy(), tree.root, 1.0)
    bare = np.flatnonzero(share <= 0)
    if len(bare):
        raise ValueError(f"counts: no class is below node {_call(tree, int(bare[0]))}; restrict() drops such nodes")
    parents = tree.parents.cpu().numpy()
    information = -np.log(share)
    return np.where(parents < 0, 0.0, np.maximum(information - information[parents], 0.0))


def _counts(tree: Tree, counts: Sequence[float] | Mapping[str, float] | Tensor) -> Floats:
    if isinstance(counts, Mapping):
        bins = tree.bin_names or ()
        find_nodes("counts", list(counts), bins)
        missing = [name for name in bins if name not in counts]
        if missing:
            raise ValueError(f"counts: missing for {abbreviate(map(repr, missing))}")
        counts = [counts[name] for name in bins]
    values = np.asarray(counts, dtype=np.float64)
    if values.shape != (tree.num_bins,):
        raise ValueError(f"counts: expected {tree.num_bins}, one for each class, got shape {values.shape}")
    bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
    if len(bad):
        raise ValueError(f"counts: expected numbers > 0, got {values[bad[0]]:g} for class {bad[0]}")
    return values


def _normalized(tree: Tree) -> Tree:
    diameter = float(tree.diameter())
    if not 0 < diameter < float("inf"):
        raise ValueError(f"normalize: expected a diameter > 0, got {diameter:g}")
    return tree.with_costs(node_costs(tree) / diameter)


def _call(tree: Tree, node: int) -> str:
    return repr(tree.names[node]) if tree.names else str(node)
