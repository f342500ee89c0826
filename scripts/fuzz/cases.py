"""A case is a value: the fields of `Case` determine the space and all numbers of a call, so its repr reproduces it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

import earthwork as ew

Floats = NDArray[np.float64]

TREES = ("tree", "inner", "path", "star")
KINDS = ("chain", "ring", *TREES, "dag", "matrix")


@dataclass(frozen=True)
class Structure:
    """How bins are arranged, as plain arrays: what both the library and the oracle build theirs from."""

    kind: str
    bins: int
    costs: Floats
    """Of the edges of a chain or ring, or of the nodes of a tree or a Dag; the matrix of a cost matrix."""
    parents: NDArray[np.int64] | None = None
    nodes: NDArray[np.int64] | None = None
    """The node of each bin."""
    groups: tuple[tuple[int, ...], ...] = ()
    """The parents of each node of a Dag."""

    def space(self) -> ew.Space:
        """The library's space."""
        if self.kind == "matrix":
            return ew.CostMatrix(self.costs)
        if self.kind == "dag":
            return ew.Dag(self.groups, self.costs, self.nodes)
        if self.parents is not None:
            return ew.Tree(self.parents, self.costs, self.nodes)
        return (ew.Ring if self.kind == "ring" else ew.Chain)(self.bins, self.costs)


@dataclass(frozen=True)
class Case:
    """The numbers of a call, all of them drawn from ``seed``, each kind from a generator of its own.

    Attributes:
        subject: What is called; a key of `subjects.SUBJECTS`.
        kind: The kind of the space.
        bins: The number of its bins.
        rows: The number of distributions.
        seed: Of all random numbers.
        dtype: Of the input, whose numbers are rounded to it.
        target: ``"labels"``, ``"distributions"`` or ``"sets"``.
        costs: ``"one"``, ``"random"``, ``"wide"`` (over twelve orders of magnitude) or ``"zeros"`` (some of them).
        input: ``"normal"``, ``"wide"``, ``"sparse"`` (distributions with empty bins) or ``"same"`` (all rows equal).
        options: What the subject is called with. ``weight=True``, ``mask=True`` and ``ignored=True`` stand for arrays.
    """

    subject: str
    kind: str
    bins: int
    rows: int
    seed: int
    dtype: str = "float64"
    target: str = "labels"
    costs: str = "random"
    input: str = "normal"
    options: dict[str, Any] = field(default_factory=dict)

    def rng(self, name: str) -> Generator:
        """The generator of one kind of numbers, so that fewer rows begin like more rows."""
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])

    @property
    def type(self) -> torch.dtype:
        """The dtype as one of PyTorch's."""
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    def option(self, name: str, default: Any = None) -> Any:
        """An option, or what it is by default."""
        return self.options.get(name, default)

    @cached_property
    def structure(self) -> Structure:
        """The space as arrays."""
        rng, n = self.rng("space"), self.bins
        if self.kind == "matrix":
            matrix = self._costs(rng, n * n).reshape(n, n)
            np.fill_diagonal(matrix, 0)
            return Structure(self.kind, n, matrix)
        if self.kind in ("chain", "ring"):
            return Structure(self.kind, n, self._costs(rng, n if self.kind == "ring" else n - 1))
        if self.kind == "dag":
            count = n + int(rng.integers(n + 2))
            # The parents of a node come after it, so that roots are not the first ones; the last node is one.
            above = [rng.integers(node + 1, count, int(rng.integers(4))) for node in range(count - 1)]
            groups = (*(tuple(np.unique(nodes).tolist()) for nodes in above), ())
            return Structure(self.kind, n, self._costs(rng, count), nodes=rng.permutation(count)[:n], groups=groups)
        # Below: a tree of more nodes than bins where bins are leaves, or of as many or more where they may be inner.
        size = {"tree": 2 * n, "inner": n + int(rng.integers(n)), "path": n + int(rng.integers(3)), "star": n + 1}
        count = size[self.kind]
        up = np.arange(-1, count - 1)
        if self.kind == "star":
            up[1:] = 0
        elif self.kind == "tree":
            # The first half are inner nodes, and every one of the other half is a leaf.
            up[1:] = (rng.random(count - 1) * np.minimum(np.arange(1, count), n)).astype(np.int64)
        elif self.kind == "inner":
            up[1:] = (rng.random(count - 1) * np.arange(1, count)).astype(np.int64)
        number = rng.permutation(count)
        parents = np.empty(count, dtype=np.int64)
        parents[number] = np.where(up < 0, -1, number[up])
        nodes = number[n:] if self.kind == "tree" else number[1:] if self.kind == "star" else rng.permutation(count)[:n]
        return Structure(self.kind, n, self._costs(rng, count), parents, nodes)

    def _costs(self, rng: Generator, count: int) -> Floats:
        if self.costs == "one":
            return np.ones(count)
        costs = 10 ** rng.uniform(-6, 6, count) if self.costs == "wide" else rng.uniform(0.1, 2, count)
        return costs * (rng.random(count) < 0.7) if self.costs == "zeros" else costs

    @cached_property
    def space(self) -> ew.Space:
        """The library's space."""
        return self.structure.space()

    def hidden_costs(self) -> tuple[ew.Space, torch.Tensor]:
        """The same space with edges of cost 1, and what its edges cost in place of that."""
        structure, costs = self.structure, torch.from_numpy(self.structure.costs)
        if structure.parents is not None:
            costs = costs[structure.parents >= 0]
        return replace(structure, costs=np.ones_like(structure.costs)).space(), costs

    @property
    def width(self) -> int:
        """The length of a row of the input: the bins, or the vocabulary of a language model."""
        return self.bins + 5 if self.subject == "TokenEMDLoss" else self.bins

    @property
    def takes_logits(self) -> bool:
        """Whether the input is logits."""
        return self.option("normalize", "softmax" if self.subject.endswith("Loss") else None) == "softmax"

    @cached_property
    def x(self) -> Floats:
        """The input ``[rows, width]``: logits, masses or distributions, rounded to the dtype."""
        rng = self.rng("input")
        x = rng.normal(0, 8.0 if self.input == "wide" else 1.0, (self.rows, self.width))
        if self.input == "same":
            x = np.repeat(x[:1], self.rows, 0)
        if not self.takes_logits:
            x = self._distributions(x)
            if self.option("normalize") == "l1":
                x = x * rng.uniform(0.5, 3, (len(x), 1))
        return torch.from_numpy(x).to(self.type).double().numpy()

    @cached_property
    def q(self) -> Floats:
        """The target distributions ``[rows, bins]``."""
        q = self._distributions(self.rng("target").normal(0, 1, (self.rows, self.bins)))
        return torch.from_numpy(q).to(self.type).double().numpy()

    def _distributions(self, x: Floats) -> Floats:
        mass = np.exp(x - x.max(-1, keepdims=True))
        if self.input == "sparse":
            mass = np.where(x > 0.3, mass, 0)
            mass[:, 0] += mass.sum(-1) == 0
        mass /= mass.sum(-1, keepdims=True)
        return np.asarray(mass, dtype=np.float64)

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """Class indices ``[rows]``; without ignored ones."""
        return self.rng("labels").integers(0, self.width, self.rows)

    @cached_property
    def ignored(self) -> NDArray[np.bool_]:
        """Which rows have the label that is ignored, or are masked: ``[rows]``."""
        if self.subject == "TokenEMDLoss":
            return ~np.isin(self.labels, self.tokens[0])
        chosen = self.option("ignored") or self.option("mask")
        return (self.rng("ignored").random(self.rows) < 0.3) & bool(chosen)

    @cached_property
    def tokens(self) -> tuple[NDArray[np.int64], Floats]:
        """Which tokens of a vocabulary are numbers, and which ones; several may be the same number."""
        rng = self.rng("tokens")
        shared = self.option("shared")
        values = rng.integers(-3, 3 + self.bins, self.bins) if shared else rng.permutation(self.bins)
        return rng.permutation(self.width)[: self.bins], values * 0.5

    @cached_property
    def sets(self) -> NDArray[np.bool_]:
        """Sets of possible classes ``[rows, bins]``, a few of them of one class."""
        rng = self.rng("sets")
        sets = rng.random((self.rows, self.bins)) < rng.choice([0.0, 0.3, 0.8], (self.rows, 1))
        sets[np.arange(self.rows), rng.integers(0, self.bins, self.rows)] = True
        return np.asarray(sets)

    @cached_property
    def weight(self) -> Floats | None:
        """The weight of each class."""
        weight = self.rng("weight").uniform(0, 2, self.bins)
        weight[self.rng("weightless").random(self.bins) < 0.1] = 0
        return torch.from_numpy(weight).to(self.type).double().numpy() if self.option("weight") else None

    @cached_property
    def direction(self) -> Floats:
        """Along which second derivatives and forward ones are taken: ``[rows, width]``."""
        numbers = self.rng("direction").normal(0, 1, self.x.shape)
        if not self.takes_logits:
            # The mass is conserved, and empty bins stay empty.
            share = self.x / self.x.sum(-1, keepdims=True)
            numbers = self.x * (numbers - (share * numbers).sum(-1, keepdims=True))
        return numbers

    def upstream(self, shape: tuple[int, ...]) -> torch.Tensor:
        """What the value is multiplied by before it is differentiated; a scalar's is 1."""
        if "_upstream" not in self.__dict__:
            numbers = torch.from_numpy(self.rng("upstream").normal(0, 1, shape)) if shape else torch.tensor(1.0)
            self.__dict__["_upstream"] = numbers.to(self.type)
        found: torch.Tensor = self.__dict__["_upstream"]
        return found
