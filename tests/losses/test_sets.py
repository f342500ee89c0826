"""Targets that are sets of possible classes: against a linear programme, and the nearest class against brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

import earthwork as ew
from tests.cases import random_tree


def spaces(seed):
    rng = np.random.default_rng(seed)
    n = 3 + seed
    matrix = rng.random((n, n))
    np.fill_diagonal(matrix, 0)
    return {
        "chain": ew.Chain(n, rng.random(n - 1)),
        "ring": ew.Ring(n, rng.random(n)),
        "tree": random_tree(rng, 4 + 2 * seed),
        "cost matrix": ew.CostMatrix(matrix),
    }


def masks(seed, count, num_bins):
    rng = np.random.default_rng(seed)
    allowed = torch.tensor(rng.random((count, num_bins)) < 0.4)
    allowed[torch.arange(count), torch.tensor(rng.integers(num_bins, size=count))] = True
    return ew.targets.any_of(allowed)


def cheapest(p, allowed, distances):
    """The least cost of moving ``p`` into the allowed bins, as a linear programme over all plans."""
    n, targets = len(p), np.flatnonzero(allowed)
    leaves = np.kron(np.eye(n), np.ones(len(targets)))
    solved = linprog(distances[:, targets].ravel(), A_eq=leaves, b_eq=p)
    assert solved.success
    return solved.fun


@pytest.mark.parametrize("name", ["chain", "ring", "tree", "cost matrix"])
@pytest.mark.parametrize("seed", range(4))
def test_at_rho_1_the_loss_is_the_linear_programme(seed, name):
    space = spaces(seed)[name]
    logits = torch.randn(4, space.num_bins, dtype=torch.float64)
    allowed = masks(seed, 4, space.num_bins)
    ours = ew.EMDLoss(space, 1, reduction="none")(logits, allowed)
    p, distances = logits.softmax(-1).numpy(), space.distances().double().numpy()
    theirs = [cheapest(row, mask, distances) for row, mask in zip(p, allowed.mask.numpy(), strict=True)]
    np.testing.assert_allclose(ours, theirs, atol=1e-8)


@pytest.mark.parametrize("name", ["chain", "ring", "tree", "cost matrix"])
@pytest.mark.parametrize("seed", range(6))
def test_the_nearest_class_is_that_of_brute_force(seed, name):
    space = spaces(seed)[name]
    allowed = masks(seed, 6, space.num_bins).mask.view(2, 3, -1)
    nearest = space.nearest(allowed)
    distances = space.distances().double()
    assert allowed.gather(-1, nearest).all()
    best = distances.expand(2, 3, -1, -1).masked_fill(~allowed.unsqueeze(-2), np.inf).amin(-1)
    torch.testing.assert_close(distances[torch.arange(space.num_bins), nearest], best)


@pytest.mark.parametrize("rho", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("name", ["chain", "ring", "tree"])
def test_gradients_by_finite_differences(name, rho):
    space = spaces(2)[name]
    logits = torch.randn(3, space.num_bins, dtype=torch.float64, requires_grad=True)
    loss = ew.EMDLoss(space, rho)
    assert torch.autograd.gradcheck(lambda x: loss(x, masks(7, 3, space.num_bins)), logits)


@pytest.mark.parametrize("root", [False, True])
@pytest.mark.parametrize("name", ["chain", "ring", "tree", "cost matrix"])
def test_sets_with_label_smoothing_and_a_root(name, root):
    space = spaces(2)[name]
    rho = 1.0 if name == "cost matrix" else 2.0
    logits, allowed = torch.randn(5, space.num_bins, dtype=torch.float64), masks(3, 5, space.num_bins)
    p, q = logits.softmax(-1), torch.full_like(logits, 0.3 / space.num_bins)
    distances = space.distances().double()
    for row, mask in enumerate(allowed.mask):
        for place in range(space.num_bins):
            q[row, distances[place].masked_fill(~mask, np.inf).argmin()] += 0.7 * p[row, place]
    expected = ew.emd(p, q, space, rho)
    loss = ew.EMDLoss(space, rho, label_smoothing=0.3, root=root, reduction="none")
    torch.testing.assert_close(loss(logits, allowed), expected.pow(1 / rho) if root else expected)


LOSSES = [ew.EMDLoss, ew.SoftLabelLoss, ew.EdgeCrossEntropyLoss, ew.HierarchicalCrossEntropyLoss]


@pytest.mark.parametrize("kind", LOSSES)
def test_the_two_meanings_of_several_classes(kind):
    """A model that is certain of one of two classes is right if either may be true, and half right if both are."""
    loss = kind(ew.Tree([-1, 0, 0, 1, 1, 2]))
    logits, mask = torch.tensor([[40.0, 0.0, 0.0]]), torch.tensor([[True, False, True]])
    shares = mask / mask.sum(-1, keepdim=True)
    with pytest.raises(
        TypeError, match=r'"one of these classes" \(pass ew\.targets\.any_of\(mask\)\) or "all of these'
    ):
        loss(logits, mask)
    if kind is not ew.SoftLabelLoss:  # its own targets are never certain
        assert loss(logits, ew.targets.any_of(mask)) < 1e-6
    assert loss(logits, shares) > 0.2
    both = torch.tensor([[20.0, 0.0, 20.0]])
    assert loss(both, shares) < loss(logits, shares)


def test_a_data_loader_collates_sets():
    rows = [
        (torch.zeros(3), ew.targets.any_of(torch.tensor(row))) for row in ([True, True, False], [False, True, True])
    ]
    (logits, target) = next(iter(torch.utils.data.DataLoader(rows, batch_size=2)))
    assert isinstance(target, ew.targets.AnyOf)
    assert ew.EMDLoss(ew.Chain(3), rho=1)(logits, target) == pytest.approx(1 / 3)


@pytest.mark.parametrize("name", ["chain", "ring", "tree", "cost matrix"])
def test_a_batch_without_rows(name):
    space = spaces(0)[name]
    rows = torch.zeros(0, space.num_bins)
    for loss in (ew.EMDLoss(space, reduction="none"), ew.SoftLabelLoss(space, reduction="none")):
        assert loss(rows, ew.targets.any_of(rows.bool())).shape == (0,)


def test_at_least_5_charges_only_what_lies_below_5():
    chain = ew.Chain(8)
    p = torch.tensor([[0.1, 0.0, 0.2, 0.0, 0.1, 0.2, 0.1, 0.3]], dtype=torch.float64)
    at_least_5 = ew.targets.interval(torch.tensor([5]), None, 8)
    for rho in (1.0, 2.0, 3.0):
        flows = p[0].cumsum(0)[:5]
        torch.testing.assert_close(ew.EMDLoss(chain, rho, normalize=None)(p, at_least_5), flows.pow(rho).sum())


@pytest.mark.parametrize("shape", [(2, 1), (0, 1), (2, 1, 3)])
def test_sets_on_a_tree_of_one_node(shape):
    logits = torch.randn(shape, requires_grad=True)
    target = ew.targets.any_of(torch.ones(shape, dtype=torch.bool))
    loss = ew.HierarchicalCrossEntropyLoss(ew.Tree([-1]), reduction="sum")(logits, target)
    loss.backward()
    assert loss == 0
    assert (logits.grad == 0).all()


@pytest.mark.parametrize("rho", [1.0, 2.0, 5.5])
def test_gradient_of_a_set_of_one(rho):
    chain = ew.Chain(4, [0.5, 1.0, 2.0])
    p = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.4, 0.1, 0.2, 0.3]], dtype=torch.float64)
    labels = torch.tensor([1, 3])
    sets = ew.targets.any_of(torch.nn.functional.one_hot(labels, 4).bool())
    loss = ew.EMDLoss(chain, rho, normalize=None)
    by_label = torch.func.grad(lambda p: loss(p, labels))(p)
    torch.testing.assert_close(torch.func.grad(lambda p: loss(p, sets))(p), by_label)
    larger = ew.targets.any_of(torch.tensor([[True, True, False, False]] * 2))
    gradient = torch.func.grad(lambda p: loss(p, larger))(p)
    torch.testing.assert_close(gradient.sum(-1), torch.zeros(2, dtype=torch.float64))
    alone = torch.func.grad(lambda p: loss(p, ew.targets.any_of(larger.mask[0])))(p[0])
    torch.testing.assert_close(alone / 2, gradient[0])


@pytest.mark.parametrize("name", ["chain", "ring", "tree"])
def test_a_set_of_one_is_exactly_its_class(name):
    space = spaces(3)[name]
    logits, labels = torch.randn(50, space.num_bins), torch.arange(50) % space.num_bins
    sure = torch.nn.functional.one_hot(labels, space.num_bins)
    for rho in (1.0, 2.0):
        loss = ew.EMDLoss(space, rho, reduction="none")
        assert torch.equal(loss(logits, ew.targets.any_of(sure.bool())), loss(logits, sure.float()))


def test_soft_labels_around_sets_in_vmap():
    space, allowed = ew.Chain(5), masks(1, 3, 5)
    logits = torch.randn(3, 5)
    loss = ew.SoftLabelLoss(space, reduction="none")
    torch.testing.assert_close(torch.func.vmap(loss)(logits, allowed), loss(logits, allowed))


@pytest.mark.parametrize("kind", [ew.EdgeCrossEntropyLoss, ew.HierarchicalCrossEntropyLoss, ew.SoftLabelLoss])
def test_smoothed_sets_of_half_precision_probabilities(kind):
    tree = ew.Tree([-1, 0, 0, 1, 1])
    p = torch.tensor([[0.3333, 0.3333, 0.3333]]).half()
    allowed = ew.targets.any_of(torch.tensor([[True, False, True]]))
    loss = kind(tree, normalize=None, label_smoothing=0.2)
    torch.testing.assert_close(loss(p, allowed).float(), loss(p.float() / p.float().sum(), allowed), rtol=2e-3, atol=0)


def test_one_class_as_label_and_set():
    """Without a softmax, both have the derivative of ``-log p``, also on a tree of one node."""
    tree = ew.Tree([-1])
    loss = ew.HierarchicalCrossEntropyLoss(tree, normalize=None)
    p = torch.ones(1, 1, dtype=torch.float64, requires_grad=True)
    share, whole = torch.ones(1, 1, dtype=torch.float64), ew.targets.any_of(torch.ones(1, 1, dtype=torch.bool))
    for target in (torch.tensor([0]), share, whole):
        assert torch.autograd.grad(loss(p, target), p)[0].item() == -1
