"""The catalogue is complete: a loss or metric that is missing there would miss every contract test."""

from __future__ import annotations

import torch

import earthwork as ew
from earthwork import losses
from earthwork.metrics.functional import MEASURES
from tests.catalogue import CLASSES, LOSS_CASES, LOSSES, METRIC_CASES, METRICS, SPACES, make_loss, make_metric

# Where the definition needs edges, edges that divide the classes in two, a hierarchy, or an order.
UNDEFINED_LOSSES = {
    "EMDLoss rho=1.5": {"matrix"},
    "EMDLoss high root": {"matrix"},
    "EMDLoss learned": {"matrix", "dag"},  # an edge of this Dag costs 0
    "EdgeCrossEntropyLoss": {"ring", "matrix"},
    "HierarchicalCrossEntropyLoss": {"chain", "ring", "matrix", "dag"},
    "TokenEMDLoss": set(SPACES) - {"chain"},
}
HIERARCHICAL = ("Coverage", "HierarchicalF1", "HierarchicalPrecision", "HierarchicalRecall", "RightOrAncestor")
UNDEFINED_METRICS = {
    **{name: {"chain", "ring", "matrix", "dag"} for name in ("AccuracyAtDepth", *HIERARCHICAL)},
    "RankedProbabilityScore": {"tree", "inner tree", "matrix", "dag"},
}


def test_every_loss_is_listed():
    listed = {type(module).__name__ for case in LOSS_CASES for module in make_loss(case).modules()}
    assert set(losses.__all__) - {"Head"} <= listed


def test_every_measure_is_exported():
    assert set(MEASURES) == set(METRICS) == {type(make_metric(case)).__name__ for case in METRIC_CASES}


def test_loss_and_metric_tested_where_defined():
    for factories, cases, undefined in (
        (LOSSES, LOSS_CASES, UNDEFINED_LOSSES),
        (METRICS, METRIC_CASES, UNDEFINED_METRICS),
    ):
        expected = [
            f"{name}, {space}" for name in factories for space in SPACES if space not in undefined.get(name, ())
        ]
        assert cases == expected


def test_spaces_differ_in_kind():
    assert all(space.num_bins == CLASSES and len(set(space.bin_names)) == CLASSES for space in SPACES.values())
    assert all(len(space.distances().unique()) > CLASSES for space in SPACES.values()), "uneven costs"
    kinds = {type(space) for space in SPACES.values()}
    assert kinds == {ew.Chain, ew.Ring, ew.Tree, ew.CostMatrix, ew.Dag}
    assert not set(SPACES["tree"].bins.tolist()) & set(SPACES["tree"].parents.tolist())
    assert set(SPACES["inner tree"].bins.tolist()) & set(SPACES["inner tree"].parents.tolist())
    assert not torch.equal(SPACES["tree"].bins, SPACES["tree"].bins.sort().values)
