"""Losses and heads of the study against formulas that are written out for single rows."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import earthwork as ew
from earthwork_lab.study.contenders import CONTENDERS, binomial, gaussian, triangular

TREE = ew.trees.from_paths([("a", "b", "x"), ("a", "b", "y"), ("a", "z"), ("c", "v"), ("c", "w")])
SPACES = {"chain": ew.Chain(5), "ring": ew.Ring(5), "tree": TREE}
CASES = [
    (name, space)
    for name, contender in CONTENDERS.items()
    for space in SPACES
    if isinstance(SPACES[space], contender.spaces)
]


def outputs_and_labels(name: str, space: ew.Space, rows: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    width = CONTENDERS[name].head(space).outputs
    return torch.randn(rows, width, generator=generator), torch.randint(space.num_bins, (rows,), generator=generator)


def loss_of(name: str, space: ew.Space, value: Any, outputs: Tensor, labels: Tensor) -> float:
    return float(CONTENDERS[name].criterion(space, value)(outputs, labels))


@pytest.mark.parametrize("name", CONTENDERS)
def test_every_contender_has_twelve_configurations(name: str) -> None:
    entries = CONTENDERS[name].configurations()
    assert len(entries) == len(set(entries)) == 12
    values = [entry.value for entry in entries]
    assert values == sorted(values, key=values.index)


@pytest.mark.parametrize(("name", "space"), CASES)
def test_a_loss_is_the_sum_of_its_rows(name: str, space: str) -> None:
    outputs, labels = outputs_and_labels(name, SPACES[space])
    for value in CONTENDERS[name].values:
        rows = [
            loss_of(name, SPACES[space], value, outputs[row : row + 1], labels[row : row + 1])
            for row in range(len(labels))
        ]
        assert loss_of(name, SPACES[space], value, outputs, labels) == pytest.approx(sum(rows), rel=1e-5)


@pytest.mark.parametrize(("name", "space"), CASES)
def test_a_head_gives_probabilities(name: str, space: str) -> None:
    outputs, _ = outputs_and_labels(name, SPACES[space])
    p = CONTENDERS[name].head(SPACES[space]).log_p(outputs.reshape(1, 7, -1)).exp()
    assert p.shape == (1, 7, 5)
    assert torch.allclose(p.sum(-1), torch.ones(1, 7), atol=1e-5)


@pytest.mark.parametrize(("name", "space"), CASES)
def test_training_lowers_the_distance_of_a_learnable_row(name: str, space: str) -> None:
    """Descending a loss moves the probabilities to the label, also from a wrong answer."""
    found = SPACES[space]
    head = CONTENDERS[name].head(found)
    for label in (0, 3):
        outputs = torch.zeros(1, head.outputs, requires_grad=True)
        criterion = CONTENDERS[name].criterion(found, CONTENDERS[name].values[0])
        optimizer = torch.optim.Adam([outputs], 0.1)
        for _ in range(100):
            optimizer.zero_grad()
            criterion(outputs, torch.tensor([label])).backward()
            optimizer.step()
        assert head.log_p(outputs.detach()).argmax().item() == label


def by_hand(name: str, space: ew.Space, value: Any, z: Tensor, y: int) -> float:
    """The loss of one row, from the papers' formulas."""
    p = z.double().softmax(-1).tolist()
    distances = space.distances()[y].tolist()
    largest = float(space.distances().max())
    if name == "oll":
        return -sum((d / largest) ** value * math.log(1 - q) for d, q in zip(distances, p, strict=True))
    if name == "margin":
        shifted = [float(a) + value * d / largest for a, d in zip(z, distances, strict=True)]
        return math.log(sum(map(math.exp, shifted))) - shifted[y]
    if name == "superclass":
        # The paths of the tree above: nodes with the classes below them, from the class upwards.
        above = {0: [[0], [0, 1], [0, 1, 2]], 1: [[1], [0, 1], [0, 1, 2]], 2: [[2], [0, 1, 2]], 3: [[3], [3, 4]],
                 4: [[4], [3, 4]]}[y]  # fmt: skip
        return -sum(value**height * math.log(sum(p[k] for k in below)) for height, below in enumerate(above))
    raise AssertionError(name)


@pytest.mark.parametrize(("name", "space"), [case for case in CASES if case[0] in ("oll", "margin", "superclass")])
def test_formulas(name: str, space: str) -> None:
    outputs, labels = outputs_and_labels(name, SPACES[space])
    for value in CONTENDERS[name].values:
        for row, label in zip(outputs, labels.tolist(), strict=True):
            expected = by_hand(name, SPACES[space], value, row, label)
            assert loss_of(name, SPACES[space], value, row[None], torch.tensor([label])) == pytest.approx(
                expected, rel=1e-4
            )


def test_soft_targets() -> None:
    chain, ring = ew.Chain(4), ew.Ring(4)
    assert torch.allclose(triangular(chain, 0.1)[:2], torch.tensor([[0.9, 0.1, 0, 0], [0.1, 0.8, 0.1, 0]]).double())
    assert torch.allclose(triangular(ring, 0.1)[0], torch.tensor([0.8, 0.1, 0, 0.1]).double())
    eighth = torch.tensor([(7 / 8) ** 3, 3 * (1 / 8) * (7 / 8) ** 2, 3 * (1 / 64) * (7 / 8), 1 / 512]).double()
    assert torch.allclose(binomial(chain, 1.0)[0], eighth)
    normal = torch.distributions.Normal(torch.tensor(1.0).double(), 0.7)
    edges = torch.arange(5).double() - 0.5
    assert torch.allclose(gaussian(chain, 0.7)[1], normal.cdf(edges[1:]) - normal.cdf(edges[:-1]))


def test_cumulative_link_probabilities() -> None:
    """P(y ≤ k) = σ(θ_k − score), with the mean of the thresholds at their first parameter."""
    outputs = torch.tensor([0.3, -0.2, 0.1, 0.5])
    gaps = nn.functional.softplus(outputs[2:])
    thresholds = torch.tensor([0.0, float(gaps[0]), float(gaps.sum())])
    thresholds = thresholds - thresholds.mean() + outputs[1]
    below = torch.cat([torch.zeros(1), (thresholds - outputs[0]).sigmoid(), torch.ones(1)])
    p = CONTENDERS["cumulative"].head(ew.Chain(4)).log_p(outputs).exp()
    assert torch.allclose(p, below.diff(), atol=1e-6)


def test_corn_and_coral_probabilities() -> None:
    p = CONTENDERS["corn"].head(ew.Chain(3)).log_p(torch.tensor([0.0, 0.0])).exp()
    assert p.tolist() == pytest.approx([0.5, 0.25, 0.25])
    p = CONTENDERS["coral"].head(ew.Chain(3)).log_p(torch.tensor([0.0, 1.0, -1.0])).exp()
    above = [1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1))]
    assert p.tolist() == pytest.approx([1 - above[0], above[0] - above[1], above[1]], rel=1e-5)


def test_hierarchical_softmax_is_a_product_along_the_path() -> None:
    head = CONTENDERS["hsoftmax"].head(TREE)
    names = [TREE.names[node] for node in range(len(TREE.parents)) if TREE.parents[node] >= 0]
    logits = {name: 0.3 * place - 1 for place, name in enumerate(names)}
    siblings = [{"a", "c"}, {"b", "z"}, {"x", "y"}, {"v", "w"}]

    def conditional(name: str) -> float:
        group = next(group for group in siblings if name in group)
        return math.exp(logits[name]) / sum(math.exp(logits[other]) for other in group)

    p = head.log_p(torch.tensor(list(logits.values()))).exp().tolist()
    expected = [math.prod(map(conditional, path)) for path in ("abx", "aby", "az", "cv", "cw")]
    assert p == pytest.approx(expected, rel=1e-5)
