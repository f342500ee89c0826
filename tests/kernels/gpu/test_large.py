"""The kernels for large trees in Triton's interpreter, most of them with segments of 32 places, and their tables."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import earthwork as ew
from earthwork.kernels import gpu
from earthwork.kernels.cpu import without_kernels
from earthwork.kernels.gpu import branches_of, operators
from earthwork.kernels.gpu.segment_tables import segment_tables_of
from earthwork.ops.gpu_route import GpuKernels, LargeGpuKernels
from earthwork.ops.operations import choose
from tests.cases import KINDS, random_space
from tests.kernels.cpu.cases import portable_loss, space_of, tree
from tests.kernels.gpu.oracle import dyadic, error, label_costs
from tests.kernels.gpu.test_labels import GRADIENT, VALUE, losses

pytestmark = pytest.mark.filterwarnings("ignore:All-NaN:RuntimeWarning")


@pytest.fixture
def small_segments(monkeypatch):
    """Every space is a large one, with segments of one block of 32 places; `test_real_segments` has several blocks."""
    monkeypatch.setattr(gpu, "MOST_BINS", 1)
    monkeypatch.setattr(gpu, "segment_tables_of", lambda branches, device: segment_tables_of(branches, device, 32))


def batch(rng, space):
    """Rows of large logits, one of them saturated at the label and one at another class."""
    logits = torch.from_numpy(3 * rng.normal(size=(3, space.num_bins))).float()
    labels = torch.from_numpy(rng.integers(space.num_bins, size=3))
    logits[1, labels[1]] += 40
    logits[2, (labels[2] + 1) % space.num_bins] += 40
    return logits, labels


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize(
    ("name", "rho"),
    [("any", 1.0), ("any", 1.5), ("inner bins", 2.0), ("star", 3.0), ("chain", 1.0)],
)
def test_values_and_gradients(rng, name, rho):
    space = space_of(name, rng) if name == "chain" else tree(name, rng, 70 if name == "star" else 140)
    logits, labels = batch(rng, space)
    assert isinstance(choose(space, logits, labels), LargeGpuKernels)
    value, gradient = losses(space, rho, logits, labels)
    expected, slopes = label_costs(logits, labels, space, rho)
    assert error(value[:, None], expected[:, None]) <= VALUE
    assert error(gradient, slopes) <= GRADIENT


@pytest.mark.usefixtures("small_segments")
def test_a_branch_that_ends_with_a_segment(rng):
    """Branches that start or end exactly where a segment does, and top class and label in any of these."""
    space = ew.Tree([-1, 0, 0, 1, *[3] * 32, *[1] * 32, *[2] * 20], rng.random(88))
    logits, labels = batch(rng, space)
    labels[:2] = torch.tensor([31, 32])
    value, gradient = losses(space, 1.0, logits, labels)
    expected, slopes = label_costs(logits, labels, space, 1.0)
    assert error(value[:, None], expected[:, None]) <= VALUE
    assert error(gradient, slopes) <= GRADIENT


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("shift", [-60.0, 0.0, 60.0])
def test_the_softmax_of_several_segments(rng, shift):
    """Most of the mass is in the last segment, which has two classes. A shift of all logits changes nothing."""
    space = ew.Chain(66)
    logits = torch.from_numpy(rng.normal(size=(2, 66))).float()
    logits[:, -2:] += torch.tensor([[2.0, 5.0], [6.0, 3.0]])
    logits, labels = (logits * 1024).round() / 1024, torch.tensor([3, 65])
    value, gradient = losses(space, 2.0, logits + shift, labels)
    expected, slopes = label_costs(logits, labels, space, 2.0)
    assert error(value[:, None], expected[:, None]) <= VALUE
    assert error(gradient, slopes) <= GRADIENT


@pytest.mark.usefixtures("small_segments")
def test_options(rng):
    """Weights, ignored rows, a mean, half precision and feature maps."""
    space = tree("any", rng, 70)
    bins = space.num_bins
    logits = torch.from_numpy(rng.normal(size=(2, bins, 2))).bfloat16()
    labels = torch.from_numpy(rng.integers(bins, size=(2, 2)))
    labels[1, 0] = 250
    loss = ew.EMDLoss(space, 1.5, weight=torch.rand(bins) + 0.1, ignore_index=250)
    x = logits.clone().requires_grad_()
    value = loss(x, labels)
    (gradient,) = torch.autograd.grad(value * 2, x)
    expected, slopes = portable_loss(loss, logits, labels)
    torch.testing.assert_close(value.double().detach(), expected, rtol=4e-3, atol=0)
    torch.testing.assert_close(gradient.double(), 2 * slopes, rtol=torch.finfo(torch.bfloat16).eps, atol=1e-6)
    assert not gradient[1, :, 0].any()


@pytest.mark.usefixtures("small_segments")
def test_the_last_program_adds_up_the_rows(rng, monkeypatch):
    """More rows than programs, so that some have several; and a batch without rows, which has one program."""
    monkeypatch.setattr(operators, "_WARPS", 2)
    space = tree("star", rng, 40)
    logits = torch.from_numpy(rng.normal(size=(5, space.num_bins))).float()
    labels = torch.from_numpy(rng.integers(space.num_bins, size=5))
    expected, slopes = label_costs(logits, labels, space, 2.0)
    x = logits.clone().requires_grad_()
    value = ew.EMDLoss(space, reduction="sum")(x, labels)
    torch.testing.assert_close(value.detach().double(), expected.sum(), rtol=1e-6, atol=0)
    assert error(torch.autograd.grad(value, x)[0], slopes) <= GRADIENT
    torch.testing.assert_close(ew.EMDLoss(space)(x, labels).detach().double(), expected.mean(), rtol=1e-6, atol=0)
    nothing = logits[:0], labels[:0]
    assert ew.EMDLoss(space)(*nothing).isnan()
    assert ew.EMDLoss(space, empty="zero")(*nothing) == ew.EMDLoss(space, reduction="sum")(*nothing) == 0


@pytest.mark.usefixtures("small_segments")
def test_masked_and_wrong_rows(rng):
    """Segments without mass; NaN and infinite logits and out-of-range labels spoil their rows and no others."""
    space = tree("any", rng, 140)
    logits = torch.from_numpy(rng.normal(size=(5, space.num_bins))).float()
    labels = torch.tensor([0, 1, 2, 3, space.num_bins])
    logits[0, 1:] = -math.inf
    logits[1, :40] = -math.inf
    logits[2, 3] = math.nan
    logits[3, 50] = math.inf
    value, gradient = losses(space, 2.0, logits, labels)
    assert value.isnan().tolist() == gradient.isnan().any(-1).tolist() == [False, False, True, True, True]
    good = [0, 1]
    expected, slopes = label_costs(logits[good], labels[good], space, 2.0)
    assert error(value[good][:, None], expected[:, None]) <= VALUE
    assert error(gradient[good], slopes) <= GRADIENT


@pytest.mark.parametrize("kind", ["tree", "chain"])
def test_real_segments(rng, kind):
    """Three segments as a GPU takes them, the last one ragged, against the portable path in double precision."""
    bins = 20_000
    space = ew.Chain(bins) if kind == "chain" else ew.Tree([-1, *[int(rng.integers(k)) for k in range(1, 2 * bins)]])
    logits = torch.from_numpy(rng.normal(size=(1, space.num_bins))).float() * 3
    labels = torch.from_numpy(rng.integers(space.num_bins, size=1))
    assert isinstance(choose(space, logits, labels), LargeGpuKernels)
    value, gradient = losses(space, 2.0, logits, labels)
    expected, slopes = portable_loss(ew.EMDLoss(space, reduction="none"), logits, labels)
    assert error(value[:, None], expected[:, None]) <= VALUE
    assert error(gradient, slopes) <= GRADIENT


def test_what_is_portable(rng, monkeypatch):
    """Pairs of masses and smoothed labels of large spaces, and spaces beyond a million classes."""
    space = tree("any", rng, 90)
    monkeypatch.setattr(gpu, "MOST_BINS", space.num_bins - 1)
    p, q = dyadic(rng, 3, space.num_bins), dyadic(rng, 3, space.num_bins)
    labels = torch.tensor([0, 1, 2])
    loss = ew.EMDLoss(space, 1.5, label_smoothing=0.1)
    with without_kernels():
        expected = ew.emd(p, q, space, 1.5), ew.emd_gradient(p, q, space, 1.5), loss(p.log(), labels)
    assert not isinstance(choose(space, p, q), GpuKernels)
    torch.testing.assert_close(ew.emd(p, q, space, 1.5), expected[0])
    torch.testing.assert_close(loss(p.log(), labels), expected[2])
    route = choose(space, p, labels)
    assert isinstance(route, LargeGpuKernels)
    torch.testing.assert_close(route.distances(p, q, space, 1.5), expected[0])
    torch.testing.assert_close(route.gradient(p, q, space, 1.5), expected[1])
    monkeypatch.setattr(gpu, "MOST_BINS_IN_SEGMENTS", space.num_bins - 1)
    assert not isinstance(choose(space, p, labels), GpuKernels)


@settings(max_examples=30)
@given(st.sampled_from([kind for kind in KINDS if kind != "ring"]), st.integers(2, 60), st.integers(0, 2**31))
def test_segments_carry_what_the_edges_do(kind, size, seed):
    """The cost and the potential of a difference from the tables, segment by segment, against the maps of the space."""
    rng = np.random.default_rng(seed)
    space = random_space(rng, kind, size)
    segment = int(2 ** rng.integers(0, 4))
    branches = branches_of(*space.intervals(), space.costs.double().numpy())
    tables = segment_tables_of(branches, torch.device("cpu"), segment)
    bins, count, steps, spans, span_steps, most, _ = tables.sizes
    segments = -(-bins // segment)
    lengths = [bins] * 3 + [segments + 1] * 3 + [count] * 2 + [steps] * 3 + [spans] * 4 + [span_steps] * 2
    parts = np.split(tables.indices.numpy(), np.cumsum(lengths))
    walk, place, before, firsts, step_firsts, span_firsts, starts, ends = parts[:8]
    step_starts, step_ends, of_step, span_starts, span_ends, enter, leave, places, of_span_step, rest = parts[8:]
    lengths = [bins, count, steps, spans, span_steps]
    own, costs, step_costs, span_costs, signs = np.split(tables.numbers.double().numpy(), np.cumsum(lengths))[:5]
    assert len(rest) == 0
    assert np.array_equal(walk[place], np.arange(bins))
    x = rng.integers(-9, 9, size=bins).astype(float)
    x[0] -= x.sum()
    walked = np.concatenate([[0], np.cumsum(x[walk])])
    for b in range(segments):
        first, last = b * segment, min((b + 1) * segment, bins)
        assert np.all((starts[firsts[b] : firsts[b + 1]] >= first) & (ends[firsts[b] : firsts[b + 1]] <= last))
        here = places[span_firsts[b] : span_firsts[b + 1]]
        assert np.all((here >= first) & (here < last))
        local = of_step[step_firsts[b] : step_firsts[b + 1]] < 0
        assert np.all(step_starts[step_firsts[b] : step_firsts[b + 1]][local] >= first)
        assert np.all(step_ends[step_firsts[b] : step_firsts[b + 1]] <= last)
        assert step_firsts[b + 1] - step_firsts[b] <= most
    # Where a span starts and ends, as its steps say; without one it is the end of the walk.
    assert np.array_equal(np.where(enter < 0, 0, np.append(places, 0)[enter]), span_starts)
    assert np.array_equal(np.where(leave < 0, bins, np.append(places, 0)[leave]), span_ends)
    flow, span_flow = walked[ends] - walked[starts], walked[span_ends] - walked[span_starts]
    cost = (costs * flow**2).sum() + (span_costs * span_flow**2).sum() + (own * x[walk] ** 2).sum()
    torch_x = torch.from_numpy(x)
    np.testing.assert_allclose(cost, (space.costs * space.flow(torch_x) ** 2).sum().item(), rtol=1e-5, atol=1e-5)
    slopes = span_costs * span_flow
    reached = np.concatenate([[0], np.cumsum(signs * slopes[of_span_step])])
    of_steps = np.where(
        of_step < 0,
        step_costs * (walked[step_ends] - walked[step_starts]),
        np.sign(step_costs) * np.append(slopes, 0)[of_step],
    )
    potential = own * x[walk]
    for b in range(segments):
        sums = np.concatenate([[0], np.cumsum(of_steps[step_firsts[b] : step_firsts[b + 1]])])
        segment_places = slice(b * segment, (b + 1) * segment)
        potential[segment_places] += reached[span_firsts[b]] + sums[before[segment_places]]
    expected = space.potential(space.costs.double() * space.flow(torch_x)).numpy()[walk]
    np.testing.assert_allclose(potential - potential.mean(), expected - expected.mean(), rtol=1e-5, atol=1e-4)
