"""Random spaces and distributions, and what the slow way says about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

import earthwork as ew

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden.json").read_text())


def random_parents(rng: np.random.Generator, size: int, shape: str = "any") -> np.ndarray:
    """The parents of a random tree whose nodes are numbered in no particular order."""
    up = np.arange(-1, size - 1)
    if shape == "star":
        up[1:] = 0
    elif shape == "any":
        up[1:] = [rng.integers(0, node) for node in range(1, size)]
    elif shape == "binary":
        up[1:] = (np.arange(1, size) - 1) // 2
    else:
        assert shape == "path"
    number = rng.permutation(size)
    parents = np.empty(size, dtype=np.int64)
    parents[number] = np.where(up < 0, -1, number[up])
    return parents


def random_tree(rng: np.random.Generator, size: int, shape: str = "any", inner_bins: bool = True) -> ew.Tree:
    """A random tree with random costs, some of them 0, and bins in any order."""
    parents = random_parents(rng, size, shape)
    costs = rng.random(size) * (rng.random(size) < 0.8)
    bins = rng.permutation(size)[: rng.integers(1, size + 1)] if inner_bins else None
    return ew.Tree(parents, costs, bins)


def random_space(rng: np.random.Generator, kind: str, size: int) -> ew.Space:
    """A random space of about ``size`` bins."""
    if kind == "chain":
        return ew.Chain(size, rng.random(size - 1) * (rng.random(size - 1) < 0.8))
    if kind == "ring":
        return ew.Ring(size, rng.random(size) * (rng.random(size) < 0.8))
    if kind == "matrix":
        matrix = rng.random((size, size))
        np.fill_diagonal(matrix, 0)
        return ew.CostMatrix(matrix)
    return random_tree(rng, size, inner_bins=kind == "inner tree")


KINDS = ("chain", "ring", "tree", "inner tree")
ALL_KINDS = (*KINDS, "matrix")


def random_distribution(rng: np.random.Generator, *shape: int, zeros: float = 0.3) -> Tensor:
    """Rows of mass 1, some of whose bins are empty."""
    mass = rng.random(shape) * (rng.random(shape) >= zeros)
    mass[..., 0] += mass.sum(-1) == 0
    return torch.from_numpy(mass / mass.sum(-1, keepdims=True))


class GivenCosts(nn.Module):
    """A module that returns the edge costs that it was given."""

    def __init__(self, costs: Tensor) -> None:
        super().__init__()
        self.costs = costs

    def forward(self) -> Tensor:
        return self.costs


def path_matrix(tree: ew.Tree) -> np.ndarray:
    """Which edges lie between each bin and the root, by walking up from each bin: ``[num_bins, num_edges]``."""
    parents = tree.parents.tolist()
    edges = {node: edge for edge, node in enumerate(n for n, up in enumerate(parents) if up >= 0)}
    matrix = np.zeros((tree.num_bins, tree.num_edges))
    for row, node in enumerate(tree.bins.tolist()):
        while parents[node] >= 0:
            matrix[row, edges[node]] = 1
            node = parents[node]
    return matrix


@st.composite
def spaces(draw: st.DrawFn, kinds: tuple[str, ...] = KINDS, max_size: int = 12) -> ew.Space:
    """Any kind of space, with any costs, many of them 0 or equal."""
    kind = draw(st.sampled_from(kinds))
    size = draw(st.integers(1, max_size))
    cost = st.one_of(st.sampled_from([0.0, 1.0, 2.0]), st.floats(1e-3, 1e3))
    if kind == "chain":
        return ew.Chain(size, draw(st.lists(cost, min_size=size - 1, max_size=size - 1)))
    if kind == "ring":
        return ew.Ring(size, draw(st.lists(cost, min_size=size, max_size=size)))
    parents = [-1] + [draw(st.integers(0, node - 1)) for node in range(1, size)]
    costs = draw(st.lists(cost, min_size=size, max_size=size))
    bins = draw(st.permutations(range(size)))[: draw(st.integers(1, size))] if kind == "inner tree" else None
    return ew.Tree(parents, costs, bins)


@st.composite
def distributions(draw: st.DrawFn, num_bins: int) -> Tensor:
    """One row of mass 1, with zeros and ties."""
    mass = draw(st.lists(st.sampled_from([0.0, 0.0, 1.0, 2.0, 3.0, 0.1, 1e-9]), min_size=num_bins, max_size=num_bins))
    row = torch.tensor(mass, dtype=torch.float64)
    row[draw(st.integers(0, num_bins - 1))] += 1
    return row / row.sum()


@st.composite
def transports(draw: st.DrawFn, kinds: tuple[str, ...] = KINDS) -> tuple[Tensor, Tensor, ew.Space]:
    """A space and two distributions on it."""
    space = draw(spaces(kinds))
    return draw(distributions(space.num_bins)), draw(distributions(space.num_bins)), space


rhos = st.sampled_from([1.0, 1.1, 1.5, 2.0, 2.5, 3.0, 7.0])
