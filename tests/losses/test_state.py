"""What a loss saves and loads: the costs of its space, and its weights."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import earthwork as ew

N = 5
MATRIX = (torch.arange(N)[:, None] - torch.arange(N)).abs().double()
SPACES = {
    "chain": lambda factor: ew.Chain(N, costs=factor * torch.arange(1.0, N)),
    "ring": lambda factor: ew.Ring(N, costs=factor * torch.arange(1.0, N + 1)),
    "tree": lambda factor: ew.Tree([-1, 0, 0, 0, 1, 1, 2], costs=factor * torch.arange(1.0, 7), bins=[3, 4, 5, 6, 2]),
    "matrix": lambda factor: ew.CostMatrix(factor * MATRIX),
}
LOSSES = {
    "EMDLoss": ew.EMDLoss,
    "SinkhornLoss": ew.SinkhornLoss,
    "EdgeCrossEntropyLoss": ew.EdgeCrossEntropyLoss,
    "SoftLabelLoss": lambda space: ew.SoftLabelLoss(ew.CostMatrix(space.distances() ** 0.5)),
    "SoftLabelLoss on edges": ew.SoftLabelLoss,
    "MixedLoss": lambda space: ew.MixedLoss((0.5, ew.EMDLoss(space)), (0.5, nn.CrossEntropyLoss())),
}
CASES = [
    (space, loss)
    for space in SPACES
    for loss in LOSSES
    if not (loss == "EdgeCrossEntropyLoss" and space in ("ring", "matrix"))
]


def uneven(name):
    """A space of the same shape whose costs are in other proportions."""
    if name == "matrix":
        return ew.CostMatrix(MATRIX**2)
    space = SPACES[name](1.0)
    return space.with_costs(space.costs.flip(0) ** 2)


@pytest.mark.parametrize("rows", [4, 100])
@pytest.mark.parametrize(("space", "loss"), CASES)
def test_loading_a_state_loads_its_costs(space, loss, rows):
    logits, labels = torch.randn(rows, N), torch.arange(rows) % N
    shared = SPACES[space](1.0)
    old, other = LOSSES[loss](shared), LOSSES[loss](shared)
    saved = LOSSES[loss](uneven(space))
    before = old(logits, labels)
    assert not torch.allclose(before, saved(logits, labels))
    keys = old.load_state_dict(saved.state_dict())
    assert not keys.missing_keys
    assert not keys.unexpected_keys
    assert torch.equal(old(logits, labels), saved(logits, labels))
    assert torch.equal(other(logits, labels), before), "a loss of the same space changed"
    assert shared.equals(SPACES[space](1.0)), "the caller's space changed"


def test_a_compiled_diameter_follows_the_costs():
    loss = ew.SoftLabelLoss(ew.Chain(3, costs=[1.0, 1.0]), beta=2.0)
    copied = copy.deepcopy(loss)
    copied.load_state_dict(ew.SoftLabelLoss(ew.Chain(3, costs=[4.0, 4.0])).state_dict())
    assert torch.equal(copied.soft_labels(torch.arange(3)), loss.soft_labels(torch.arange(3)))


def test_a_state_without_costs_keeps_those_of_the_loss():
    """A model that was trained with another loss can be trained on with this one."""
    model = nn.ModuleDict({"network": nn.Linear(3, N), "loss": ew.EMDLoss(SPACES["chain"](2.0))})
    model.load_state_dict({f"network.{key}": value for key, value in nn.Linear(3, N).state_dict().items()})
    assert model["loss"].space.equals(SPACES["chain"](2.0))


@pytest.mark.parametrize(
    ("space", "costs", "message"),
    [
        ("chain", torch.ones(3), r"size mismatch for space\._costs"),
        ("chain", torch.tensor([1.0, -1.0, 1.0, 1.0]), r"space\._costs: expected finite numbers ≥ 0, got -1 at 1"),
        ("ring", torch.full((N,), torch.nan), r"space\._costs: expected finite numbers ≥ 0, got nan at 0"),
        ("matrix", torch.ones(N, N), r"space\.matrix: expected a diagonal of 0, got 1 from bin 0 to itself"),
    ],
)
def test_costs_that_cannot_be_loaded(space, costs, message):
    shared = SPACES[space](1.0)
    loss = ew.EMDLoss(shared)
    with pytest.raises(RuntimeError, match=message):
        loss.load_state_dict({"space.matrix" if space == "matrix" else "space._costs": costs})
    assert loss.space.equals(SPACES[space](1.0))
    assert shared.equals(SPACES[space](1.0))


def test_learnable_costs_are_loaded_in_place():
    costs = nn.Parameter(torch.ones(N - 1))
    loss = ew.EMDLoss(ew.Chain(N, costs=costs))
    loss.load_state_dict(ew.EMDLoss(SPACES["chain"](2.0)).state_dict())
    assert costs.tolist() == [2.0, 4.0, 6.0, 8.0]
