"""Answers that one already has: classes and nodes are told apart, and score as the decisions that they came from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import earthwork as ew
from earthwork.metrics import functional as F  # noqa: N812
from tests.cases import random_distribution, random_tree

OF_NODES = ("accuracy", "mean_distance", "median_distance", "mistake_severity", "hierarchical_f1",
            "hierarchical_recall", "right_or_ancestor", "coverage", "accuracy_at_depth", "within_distance")  # fmt: skip


@pytest.mark.parametrize("name", OF_NODES)
def test_given_answers_score_as_decided_ones(name: str, rng: np.random.Generator) -> None:
    for inner_bins in (False, True):
        tree = random_tree(rng, 15, inner_bins=inner_bins)
        p, labels = random_distribution(rng, 40, tree.num_bins), torch.from_numpy(rng.integers(0, tree.num_bins, 40))
        score = getattr(F, name)
        nodes = ew.decide(p, tree, allow_inner=True, vagueness=0.2)
        expected = score(p, labels, tree, decision="inner", vagueness=0.2)
        assert_allclose(score(nodes, labels, tree, decision="node"), expected)
        classes = ew.decide(p, tree)
        assert_allclose(score(classes, labels, tree, decision="class"), score(p, labels, tree, decision="least_risk"))
        assert_allclose(
            score(tree.bins[classes], labels, tree, decision="node"), score(classes, labels, tree, decision="class")
        )


def test_nodes_are_not_taken_for_classes() -> None:
    # Classes in another order than their nodes: each node is also the index of another class.
    tree = ew.Tree([6, 6, 7, 7, 8, 8, 9, 9, 9, -1], bins=[3, 0, 5, 1, 4, 2])
    labels = torch.arange(6)
    perfect = tree.bins[labels]
    assert F.hierarchical_f1(perfect, labels, tree, decision="node") == 1
    assert F.hierarchical_f1(labels, labels, tree, decision="class") == 1
    for answers in (perfect, labels):
        with pytest.raises(ValueError, match="answers on a tree can be classes or nodes, and here class 0 is node 3"):
            F.hierarchical_f1(answers, labels, tree)
        with pytest.raises(ValueError, match="answers on a tree can be classes or nodes"):
            ew.metrics.HierarchicalF1(tree)(answers, labels)


def test_classes_first_nodes_need_no_words() -> None:
    tree, labels = ew.Tree([4, 4, 5, 5, 6, 6, -1]), torch.tensor([0, 3, 1])
    assert tree.bins.tolist() == [0, 1, 2, 3]
    assert F.hierarchical_f1(labels, labels, tree) == 1


def test_report_answers_lines_need_no_probabilities(rng: np.random.Generator) -> None:
    p, labels = random_distribution(rng, 30, 5), torch.from_numpy(rng.integers(0, 5, 30))
    whole = ew.metrics.hierarchical_report(p, labels, ew.Chain(5), intervals=True)
    answers = ew.metrics.hierarchical_report(p.argmax(-1), labels, ew.Chain(5), intervals=True)
    found = {line.label: line.estimates for line in answers.lines}
    assert {line.label for line in whole.lines} - set(found) == {
        "ranked probability score", "log loss", "expected cost", "expected − measured cost", "EMD, ρ = 1",
    }  # fmt: skip
    assert all(whole.line(label).estimates == estimates for label, estimates in found.items())


def test_functions_say_what_they_take() -> None:
    import inspect
    import pickle

    assert list(inspect.signature(F.weighted_kappa).parameters)[:4] == ["preds", "target", "space", "power"]
    assert list(inspect.signature(ew.metrics.WeightedKappa).parameters)[:3] == ["space", "power", "decision"]
    assert F.weighted_kappa.__doc__ == ew.metrics.WeightedKappa.__doc__
    assert pickle.loads(pickle.dumps(F.weighted_kappa)) is F.weighted_kappa
    with pytest.raises(AttributeError, match="has no attribute 'kappa'"):
        F.kappa  # noqa: B018
