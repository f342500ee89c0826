"""The route through the GPU kernels: what it serves, shapes and layouts, derivatives and tables."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import earthwork as ew
from earthwork import private_api
from earthwork.kernels import gpu
from earthwork.kernels.cpu import without_kernels
from earthwork.ops import gpu_route
from earthwork.ops import operations as routes
from earthwork.ops.definition import COMPOSED
from earthwork.ops.first_order import FIRST_ORDER
from earthwork.ops.gpu_route import GpuKernels
from earthwork.ops.operations import choose
from tests.cases import random_distribution

C = 6
LABELS = torch.tensor([[0, 5, 2], [1, 1, 4]])


class Subclass(torch.Tensor):
    """Not a plain tensor."""


@pytest.fixture
def chain():
    return ew.Chain(C, torch.linspace(0.5, 2.0, C - 1))


@pytest.fixture
def tracing(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(routes, "_is_compiling", lambda: True)


def distributions(rng, *shape):
    return random_distribution(rng, *shape, C, zeros=0.0).float()


def row_losses(route, logits, chain):
    return route.loss_of_labels(ew.EMDLoss(chain, 1.5, reduction="none"), logits, LABELS, None)


def test_what_it_serves(monkeypatch, chain):
    x = torch.randn(3, C)
    labels = torch.zeros(3, dtype=torch.int64)
    for p, target in (
        (x, None),
        (x, x),
        (x, labels),
        (x.half(), labels),
        (x.bfloat16(), None),
        (nn.Parameter(x), labels),
    ):
        assert type(choose(chain, p, target)) is GpuKernels
    for p, target in (
        (x.double(), None),
        (x.as_subclass(Subclass), None),
        (x, x.as_subclass(Subclass)),
        (x, labels.to("meta")),
    ):
        assert not isinstance(choose(chain, p, target), GpuKernels)
    assert not isinstance(choose(chain, x, expected=True), GpuKernels)
    # At the limit, and one bin beyond it.
    monkeypatch.setattr(gpu, "MOST_BINS", C)
    assert type(choose(chain, x, labels)) is type(choose(chain, x, x)) is GpuKernels
    monkeypatch.setattr(gpu, "MOST_BINS", C - 1)
    assert not any(isinstance(choose(chain, x, target), GpuKernels) for target in (labels, x, None))
    two = ew.Chain(2)
    assert type(choose(two, x[:, :2], labels)) is GpuKernels


@pytest.mark.skipif(not private_api.constants_take_objects, reason="the compiler breaks the graph at a loss")
def test_while_call_is_traced(tracing, chain):
    x = torch.randn(3, C)
    assert type(choose(chain, x, x)) is GpuKernels
    assert choose(ew.Ring(C), x, x) is COMPOSED
    assert choose(chain, x, expected=True) is COMPOSED
    assert gpu_route._portable() is COMPOSED


def test_traced_call_is_its_operator(monkeypatch, rng, chain):
    assert gpu_route._portable() is FIRST_ORDER
    p, q = distributions(rng, 2, 3), distributions(rng, 3)
    route = choose(chain, p, q)
    expected = route.distances(p, q, chain, 1.5), row_losses(route, p, chain)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    traced = route.distances(p, q, chain, 1.5), row_losses(route, p, chain)
    for ours, theirs in zip(traced, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("wanted", [(True, False), (False, True), (True, True)])
def test_pairs_of_any_shape_and_layout(rng, chain, wanted):
    p, q = distributions(rng, 2, 3).movedim(-1, 0).contiguous().movedim(0, -1), distributions(rng, 3)
    upstream = torch.linspace(0.5, 2.0, 6).view(2, 3)
    results = []
    for route in (choose(chain, p, q), COMPOSED):
        pair = [x.clone().requires_grad_(want) for x, want in zip((p, q), wanted, strict=True)]
        value = route.distances(*pair, chain, 1.5)
        wrt = [x for x in pair if x.requires_grad]
        slopes = torch.autograd.grad((value * upstream).sum(), wrt, create_graph=True)
        second = torch.autograd.grad(sum(x.square().sum() for x in slopes), wrt)
        results.append([value, *slopes, *second, route.gradient(*pair, chain, 1.5)])
        assert not results[-1][-1].requires_grad
    assert results[0][0].shape == (2, 3)
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_labels_of_any_shape_and_layout(chain):
    base = torch.randn(2, C, 3)
    contiguous = base.movedim(1, -1).contiguous()
    # A feature map with one axis, every second of more rows, and with every number twice in memory.
    layouts = [contiguous, base.movedim(1, -1), contiguous.repeat(1, 2, 1)[:, ::2][:, [0, 1, 2]]]
    layouts.append(contiguous.repeat_interleave(2, -1)[..., ::2])
    upstream = torch.linspace(0.5, 2.0, 6).view(2, 3)
    for x in layouts:
        results = []
        for route in (choose(chain, x, LABELS), COMPOSED):
            logits = x.detach().requires_grad_()
            value = row_losses(route, logits, chain)
            (slope,) = torch.autograd.grad((value * upstream).sum(), logits, create_graph=True)
            (second,) = torch.autograd.grad(slope.square().sum(), logits)
            results.append([value, slope, second])
        assert results[0][0].shape == (2, 3)
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_blocks_copied_only_where_there_gaps():
    x = torch.randn(2, C, 3)
    assert gpu_route._as_block(x.movedim(1, -1)).data_ptr() == x.data_ptr()
    assert gpu_route._as_block(x.movedim(1, -1)).shape == (2, C, 3)
    rows = torch.randn(4, C)
    assert gpu_route._as_block(rows).shape == (4, C, 1)
    assert gpu_route._as_block(rows).data_ptr() == rows.data_ptr()
    gaps = torch.randn(2, 3, 2 * C)[..., ::2]
    block = gpu_route._as_block(gaps)
    assert block.is_contiguous() or block.transpose(1, 2).is_contiguous()
    for like in (x.movedim(1, -1), rows, gaps, torch.randn(C), torch.randn(2, 3, 2, C).movedim(0, 2)):
        assert torch.equal(gpu_route._from_block(gpu_route._as_block(like), like), like)


def test_labels_change_before_gradient_error(chain):
    logits, labels = torch.randn(3, C, requires_grad=True), torch.tensor([0, 1, 2])
    loss = ew.EMDLoss(chain)(logits, labels)
    labels += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_whole_loss(rng, chain, reduction):
    logits, weight = torch.randn(2, C, 3), torch.rand(C).double() + 0.5
    loss = ew.EMDLoss(chain, 2, weight=weight, ignore_index=1, reduction=reduction)
    ours = loss(logits, LABELS)
    with without_kernels():
        theirs = loss(logits, LABELS)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_current_device(monkeypatch, rng, chain):
    """Triton launches on the current device, so that is set to the device of the input."""
    devices, device_of = [], torch.cuda.device_of
    monkeypatch.setattr(torch.cuda, "device_of", lambda x: devices.append(x) or device_of(x))
    p, q = distributions(rng, 2, 3), distributions(rng, 3)
    route = choose(chain, p, q)
    for call in (
        lambda: route.distances(p, q, chain, 1.5),
        lambda: route.gradient(p, q, chain, 1.5),
        lambda: row_losses(route, p, chain),
    ):
        call()
        devices.clear()
        call()
        assert len(devices) == 1
