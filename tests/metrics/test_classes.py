"""The torchmetrics side: batches, processes, collections, pictures, copies."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
from torch import Tensor

import earthwork as ew
from earthwork.metrics import functional as F  # noqa: N812
from tests.cases import random_distribution, random_tree

mpl.use("Agg")

METRICS: dict[str, tuple[Callable[..., Any], Callable[..., Tensor], dict[str, Any]]] = {
    "EMD": (ew.metrics.MeanEMD, F.mean_emd, {"rho": 1.5}),
    "severity": (ew.metrics.MistakeSeverity, F.mistake_severity, {}),
    "height": (ew.metrics.MistakeSeverity, F.mistake_severity, {"measure": "height"}),
    "distance": (ew.metrics.MeanDistance, F.mean_distance, {"top_k": 3}),
    "depth": (ew.metrics.AccuracyAtDepth, F.accuracy_at_depth, {}),
    "precision": (ew.metrics.HierarchicalPrecision, F.hierarchical_precision, {}),
    "recall": (ew.metrics.HierarchicalRecall, F.hierarchical_recall, {"average": "macro"}),
    "F1": (ew.metrics.HierarchicalF1, F.hierarchical_f1, {"average": "macro"}),
    "cost": (ew.metrics.ExpectedCost, F.expected_cost, {"decision": "least_risk"}),
    "inner": (ew.metrics.HierarchicalF1, F.hierarchical_f1, {"decision": "inner", "vagueness": 0.1}),
    "logits": (ew.metrics.MeanDistance, F.mean_distance, {"normalize": "softmax"}),
    "coverage": (ew.metrics.Coverage, F.coverage, {"decision": "inner", "vagueness": 0.3}),
    "ancestor": (ew.metrics.RightOrAncestor, F.right_or_ancestor, {"decision": "inner"}),
    "gap": (ew.metrics.ExpectedCostGap, F.expected_cost_gap, {}),
    "rms": (ew.metrics.RootMeanSquaredDistance, F.root_mean_squared_distance, {}),
    "macro": (ew.metrics.MacroMeanDistance, F.macro_mean_distance, {"decision": "least_risk"}),
    "within": (ew.metrics.WithinDistance, F.within_distance, {"distance": 0.7}),
    "kappa": (ew.metrics.WeightedKappa, F.weighted_kappa, {"power": 1}),
    "rps": (ew.metrics.RankedProbabilityScore, F.ranked_probability_score, {}),
    "median": (ew.metrics.MedianDistance, F.median_distance, {}),
}


def case(name: str, rng: np.random.Generator) -> tuple[ew.Space, Tensor, Tensor]:
    space: ew.Space = ew.Chain(8) if name == "rps" else random_tree(rng, 15, inner_bins=False)
    p = random_distribution(rng, 40, space.num_bins)
    return space, p, torch.from_numpy(rng.integers(0, space.num_bins, 40))


@pytest.mark.parametrize("name", METRICS)
def test_batches_add_up_to_function_of_all(name: str, rng: np.random.Generator) -> None:
    make, function, options = METRICS[name]
    space, p, labels = case(name, rng)
    metric = make(space, **options)
    for rows in torch.arange(40).split(13):
        step = metric(p[rows], labels[rows])
        torch.testing.assert_close(step, function(p[rows], labels[rows], space, **options), equal_nan=True)
    expected = function(p, labels, space, **options)
    torch.testing.assert_close(metric.compute(), expected)
    for twin in (deepcopy(metric), pickle.loads(pickle.dumps(metric)), metric.clone()):
        torch.testing.assert_close(twin.compute(), expected)
    metric.reset()
    metric.update(p[:5], labels[:5])
    torch.testing.assert_close(metric.compute(), function(p[:5], labels[:5], space, **options), equal_nan=True)
    assert metric.higher_is_better == metric.measure.higher_is_better


@pytest.mark.parametrize("name", METRICS)
def test_plot(name: str, rng: np.random.Generator) -> None:
    import matplotlib.pyplot as plt

    make, _, options = METRICS[name]
    space, p, labels = case(name, rng)
    metric = make(space, **options)
    values = [metric(p, labels) for _ in range(3)]
    for value in (None, values):
        figure, axes = metric.plot(value)
        assert axes in figure.axes
        plt.close(figure)


def test_collection_keeps_apart_what_only_looks_equal(rng: np.random.Generator) -> None:
    from torchmetrics import MetricCollection

    tree = random_tree(rng, 15, inner_bins=False).with_costs(1.0)
    other = tree.with_costs(2.0)
    collection = MetricCollection(
        {
            "EMD": ew.metrics.MeanEMD(tree),
            "distance": ew.metrics.MeanDistance(tree),
            "other": ew.metrics.MeanDistance(other),
            "same": ew.metrics.MeanDistance(tree),
            "cost": ew.metrics.ExpectedCost(tree),
        }
    )
    right = torch.eye(tree.num_bins)
    collection.update(right, torch.arange(tree.num_bins))  # every state is 0 and the number of rows
    p = random_distribution(rng, 20, tree.num_bins)
    labels = torch.from_numpy(rng.integers(0, tree.num_bins, 20))
    collection.update(p, labels)
    values = collection.compute()
    share = 20 / (20 + tree.num_bins)
    torch.testing.assert_close(values["EMD"], share * F.mean_emd(p, labels, tree))
    torch.testing.assert_close(values["distance"], share * F.mean_distance(p, labels, tree))
    torch.testing.assert_close(values["other"], 2 * values["distance"])
    torch.testing.assert_close(values["same"], values["distance"])
    torch.testing.assert_close(values["cost"], share * F.expected_cost(p, labels, tree))


WORKER = """
import sys, torch, torch.distributed as dist
import earthwork as ew
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
case = torch.load(f"{folder}/case.pt")
tree = ew.Tree(case["parents"])
metrics = [ew.metrics.MistakeSeverity(tree), ew.metrics.AccuracyAtDepth(tree), ew.metrics.HierarchicalF1(tree),
           ew.metrics.MeanEMD(tree)]
# Shares of different sizes: a mean of the processes' means would be wrong.
rows = slice(0, 7) if rank == 0 else slice(7, None)
for metric in metrics:
    metric.update(case["p"][rows], case["labels"][rows])
values = [metric.compute() for metric in metrics]
torch.save(values, f"{folder}/values{rank}.pt")
dist.destroy_process_group()
"""


def test_two_processes_give_value_of(tmp_path: Path, rng: np.random.Generator) -> None:
    tree = random_tree(rng, 15, inner_bins=False).with_costs(1.0)
    p = random_distribution(rng, 40, tree.num_bins)
    labels = torch.from_numpy(rng.integers(0, tree.num_bins, 40))
    torch.save({"parents": tree.parents, "p": p, "labels": labels}, tmp_path / "case.pt")
    workers = [
        subprocess.Popen([sys.executable, "-W", "ignore", "-c", WORKER, str(rank), str(tmp_path)]) for rank in (0, 1)
    ]
    assert [worker.wait(timeout=90) for worker in workers] == [0, 0]
    functions = (F.mistake_severity, F.accuracy_at_depth, F.hierarchical_f1, F.mean_emd)
    expected = [function(p, labels, tree) for function in functions]
    for rank in (0, 1):
        for value, one in zip(torch.load(tmp_path / f"values{rank}.pt"), expected, strict=True):
            torch.testing.assert_close(value, one)


def test_nothing_wrong_is_nan(rng: np.random.Generator) -> None:
    assert ew.metrics.MistakeSeverity(ew.Chain(3))(torch.eye(3), torch.arange(3)).isnan()


def test_feature_maps_and_ignored_rows(rng: np.random.Generator) -> None:
    p = random_distribution(rng, 2, 3, 4, 5)  # N, H, W, C
    labels = torch.from_numpy(rng.integers(0, 5, (2, 3, 4)))
    maps = p.movedim(-1, 1)
    expected = F.mean_distance(p.reshape(-1, 5), labels.reshape(-1), ew.Chain(5), 2)
    torch.testing.assert_close(F.mean_distance(maps, labels, ew.Chain(5), 2), expected)
    holes = labels.clone()
    holes[0] = -100
    torch.testing.assert_close(
        F.mean_emd(maps, holes, ew.Chain(5), ignore_index=-100), F.mean_emd(maps[1:], labels[1:], ew.Chain(5))
    )
    # -100 is the default, as in the losses, and so are logits with the classes on any axis.
    logits, options = 3 * p.log(), {"normalize": "softmax", "class_dim": -1}
    by_loss = ew.EMDLoss(ew.Chain(5), class_dim=-1)(logits, holes)
    torch.testing.assert_close(F.mean_emd(logits, holes, ew.Chain(5), rho=2, **options), by_loss, check_dtype=False)
    metric = ew.metrics.MeanEMD(ew.Chain(5), rho=2, **options)
    torch.testing.assert_close(metric(logits, holes), by_loss, check_dtype=False)
    torch.testing.assert_close(
        F.mean_distance(maps.argmax(1), holes, ew.Chain(5), ignore_index=-100),
        F.mean_distance(maps[1:], labels[1:], ew.Chain(5)),
    )


def test_torchmetrics_missing_names_extra() -> None:
    code = (
        "import sys; sys.modules['torchmetrics'] = None; import earthwork as ew\n"
        "try: ew.metrics.MeanEMD\n"
        "except ImportError as error: sys.exit(\"pip install 'earthwork[metrics]'\" not in str(error))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match=r"module 'earthwork\.metrics' has no attribute 'F2'"):
        ew.metrics.F2  # noqa: B018
