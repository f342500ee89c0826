from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import is_monotonic, linkage
from scipy.spatial.distance import squareform

import earthwork as ew
from earthwork_lab.studies.questions import at_most, confused, moved_to_neighbours, partly_coarse, permuted
from earthwork_lab.studies.registry import CONTENDERS, TASKS, Part, Split, Task
from earthwork_lab.studies.training import Budget, run_cell

TREE = ew.Tree([-1, 0, 0, 1, 1, 2, 2, 2])


def blobs(space: ew.Tree, rng: np.random.Generator, count: int = 400) -> Split:
    """Classes of a tree around points, so that classes with the same parent are near each other."""
    groups = 3 * rng.standard_normal((space.num_nodes, 4))
    centers = groups[space.parents[space.bins].numpy()] + 0.7 * rng.standard_normal((space.num_bins, 4))
    y = rng.integers(0, space.num_bins, 3 * count)
    x = torch.from_numpy(centers[y] + rng.standard_normal((len(y), 4))).float()
    parts = [Part(*pair) for pair in zip(x.chunk(3), torch.from_numpy(y).chunk(3), strict=True)]
    return Split(space, *parts)


def test_permuted_tree_same_distances_in_another_order() -> None:
    tree = TREE.with_costs(torch.arange(1.0, 8.0))
    other = permuted(tree, 0)
    assert sorted(other.distances().flatten().tolist()) == sorted(tree.distances().flatten().tolist())
    assert not torch.equal(permuted(ew.trees.cifar100(), 0).bins, permuted(ew.trees.cifar100(), 1).bins)


def test_tree_of_confusions_finds_groups(rng: np.random.Generator) -> None:
    parts = blobs(TREE, rng)
    tree = confused(parts, 0)
    assert tree.distances().mean().item() == pytest.approx(TREE.distances().mean().item())
    merges = linkage(squareform(tree.distances().numpy(), checks=False), "average")
    assert is_monotonic(merges)
    near, far = tree.distances()[TREE.distances() == 2], tree.distances()[TREE.distances() > 2]
    assert near.mean() < far.mean()


def test_at_most_so_many_of_each_class(rng: np.random.Generator) -> None:
    part = Part(torch.arange(60.0)[:, None], torch.from_numpy(rng.integers(0, 4, 60)))
    few = at_most(part, 5)
    assert few.y.bincount().tolist() == part.y.bincount().clamp_max(5).tolist()
    for label in range(4):
        assert torch.equal(few.x[few.y == label], part.x[part.y == label][:5])


@pytest.mark.parametrize("space", [ew.Chain(6), ew.Ring(6), TREE])
def test_noise_moves_labels_to_nearest_classes(space: ew.Chain, rng: np.random.Generator) -> None:
    labels = torch.from_numpy(rng.integers(0, space.num_bins, 4000))
    moved = moved_to_neighbours(labels, space, 0.2, 0)
    changed = moved != labels
    # Four standard deviations of a binomial share.
    assert changed.double().mean().item() == pytest.approx(0.2, abs=4 * (0.2 * 0.8 / 4000) ** 0.5)
    matrix = space.distances().numpy() + np.diag(np.full(space.num_bins, np.inf))
    expected = matrix.min(0)[labels[changed].numpy()]
    np.testing.assert_array_equal(space.distance(moved[changed], labels[changed]).numpy(), expected)


def test_coarse_labels_by_recipe(rng: np.random.Generator) -> None:
    parts = blobs(TREE, rng)
    dropped, mass, spread = (partly_coarse(parts, 0.3, recipe, 0) for recipe in ("drop", "mass", "spread"))
    assert mass.train.y.dtype == torch.bool
    assert mass.train.y.gather(1, parts.train.y[:, None]).all(), "the true class is in the set"
    is_coarse = mass.train.y.sum(1) > 1
    assert torch.equal(dropped.train.x, parts.train.x[~is_coarse])
    assert is_coarse.double().mean().item() == pytest.approx(0.3, abs=4 * (0.3 * 0.7 / 400) ** 0.5)
    same_parent = TREE.parents[TREE.bins][:, None] == TREE.parents[TREE.bins][None]
    assert torch.equal(mass.train.y[is_coarse], same_parent[parts.train.y[is_coarse]])
    torch.testing.assert_close(spread.train.y.sum(1), torch.ones(400))
    assert torch.equal(spread.train.y > 0, mass.train.y)
    assert torch.equal(mass.test.y, parts.test.y), "only training labels are coarse"
    inner = partly_coarse(parts, 0.3, "inner", 0)
    assert torch.equal(inner.loss_space.bins[: TREE.num_bins], TREE.bins)
    nodes = inner.loss_space.bins[inner.train.y]
    assert torch.equal(nodes == TREE.bins[parts.train.y], ~is_coarse)
    assert torch.equal(nodes[is_coarse], TREE.parents[TREE.bins[parts.train.y[is_coarse]]])
    with pytest.raises(TypeError, match="space"):
        partly_coarse(replace(parts, space=ew.Chain(5)), 0.3, "mass", 0)


@pytest.mark.parametrize("recipe", ["mass", "spread", "inner"])
@pytest.mark.parametrize("loss", ["ce", "edge", "emd2+ce"])
def test_losses_take_coarse_labels(loss: str, recipe: str, rng: np.random.Generator) -> None:
    parts = partly_coarse(blobs(TREE, rng), 0.3, recipe, 0)
    task = Task("t", "", lambda seed, data: parts, hidden=(), epochs=5)
    cell = run_cell(task, CONTENDERS[loss], parts, 0, Budget(rates=(3e-2,)))
    assert cell["chosen"]["top1"]["test"]["top1"] > 0.4, "chance is 0.2"


def test_losses_may_another_tree_than_measures(rng: np.random.Generator) -> None:
    parts = blobs(TREE, rng)
    task = Task("t", "", lambda seed, data: parts, hidden=(), epochs=3)
    cells = [
        run_cell(task, CONTENDERS["edge"], entry, 0, Budget(rates=(1e-2,)))
        for entry in (parts, replace(parts, loss_space=TREE), replace(parts, loss_space=permuted(TREE, 1)))
    ]
    assert cells[0]["chosen"] == cells[1]["chosen"]
    assert cells[0]["chosen"] != cells[2]["chosen"]


def test_variant_belongs_to_task_names_known_losses() -> None:
    variants = [task for task in TASKS.values() if task.base]
    assert {task.question for task in variants} == {"tree", "labels", "noise", "coarse"}
    for task in variants:
        assert TASKS[task.base].question is None
        assert set(task.losses) <= set(CONTENDERS)
        assert task.folder == TASKS[task.base].folder


def test_fewer_labels_are_first_of_task() -> None:
    whole, few = (TASKS[name].load(0, None) for name in ("diamond-clarity", "diamond-clarity-20-labels"))
    assert len(few.train.x) == 160
    assert torch.equal(few.train.x, whole.train.x[:160])
    assert torch.equal(few.test.x, whole.test.x)


@pytest.mark.parametrize("name", ["lgbm", "lgbm:emd2", "lgbm:edge"])
def test_boosted_trees_learn(name: str, rng: np.random.Generator) -> None:
    pytest.importorskip("lightgbm")
    x = torch.from_numpy(rng.standard_normal((600, 2))).float()
    y = (x[:, 0] + 0.2 * x[:, 1]).mul(1.5).round().long().clamp(-2, 2) + 2
    parts = [Part(*pair) for pair in zip(x.chunk(3), y.chunk(3), strict=True)]
    task = Task("t", "", lambda seed, data: Split(ew.Chain(5), *parts))
    cell = run_cell(task, CONTENDERS[name], Split(ew.Chain(5), *parts), 0, Budget(epoch_share=0.3))
    assert cell["chosen"]["top1"]["test"]["top1"] > 0.6
    assert cell["chosen"]["log_loss"]["epoch"] % 10 == 0
    assert CONTENDERS[name].reference == "lgbm"
    with pytest.raises(TypeError, match="boosted trees have no loss for a network"):
        CONTENDERS[name].build(ew.Chain(5), None)
