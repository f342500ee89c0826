"""The metrics against brute force on small random trees, hiclass and scoringrules."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import earthwork as ew
from earthwork.metrics import functional as F  # noqa: N812
from tests.cases import KINDS, random_distribution, random_space, random_tree


def paths(tree: ew.Tree) -> list[list[int]]:
    """Each bin's nodes from the root down."""
    parents = tree.parents.tolist()
    result = []
    for node in tree.bins.tolist():
        path = [node]
        while parents[path[-1]] >= 0:
            path.append(parents[path[-1]])
        result.append(path[::-1])
    return result


def height_of(tree: ew.Tree, node: int) -> int:
    children = [child for child, up in enumerate(tree.parents.tolist()) if up == node]
    return max((1 + height_of(tree, child) for child in children), default=0)


def shared(a: list[int], b: list[int]) -> list[int]:
    return [x for x, y in zip(a, b, strict=False) if x == y]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_distances_against_brute_force(kind: str, top_k: int, rng: np.random.Generator) -> None:
    for _ in range(10):
        space = random_space(rng, kind, 12)
        if space.num_bins < top_k:
            continue
        p = random_distribution(rng, 30, space.num_bins)
        labels = torch.from_numpy(rng.integers(0, space.num_bins, 30))
        matrix = space.distances().numpy()
        best = np.argsort(-p.numpy(), axis=-1, kind="stable")[:, :top_k]
        expected = np.mean([[matrix[label, k] for k in row] for label, row in zip(labels, best, strict=True)])
        assert_allclose(F.mean_distance(p, labels, space, top_k), expected, rtol=1e-12, atol=1e-12)
        wrong = [matrix[y, k] for y, k in zip(labels.tolist(), best[:, 0], strict=True) if y != k]
        assert_allclose(F.mistake_severity(p, labels, space), np.mean(wrong) if wrong else np.nan, atol=1e-12)


@pytest.mark.parametrize("inner_bins", [False, True])
def test_ancestors_against_brute_force(inner_bins: bool, rng: np.random.Generator) -> None:
    for _ in range(20):
        tree = random_tree(rng, int(rng.integers(2, 15)), inner_bins=inner_bins)
        answers, labels = torch.from_numpy(rng.integers(0, tree.num_bins, (2, 20)))
        path = paths(tree)
        pairs = [(path[a], path[y]) for a, y in zip(answers.tolist(), labels.tolist(), strict=True)]
        heights = [height_of(tree, shared(a, y)[-1]) for a, y in pairs if a != y]
        value = F.mistake_severity(answers, labels, tree, "height", decision="class")
        assert_allclose(value, np.mean(heights) if heights else np.nan)
        curve = [
            np.mean([a == y or (len(a) > d and len(y) > d and a[d] == y[d]) for a, y in pairs])
            for d in range(tree.depth + 1)
        ]
        assert_allclose(F.accuracy_at_depth(answers, labels, tree, decision="class"), curve)


def flat(path: list[int], width: int) -> list[str]:
    """A path without its root as hiclass writes it: names, filled up with nothing."""
    names = [f"node {node}" for node in path[1:]]
    return names + [""] * (width - len(names))


# Labels and answers of the examples in hiclass's documentation and tests, as paths from the top.
HICLASS_EXAMPLES: list[tuple[list[list[int]], list[list[int]]]] = [
    ([[0, 1, 2], [3, 4, 5]], [[0, 1, 2], [6, 7, 8]]),
    ([[0, 1], [2, 3]], [[4, 5], [6, 7]]),
    ([[1, 2, 3, 4], [1, 2, 5, 6]], [[1, 2, 5, 6], [1, 2, 3, 4]]),
    ([[1, 2], [1, 2]], [[1, 2, 5, 6], [1, 2, 3, 4]]),
    ([[1, 2, 5, 6], [1, 2, 3, 4]], [[1, 2], [1, 2]]),
]


@pytest.mark.parametrize("average", ["micro", "macro"])
@pytest.mark.parametrize("example", range(len(HICLASS_EXAMPLES)))
def test_hiclass_on_its_own_examples(example: int, average: Any) -> None:
    truth, answers = HICLASS_EXAMPLES[example]
    edges = {(up, node) for row in truth + answers for up, node in zip(["root", *row], row, strict=False)}
    names = ["root", *sorted({node for _, node in edges})]
    above = {node: up for up, node in edges}
    ends = sorted({row[-1] for row in truth + answers})
    tree = ew.Tree([-1] + [names.index(above[n]) for n in names[1:]], bins=[names.index(end) for end in ends])
    index = [torch.tensor([ends.index(row[-1]) for row in side]) for side in (answers, truth)]
    compare_with_hiclass(tree, index[0], index[1], np.array(truth), np.array(answers), average)


@pytest.mark.parametrize("average", ["micro", "macro"])
def test_hiclass_on_random_trees(average: Any, rng: np.random.Generator) -> None:
    for _ in range(10):
        tree = random_tree(rng, 12, inner_bins=False)
        answers, labels = torch.from_numpy(rng.integers(0, tree.num_bins, (2, 15)))
        path = paths(tree)
        given = np.array([flat(path[k], tree.depth) for k in answers.tolist()])
        truth = np.array([flat(path[k], tree.depth) for k in labels.tolist()])
        compare_with_hiclass(tree, answers, labels, truth, given, average)


def compare_with_hiclass(
    tree: ew.Tree, answers: torch.Tensor, labels: torch.Tensor, truth: np.ndarray, given: np.ndarray, average: Any
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hiclass = pytest.importorskip("hiclass.metrics", reason="needs hiclass")

        expected = [score(truth, given, average=average) for score in (hiclass.precision, hiclass.recall, hiclass.f1)]
    ours = [
        score(answers, labels, tree, average, decision="class")
        for score in (F.hierarchical_precision, F.hierarchical_recall, F.hierarchical_f1)
    ]
    assert_allclose(ours, expected, rtol=1e-12)


def test_ranked_probability_score_against_scoringrules(rng: np.random.Generator) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scoringrules = pytest.importorskip("scoringrules", reason="needs scoringrules")

        p = random_distribution(rng, 50, 7)
        labels = torch.from_numpy(rng.integers(0, 7, 50))
        expected = scoringrules.rps_score(labels.numpy() + 1, p.numpy()).mean()
    assert_allclose(F.ranked_probability_score(p, labels, ew.Chain(7)), expected, rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_mean_emd_expected_distance_to_label(kind: str, rng: np.random.Generator) -> None:
    space = random_space(rng, kind, 20)
    p = random_distribution(rng, 30, space.num_bins)
    labels = torch.from_numpy(rng.integers(0, space.num_bins, 30))
    risk = (p @ space.distances()).gather(-1, labels[:, None]).mean()
    assert_allclose(F.mean_emd(p, labels, space), risk, rtol=1e-10)
    one_hot = torch.nn.functional.one_hot(labels, space.num_bins).double()
    assert_allclose(F.mean_emd(p, labels, space, rho=2.5), ew.emd(p, one_hot, space, rho=2.5).mean(), rtol=1e-9)


def test_metric_without_edges(rng: np.random.Generator) -> None:
    matrix = rng.random((6, 6)) * (1 - np.eye(6))
    space = ew.CostMatrix(matrix)
    p, labels = random_distribution(rng, 20, 6), torch.from_numpy(rng.integers(0, 6, 20))
    # From the answer to the truth, as the loss moves the prediction to the target.
    risk = p.numpy() @ matrix.T
    assert_allclose(ew.expected_distance(p, space), risk)
    assert_allclose(F.mean_emd(p, labels, space), (p.numpy() @ matrix)[np.arange(20), labels].mean())
    assert_allclose(F.mean_emd(p, labels, space), ew.EMDLoss(space, 1.0, normalize=None)(p, labels))
    assert_allclose(F.expected_cost(p, labels, space, decision="least_risk"), risk.min(-1).mean())
    answers = p.argmax(-1)
    assert_allclose(F.mean_distance(p, labels, space), matrix[answers, labels].mean())
    with pytest.raises(ValueError, match=r"rho: expected 1 on CostMatrix.*, which has no edges .*, got 2"):
        F.mean_emd(p, labels, space, rho=2)


@pytest.mark.parametrize("kind", KINDS)
def test_expected_cost_of_decisions(kind: str, rng: np.random.Generator) -> None:
    space = random_space(rng, kind, 20)
    p = random_distribution(rng, 30, space.num_bins)
    labels = torch.zeros(30, dtype=torch.long)
    risk = p @ space.distances()
    assert_allclose(F.expected_cost(p, labels, space), risk.gather(-1, p.argmax(-1, keepdim=True)).mean(), atol=1e-12)
    least = F.expected_cost(p, labels, space, decision="least_risk")
    assert_allclose(least, risk.amin(-1).mean(), atol=1e-12)
    if isinstance(space, ew.Tree):
        inner = F.expected_cost(p, labels, space, decision="inner")
        assert inner <= least + 1e-12


def test_inner_answers_less_wrong_and_say(rng: np.random.Generator) -> None:
    tree = random_tree(rng, 60, inner_bins=False).with_costs(1.0)
    p = torch.from_numpy(rng.dirichlet(np.full(tree.num_bins, 0.3), 500))
    labels = torch.multinomial(p, 1, generator=torch.Generator().manual_seed(0)).squeeze(-1)
    gain = {
        kind: score(p, labels, tree, decision="inner") - score(p, labels, tree)
        for kind, score in (("precision", F.hierarchical_precision), ("recall", F.hierarchical_recall))
    }
    assert gain["precision"] > 0.05 > 0 > gain["recall"]
