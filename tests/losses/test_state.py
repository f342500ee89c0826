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


@pytest.mark.parametrize("rows", [2, 100])
@pytest.mark.parametrize("space", ["chain", "tree", "matrix"])
def test_a_diameter_is_that_of_the_present_costs(space, rows):
    logits, labels = torch.randn(rows, N), torch.arange(rows) % N
    expected = ew.SoftLabelLoss(uneven(space))(logits, labels)
    costs = uneven(space).state_dict()
    loss = ew.SoftLabelLoss(SPACES[space](1.0))
    before = loss(logits, labels)
    swapped = {f"space.{key}": value for key, value in costs.items()}
    torch.testing.assert_close(torch.func.functional_call(loss, swapped, (logits, labels)), expected)
    assert torch.equal(loss(logits, labels), before)
    loss.space.load_state_dict(costs)
    torch.testing.assert_close(loss(logits, labels), expected)
    assert torch.equal(copy.deepcopy(loss)(logits, labels), loss(logits, labels))


CHANGES = {
    "EMDLoss": {"rho": 3.0, "root": True},
    "EdgeCrossEntropyLoss": {},
    "HierarchicalCrossEntropyLoss": {"alpha": 1.5},
    "SoftLabelLoss": {"beta": 30.0},
}
SHARED_CHANGES = {
    "reduction": "sum",
    "label_smoothing": 0.4,
    "normalize": None,
    "ignore_index": 3,
    "empty": "zero",
    "class_dim": 0,
    "weight": torch.linspace(0.1, 5, 4),
}


@pytest.mark.parametrize("rows", [4, 100])
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("weighted", [False, True])
def test_second_derivatives_of_a_loss_that_was_changed_meanwhile(name, rows, weighted):
    """They are those of the loss as it was called."""
    tree = ew.Tree([-1, 0, 0, 1, 1, 2, 2])
    logits, labels = torch.randn(rows, 4, dtype=torch.float64), torch.randint(4, (rows,))

    def second(option=None, value=None):
        loss = getattr(ew, name)(tree, weight=torch.linspace(1, 2, 4) if weighted else None)
        x = logits.clone().requires_grad_()
        result = loss(x, labels)
        if option is not None:
            setattr(loss, option, value)
        (gradient,) = torch.autograd.grad(result, x, create_graph=True)
        return gradient.detach(), *torch.autograd.grad(gradient.square().sum(), x)

    expected = second()
    for option, value in (CHANGES[name] | SHARED_CHANGES).items():
        for one, other in zip(second(option, value), expected, strict=True):
            assert torch.equal(one, other), option


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


TREE = ew.Tree([-1, 0, 0, 1, 1, 2, 2])
OTHER_SPACES = {
    "another parent": (TREE, ew.Tree([-1, 0, 0, 1, 1, 1, 2])),
    "bins in another order": (TREE, ew.Tree(TREE.parents, bins=[3, 4, 6, 5])),
    "other bins": (TREE, ew.Tree(TREE.parents, bins=[3, 4, 5, 2])),
    "a longer chain": (ew.Chain(5), ew.Chain(7)),
    "a ring with as many edges": (ew.Chain(6, torch.ones(5)), ew.Ring(5, torch.ones(5))),
    "a tree with as many edges": (ew.Chain(5, torch.ones(4)), ew.Tree([-1, 0, 0, 0, 0], torch.ones(4))),
}


@pytest.mark.parametrize("case", OTHER_SPACES)
@pytest.mark.parametrize("strict", [True, False])
def test_a_state_of_other_edges_is_refused(case, strict):
    """The costs would fit, but each would belong to another edge."""
    space, other = OTHER_SPACES[case]
    loss = ew.EMDLoss(space)
    saved = ew.EMDLoss(other._scaled(torch.tensor(2.0))).state_dict()
    with pytest.raises(RuntimeError, match=r"space\._structure: expected the edges of .* of a space with other"):
        loss.load_state_dict(saved, strict=strict)
    assert loss.space.equals(space), "nothing was loaded"


@pytest.mark.parametrize("name", SPACES)
def test_a_state_without_a_structure_is_loaded(name):
    """Those saved before structures were part of them, or by other means."""
    loss = ew.EMDLoss(SPACES[name](1.0))
    state = {key: value for key, value in ew.EMDLoss(uneven(name)).state_dict().items() if "structure" not in key}
    keys = loss.load_state_dict(state)
    assert not keys.missing_keys
    assert loss.space.equals(uneven(name))


def test_a_structure_does_not_depend_on_costs_names_and_types():
    named = ew.Tree(TREE.parents.int(), costs=[3.0] * 6, bins=[3, 4, 5, 6], names=list("abcdefg")).float()
    assert torch.equal(named.state_dict()["_structure"], TREE.state_dict()["_structure"])
    assert not named.equals(TREE)


@pytest.mark.parametrize(
    "loss",
    [*LOSSES.values(), ew.HierarchicalCrossEntropyLoss, lambda _: ew.TokenEMDLoss([3, 4, 5], [0, 1, 2])],
    ids=[*LOSSES, "HierarchicalCrossEntropyLoss", "TokenEMDLoss"],
)
def test_the_space_cannot_be_replaced(loss):
    """Tables and a diameter of the old space would stay."""
    function = loss(SPACES["tree"](1.0))
    function = function.losses[0] if isinstance(function, ew.MixedLoss) else function
    before = function.space
    what = type(function).__name__
    with pytest.raises(AttributeError, match=f"{what} keeps values .* cannot set `space`, make a new {what}"):
        function.space = SPACES["tree"](2.0)
    assert function.space is before
