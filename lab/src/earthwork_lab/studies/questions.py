"""Variants of the tasks, for questions that the tasks alone do not answer."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from earthwork import Space, Tree
from earthwork.targets import coarse
from earthwork.trees import from_confusion
from earthwork_lab.studies.external import TINY_IMAGENET, WIKIVITALS
from earthwork_lab.studies.registry import Part, Split, Task, register_task
from earthwork_lab.studies.tables import DIAMOND_CLARITY

Variant: TypeAlias = Callable[[Split, int], Split]

NOISE, COARSE = 0.2, 0.3
RECIPES = ("drop", "mass", "spread", "inner")
_HIERARCHICAL: tuple[str, ...] = ("edge", "emd2+ce", "hxe", "soft")
_IMAGES: tuple[str, ...] = ("edge", "emd2+ce", "soft")


def permuted(tree: Tree, seed: int) -> Tree:
    """A tree of the same shape and costs, with the classes at random leaves.

    Example:
        >>> import earthwork as ew
        >>> from earthwork_lab.studies.questions import permuted
        >>> tree = ew.Tree([-1, 0, 0, 1, 1, 2, 2])
        >>> sorted(permuted(tree, 0).bins.tolist()) == tree.bins.tolist()
        True
    """
    order = torch.randperm(tree.num_bins, generator=_generator(seed))
    return Tree(tree.parents, tree.costs, tree.bins[order])


def confused(split: Split, seed: int) -> Tree:
    """A tree from what a linear classifier, trained with cross entropy, confuses in the training data.

    The classifier is trained on each half and predicts the other one. The costs are scaled so that two classes are as
    far apart, on average, as in the task's own tree.
    """
    x, y = split.train
    classes = split.space.num_bins
    # A class without a prediction is confused with no other one.
    matrix = 1e-6 * torch.eye(classes, dtype=torch.float64)
    halves = torch.randperm(len(x), generator=_generator(seed)).chunk(2)
    for fitted, other in (halves, halves[::-1]):
        p = _linear_classifier(x[fitted], y[fitted], classes, seed)(x[other]).double().softmax(-1)
        matrix.index_add_(0, y[other], p.detach())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # some classes are never confused
        tree = from_confusion(matrix)
    factor = split.space.distances().mean() / tree.distances().mean()
    return tree.with_costs(tree.costs * factor)


def _linear_classifier(x: Tensor, y: Tensor, classes: int, seed: int) -> torch.nn.Linear:
    torch.manual_seed(seed)
    model = torch.nn.Linear(x.shape[1], classes)
    optimizer = torch.optim.AdamW(model.parameters(), 4e-3)
    for _ in range(15):
        for rows in torch.randperm(len(x)).split(128):
            optimizer.zero_grad(set_to_none=True)
            functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return model


def at_most(part: Part, count: int) -> Part:
    """The first examples of each class."""
    rank = torch.zeros_like(part.y)
    for label in part.y.unique():
        rows = (part.y == label).nonzero().squeeze(-1)
        rank[rows] = torch.arange(len(rows))
    return Part(part.x[rank < count], part.y[rank < count])


def moved_to_neighbours(labels: Tensor, space: Space, share: float, seed: int) -> Tensor:
    """Labels, of which a random share is replaced by one of the nearest other classes.

    Example:
        >>> import torch, earthwork as ew
        >>> from earthwork_lab.studies.questions import moved_to_neighbours
        >>> moved_to_neighbours(torch.tensor([0, 3]), ew.Chain(4), 1.0, seed=0)
        tensor([1, 2])
    """
    distances = space.distances().fill_diagonal_(torch.inf)
    nearest = (distances == distances.min(0).values)[:, labels].T.float()
    generator = _generator(seed)
    neighbours = torch.multinomial(nearest, 1, generator=generator).squeeze(-1)
    return torch.where(torch.rand(len(labels), generator=generator) < share, neighbours, labels)


def partly_coarse(split: Split, share: float, recipe: str, seed: int) -> Split:
    """A random share of the training labels is only known as the parent of the class in the tree.

    Args:
        split: The data.
        share: The share of coarse labels.
        recipe: ``"drop"``: without these examples. ``"mass"``: sets of classes as targets, for which cross entropy is
            −log of the set's mass. ``"spread"``: the uniform distribution over the classes of the set. ``"inner"``: the
            parents are additional classes of the network, which are never answers.
        seed: Selects the examples.
    """
    tree = split.tree
    x, y = split.train
    chosen = torch.rand(len(y), generator=_generator(seed)) < share
    if recipe == "drop":
        return replace(split, train=Part(x[~chosen], y[~chosen]))
    nodes = torch.where(chosen, tree.parents[tree.bins[y]], tree.bins[y])
    if recipe == "inner":
        bins = torch.cat([tree.bins, tree.parents[tree.bins].unique()])
        labels = (nodes.unsqueeze(-1) == bins).int().argmax(-1)
        return replace(split, train=Part(x, labels), loss_space=Tree(tree.parents, tree.costs, bins))
    sets = coarse(nodes, tree).mask
    targets = sets if recipe == "mass" else sets / sets.sum(-1, keepdim=True)
    return replace(split, train=Part(x, targets))


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(1600 + seed)


def _register(base: Task, suffix: str, question: str, title: str, losses: tuple[str, ...], variant: Variant) -> None:
    def load(seed: int, data: Path | None = None) -> Split:
        return variant(base.load(seed, data), seed)

    changes: dict[str, Any] = {"name": f"{base.name}-{suffix}", "title": f"{base.title}, {title}", "load": load}
    register_task(replace(base, **changes, losses=losses, base=base.name, question=question))


def _with_tree(make: Callable[[Split, int], Tree]) -> Variant:
    return lambda split, seed: replace(split, loss_space=make(split, seed))


def _random_tree(split: Split, seed: int) -> Tree:
    return permuted(split.tree, seed)


def _few(count: int) -> Variant:
    half = max(1, count // 2)
    return lambda split, seed: replace(split, train=at_most(split.train, count), val=at_most(split.val, half))


def _few_in_all(count: int) -> Variant:
    """This many examples per class on average, with the class frequencies unchanged."""

    def variant(split: Split, seed: int) -> Split:
        rows = count * split.space.num_bins
        parts = [Part(part.x[:most], part.y[:most]) for part, most in ((split.train, rows), (split.val, rows // 2))]
        return replace(split, train=parts[0], val=parts[1])

    return variant


def _noisy(split: Split, seed: int) -> Split:
    labels = moved_to_neighbours(split.train.y, split.space, NOISE, seed)
    return replace(split, train=split.train._replace(y=labels))


def _coarse(recipe: str) -> Variant:
    return lambda split, seed: partly_coarse(split, COARSE, recipe, seed)


for _base, _losses in ((WIKIVITALS, _HIERARCHICAL), (TINY_IMAGENET, _IMAGES)):
    _register(_base, "random-tree", "tree", "a random tree for the losses", _losses, _with_tree(_random_tree))
    _register(_base, "confusion-tree", "tree", "a tree of confusions for the losses", _losses, _with_tree(confused))
for _count in (2, 5, 10):
    _losses = ("ce", "emd2", *_HIERARCHICAL)
    _register(WIKIVITALS, f"{_count}-labels", "labels", f"at most {_count} labels per class", _losses, _few(_count))
for _count in (10, 20, 50, 100):
    _losses = ("ce", "emd2", "emd2+ce", "edge", "soft")
    _title = f"{_count} labels per class on average"
    _register(DIAMOND_CLARITY, f"{_count}-labels", "labels", _title, _losses, _few_in_all(_count))
for _base in (DIAMOND_CLARITY, WIKIVITALS):
    _title = f"{NOISE:.0%} of the labels moved to a neighbour"
    _register(_base, "noise", "noise", _title, ("ce", "emd2", *_HIERARCHICAL), _noisy)
for _recipe in RECIPES:
    _title = f"{COARSE:.0%} coarse labels: {_recipe}"
    _register(WIKIVITALS, f"coarse-{_recipe}", "coarse", _title, ("ce", "edge", "emd2+ce"), _coarse(_recipe))
