"""What a loss saves and loads: its class weights, as cross entropy does, and nothing else."""

from __future__ import annotations

import pytest
import torch

import earthwork as ew
from tests.cases import GivenCosts

N = 5
MATRIX = (torch.arange(N)[:, None] - torch.arange(N)).abs().double()
SPACES = {
    "chain": ew.Chain(N, [1.0, 2.0, 3.0, 4.0]),
    "ring": ew.Ring(N, [1.0, 2.0, 3.0, 4.0, 5.0]),
    "tree": ew.Tree([-1, 0, 0, 0, 1, 1, 2], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0], bins=[3, 4, 5, 6, 2]),
    "matrix": ew.CostMatrix(MATRIX**2),
}
WEIGHT = torch.linspace(1, 2, N)


@pytest.mark.parametrize("name", SPACES)
def test_the_space_can_be_replaced(name):
    """A loss keeps nothing of its space, so that another one is used from the next call on."""
    logits, labels = torch.randn(100, N), torch.arange(100) % N
    loss = ew.EMDLoss(ew.Chain(N), rho=1, weight=WEIGHT)
    loss.space = SPACES[name]
    assert torch.equal(loss(logits, labels), ew.EMDLoss(SPACES[name], rho=1, weight=WEIGHT)(logits, labels))
    soft = ew.SoftLabelLoss(ew.Chain(N))
    soft.space = SPACES[name]
    assert torch.equal(soft(logits, labels), ew.SoftLabelLoss(SPACES[name])(logits, labels))


def test_a_space_that_does_not_fit():
    loss = ew.EMDLoss(ew.Chain(N), weight=WEIGHT)
    with pytest.raises(ValueError, match=r"weight: expected 4 numbers, one for each class of Chain\(4"):
        loss.space = ew.Chain(4)
    with pytest.raises(ValueError, match=r"rho: expected 1 on CostMatrix"):
        loss.space = SPACES["matrix"]
    with pytest.raises(TypeError, match="space: expected a Chain, Ring, Tree or CostMatrix, got int"):
        loss.space = 4
    with pytest.raises(TypeError, match="tree: expected a Tree, whose levels are asked for, got Chain"):
        ew.HierarchicalCrossEntropyLoss(SPACES["tree"]).space = ew.Chain(N)
    with pytest.raises(TypeError, match="space: expected a Chain or a Tree, whose edges divide"):
        ew.EdgeCrossEntropyLoss(ew.Chain(N)).space = SPACES["ring"]
    assert loss.space == ew.Chain(N)


CHANGES = {
    "EMDLoss": {"rho": 3.0, "root": True},
    "EdgeCrossEntropyLoss": {},
    "HierarchicalCrossEntropyLoss": {"alpha": 1.5},
    "SoftLabelLoss": {"beta": 30.0},
}
SHARED_CHANGES = {
    "space": ew.Tree([-1, 0, 0, 1, 1, 2, 2], 3.0),
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


@pytest.mark.parametrize("rows", [3, 100])
@pytest.mark.parametrize("name", ["chain", "ring", "tree"])
@pytest.mark.parametrize(("rho", "root"), [(1.0, False), (1.5, False), (2.0, True), (3.0, True)])
@pytest.mark.parametrize("soft", [False, True])
def test_learned_costs(name, rows, rho, root, soft):
    """The loss is that of a space with these costs, and its derivative by them that of finite differences."""
    space = SPACES[name].with_costs(torch.linspace(0.5, 2, SPACES[name].num_edges))
    costs = ew.LearnedCosts(space).double()
    loss = ew.EMDLoss(space, rho, costs=costs, root=root)
    logits, labels = torch.randn(rows, N, dtype=torch.float64), torch.arange(rows) % N
    target = torch.rand(rows, N, dtype=torch.float64).softmax(-1) if soft else labels
    fixed = space.with_costs(costs().detach())
    torch.testing.assert_close(loss(logits, target), ew.EMDLoss(fixed, rho, root=root)(logits, target))
    torch.testing.assert_close(costs(), space.costs / space.costs.mean(), rtol=1e-6, atol=1e-6)
    loss(logits, target).backward()
    (gradient,) = (parameter.grad for parameter in loss.parameters())
    step = 1e-6
    for place in range(len(gradient)):
        sides = []
        for sign in (1, -1):
            with torch.no_grad():
                costs.log_costs[place] += sign * step
                sides.append(loss(logits, target).item())
                costs.log_costs[place] -= sign * step
        assert abs((sides[0] - sides[1]) / (2 * step) - gradient[place].item()) < 1e-7


def test_learned_costs_stay_positive_with_mean_1():
    torch.manual_seed(0)
    chain = ew.Chain(10)
    loss = ew.EMDLoss(chain, costs=ew.LearnedCosts(chain))
    optimizer = torch.optim.SGD(loss.parameters(), lr=100.0)
    logits, labels = torch.randn(64, 10), torch.randint(10, (64,))
    before = loss(logits, labels).item()
    for _ in range(50):
        optimizer.zero_grad()
        loss(logits, labels).backward()
        optimizer.step()
    costs = loss.costs()
    assert (costs > 0).all()
    assert costs.mean().item() == pytest.approx(1)
    assert loss(logits, labels).item() < before
    assert list(loss.state_dict()) == ["costs.log_costs"]


def test_sets_by_learned_costs():
    chain, logits = ew.Chain(3), torch.tensor([[0.0, 10.0, 0.0]])
    allowed = ew.targets.any_of(torch.tensor([[True, False, True]]))
    for costs in ([1.0, 5.0], [5.0, 1.0]):
        loss = ew.EMDLoss(chain, 1, costs=GivenCosts(torch.tensor(costs)))
        torch.testing.assert_close(loss(logits, allowed), ew.EMDLoss(chain.with_costs(costs), 1)(logits, allowed))


@pytest.mark.parametrize(
    ("costs", "error", "message"),
    [
        (torch.ones(3), ValueError, r"costs: expected 4 edge costs of Chain\(5 bins, costs 1 to 4\), got shape \(3,\)"),
        (torch.tensor([1.0, -1.0, 1.0, 1.0]), ValueError, "costs: expected finite numbers ≥ 0, got -1 at 1"),
        (torch.ones(4).long(), TypeError, r"costs: expected a floating point tensor, got torch\.int64"),
        ([1.0] * 4, TypeError, "costs: expected a floating point tensor, got list"),
    ],
)
def test_costs_that_do_not_fit(costs, error, message):
    chain = SPACES["chain"]
    p = torch.full((2, N), 1 / N)
    with pytest.raises(error, match=message):
        ew.emd(p, p, chain, costs=costs)
    with pytest.raises(error, match=message):
        ew.EMDLoss(chain, costs=GivenCosts(costs))(p, torch.tensor([0, 1]))


def test_costs_where_there_are_none():
    p = torch.full((2, N), 1 / N)
    with pytest.raises(TypeError, match=r"costs: expected None on CostMatrix\(5 bins, costs to 16\), which"):
        ew.emd(p, p, SPACES["matrix"], costs=torch.ones(4))
    with pytest.raises(TypeError, match="costs: expected a module that returns edge costs, got Tensor; see"):
        ew.EMDLoss(SPACES["chain"], costs=torch.ones(4))
    with pytest.raises(TypeError, match="space: expected a Chain, Ring or Tree, whose edges cost something"):
        ew.LearnedCosts(SPACES["matrix"])
    with pytest.raises(ValueError, match="space: expected edges that cost more than 0, got 0 at edge 1"):
        ew.LearnedCosts(ew.Chain(3, [1.0, 0.0]))
