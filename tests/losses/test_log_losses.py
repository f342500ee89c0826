"""Edge cross entropy, hierarchical cross entropy and soft labels: against brute force on random trees."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy, cross_entropy, one_hot

import earthwork as ew
from tests.cases import random_tree

SEEDS = range(6)


def case(seed, rows=5, scale=2.0, inner_bins=True):
    tree = random_tree(np.random.default_rng(seed), 6 + 3 * seed, inner_bins=inner_bins)
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, tree.num_bins, dtype=torch.float64, generator=generator)
    return tree, logits, torch.randint(tree.num_bins, (rows,), generator=generator)


def sides(tree):
    """For each edge, in the order of the nodes, the bins below it."""
    parents, bins = tree.parents.tolist(), tree.bins.tolist()

    def below(node, top):
        while node >= 0 and node != top:
            node = parents[node]
        return node == top

    nodes = [node for node in range(tree.num_nodes) if parents[node] >= 0]
    return torch.tensor([[below(bin_, node) for bin_ in bins] for node in nodes]), nodes


def edge_brute_force(tree, logits, q):
    p, total = logits.softmax(-1), torch.zeros(len(logits), dtype=torch.float64)
    for side, cost in zip(sides(tree)[0], tree.costs.double(), strict=True):
        if 0 < side.sum() < len(side):
            below, beyond, target = p[:, side].sum(-1), p[:, ~side].sum(-1), q[:, side].sum(-1)
            total -= cost * (target * below.log() + (1 - target) * beyond.log())
    return total


@pytest.mark.parametrize("seed", SEEDS)
def test_edge_cross_entropy_is_the_sum_over_the_edges(seed):
    tree, logits, labels = case(seed)
    q = one_hot(labels, tree.num_bins).double()
    loss = ew.EdgeCrossEntropyLoss(tree, reduction="none")
    torch.testing.assert_close(loss(logits, labels), edge_brute_force(tree, logits, q), rtol=1e-10, atol=1e-10)
    soft = torch.randn_like(logits).softmax(-1)
    torch.testing.assert_close(loss(logits, soft), edge_brute_force(tree, logits, soft), rtol=1e-10, atol=1e-10)
    smooth = ew.EdgeCrossEntropyLoss(tree, reduction="none", label_smoothing=0.1)
    q = 0.9 * q + 0.1 / tree.num_bins
    torch.testing.assert_close(smooth(logits, labels), edge_brute_force(tree, logits, q), rtol=1e-10, atol=1e-10)


def hierarchical_brute_force(tree, logits, label, alpha):
    """Bertinetto et al., equation 3, with a question more where the class is an inner node."""
    parents, p = tree.parents.tolist(), logits.softmax(-1)
    children = [[node for node, parent in enumerate(parents) if parent == top] for top in range(tree.num_nodes)]
    bins = {node: place for place, node in enumerate(tree.bins.tolist())}

    def mass(node):
        return (p[bins[node]] if node in bins else 0) + sum(mass(child) for child in children[node])

    def height(node):
        return 1 + max(height(child) for child in children[node]) if children[node] else 0

    node = tree.bins[label].item()
    loss = -math.log(p[label] / mass(node)) if children[node] else 0.0
    while parents[node] >= 0:
        loss -= math.exp(-alpha * height(node)) * math.log(mass(node) / mass(parents[node]))
        node = parents[node]
    return loss


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("seed", SEEDS)
def test_hierarchical_cross_entropy_is_the_published_formula(seed, alpha):
    tree, logits, labels = case(seed)
    ours = ew.HierarchicalCrossEntropyLoss(tree, alpha, reduction="none")(logits, labels)
    theirs = [hierarchical_brute_force(tree, row, label, alpha) for row, label in zip(logits, labels, strict=True)]
    np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_without_discount_it_is_cross_entropy(seed):
    tree, logits, labels = case(seed)
    weight = torch.rand(tree.num_bins, dtype=torch.float64)
    options = {"weight": weight, "ignore_index": int(labels[0]), "reduction": "sum"}
    loss = ew.HierarchicalCrossEntropyLoss(tree, 0, **options)
    torch.testing.assert_close(loss(logits, labels), nn.CrossEntropyLoss(**options)(logits, labels))
    soft = torch.randn_like(logits).softmax(-1)
    loss = ew.HierarchicalCrossEntropyLoss(tree, 0)
    torch.testing.assert_close(loss(logits, soft), cross_entropy(logits, soft))


SPACES = {
    "chain": ew.Chain(5, [1.0, 2.0, 0.5, 3.0]),
    "ring": ew.Ring(6, [1.0, 2.0, 0.5, 3.0, 1.0, 0.25]),
    "tree": ew.Tree([-1, 0, 0, 1, 1, 2, 2], [0, 0.5, 1, 2, 1, 3, 0.25], bins=[4, 3, 6, 5]),
    "cost matrix": ew.CostMatrix([[0, 1, 4], [2, 0, 3], [5, 1, 0]]),
}


@pytest.mark.parametrize("name", SPACES)
def test_soft_labels_are_the_published_formula(name):
    space = SPACES[name]
    n = space.num_bins
    logits = torch.randn(n, n, dtype=torch.float64)
    labels = torch.arange(n)
    distances = torch.stack([space.distance(torch.arange(n), i).double() for i in range(n)])
    q = (-3.0 * distances / space.diameter()).softmax(-1)
    loss = ew.SoftLabelLoss(space, 3.0, reduction="none")
    torch.testing.assert_close(loss.soft_labels(labels, torch.float64), q)
    torch.testing.assert_close(loss(logits, labels), -(q * logits.log_softmax(-1)).sum(-1))
    sharp = ew.SoftLabelLoss(space, 1e6)
    torch.testing.assert_close(sharp(logits, labels), cross_entropy(logits, labels))


def test_on_a_star_it_is_the_one_against_rest_log_loss():
    star = ew.Tree([-1, 0, 0, 0, 0], [0.5, 1.0, 2.0, 3.0])
    logits, labels = torch.randn(7, 4, dtype=torch.float64), torch.arange(7) % 4
    target = one_hot(labels, 4).double()
    theirs = (binary_cross_entropy(logits.softmax(-1), target, reduction="none") * star.costs).sum(-1)
    torch.testing.assert_close(ew.EdgeCrossEntropyLoss(star, reduction="none")(logits, labels), theirs)


def test_on_a_chain_it_is_the_cumulative_log_loss():
    chain = ew.Chain(6, torch.rand(5, dtype=torch.float64))
    logits, labels = torch.randn(7, 6, dtype=torch.float64), torch.arange(7) % 6
    up_to = logits.softmax(-1).cumsum(-1)[:, :-1]
    target = (labels[:, None] <= torch.arange(5)).double()
    theirs = (binary_cross_entropy(up_to, target, reduction="none") * chain.costs).sum(-1)
    torch.testing.assert_close(ew.EdgeCrossEntropyLoss(chain, reduction="none")(logits, labels), theirs)


@pytest.mark.parametrize("seed", SEEDS)
def test_it_is_the_sum_of_the_papers_whole_family(seed):
    tree, logits, labels = case(seed, scale=0.5, inner_bins=False)
    p, q = logits.softmax(-1), one_hot(labels, tree.num_bins).double()
    series = sum(ew.emd(p, q, tree, k) / k for k in range(1, 400))
    torch.testing.assert_close(
        ew.EdgeCrossEntropyLoss(tree, reduction="none")(logits, labels), series, rtol=1e-6, atol=1e-8
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_edge_cross_entropy_is_strictly_proper(seed):
    tree, logits, _ = case(seed, rows=1)
    tree = tree.with_costs(tree.costs + 0.1)
    truth = logits.softmax(-1)
    loss = ew.EdgeCrossEntropyLoss(tree)
    x = truth.log().requires_grad_()
    (slope,) = torch.autograd.grad(loss(x, truth), x)
    assert slope.abs().max() < 1e-12
    for step in (1e-3, 0.1, 1.0):
        other = truth.log() + step * torch.randn_like(truth)
        assert loss(other, truth) > loss(truth.log(), truth)


def make_losses(tree, **options):
    return [
        ew.EdgeCrossEntropyLoss(tree, **options),
        ew.HierarchicalCrossEntropyLoss(tree, 0.3, **options),
        ew.SoftLabelLoss(tree, 4.0, **options),
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_derivatives_by_finite_differences(seed):
    tree, logits, labels = case(seed, rows=2)
    logits = logits.requires_grad_()
    allowed = one_hot(labels, tree.num_bins).bool() | (torch.rand(2, tree.num_bins) < 0.3)
    for loss in make_losses(tree):
        for target in (labels, logits.detach().flip(0).softmax(-1), ew.targets.any_of(allowed)):
            assert torch.autograd.gradcheck(lambda x, loss=loss, target=target: loss(x, target), logits)
            assert torch.autograd.gradgradcheck(lambda x, loss=loss, target=target: loss(x, target), logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_huge_logits_give_finite_losses_and_gradients(dtype):
    tree = ew.Tree([-1, 0, 0, 1, 1, 2, 2, 3, 3])
    for scale in (1e4, -1e4):
        logits = (scale * torch.linspace(-1, 1, tree.num_bins)).to(dtype).repeat(tree.num_bins, 1).requires_grad_()
        for loss in make_losses(tree):
            value = loss(logits, torch.arange(tree.num_bins))
            (slope,) = torch.autograd.grad(value, logits)
            assert value.isfinite()
            assert slope.isfinite().all()
            assert value > 1000


def test_a_confident_mistake_keeps_its_gradient():
    chain = ew.Chain(3)
    logits = torch.tensor([[0.0, 0.0, 200.0]], requires_grad=True)
    (slope,) = torch.autograd.grad(ew.EdgeCrossEntropyLoss(chain)(logits, torch.tensor([0])), logits)
    (vanished,) = torch.autograd.grad(ew.EMDLoss(chain)(logits, torch.tensor([0])), logits)
    torch.testing.assert_close(slope, torch.tensor([[-1.5, -0.5, 2.0]]))
    assert vanished.abs().max() < 1e-30


@pytest.mark.parametrize("rows", [1, 100])
def test_a_class_may_have_a_logit_of_minus_infinity(rows):
    """A class that is masked out, as an inner node or as the first of a chain, has no gradient."""
    tree = ew.Tree([-1, 0, 1, 1], bins=[1, 2, 3])
    labels = torch.full((rows,), 2)
    for loss in [ew.EdgeCrossEntropyLoss(ew.Chain(3)), *make_losses(tree)[:2]]:
        masked, low = (torch.tensor([[x, 0.0, 1.0]] * rows, requires_grad=True) for x in (-math.inf, -1e4))
        values = [loss(x, labels) for x in (masked, low)]
        slopes = [torch.autograd.grad(value, x)[0] for value, x in zip(values, (masked, low), strict=True)]
        torch.testing.assert_close(*values)
        torch.testing.assert_close(*slopes)


def test_half_precision_leaves_what_was_computed_from_the_space():
    logits, labels = torch.randn(4, 4, dtype=torch.float64), torch.arange(4)
    for make in (lambda: make_losses(SPACES["tree"]), lambda: [ew.SoftLabelLoss(ew.Chain(4, costs=1e5))]):
        for loss, half in zip(make(), make(), strict=True):
            torch.testing.assert_close(half.half()(logits, labels), loss(logits, labels), rtol=1e-12, atol=0)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_set_of_one_class_is_the_class(seed, smoothing):
    tree, logits, labels = case(seed)
    allowed = ew.targets.any_of(one_hot(labels, tree.num_bins).bool())
    options = {"reduction": "none", "label_smoothing": smoothing}
    for loss in [*make_losses(tree, **options), ew.EMDLoss(tree, 1.5, **options)]:
        torch.testing.assert_close(loss(logits, allowed), loss(logits, labels), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_set_costs_minus_the_logarithm_of_its_mass(seed):
    tree, logits, _ = case(seed)
    allowed = torch.rand(logits.shape) < 0.5
    allowed[:, 0] |= ~allowed.any(-1)
    mass = (logits.softmax(-1) * allowed).sum(-1)
    ours = ew.HierarchicalCrossEntropyLoss(tree, 0, reduction="none")(logits, ew.targets.any_of(allowed))
    torch.testing.assert_close(ours, -mass.log(), rtol=1e-10, atol=1e-12)


def test_a_group_of_the_tree_costs_nothing_below_its_node():
    tree = ew.Tree([-1, 0, 0, 1, 1, 2, 2])
    group = ew.targets.any_of(torch.tensor([[True, True, False, False]]))
    logits = torch.randn(1, 4, dtype=torch.float64)
    mass = logits.softmax(-1)[0, :2].sum()
    hierarchical = ew.HierarchicalCrossEntropyLoss(tree, 0.5)
    torch.testing.assert_close(hierarchical(logits, group), -math.exp(-0.5) * mass.log())
    # The edges within the group ask what the group leaves open; all others have an answer.
    others = -(1 - logits.softmax(-1)[0, 2:]).log().sum()
    torch.testing.assert_close(ew.EdgeCrossEntropyLoss(tree)(logits, group), -2 * mass.log() + others)


def test_shapes_reductions_and_ignored_rows():
    tree = SPACES["tree"]
    logits = torch.randn(2, 4, 3, 5)
    labels = torch.randint(4, (2, 3, 5))
    labels[0, 0, 0] = -100
    for loss, mean in zip(make_losses(tree, reduction="none"), make_losses(tree), strict=True):
        each = loss(logits, labels)
        assert each.shape == labels.shape
        assert each[0, 0, 0] == 0
        torch.testing.assert_close(mean(logits, labels), each.sum() / 29)
        rows = loss(logits.movedim(1, -1).reshape(-1, 4), labels.flatten())
        torch.testing.assert_close(rows.view(labels.shape), each)


def test_rows_that_do_not_count():
    tree, logits, labels = case(2)
    mask = torch.tensor([True, False, True, True, False])
    q = torch.randn_like(logits).softmax(-1)
    padded = torch.where(mask.unsqueeze(-1), q, math.nan)
    for loss in [*make_losses(tree), ew.EMDLoss(tree)]:
        torch.testing.assert_close(loss(logits, padded, mask), loss(logits[mask], q[mask]))
        torch.testing.assert_close(loss(logits, labels, mask), loss(logits[mask], labels[mask]))


def test_class_weights_as_scikit_learn_computes_them():
    class_weight = pytest.importorskip("sklearn.utils.class_weight")
    tree, logits, labels = case(2)
    classes = np.arange(tree.num_bins)
    present = np.concatenate([labels.numpy(), classes])
    weight = class_weight.compute_class_weight("balanced", classes=classes, y=present)
    for loss in (
        ew.EMDLoss(tree, weight=weight),
        ew.SoftLabelLoss(tree, weight=weight),
        ew.SinkhornLoss(tree, weight=weight),
    ):
        same = type(loss)(tree, weight=torch.tensor(weight))
        torch.testing.assert_close(loss(logits, labels), same(logits, labels))
    before = weight.copy()
    loss = ew.EMDLoss(tree, weight=weight)
    weight[:] = 0
    np.testing.assert_array_equal(loss.weight, before)


def test_compiled_losses_are_the_same():
    tree, logits, labels = case(3)
    for loss in make_losses(tree):
        compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
        x = logits.clone().requires_grad_()
        (ours,) = torch.autograd.grad(compiled(x, labels), x)
        (theirs,) = torch.autograd.grad(loss(x, labels), x)
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: ew.EdgeCrossEntropyLoss(ew.Ring(4)), TypeError, "space: expected a Chain or a Tree.*Ring"),
        (lambda: ew.EdgeCrossEntropyLoss(SPACES["cost matrix"]), TypeError, "space: expected a Chain or a Tree.*Cost"),
        (lambda: ew.HierarchicalCrossEntropyLoss(ew.Chain(4)), TypeError, "tree: expected a Tree.*Chain"),
        (lambda: ew.HierarchicalCrossEntropyLoss(SPACES["tree"], -1), ValueError, "alpha: expected a finite number"),
        (lambda: ew.SoftLabelLoss(ew.Chain(4), 0), ValueError, "beta: expected a finite number > 0, got 0"),
        (
            lambda: ew.EMDLoss(ew.Chain(2))(torch.zeros(3, 2), ew.targets.any_of(torch.eye(3)[:, 1:].bool())),
            ValueError,
            "target: expected at least one possible class in each set, got none in row 0",
        ),
        (
            lambda: ew.SinkhornLoss(ew.Chain(2))(torch.zeros(1, 2), ew.targets.any_of(torch.ones(1, 2).bool())),
            TypeError,
            "target: expected class indices or distributions, got sets, which SinkhornLoss lacks",
        ),
        (
            lambda: ew.EMDLoss(ew.Chain(2))(torch.zeros(3, 2), torch.zeros(3).long(), torch.ones(2).bool()),
            ValueError,
            r"mask: expected shape \(3,\), one entry for each row, got \(2,\)",
        ),
        (
            lambda: ew.EMDLoss(ew.Chain(2))(torch.zeros(3, 2), torch.zeros(3).long(), torch.ones(3)),
            TypeError,
            "mask: expected a boolean tensor, got torch.float32",
        ),
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_forward_mode_on_a_chain_with_logits_far_apart():
    # PyTorch's own forward derivative of logcumsumexp loses what is far below the largest term.
    logits = torch.tensor([5.4, 16.1, -2.7, 6.4, -8.7, -13.7], dtype=torch.float64)
    direction = torch.tensor([1.0, -0.5, 2.0, 0.3, -1.0, 0.7], dtype=torch.float64)
    loss = ew.EdgeCrossEntropyLoss(ew.Chain(6))
    value, slope = torch.func.jvp(lambda x: loss(x, torch.tensor(5)), (logits,), (direction,))
    leaf = logits.clone().requires_grad_()
    torch.testing.assert_close(value, loss(logits, torch.tensor(5)))
    (gradient,) = torch.autograd.grad(loss(leaf, torch.tensor(5)), leaf, create_graph=True)
    torch.testing.assert_close(slope, (gradient * direction).sum().detach(), rtol=1e-10, atol=1e-10)
    (second,) = torch.autograd.grad(gradient, leaf, direction)
    _, forward = torch.func.jvp(torch.func.grad(lambda x: loss(x, torch.tensor(5))), (logits,), (direction,))
    torch.testing.assert_close(forward, second, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("label", [-1, 3])
def test_soft_labels_of_classes_only(label):
    """A negative number does not count from the end."""
    for labels in (torch.tensor([0, label]), [0, label]):
        with pytest.raises(ValueError, match=f"labels: expected class indices from 0 to 2, got {label}"):
            ew.SoftLabelLoss(ew.Chain(3)).soft_labels(labels)


@pytest.mark.parametrize(
    "space",
    [ew.Ring(4, [1e6, 1e-3, 2e-3, 1e-3]), ew.Tree([-1, 0, 1, 2, 2, 1], [0, 1e6, 1e-3, 2e-3, 1e-3, 5e-3])],
)
def test_soft_labels_below_or_beside_a_far_longer_edge(space):
    distances = space.distances().double()
    expected = (-4.0 * distances / distances.max()).softmax(-1).float()
    loss = ew.SoftLabelLoss(space, beta=4.0)
    torch.testing.assert_close(loss.soft_labels(torch.arange(space.num_bins)), expected, rtol=1e-5, atol=1e-6)
