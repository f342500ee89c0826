"""Where the kernels do not apply, the portable path gives the same results."""

from __future__ import annotations

import platform
import subprocess
import sys
import textwrap

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

import earthwork as ew
from earthwork.kernels.cpu import Layout, layout, loading, run, without_kernels
from earthwork.ops import operations as routes
from earthwork.ops.operations import Kernels, choose
from tests.cases import random_distribution
from tests.kernels.cpu.cases import space_of


class Masses(torch.Tensor):
    """A tensor of somebody's own."""


@pytest.fixture
def calls(monkeypatch):
    """The kernels that are called."""
    seen = []
    for name in ("pairs", "labels"):
        kernel = getattr(run, name)
        monkeypatch.setattr(run, name, lambda *args, kernel=kernel: seen.append(kernel) or kernel(*args))
    return seen


@pytest.mark.parametrize("name", ["any", "chain"])
@pytest.mark.parametrize("rho", [1.5, 2.0, 3.0])
def test_second_derivatives(rng, name, rho):
    space = space_of(name, rng)
    p, q = (random_distribution(rng, 4, space.num_bins, zeros=0.0) for _ in range(2))
    logits = torch.randn(4, space.num_bins, dtype=torch.float64)
    loss, labels = ew.EMDLoss(space, rho), torch.arange(4) % space.num_bins

    def curvatures(function, x):
        x = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        return gradient.detach(), torch.autograd.grad(gradient.square().sum(), x)[0]

    for function, x in (
        (lambda x: ew.emd(x, q, space, rho), p),
        (lambda x: ew.emd(x[None], q, space, rho), p),
        (lambda x: ew.emd(p, x, space, rho), q),
        (lambda x: loss(x, labels), logits),
        (lambda x: loss(x, q), logits),
    ):
        function(x)
        fused = curvatures(function, x)
        with without_kernels():
            torch.testing.assert_close(fused, curvatures(function, x))


def test_gradgradcheck(rng):
    space = space_of("any", rng)
    labels = torch.arange(3) % space.num_bins
    logits = torch.randn(3, space.num_bins, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda x: ew.EMDLoss(space)(x, labels), (logits,))
    torch.autograd.gradgradcheck(lambda x: ew.EMDLoss(space)(x, labels), (logits,))


@pytest.mark.parametrize("name", ["any", "chain"])
def test_transforms(rng, name, calls):
    space = space_of(name, rng)
    p, q = (random_distribution(rng, 4, space.num_bins) for _ in range(2))
    gradient = torch.func.vmap(torch.func.grad(lambda p, q: ew.emd(p, q, space, 2)))(p, q)
    with without_kernels():
        torch.testing.assert_close(gradient, ew.emd_gradient(p, q, space, 2))
    with forward_ad.dual_level():
        value = ew.emd(forward_ad.make_dual(p, p), q, space, 2)
        tangent = forward_ad.unpack_dual(value).tangent
    torch.testing.assert_close(tangent, (gradient * p).sum(-1))
    assert not calls


def test_learnable_costs(rng, calls):
    costs = torch.rand(9, requires_grad=True)
    p, q = (random_distribution(rng, 4, 10).float() for _ in range(2))
    ew.emd(p, q, ew.Chain(10), costs=costs).sum().backward()
    ew.EMDLoss(ew.Chain(10), costs=ew.LearnedCosts(ew.Chain(10)))(p, torch.arange(4)).backward()
    assert costs.grad.abs().sum() > 0
    assert not calls


@pytest.mark.parametrize("space", [ew.Ring(10), ew.CostMatrix(ew.Chain(10).distances())])
def test_other_spaces(rng, calls, space):
    p, q = (random_distribution(rng, 4, 10) for _ in range(2))
    assert ew.emd(p, q, space).shape == (4,)
    assert not calls


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_goes_through_single(rng, calls, dtype):
    p, q = (random_distribution(rng, 4, 10).to(dtype) for _ in range(2))
    distances = ew.emd(p, q, ew.Chain(10))
    assert distances.dtype == dtype
    assert calls
    with without_kernels():
        torch.testing.assert_close(distances, ew.emd(p, q, ew.Chain(10)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_may_miss_by(calls, dtype):
    p, q = torch.full((4, 10), 0.1, dtype=dtype), torch.full((4, 10), 0.1, dtype=dtype)
    p[0, 0] += 0.008
    assert ew.emd(p, q, ew.Chain(10)).shape == (4,)
    p[0, 0] += 0.008
    with pytest.raises(ValueError, match="expected rows of equal mass"):
        ew.emd(p, q, ew.Chain(10))
    assert len(calls) == 2


@pytest.mark.parametrize("narrow", [0, 1])
def test_types_that_differ_meet_in_wider(rng, narrow, calls):
    space = space_of("any", rng)
    pair = [random_distribution(rng, 4, space.num_bins) for _ in range(2)]
    loss = ew.EMDLoss(space, normalize=None, reduction="none")
    ew.emd(*pair, space)
    seen = len(calls)
    pair[narrow] = pair[narrow].float()
    with without_kernels():
        expected = ew.emd(*(x.double() for x in pair), space, 2)
        slopes = ew.emd_gradient(*(x.double() for x in pair), space, 2)
    torch.testing.assert_close(ew.emd(*pair, space, 2), expected)
    torch.testing.assert_close(ew.emd_gradient(*pair, space, 2), slopes)
    assert len(calls) == seen
    torch.testing.assert_close(loss(*pair), expected.to(loss(*pair)))


def test_distributions_as_targets_go_by_kernel(rng, calls):
    space = space_of("any", rng)
    logits, q = torch.randn(4, space.num_bins), random_distribution(rng, 4, space.num_bins).float()
    loss = ew.EMDLoss(space)(logits, q)
    assert len(calls) == 1
    with without_kernels():
        torch.testing.assert_close(loss, ew.EMDLoss(space)(logits, q))


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (1, 2, 3), (0,), (2, 0)])
def test_any_leading_shape(rng, calls, shape):
    space = space_of("any", rng)
    p, q = (random_distribution(rng, *shape, space.num_bins) for _ in range(2))
    distances = ew.emd(p.requires_grad_(), q, space, 2)
    assert distances.shape == shape
    distances.sum().backward()
    assert len(calls) == 1
    with without_kernels():
        torch.testing.assert_close(distances, ew.emd(p, q, space, 2))
        torch.testing.assert_close(p.grad, ew.emd_gradient(p, q, space, 2))


@pytest.mark.parametrize("name", ["any", "chain"])
def test_no_gradient_made_nobody_asked(rng, name, monkeypatch):
    asked = []
    pairs = run.pairs

    def spy(layout, p, q, rho, gradient, tolerance):
        asked.append(gradient)
        assert tolerance > 0
        return pairs(layout, p, q, rho, gradient, tolerance)

    monkeypatch.setattr(run, "pairs", spy)
    space = space_of(name, rng)
    p, q = (random_distribution(rng, 4, space.num_bins) for _ in range(2))
    ew.emd(p, q, space)
    with torch.no_grad():
        ew.emd(p.clone().requires_grad_(), q, space)
    ew.emd(p.clone().requires_grad_(), q, space)
    ew.emd(p, q.clone().requires_grad_(), space)
    assert asked == [False, False, True, True]


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_what_kernel_can_do_is_left_to_it(rng, reduction, monkeypatch):
    space = space_of("any", rng)
    logits, target = torch.randn(4, space.num_bins), torch.arange(4) % space.num_bins
    loss = ew.EMDLoss(space, reduction=reduction)
    with without_kernels():
        expected = loss(logits, target)
    monkeypatch.setattr(ew.EMDLoss, "defined_loss", None)
    torch.testing.assert_close(loss(logits, target), expected)


def test_no_gradient_loss_made_nobody_asked(rng, monkeypatch):
    asked = []
    labels = run.labels
    monkeypatch.setattr(run, "labels", lambda *options: asked.append(options[4]) or labels(*options))
    space = space_of("any", rng)
    loss, logits, target = ew.EMDLoss(space), torch.randn(4, space.num_bins), torch.arange(4) % space.num_bins
    loss(logits, target)
    with torch.no_grad():
        loss(logits.clone().requires_grad_(), target)
    loss(logits.clone().requires_grad_(), target)
    assert asked == [False, False, True]


@pytest.mark.parametrize("rho", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("name", ["any", "star", "chain"])
@pytest.mark.parametrize(("left", "right"), [((), ()), ((3,), (3,)), ((2, 1), (3,)), ((), (4,)), ((0,), ())])
def test_gradient_by_itself(rng, calls, name, rho, left, right):
    space = space_of(name, rng)
    p, q = (random_distribution(rng, *shape, space.num_bins) for shape in (left, right))
    for pair in ((p, q), (p.requires_grad_(), q), (p.T.contiguous().T if p.ndim == 2 else p, q)):
        gradient = ew.emd_gradient(*pair, space, rho)
        assert calls
        assert not gradient.requires_grad
        with without_kernels():
            torch.testing.assert_close(gradient, ew.emd_gradient(*pair, space, rho), rtol=1e-11, atol=1e-13)


def test_rows_are_copied_only_if_they_must_be():
    x = torch.rand(4, 6)
    for rows in (x, x[::2], x[:, 1:4], x[:1].expand(3, 6)):
        assert run._contiguous_rows(rows)[0] is rows
    assert run._contiguous_rows(x.T)[0].is_contiguous()


def test_meta_tensors_and_fake_ones(calls):
    chain = ew.Chain(10)
    p = torch.empty(4, 10, device="meta")
    assert ew.emd(p, p, chain).device.type == "meta"
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(torch.rand(4, 10))
        assert ew.emd(fake, fake, chain, validate=False).shape == (4,)
    assert not calls


def test_tables_are_built_once(rng):
    space = space_of("any", rng)
    p, q = (random_distribution(rng, 4, space.num_bins) for _ in range(2))
    known = choose(space, p, q)
    assert isinstance(known, Kernels)
    ew.emd(p, q, space)
    assert choose(space, p, q) is choose(space, p, torch.zeros(4, dtype=torch.long)) is known


@pytest.mark.parametrize(
    "look",
    [
        lambda p, q: (p, q.float()),
        lambda p, q: (p.float(), q),
        lambda p, q: (p.half(), q.half()),
        lambda p, q: (Masses(p), q),
        lambda p, q: (p, Masses(q)),
        lambda p, q: (p.to("meta"), q),
        lambda p, q: (p, q.to("meta")),
        lambda p, q: (torch._neg_view(p), q),
        lambda p, q: (p, torch._neg_view(q)),
    ],
)
def test_unusual_tensors_take_another_route(rng, look):
    space = space_of("chain", rng)
    p, q = (random_distribution(rng, 4, space.num_bins) for _ in range(2))
    assert isinstance(choose(space, p, q), Kernels)
    assert not isinstance(choose(space, *look(p, q)), Kernels)


def test_unusual_circumstances_take_another_route(rng, monkeypatch):
    space, ring = space_of("chain", rng), ew.Ring(8)
    p, q = (random_distribution(rng, 4, space.num_bins) for _ in range(2))
    known = choose(space, p, q)
    assert isinstance(known, Kernels)
    monkeypatch.setattr(routes, "MIN_ENTRIES_EXPECTED", 0)
    assert isinstance(choose(ring, p[:, :8], expected=True), Kernels)
    assert choose(ring, p[:, :8], q[:, :8]) is routes.COMPOSED
    with without_kernels():
        assert choose(space, p, q) is routes.FIRST_ORDER
    with forward_ad.dual_level():
        assert choose(space, p, q) is routes.COMPOSED
    with FlopCounterMode(display=False):
        assert choose(space, p, q) is routes.COMPOSED
    assert choose(space, p[:0], q[:0]) is choose(space, p[:1], q[:1]) is known
    assert choose(space.with_costs(2.0), p, q) not in (known, routes.FIRST_ORDER)


def test_inference_tensors_take_same_route(rng):
    space = space_of("any", rng)
    p, q = (random_distribution(rng, 4, space.num_bins) for _ in range(2))
    expected = ew.emd(p, q, space)
    with torch.inference_mode():
        made_here = p.clone()
        assert isinstance(choose(space, p, q), Kernels)
        assert isinstance(choose(space, made_here, q), Kernels)
        assert torch.equal(ew.emd(made_here, q, space), expected)
    assert torch.equal(ew.emd(p, q, space), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p[3].mul_(1.001), "expected rows of equal mass, got 1.001 in p and 1 in q of row 3"),
        (lambda p: p[2, 5].sub_(1), r"p: expected finite masses ≥ 0, got .* in bin 5 of row 2"),
        (lambda p: p[2, 5].fill_(torch.nan), "p: expected finite masses ≥ 0, got nan in bin 5 of row 2"),
        (lambda p: p[9, 0].fill_(torch.inf), "p: expected finite masses ≥ 0, got inf in bin 0 of row 9"),
    ],
)
@pytest.mark.parametrize("name", ["star", "chain"])
def test_bad_masses_are_named(rng, name, change, message, calls):
    space = space_of(name, rng)
    p, q = (random_distribution(rng, 10, space.num_bins) for _ in range(2))
    change(p)
    with pytest.raises(ValueError, match=message):
        ew.emd(p, q, space)
    assert calls
    assert ew.emd(p, q, space, validate=False).shape == (10,)
    with pytest.raises(ValueError, match=message.replace("p:", "q:").replace("in p", "in .")[:25]):
        ew.emd(q, p, space)


def test_bad_labels_are_named(rng):
    space = space_of("any", rng)
    logits = torch.randn(4, space.num_bins)
    message = f"target: expected class indices from 0 to {space.num_bins - 1} .*, got {space.num_bins} at position 2"
    with pytest.raises(ValueError, match=message):
        ew.EMDLoss(space)(logits, torch.tensor([0, 1, space.num_bins, 0]))


@pytest.fixture
def _no_core(monkeypatch):
    """As if the package had been installed without a compiler."""
    monkeypatch.setattr(loading, "library", lambda: None)
    monkeypatch.setattr(layout, "library", lambda: None)
    loading._warn_once.cache_clear()


@pytest.mark.usefixtures("_no_core")
def test_without_the_compiled_core(rng):
    space = space_of("any", rng)
    p, q = (random_distribution(rng, 4, space.num_bins) for _ in range(2))
    with without_kernels():
        expected = ew.emd(p, q, space)
    assert ew.backend() == "none"
    with pytest.warns(RuntimeWarning, match=r"installed without its compiled kernels.* install a C.. compiler"):
        torch.testing.assert_close(ew.emd(p, q, space), expected)
    # Once.
    torch.testing.assert_close(ew.emd(p, q, space), expected)
    with pytest.raises(ImportError, match="a compiled loss needs the compiled kernels: reinstall"):
        Layout([torch.ones(3)], 4)


def _python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=100,
        env={**__import__("os").environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_setting():
    code = "import earthwork as ew, torch; ew.emd(torch.eye(20), torch.eye(20), ew.Chain(20)); print(ew.backend())"
    assert _python(code, EARTHWORK_KERNELS="off") == "none\n"
    assert _python(code, EARTHWORK_KERNELS="on") == f"{ew.backend()}\n" != "none\n"
    if platform.machine() in ("x86_64", "AMD64"):
        assert _python(code, EARTHWORK_KERNELS="baseline") == "baseline\n"
    with pytest.raises(ValueError, match=r"EARTHWORK_KERNELS: expected one of on, off, .*, got 'fast'"):
        loading.setting("fast")


def test_build_that_machine_cannot_run(monkeypatch):
    monkeypatch.setattr(loading, "_chosen", "neon" if platform.machine() in ("x86_64", "AMD64") else "avx2")
    with pytest.raises(ValueError, match="EARTHWORK_KERNELS: expected a build that this machine can run, got"):
        loading.library.__wrapped__()
