"""Losses of shards, in threads, against the loss of all classes at once."""

from __future__ import annotations

import copy
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import earthwork as ew
from earthwork.losses.emd_loss import root_of
from earthwork.sharded import rows
from earthwork.sharded.losses import check_options, losses_on_part
from earthwork.sharded.rows import IGNORED
from earthwork.spaces.parts import shard_bounds
from tests.cases import random_space, random_tree
from tests.sharded.threads import Threads

LOSSES = {
    "emd1": lambda space: ew.EMDLoss(space, rho=1, reduction="none"),
    "emd1.5": lambda space: ew.EMDLoss(space, rho=1.5, reduction="none"),
    "emd2": lambda space: ew.EMDLoss(space, rho=2, reduction="none"),
    "edge": lambda space: ew.EdgeCrossEntropyLoss(space, reduction="none"),
}


def sharded(loss, x, labels, bounds):
    """The values of the rows, the same on every shard, the gradient of their sum, and the number of sums."""

    def work(rank, reduce):
        on_part = losses_on_part(loss, SimpleNamespace(bounds=bounds, rank=rank))
        logits = x[:, bounds[rank] : bounds[rank + 1]].clone().requires_grad_()
        values = on_part(logits, labels, reduce)
        values.sum().backward()
        with torch.no_grad():
            again = on_part(logits, labels, reduce)
        return values.detach(), logits.grad, again

    threads = Threads(len(bounds) - 1)
    results = threads.run(work)
    values = results[0][0]
    for others, _, without_gradient in results:
        torch.testing.assert_close(others, values, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(without_gradient, values, equal_nan=True)
    return values, torch.cat([gradient for _, gradient, _ in results], 1), threads.sums // 2


def whole(loss, x, labels):
    x = x.clone().requires_grad_()
    values = loss(x, labels)
    values.sum().backward()
    return values.detach(), x.grad


def check(loss, x, labels, bounds):
    values, gradient, sums = sharded(loss, x, labels, bounds)
    tolerance = 1e-12
    if x.dtype == torch.float32:
        # The loss of one process is itself up to 1e-6 from that in float64.
        loss, x, tolerance = copy.deepcopy(loss).double(), x.double(), 5e-7
    expected, expected_gradient = whole(loss, x, labels)
    for found, right in ((values.unsqueeze(-1), expected.unsqueeze(-1)), (gradient, expected_gradient)):
        limit = tolerance * right.abs().amax(-1, keepdim=True).clamp(min=1)
        difference = (found.double() - right).abs()
        assert (difference <= limit).all(), f"{(difference / limit * tolerance).max():.1e}"
    assert sums <= 3
    return sums


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("kind", ["chain", "tree", "inner tree"])
def test_random_spaces(kind, name, rng):
    for size in (2, 7, 60):
        space = random_space(rng, kind, size)
        loss = LOSSES[name](space)
        for dtype in (torch.float32, torch.float64):
            x = torch.randn(5, space.num_bins, dtype=dtype) * 2
            labels = torch.randint(space.num_bins, (5,))
            labels[1] = IGNORED
            for ranks in (1, 3) if dtype == torch.float64 else (2,):
                check(loss, x, labels, shard_bounds(space.num_bins, ranks))


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("kind", ["chain", "tree"])
def test_single_precision_where_local_part_too(kind, name, rng):
    space = random_space(rng, kind, 3000)
    x, labels = torch.randn(8, space.num_bins) * 2, torch.randint(space.num_bins, (8,))
    assert x.numel() // 2 > rows._MAX_EXACT
    check(LOSSES[name](space), x, labels, shard_bounds(space.num_bins, 2))


@pytest.mark.parametrize("name", ["emd1", "edge"])
def test_shards_of_any_size_and_empty_ones(name, rng):
    for kind in ("chain", "tree", "inner tree"):
        space = random_space(rng, kind, 30)
        cuts = np.sort(rng.integers(0, space.num_bins + 1, 3))
        bounds = (0, *map(int, cuts), space.num_bins)
        check(LOSSES[name](space), torch.randn(4, space.num_bins).double(), torch.arange(4) % space.num_bins, bounds)
    check(LOSSES[name](ew.Chain(5)), torch.randn(3, 5).double(), torch.tensor([0, 2, 4]), (0, 0, 2, 5, 5))


@pytest.mark.parametrize("name", LOSSES)
def test_many_runs_of_classes_below_same_node(name, rng):
    # More runs than are reduced one by one, in a tree with several levels of shared nodes.
    parents = [-1, 0, 0, 1, 1, 2, 2, *(3 + rng.integers(0, 4, 300))]
    tree = ew.Tree(parents, rng.random(len(parents)))
    loss = LOSSES[name](tree)
    assert tree.part(shard_bounds(300, 2), 0).shared.num_bins == 7
    assert check(loss, torch.randn(3, 300).double(), torch.tensor([0, 150, 299]), shard_bounds(300, 2)) == 3
    check(loss, torch.randn(3, 300), torch.tensor([0, 150, 299]), shard_bounds(300, 2))


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("scale", [40.0, 1e4])
def test_saturated_logits_as_with_one_process(name, scale, rng):
    for space in (ew.Chain(12, rng.random(11)), random_tree(rng, 25, "binary"), random_tree(rng, 25)):
        x = torch.randint(-1, 2, (20, space.num_bins)).double() * scale + torch.randn(20, space.num_bins).double()
        labels = torch.randint(space.num_bins, (20,))
        loss = LOSSES[name](space)
        values, gradient, _ = sharded(loss, x, labels, shard_bounds(space.num_bins, 3))
        expected, expected_gradient = whole(loss, x, labels)
        assert values.isfinite().all()
        torch.testing.assert_close(values, expected, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-10, atol=1e-10)


def test_nan_stays_in_row_and_ignored_rows_0(rng):
    tree = random_tree(rng, 40, "binary", inner_bins=False)
    x = torch.randn(3, tree.num_bins)
    x[0, 3] = x[1, 3] = torch.nan
    for name in LOSSES:
        values, gradient, _ = sharded(
            LOSSES[name](tree), x, torch.tensor([IGNORED, 1, 2]), shard_bounds(tree.num_bins, 2)
        )
        assert values[0] == 0
        assert (gradient[0] == 0).all()
        assert values[1].isnan()
        assert values[2].isfinite()
        assert gradient[2].isfinite().all()


def test_shard_without_any_probability(rng):
    tree = random_tree(rng, 40, "binary", inner_bins=False)
    x = torch.randn(2, tree.num_bins).double()
    x[:, : tree.num_bins // 2] = -torch.inf
    labels = torch.tensor([tree.num_bins - 1, tree.num_bins - 2])
    for name in ("emd1", "emd1.5", "emd2"):
        check(LOSSES[name](tree), x, labels, shard_bounds(tree.num_bins, 2))


def test_sign_of_tiny_flow_at_rho_1(rng):
    # All mass is on the label but for a trace far away, whose way to the label determines every sign.
    for space in (ew.Chain(40), random_tree(rng, 60, "binary", inner_bins=False)):
        x = torch.full((2, space.num_bins), -60.0, dtype=torch.float64)
        x[:, 5], x[0, -1], x[1, 0] = 0.0, -12.0, -12.0
        check(LOSSES["emd1"](space), x, torch.tensor([5, 5]), shard_bounds(space.num_bins, 3))


def test_second_derivatives_are_error():
    loss = ew.EMDLoss(ew.Chain(4), reduction="none")
    x = torch.randn(2, 4, requires_grad=True)
    losses = losses_on_part(loss, SimpleNamespace(bounds=(0, 4), rank=0))
    value = losses(x, torch.tensor([0, 1]), lambda y, largest=False: y)
    with pytest.raises(RuntimeError, match=r"differentiated once only; for higher derivatives pass x\.full_tensor\(\)"):
        torch.autograd.grad(value.sum(), x, create_graph=True)


def test_kernels_do_local_part(rng):
    tree = ew.Tree([-1, *(np.arange(30) // 3), *rng.integers(1, 31, 400)])
    loss = ew.EMDLoss(tree, reduction="none")
    losses = losses_on_part(loss, SimpleNamespace(bounds=shard_bounds(tree.num_bins, 2), rank=0))
    x = torch.randn(4, losses.part.stop, requires_grad=True)
    losses(x, torch.arange(4), lambda y, largest=False: y)
    assert any(make.__name__ == "kernels_of" for make, *_ in losses.part.local._derived)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({}, "sets", "target: expected class indices for a DTensor, got sets"),
        ({"normalize": "l1"}, "labels", "normalize: expected \"softmax\" for a DTensor, got 'l1'"),
        ({"label_smoothing": 0.25}, "labels", "label_smoothing: expected 0 for a DTensor, got 0.25"),
    ],
)
def test_options_that_need_all_classes(options, kind, message):
    with pytest.raises(TypeError, match=f"^{re.escape(message)}; pass x.full_tensor\\(\\) instead$"):
        check_options(ew.EMDLoss(ew.Chain(4), **options), kind)
    check_options(ew.EMDLoss(ew.Chain(4)), "labels")


def test_learned_costs_need_all_classes():
    message = "^costs: expected those of the space for a DTensor, got costs that are learned; pass"
    with pytest.raises(TypeError, match=message):
        check_options(ew.EMDLoss(ew.Chain(4), costs=ew.LearnedCosts(ew.Chain(4))), "labels")


@pytest.mark.parametrize("space", [ew.Chain(5), ew.Tree([-1, 0, 0, 1, 1, 2, 2])], ids=["chain", "tree"])
def test_parts_are_kept(space):
    loss = ew.EMDLoss(space, 1)
    bounds = (0, 2, space.num_bins)
    made = [losses_on_part(loss, SimpleNamespace(bounds=bounds, rank=rank)).part for rank in (0, 1)]
    assert made[0] is not made[1]
    for rank in (0, 1):
        assert losses_on_part(loss, SimpleNamespace(bounds=bounds, rank=rank)).part is made[rank]
    other = SimpleNamespace(bounds=(0, 3, space.num_bins), rank=0)
    assert losses_on_part(loss, other).part is not made[0]


def test_root_is_taken_of_sum_over_all_parts():
    sums = torch.tensor([0.0, 4.0])
    assert torch.equal(root_of(sums, 2.0), sums.sqrt())
    with pytest.raises(TypeError, match=r"^root: expected rho ≤ 2 for a DTensor, got 3; pass"):
        check_options(ew.EMDLoss(ew.Chain(3), 3, root=True), "labels")
