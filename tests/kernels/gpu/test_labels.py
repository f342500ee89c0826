"""The kernels for logits and labels, in Triton's interpreter, against sums over all edges in double precision."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import earthwork as ew
from earthwork.kernels.cpu import without_kernels
from earthwork.kernels.gpu import labels as label_kernels
from earthwork.ops import gpu_route
from tests.kernels.cpu.cases import space_of
from tests.kernels.gpu.oracle import error, label_costs

# Of the interpreter, which takes the largest number of a row with NumPy.
pytestmark = pytest.mark.filterwarnings("ignore:All-NaN:RuntimeWarning")

RHOS = (1.0, 1.5, 2.0, 3.0)
SPACES = ("any", "path", "star", "binary", "inner bins", "leaves without bins", "chain", "chain of 3")
VALUE, GRADIENT = 1e-6, 2e-6


def losses(space, rho, logits, labels, **options):
    """The loss of each row and the gradient of their sum."""
    logits = logits.detach().clone().requires_grad_()
    value = ew.EMDLoss(space, rho, reduction="none", **options)(logits, labels)
    return value.detach(), torch.autograd.grad(value.sum(), logits)[0]


def batch(rng, space, rows=5):
    """Rows of small and large logits, saturated at the label, at another class and everywhere."""
    logits = torch.from_numpy(rng.normal(size=(rows, space.num_bins))).float()
    labels = torch.from_numpy(rng.integers(space.num_bins, size=rows))
    logits[1] *= 10
    logits[2, labels[2]] += 40
    logits[3, (labels[3] + 1) % space.num_bins] += 40
    logits[4] *= 1e4
    return logits, labels


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("name", SPACES)
def test_values_and_gradients(rng, name, rho):
    space = space_of(name, rng)
    logits, labels = batch(rng, space)
    value, gradient = losses(space, rho, logits, labels)
    expected, slopes = label_costs(logits, labels, space, rho)
    assert error(value[:, None], expected[:, None]) <= VALUE
    assert error(gradient, slopes) <= GRADIENT


@pytest.mark.parametrize("name", ["any", "chain"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_storage_type(rng, name, dtype):
    space = space_of(name, rng)
    logits, labels = batch(rng, space)
    stored = logits.clamp(-1e4, 1e4).to(dtype)
    with torch.autocast("cpu", dtype):
        value, gradient = losses(space, 1.5, stored, labels)
    expected, slopes = label_costs(stored, labels, space, 1.5)
    assert value.dtype == torch.float32
    assert gradient.dtype == dtype
    assert error(value[:, None], expected[:, None]) <= VALUE
    # Float16 has no tiny numbers, so not of saturated rows.
    assert error(gradient[:2], slopes[:2]) <= torch.finfo(dtype).eps


@pytest.mark.parametrize("rho", [1.0, 1.5])
@pytest.mark.parametrize("size", [17, 48, 61])
def test_several_blocks_of_classes(rng, monkeypatch, size, rho):
    """Blocks of 16 classes, the last of them ragged, instead of one of 64."""
    space = ew.Tree(np.arange(-1, 2 * size - 2) // 2, rng.random(2 * size - 1), rng.permutation(2 * size - 1)[:size])
    logits, labels = batch(rng, space)
    monkeypatch.setattr(label_kernels, "BLOCK", 16)
    value, gradient = losses(space, rho, logits, labels)
    expected, slopes = label_costs(logits, labels, space, rho)
    assert error(value[:, None], expected[:, None]) <= VALUE
    assert error(gradient, slopes) <= GRADIENT


@pytest.mark.parametrize("rho", [1.0, 1.5])
def test_tiny_costs(rng, rho):
    """The scale of fixed-point slopes stays a float32."""
    space = space_of("any", rng).with_costs(1e-28)
    logits, labels = batch(rng, space)
    value, gradient = losses(space, rho, logits, labels)
    expected, slopes = label_costs(logits, labels, space, rho)
    assert error(value[:2, None] * 1e28, expected[:2, None] * 1e28) <= VALUE
    assert error(gradient[:2].double() * 1e28, slopes[:2] * 1e28) <= GRADIENT


def test_saturated_rows_of_star(rng):
    """At ρ = 1 rounding could turn signs round; not more than ten times the CPU kernels' error."""
    star = ew.Tree([-1] + [0] * 40)
    logits = torch.from_numpy(rng.normal(size=(6, 40))).float()
    labels = torch.arange(6)
    logits[torch.arange(6), torch.arange(6)] += torch.tensor([5.0, 10, 20, 30, 60, 80])
    expected, slopes = label_costs(logits, labels, star, 1.0)
    value, gradient = losses(star, 1.0, logits, labels)
    on_cpu = logits.clone().requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("earthwork.ops.operations.on_gpu", lambda x: False)
        loss = ew.EMDLoss(star, 1.0, reduction="none")(on_cpu, labels)
        loss.sum().backward()
    assert error(value[:, None], expected[:, None]) <= max(VALUE, 10 * error(loss.detach()[:, None], expected[:, None]))
    assert error(gradient, slopes) <= max(GRADIENT, 10 * error(on_cpu.grad, slopes))
    assert error(gradient, slopes) <= GRADIENT


def test_resolution_of_slopes(rng):
    """Slopes are multiples of 2⁻⁵⁸ of the largest potential, so where ρ > 2 a tiny gradient can have few digits.

    The bound in docs/integrations/pytorch.md: 2e-6 of the largest entry of the row, and beyond that p·ρ·height·2⁻⁵⁶.
    """
    space = ew.Tree(np.arange(-1, 70) // 2, rng.random(71) + 0.1)
    rows = 8
    logits = torch.from_numpy(rng.normal(size=(rows, space.num_bins))).float()
    labels = torch.from_numpy(rng.integers(space.num_bins, size=rows))
    # Saturated at a class that is not the label, which is less probable still.
    logits[torch.arange(rows), (labels + 5) % space.num_bins] += torch.linspace(10, 80, rows)
    logits[torch.arange(rows), labels] -= 60
    _, gradient = losses(space, 3.0, logits, labels)
    slopes = label_costs(logits, labels, space, 3.0)[1]
    height = space.potential(space.costs).max()
    unit = 3.0 * height * 2.0**-56 * logits.double().softmax(-1)
    wrong = (gradient - slopes).abs()
    assert (wrong <= GRADIENT * slopes.abs().amax(-1, keepdim=True) + unit).all()
    # Some of these rows are beyond the resolution, or this would test nothing.
    assert (wrong > 1e-3 * slopes.abs()).any()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_options(rng, reduction):
    """Weights, ignored rows and reductions, as in the portable path."""
    space = space_of("any", rng)
    logits = torch.from_numpy(rng.normal(size=(7, space.num_bins))).float()
    labels = torch.from_numpy(rng.integers(space.num_bins, size=7))
    labels[2] = 250
    logits[2, 1:] = math.nan
    weight = torch.rand(space.num_bins) + 0.1
    loss = ew.EMDLoss(space, 1.5, weight=weight, ignore_index=250, reduction=reduction)
    results = []
    for portable in (False, True):
        x = logits.clone().requires_grad_()
        with without_kernels() if portable else np.errstate():
            value = loss(x, labels)
        results.append((value, torch.autograd.grad((value * 2).sum(), x)[0]))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_batch_without_row_that_counts():
    logits = torch.randn(2, 5, requires_grad=True)
    labels = torch.full((2,), -100)
    for empty, expected in (("nan", math.nan), ("zero", 0.0)):
        loss = ew.EMDLoss(ew.Chain(5), empty=empty)(logits, labels)
        torch.testing.assert_close(loss, torch.tensor(expected), equal_nan=True)
        assert not torch.autograd.grad(loss, logits)[0].any()


def test_feature_maps_are_read_in_place(rng):
    """``[N, C, H, W]``, channels last and ``[B, T, C]``: the same numbers, without a copy of the logits."""
    space = ew.Chain(6, rng.random(5))
    logits = torch.from_numpy(rng.normal(size=(2, 6, 3, 2))).float()
    labels = torch.from_numpy(rng.integers(6, size=(2, 3, 2)))
    expected, slopes = label_costs(logits.movedim(1, -1).reshape(-1, 6), labels.reshape(-1), space, 2.0)
    for x in (logits.clone(), logits.to(memory_format=torch.channels_last)):
        assert gpu_route._as_block(x.movedim(1, -1)).data_ptr() == x.data_ptr()
        x.requires_grad_()
        loss = ew.EMDLoss(space, reduction="none")(x, labels)
        gradient = torch.autograd.grad(loss.sum(), x)[0]
        assert gradient.stride() == x.stride()
        torch.testing.assert_close(loss.reshape(-1).double(), expected, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(gradient.movedim(1, -1).reshape(-1, 6).double(), slopes, rtol=1e-5, atol=1e-6)
    last = logits.movedim(1, -1).contiguous().requires_grad_()
    loss = ew.EMDLoss(space, reduction="none", class_dim=-1)(last, labels)
    torch.testing.assert_close(loss.reshape(-1).double(), expected, rtol=1e-6, atol=1e-7)


def test_masked_classes(rng):
    """Logits of minus infinity have no mass; a row that is nothing but its label costs nothing."""
    space = space_of("any", rng)
    logits = torch.from_numpy(rng.normal(size=(3, space.num_bins))).float()
    labels = torch.tensor([0, 1, 2])
    logits[0, 5:] = -math.inf
    logits[1] = -math.inf
    logits[1, 1] = 3.0
    logits[2, 2] = -math.inf
    value, gradient = losses(space, 2.0, logits, labels)
    expected, slopes = label_costs(logits, labels, space, 2.0)
    assert error(value[:, None], expected[:, None]) <= VALUE
    assert error(gradient, slopes) <= GRADIENT


def test_wrong_rows_become_nan_and_no_others(rng):
    """NaN and infinite logits and out-of-range labels: there is no error, because that would wait for the GPU."""
    space = space_of("any", rng)
    logits = torch.from_numpy(rng.normal(size=(5, space.num_bins))).float()
    labels = torch.tensor([0, 1, 2, space.num_bins, -1])
    logits[0, 3] = math.nan
    logits[1, 3] = math.inf
    for rho in (1.0, 1.5, 2.0):
        value, gradient = losses(space, rho, logits, labels)
        assert value.isnan().tolist() == [True, True, False, True, True]
        assert gradient.isnan().any(-1).tolist() == [True, True, False, True, True]


def test_second_derivatives_are_composed(rng):
    space = space_of("any", rng)
    labels = torch.tensor([1, 4])
    logits = torch.randn(2, space.num_bins, dtype=torch.float32, requires_grad=True)
    loss = ew.EMDLoss(space)(logits, labels)
    (gradient,) = torch.autograd.grad(loss, logits, create_graph=True)
    (ours,) = torch.autograd.grad(gradient.square().sum(), logits)
    twin = logits.detach().clone().requires_grad_()
    with without_kernels():
        (gradient,) = torch.autograd.grad(ew.EMDLoss(space)(twin, labels), twin, create_graph=True)
        (theirs,) = torch.autograd.grad(gradient.square().sum(), twin)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_rows_of_nan_whose_class_has_no_weight(reduction):
    """0 times NaN is NaN, as for cross entropy; an ignored row counts for nothing, whatever it holds."""
    bins = 70
    weight = torch.linspace(0, 2, bins)
    logits, labels = torch.randn(5, bins), torch.tensor([0, 3, 0, 5, -100])
    logits[2, 7], logits[4, 7] = torch.nan, torch.nan
    found = []
    for make in (torch.nn.CrossEntropyLoss, lambda **options: ew.EMDLoss(ew.Chain(bins), **options)):
        x = logits.clone().requires_grad_()
        value = make(weight=weight, reduction=reduction)(x, labels)
        (gradient,) = torch.autograd.grad(value.sum(), x)
        # Cross entropy has a gradient of NaN also in an ignored row.
        found.append((value.isnan(), gradient[:4].isnan()))
    torch.testing.assert_close(*found)
    assert not gradient[[0, 4]].any()


def test_mean_rows_without_weight_no_gradient():
    weight = torch.tensor([0.0, 0.0, 1.0])
    logits, labels = torch.randn(4, 3, requires_grad=True), torch.tensor([0, 1, 0, -100])
    loss = ew.EMDLoss(ew.Chain(3), weight=weight, empty="zero")(logits, labels)
    assert loss == 0
    assert not torch.autograd.grad(loss, logits)[0].any()
