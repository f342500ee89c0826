"""Expected distances of shards, in threads, against those of all classes at once."""

from __future__ import annotations

import pytest
import torch

import earthwork as ew
from earthwork.sharded.decisions import expected_on_shards, softmax_of_shards
from earthwork.spaces.parts import shard_bounds
from tests.cases import random_space
from tests.sharded.threads import Threads


@pytest.mark.parametrize("kind", ["chain", "tree", "inner tree"])
def test_random_spaces(kind, rng):
    for size in (2, 5, 30):
        space = random_space(rng, kind, size)
        x = torch.randn(4, space.num_bins, dtype=torch.float64)
        whole = x.softmax(-1).requires_grad_()
        expected = ew.expected_distance(whole, space)
        direction = torch.randn_like(expected)
        (slope,) = torch.autograd.grad((expected * direction).sum(), whole)
        for ranks in (1, 2, 4):
            bounds = shard_bounds(space.num_bins, ranks)

            def work(rank, reduce, space=space, bounds=bounds, x=x, direction=direction):
                part = space.part(bounds, rank)
                mine = slice(bounds[rank], bounds[rank + 1])
                p = softmax_of_shards(x[:, mine], part, reduce).requires_grad_()
                found = expected_on_shards(p, part, reduce, torch.float64)
                (found * direction[:, mine]).sum().backward()
                return found.detach(), p.grad

            found, gradients = zip(*Threads(ranks).run(work), strict=True)
            torch.testing.assert_close(torch.cat(found, 1), expected.detach(), rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(torch.cat(gradients, 1), slope, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("row", "message"),
    [([0.5, 0.1, 0.1, 0.1], "a sum of 0.8 in row 1"), ([2, -1, 0, 0], "a negative or infinite number")],
)
def test_rows_that_are_no_distributions(row, message):
    p = torch.tensor([[0.25] * 4, row])
    chain = ew.Chain(4)

    def work(rank, reduce):
        with pytest.raises(ValueError, match=f"p: expected probabilities, ≥ 0 and of sum 1 in each row, got {message}"):
            expected_on_shards(p[:, 2 * rank : 2 * rank + 2], chain.part((0, 2, 4), rank), reduce, torch.float32)

    Threads(2).run(work)
