"""The kernels of the logarithmic losses against the same losses composed of PyTorch's operations on logarithms."""

from __future__ import annotations

import copy
import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import earthwork as ew
from earthwork.kernels.cpu import Layout, run, without_kernels
from earthwork.ops.cpu import kernel_tables
from tests.kernels.cpu.cases import SPACES, space_of

DTYPES = (torch.float32, torch.float64)
# Of values relative to themselves or 1, of gradients relative to the longest way between two bins.
CLOSE = {torch.float32: 1e-6, torch.float64: 1e-12}
LOSSES = ("edge", "hierarchical", "soft")
CASES = [
    (loss, space) for loss, space in itertools.product(LOSSES, SPACES) if (loss, space[:5]) != ("hierarchical", "chain")
]
FEW = [("edge", "any"), ("edge", "chain"), ("hierarchical", "any"), ("soft", "any"), ("soft", "chain")]

pytestmark = pytest.mark.usefixtures("each_build")


def make(name, space, **options):
    if name == "edge":
        return ew.EdgeCrossEntropyLoss(space, **options)
    if name == "hierarchical":
        return ew.HierarchicalCrossEntropyLoss(space, 0.3, **options)
    return ew.SoftLabelLoss(space, 5.0, **options)


@pytest.fixture
def calls(monkeypatch):
    """The kernels that are called: a test that quietly takes the composed loss would show nothing."""
    seen = []
    kernel = run.labels
    monkeypatch.setattr(run, "labels", lambda *args: seen.append(args[8]) or kernel(*args))
    return seen


def differentiated(loss, logits, labels):
    logits = logits.detach().clone().requires_grad_()
    value = loss(logits, labels)
    (gradient,) = torch.autograd.grad((value * torch.linspace(0.5, 1, value.numel()).view(value.shape)).sum(), logits)
    return value.detach(), gradient


def composed(loss, logits, labels):
    with without_kernels():
        return differentiated(loss, logits.double(), labels)


def assert_close(ours, theirs, space, dtype):
    (value, gradient), (expected, slope) = ours, theirs
    assert value.dtype == gradient.dtype == dtype
    tolerance = CLOSE[dtype]
    torch.testing.assert_close(value.double(), expected.double(), rtol=tolerance, atol=tolerance)
    scale = max(1.0, float(space.diameter()))
    torch.testing.assert_close(gradient.double(), slope.double(), rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "shape"), CASES)
def test_values_and_gradients(rng, name, shape, dtype, calls):
    space = space_of(shape, rng)
    loss = make(name, space, reduction="none")
    # Near uniform, confident, and saturated.
    for rows, scale in itertools.product((1, 7, 8, 19), (0.1, 4.0, 20.0)):
        logits = scale * torch.randn(rows, space.num_bins, dtype=dtype)
        labels = torch.randint(space.num_bins, (rows,))
        # Half of the predictions are right.
        labels[::2] = logits.argmax(-1)[::2]
        assert_close(differentiated(loss, logits, labels), composed(loss, logits, labels), space, dtype)
    assert len(calls) == 12


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "shape"), CASES)
def test_underflow_is_computed_from_logarithms(rng, name, shape, dtype, calls):
    space = space_of(shape, rng)
    loss = make(name, space, reduction="none")
    logits = torch.randn(12, space.num_bins, dtype=dtype)
    # From here on masses underflow, first in single precision, then in both.
    logits *= torch.tensor([1, 20, 50, 100, 300, 500, 700, 1e3, 3e3, 1e4, -1e4, 1e5], dtype=dtype).unsqueeze(-1)
    labels = torch.randint(space.num_bins, (12,))
    value, gradient = differentiated(loss, logits, labels)
    assert value.isfinite().all()
    assert gradient.isfinite().all()
    expected, slope = composed(loss, logits, labels)
    torch.testing.assert_close(value.double(), expected, rtol=CLOSE[dtype], atol=CLOSE[dtype])
    scale = max(1.0, float(space.diameter()))
    torch.testing.assert_close(gradient.double(), slope, rtol=0, atol=scale * CLOSE[dtype])
    assert calls


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LOSSES)
def test_equal_halves(name, dtype, calls):
    # As of a head that starts at zero: rounding decides on which side of 1/2 a mass lies.
    for size in range(1, 40):
        tree = ew.Tree([-1, 0, 0, *[1] * size, *[2] * size])
        logits = torch.full((8, 2 * size), -30.0, dtype=dtype)
        logits[0] = 0.0
        logits[1:4] = torch.where(torch.rand(3, 2 * size) < 0.5, 0.0, -100.0)
        logits[4:, [0, -1]] = torch.tensor([[0.0, 0.0], [6e-8, 0.0], [0.0, 6e-8], [1e-3, 0.0]], dtype=dtype)
        labels = logits.argmax(-1)
        loss = make(name, tree, reduction="none")
        for chosen in (labels, labels.flip(0), torch.randint(2 * size, (8,))):
            assert_close(differentiated(loss, logits, chosen), composed(loss, logits, chosen), tree, dtype)
    assert len(calls) == 117


@pytest.mark.parametrize("cost", [1e8, 1e30])
@pytest.mark.parametrize("space", [ew.Chain(3), ew.Tree([-1, 0, 0, 1, 1])])
def test_gradients_of_confident_mistakes_on_long_edges_are_finite(space, cost, calls):
    loss, logits = ew.EdgeCrossEntropyLoss(space.with_costs(cost)), torch.tensor([[69.0, 0.0, -1.0]])
    for label in map(torch.tensor, ([1], [2])):
        (value, gradient), (expected, slope) = (f(loss, logits, label) for f in (differentiated, composed))
        torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=0)
        torch.testing.assert_close(gradient.double(), slope, rtol=1e-6, atol=1e-6 * cost)
    assert len(calls) == 2


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(), (9,), (5, 3, 2)])
@pytest.mark.parametrize(("name", "kind"), FEW)
def test_options(rng, name, kind, shape, weighted, reduction, calls):
    space = space_of(kind, rng)
    weight = torch.rand(space.num_bins) if weighted else None
    loss = make(name, space, weight=weight, ignore_index=3, reduction=reduction)
    logits = 3 * torch.randn(*shape[:1], space.num_bins, *shape[1:])
    if shape:
        # A row that underflows has its weight too.
        logits[0] *= 100
    labels = torch.randint(space.num_bins, shape)
    labels[labels == 1] = 3
    ours, theirs = differentiated(loss, logits, labels), composed(loss, logits, labels)
    torch.testing.assert_close(ours[0].double(), theirs[0].double(), rtol=1e-6, atol=1e-6, equal_nan=True)
    torch.testing.assert_close(ours[1].double(), theirs[1], rtol=1e-5, atol=1e-5)
    assert len(calls) == 1


@pytest.mark.parametrize("kind", ["any", "chain", "inner bins"])
def test_soft_labels_are_smoothed_by_kernel(rng, kind, calls):
    space = space_of(kind, rng)
    for smoothing in (0.1, 1.0):
        loss = ew.SoftLabelLoss(space, 4.0, label_smoothing=smoothing, reduction="none")
        logits, labels = 5 * torch.randn(11, space.num_bins), torch.randint(space.num_bins, (11,))
        assert_close(differentiated(loss, logits, labels), composed(loss, logits, labels), space, torch.float32)
    assert calls == ["soft labels"] * 2
    for name in ("edge", "hierarchical")[: 1 if kind == "chain" else 2]:
        smoothed = make(name, space, label_smoothing=0.1)
        assert_close(differentiated(smoothed, logits, labels), composed(smoothed, logits, labels), space, torch.float32)
    assert len(calls) == 2


@pytest.mark.parametrize("beta", [1e-3, 1.0, 300.0, 1e6])
@pytest.mark.parametrize("kind", ["any", "chain", "star"])
def test_soft_labels_fall_off_slowly_and_fast(rng, kind, beta, calls):
    space = space_of(kind, rng)
    loss = ew.SoftLabelLoss(space, beta, reduction="none")
    logits, labels = torch.randn(9, space.num_bins, dtype=torch.float64), torch.randint(space.num_bins, (9,))
    assert_close(differentiated(loss, logits, labels), composed(loss, logits, labels), space, torch.float64)
    assert calls


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_discount_hierarchical_cross_entropy(rng, dtype, calls):
    tree = space_of("inner bins", rng)
    logits = (4 * torch.randn(30, tree.num_bins, dtype=dtype)).requires_grad_()
    labels = torch.randint(tree.num_bins, (30,))
    found = ew.HierarchicalCrossEntropyLoss(tree, 0)(logits, labels)
    torch.testing.assert_close(found, cross_entropy(logits, labels))
    gradients = [torch.autograd.grad(value, logits)[0] for value in (found, cross_entropy(logits, labels))]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-7)
    assert calls == ["questions"]


@pytest.mark.parametrize("name", ["edge", "hierarchical", "soft"])
def test_path_of_nodes_and_long_way_down(name, calls):
    # One bin at every node of a path, and a path of nodes with one child each above a star.
    deep = ew.Tree(np.arange(-1, 299), bins=np.random.default_rng(0).permutation(300))
    broom = ew.Tree(np.r_[np.arange(-1, 99), np.full(50, 99)])
    for tree in (deep, broom):
        loss = make(name, tree, reduction="none")
        logits, labels = 3 * torch.randn(9, tree.num_bins, dtype=torch.float64), torch.randint(tree.num_bins, (9,))
        assert_close(differentiated(loss, logits, labels), composed(loss, logits, labels), tree, torch.float64)
    assert len(calls) == 2


@pytest.mark.parametrize(("name", "kind"), FEW)
def test_rows_that_do_not_count(rng, name, kind, calls):
    space = space_of(kind, rng)
    logits = torch.randn(3, space.num_bins)
    logits[1] = torch.nan
    value, gradient = differentiated(make(name, space, ignore_index=-1), logits, torch.tensor([0, -1, 1]))
    assert value.isfinite()
    assert (gradient[1] == 0).all()
    assert gradient.isfinite().all()
    assert (gradient[0] != 0).any()
    value, gradient = differentiated(make(name, space), logits, torch.full((3,), -100))
    assert value.isnan()
    assert (gradient == 0).all()
    assert make(name, space, empty="zero")(logits, torch.full((3,), -100)) == 0
    assert len(calls) == 3


@pytest.mark.parametrize(("name", "kind"), FEW)
def test_nan_infinity_go_where_composed_loss_them(rng, name, kind):
    space = space_of(kind, rng)
    logits = torch.randn(4, space.num_bins)
    logits[0, 1] = torch.nan
    logits[1, 2] = -torch.inf
    labels = torch.tensor([0, 0, 1, 2])
    ours, theirs = (f(make(name, space, reduction="none"), logits, labels) for f in (differentiated, composed))
    assert torch.equal(ours[0].isfinite(), theirs[0].isfinite())
    assert torch.equal(ours[1].isnan().any(-1), theirs[1].isnan().any(-1))
    torch.testing.assert_close(ours[0][2:], theirs[0][2:].float())


@pytest.mark.parametrize(("name", "kind"), FEW)
def test_out_of_range_label_is_named(rng, name, kind):
    space = space_of(kind, rng)
    for bad in (-1, space.num_bins, 2**62):
        message = f"target: expected class indices from 0 to {space.num_bins - 1} .*, got {bad} at position 2"
        with pytest.raises(ValueError, match=message):
            make(name, space)(torch.randn(4, space.num_bins), torch.tensor([0, 1, bad, 0]))


@pytest.mark.parametrize(("name", "kind"), FEW)
def test_odd_layouts_and_types(rng, name, kind, calls):
    space = space_of(kind, rng)
    loss = make(name, space, reduction="none")
    logits, labels = torch.randn(12, space.num_bins), torch.randint(space.num_bins, (12,))
    expected = loss(logits, labels)
    wide = torch.zeros(12, 2 * space.num_bins)
    wide[:, ::2] = logits
    for odd in (logits.t().contiguous().t(), wide[:, ::2]):
        torch.testing.assert_close(loss(odd, labels), expected, rtol=0, atol=0)
    torch.testing.assert_close(loss(logits, labels.repeat_interleave(2).to(torch.uint8)[::2]), expected, rtol=0, atol=0)
    assert loss(logits[:0], labels[:0]).shape == (0,)
    assert len(calls) == 5
    half = loss(logits.bfloat16(), labels)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half, loss(logits.bfloat16().float(), labels).bfloat16(), rtol=0, atol=0)
    with torch.autocast("cpu", torch.bfloat16):
        assert loss(logits.bfloat16(), labels).dtype == torch.float32
    with torch.inference_mode():
        torch.testing.assert_close(loss(logits.clone(), labels.clone()), expected, rtol=0, atol=0)
        assert loss(1000 * logits, labels).isfinite().all()


@pytest.mark.parametrize(("name", "kind"), FEW)
@pytest.mark.usefixtures("threads_on_small_input")
def test_any_number_of_threads(rng, name, kind):
    space = space_of(kind, rng)
    loss = make(name, space)
    logits, labels = 4 * torch.randn(101, space.num_bins), torch.randint(space.num_bins, (101,))
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(differentiated(loss, logits, labels)[1])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=0)


@pytest.mark.parametrize(("name", "kind"), FEW)
def test_second_derivatives_and_transforms(rng, name, kind, calls):
    space = space_of(kind, rng)
    loss = make(name, space)
    logits = torch.randn(2, space.num_bins, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 2])
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), logits)
    assert torch.autograd.gradgradcheck(lambda x: loss(x, labels), logits)
    assert calls
    calls.clear()
    mapped = torch.func.vmap(torch.func.grad(lambda x, y: loss(x.unsqueeze(0), y.unsqueeze(0))))(logits, labels)
    assert not calls
    torch.testing.assert_close(mapped / 2, torch.autograd.grad(loss(logits, labels), logits)[0])


@pytest.mark.parametrize(("name", "kind"), FEW)
def test_compiled(rng, name, kind, calls):
    space = space_of(kind, rng)
    loss = make(name, space)
    logits, labels = torch.randn(9, space.num_bins), torch.randint(space.num_bins, (9,))
    expected = differentiated(loss, logits, labels)
    calls.clear()
    found = differentiated(torch.compile(loss, backend="aot_eager", fullgraph=True), logits, labels)
    assert not calls
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "kind"), FEW)
def test_copies_and_other_costs(rng, name, kind, calls):
    space = space_of(kind, rng)
    loss = make(name, space)
    logits, labels = torch.randn(9, space.num_bins), torch.randint(space.num_bins, (9,))
    expected = loss(logits, labels)
    for twin in (copy.copy(loss), copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        torch.testing.assert_close(twin(logits, labels), expected, rtol=0, atol=0)
    loss.space = space.with_costs(3 * space.costs)
    changed = loss(logits, labels)
    with without_kernels():
        torch.testing.assert_close(changed, loss(logits, labels))
    assert len(calls) == 5


@pytest.mark.parametrize("name", ["edge", "soft"])
def test_learnable_weights_are_not_for_kernels(name, calls):
    logits, labels = torch.randn(4, 10), torch.arange(4)
    loss = make(name, ew.Chain(10), weight=torch.ones(10))
    loss.weight.requires_grad_()
    loss(logits, labels).backward()
    assert loss.weight.grad.abs().sum() > 0
    make(name, ew.Chain(10), normalize="l1")(logits.abs(), labels)
    assert not calls


def test_layout_of_loss_is_built_once(rng, monkeypatch):
    tree = space_of("any", rng)
    loss = ew.HierarchicalCrossEntropyLoss(tree, 0.5)
    logits, labels = torch.randn(9, tree.num_bins), torch.randint(tree.num_bins, (9,))
    first = loss(logits, labels)
    monkeypatch.setattr(type(loss.space), "kernel_tables", None)
    torch.testing.assert_close(loss(logits, labels), first, rtol=0, atol=0)


def test_parents_layout_come_before_children(rng):
    space = space_of("any", rng)
    numbers, costs = kernel_tables(space)
    bins, nodes = numbers[:2].tolist()
    numbers = numbers.copy()
    # The header, `places` and `leaves` come before `children`.
    start = 3 + bins + nodes + 1
    numbers[start : start + nodes + 1] = 0
    with pytest.raises(ValueError, match="tables: expected the kernel tables of a space"):
        Layout([numbers, costs], bins)


def test_value_of_label_that_is_almost_certain():
    # 1 - p would be 0 in single precision.
    tree = ew.Tree([-1, 0, 0, 1, 1, 2, 2])
    logits = torch.tensor([[30.0, 0.0, 1.0, 2.0]])
    rest = math.exp(-30) + math.exp(-29) + math.exp(-28)
    beside = math.exp(-29) + math.exp(-28)
    expected = rest + beside + math.exp(-30) + beside + math.exp(-29) + math.exp(-28)
    found = ew.EdgeCrossEntropyLoss(tree)(logits, torch.tensor([0]))
    assert found.item() == pytest.approx(expected, rel=1e-5)
