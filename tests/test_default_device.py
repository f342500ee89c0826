"""Torch has a default device, and people set it; what is made here lives where its input lives all the same.

The default is "meta" below, on which nothing can be read and nothing be mixed with what is elsewhere.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

import earthwork as ew
from earthwork.kernels.cpu import run, without_kernels
from tests.cases import random_distribution
from tests.catalogue import CLASSES, LOSS_CASES, SPACES, make_loss, takes_weight, weights

EDGES = [name for name, space in SPACES.items() if isinstance(space, ew.EdgeSpace)]
MAKERS: dict[str, Callable[[], ew.Space]] = {
    "chain": lambda: ew.Chain(3, [1.0, 2.0]),
    "ring": lambda: ew.Ring(3),
    "tree": lambda: ew.Tree([-1, 0, 0, 0], [1.0, 2.0, 3.0]),
    "metric": lambda: ew.CostMatrix([[0, 1, 1], [1, 0, 1], [1, 1, 0]]),
}


@pytest.fixture(params=["kernels", "portable"], autouse=True)
def _route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("earthwork.ops.operations.MIN_ENTRIES_EXPECTED", 0)
    run._like.cache_clear()
    if request.param == "kernels":
        yield
    else:
        with without_kernels():
            yield


def same(function: Callable[..., Tensor | ew.SinkhornResult], *inputs: Tensor) -> None:
    """Check that the results and their gradients are the same whatever the default device."""

    def results() -> list[Any]:
        used = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
        outcome = function(*used)
        parts = list(outcome) if isinstance(outcome, tuple) else [outcome]
        if parts[0].requires_grad:
            parts += torch.autograd.grad(parts[0].sum(), [x for x in used if x.requires_grad])
        return [x.detach() if isinstance(x, Tensor) else torch.tensor(x, device="cpu") for x in parts]

    with torch.device("meta"):
        elsewhere = results()
    torch.testing.assert_close(elsewhere, results(), rtol=0, atol=0)


@pytest.fixture
def rows(request: pytest.FixtureRequest, rng: np.random.Generator) -> tuple[ew.Space, Tensor, Tensor, Tensor]:
    """A space, two batches of distributions on it, and labels."""
    space = SPACES[request.param]
    p, q = (random_distribution(rng, 5, space.num_bins, zeros=0.0) for _ in range(2))
    return space, p, q, torch.from_numpy(rng.integers(space.num_bins, size=5))


@pytest.mark.parametrize("rows", SPACES, indirect=True)
def test_distances(rows):
    space, p, q, labels = rows
    same(lambda labels: space.distance(1, labels), labels)
    same(lambda: space.distances())
    same(lambda: space.diameter())
    same(lambda p: ew.expected_distance(p, space), p)
    same(lambda p: ew.decide(p, space), p)
    same(lambda p, q: ew.emd(p, q, space), p, q)


@pytest.mark.parametrize("rho", [1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("rows", EDGES, indirect=True)
def test_relaxed_distances(rows, rho):
    space, p, q, _ = rows
    same(lambda p, q: ew.emd(p, q, space, rho), p, q)
    same(lambda p, q: ew.emd(p, q, space, rho, normalize="l1"), p, q)
    same(lambda p, q: ew.emd_gradient(p, q, space, rho), p, q)
    same(lambda p, q: ew.emd_hessian(p, q, space, rho), p, q)


@pytest.mark.parametrize("rows", SPACES, indirect=True)
@pytest.mark.parametrize(
    "options",
    [{"lam": 5.0}, {"lam": 4000.0}, {"chunk_size": 2}, {"tol": 1e-6, "max_iter": 1000}, {"method": "paper"}],
    ids=str,
)
def test_sinkhorn(rows, options):
    space, p, q, labels = rows
    same(lambda p, q: ew.sinkhorn(p, q, space, **options), p, q)
    same(lambda p: ew.sinkhorn(p, one_hot(labels, space.num_bins).to(p), space, **options), p)


@pytest.mark.parametrize("case", LOSS_CASES)
def test_losses(case, rng):
    p, q = (random_distribution(rng, 5, CLASSES, zeros=0.0).float() for _ in range(2))
    labels = torch.arange(5) % CLASSES
    options = [{}, {"ignore_index": 1}]
    if takes_weight(case):
        options += [{"label_smoothing": 0.1}, {"weight": weights()}]
    for option in options:
        loss = make_loss(case, **option)
        same(lambda x, loss=loss: loss(x, labels), p.log())
        if takes_weight(case) and "ignore_index" not in option:
            same(lambda x, loss=loss: loss(x, q), p.log())


@pytest.mark.parametrize("rows", ["tree", "inner tree"], indirect=True)
def test_inner_answers(rows):
    space, p, _, _ = rows
    same(lambda p: ew.decide(p, space, allow_inner=True, vagueness=0.3), p)


@pytest.mark.parametrize("name", MAKERS)
def test_space_is_made_on_cpu(name):
    """A model may be made on "meta" to be filled later, but nobody will fill in a space."""
    with torch.device("meta"):
        loss = ew.EMDLoss(MAKERS[name](), 1.0)
    assert torch.equal(loss.space.distances(), MAKERS[name]().distances())


def test_default_that_was_set_before_import():
    code = """
import torch
torch.set_default_device("meta")
import earthwork as ew
p = torch.rand(16, 16, device="cpu").softmax(-1)
print(ew.emd(p, p.flip(0), ew.Chain(16)).device, ew.emd(p.to("meta"), p.to("meta"), ew.Chain(16)).device)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "cpu meta\n", done.stderr
