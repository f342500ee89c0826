"""The metrics as subjects, with their formulas over the matrices of the oracle, in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

import earthwork as ew
import oracle
from cases import KINDS, TREES, Case, Floats
from oracle import Dense
from subjects import EDGES, OTHERS, Subject, node_risk, probabilities, rho_of

# Risks that differ by no more than rounding are equal, and the first of them is the answer.
_TIED = 64


class Rows(NamedTuple):
    """The rows that count: distributions, answers and labels as places in a matrix of distances."""

    case: Case
    dense: Dense
    p: Floats
    answers: NDArray[np.int64]
    labels: NDArray[np.int64]
    far: Floats
    """The distance from every possible answer (row) to every possible label (column)."""
    risk: Floats
    """The expected distance of every possible answer."""

    @property
    def distance(self) -> Floats:
        """From each answer to its label."""
        return np.asarray(self.far[self.answers, self.labels])

    @property
    def wrong(self) -> NDArray[np.bool_]:
        """Which answers are not the label."""
        return np.asarray(self.answers != self.labels)

    def ancestors(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """The nodes at or above the answers and the labels: ``[rows, nodes]`` each."""
        above = self.dense.above.numpy() > 0
        nodes = self.dense.nodes.numpy()
        inner = self.case.option("decision") == "inner"
        answers, labels = (self.answers, self.labels) if inner else (nodes[self.answers], nodes[self.labels])
        return above[answers], above[labels]


def rows_of(case: Case, x: Tensor, dense: Dense) -> Rows:
    """The rows of a case that are not ignored."""
    counted = ~case.ignored
    p, labels = probabilities(case, x.detach())[torch.from_numpy(counted)], case.labels[counted]
    decision = case.option("decision", "argmax")
    if decision == "inner":
        labels = dense.nodes.numpy()[labels]
        far, risk = dense.node_distances, node_risk(p, dense, case.option("vagueness", 0.0))
        own = p @ dense.node_distances[:, dense.nodes].T
    else:
        far, risk = dense.distances, -p if decision == "argmax" else p @ dense.distances.T
        own = p @ dense.distances.T
    least = risk.amin(-1, keepdim=True) if len(p) else risk
    finite = torch.where(risk.isinf(), 0, risk.abs())
    # Half precision is computed in float32.
    eps = torch.finfo(torch.promote_types(case.type, torch.float32)).eps
    slack = 0 if decision == "argmax" else _TIED * eps * finite.amax(-1, keepdim=True)
    answers = (risk <= least + slack).int().argmax(-1) if len(p) else torch.zeros(0, dtype=torch.int64)
    return Rows(case, dense, p.numpy(), answers.numpy(), labels, far.numpy(), own.numpy())


def severity(rows: Rows) -> Any:
    """The mean distance, or height of the common ancestor, of wrong answers."""
    size = rows.distance
    if rows.case.option("measure") == "height":
        ours, theirs = rows.ancestors()
        depth = rows.dense.above.numpy().sum(-1)
        shared = np.where(ours & theirs, depth, 0).argmax(-1)
        size = rows.dense.heights.numpy()[shared]
    return _mean(size[rows.wrong])


def top_distance(rows: Rows) -> Any:
    """The mean distance of the most probable answers."""
    best = (-rows.p).argsort(-1, kind="stable")[:, : rows.case.option("top_k", 1)]
    if rows.case.option("decision", "argmax") != "argmax":
        return _mean(rows.distance)
    return _mean(rows.far[best, rows.labels[:, None]].mean(-1))


def macro_distance(rows: Rows) -> Any:
    """The mean over the classes that occur of the mean distance."""
    return _mean(np.array([rows.distance[rows.labels == label].mean() for label in np.unique(rows.labels)]))


def kappa(rows: Rows) -> Any:
    """One minus the cost of the answers by that of all pairs of an answer and a label."""
    cost = rows.far ** rows.case.options["power"]
    pairs = cost[rows.answers[:, None], rows.labels[None, :]].mean() if len(rows.labels) else np.nan
    with np.errstate(invalid="ignore", divide="ignore"):
        return 1 - np.divide(_mean(cost[rows.answers, rows.labels]), pairs)


def accuracy_at_depth(rows: Rows) -> Any:
    """The share of rows whose answer and label share an ancestor at each depth, or are the same."""
    ours, theirs = rows.ancestors()
    shared = (ours & theirs).sum(-1) - 1
    depth = rows.dense.above.numpy().sum(-1).max() - 1
    right = (np.arange(depth + 1) <= shared[:, None]) | ~rows.wrong[:, None]
    return right.mean(0) if len(right) else np.full(int(depth) + 1, np.nan)


def ancestor_score(kind: str) -> Callable[[Rows], Any]:
    """Precision, recall or F1 of the ancestors without the root."""

    def score(rows: Rows) -> Any:
        ours, theirs = rows.ancestors()
        shared, answer, truth = ((x.sum(-1) - 1).astype(float) for x in (ours & theirs, ours, theirs))
        top, whole = {"precision": (shared, answer), "recall": (shared, truth), "f1": (2 * shared, answer + truth)}[
            kind
        ]
        if rows.case.option("average", "micro") == "micro":
            return np.divide(top.sum(), whole.sum()) if whole.sum() else np.nan
        return _mean(np.where(whole > 0, top / np.maximum(whole, 1), ~rows.wrong))

    return score


def right_or_ancestor(rows: Rows) -> Any:
    """The share of rows whose answer is the label or above it."""
    ours, theirs = rows.ancestors()
    return _mean((~ours | theirs).all(-1).astype(float))


def coverage(rows: Rows) -> Any:
    """The share of rows whose answer is a class."""
    inner = rows.case.option("decision") == "inner"
    return _mean(np.isin(rows.answers, rows.dense.nodes.numpy()).astype(float) if inner else np.ones(len(rows.answers)))


def transport(rows: Rows) -> Any:
    """The mean of EMD^ρ to the label; ρ = 2 is the ranked probability score."""
    nodes = rows.dense.nodes.tolist() if rows.case.option("decision") == "inner" else None
    labels = rows.labels if nodes is None else np.array([nodes.index(label) for label in rows.labels], dtype=np.int64)
    q = torch.from_numpy(np.eye(rows.case.bins)[labels])
    return _mean(oracle.emd(torch.from_numpy(rows.p), q, rows.dense, rows.case.option("rho", 2.0)).numpy())


def expected_cost(rows: Rows) -> Any:
    """The mean expected distance of the answers."""
    return _mean(rows.risk[np.arange(len(rows.answers)), rows.answers])


def _mean(x: Floats) -> Any:
    return x.mean() if len(x) else np.nan


_CLASSES = {"mean_emd": "MeanEMD", "hierarchical_f1": "HierarchicalF1"}


def metric(
    name: str,
    formula: Callable[[Rows], Any],
    kinds: tuple[str, ...] = KINDS,
    inner: bool = True,
    **own: Callable[[Generator, str], Any],
) -> Subject:
    """A metric as a subject: its function, its class, and its options with how they are drawn."""

    def options(case: Case, axis: int | None) -> dict[str, Any]:
        return {key: value for key, value in case.options.items() if key != "ignored"} | {"class_dim": axis}

    def call(case: Case, axis: int | None) -> Callable[..., Tensor]:
        function = getattr(ew.metrics.functional, name)
        return lambda x, target, mask=None: function(x, target, case.space, **options(case, axis))

    def whole(case: Case, axis: int | None) -> Any:
        title = _CLASSES.get(name, "".join(part.title() for part in name.split("_")))
        return getattr(ew.metrics, title)(case.space, **options(case, axis))

    def draw(rng: Generator, kind: str) -> dict[str, Any]:
        decisions = ("argmax", "argmax", "least_risk", *(("inner",) if inner and kind in TREES else ()))
        drawn: dict[str, Any] = {"decision": decisions[rng.integers(len(decisions))]}
        if drawn["decision"] == "inner":
            drawn["vagueness"] = float(rng.choice([0.0, 0.3]))
        if rng.random() < 0.3:
            drawn["normalize"] = ("softmax", "l1")[rng.integers(2)]
        if rng.random() < 0.2:
            drawn["ignored"] = True
        return drawn | {
            key: value(rng, kind) for key, value in own.items() if key != "top_k" or "vagueness" not in drawn
        }

    def exact(case: Case, x: Tensor, dense: Dense) -> Tensor:
        return torch.as_tensor(formula(rows_of(case, x, dense)), dtype=torch.float64)

    def size(case: Case, dense: Dense) -> float:
        return 1 + dense.size ** max(2.0, case.option("power", 1.0), case.option("rho", 1.0))

    return Subject(
        call,
        exact,
        draw,
        kinds,
        ("labels",),
        contract=False,
        order=0,
        size=size,
        chance=0.02,
        metric=whole,
        reduced=True,
    )


def _average(rng: Generator, kind: str) -> str:
    return str(rng.choice(["micro", "macro"]))


METRICS = {
    "mean_emd": metric("mean_emd", transport, EDGES, rho=rho_of),
    "ranked_probability_score": metric("ranked_probability_score", transport, ("chain", "ring")),
    "mistake_severity": metric(
        "mistake_severity",
        severity,
        measure=lambda rng, kind: ("distance", "height")[rng.integers(1 + (kind in TREES))],
    ),
    "mean_distance": metric("mean_distance", top_distance, top_k=lambda rng, kind: 1),
    "root_mean_squared_distance": metric("root_mean_squared_distance", lambda rows: _mean(rows.distance**2) ** 0.5),
    "macro_mean_distance": metric("macro_mean_distance", macro_distance, inner=False),
    "within_distance": metric(
        "within_distance",
        lambda rows: _mean((rows.distance <= rows.case.options["distance"]).astype(float)),
        distance=lambda rng, kind: float(rng.uniform(0, 3)),
    ),
    "weighted_kappa": metric(
        "weighted_kappa", kappa, inner=False, power=lambda rng, kind: float(rng.choice([1.0, 2.0, 0.7]))
    ),
    "accuracy_at_depth": metric("accuracy_at_depth", accuracy_at_depth, TREES),
    "hierarchical_precision": metric("hierarchical_precision", ancestor_score("precision"), TREES, average=_average),
    "hierarchical_recall": metric("hierarchical_recall", ancestor_score("recall"), TREES, average=_average),
    "hierarchical_f1": metric("hierarchical_f1", ancestor_score("f1"), TREES, average=_average),
    "right_or_ancestor": metric("right_or_ancestor", right_or_ancestor, TREES),
    "coverage": metric("coverage", coverage, TREES),
    "expected_cost": metric("expected_cost", expected_cost),
    "expected_cost_gap": metric(
        "expected_cost_gap", lambda rows: expected_cost(rows) - _mean(rows.distance) if len(rows.p) else np.nan
    ),
}

SUBJECTS: dict[str, Subject] = OTHERS | METRICS
"""All that is called."""
