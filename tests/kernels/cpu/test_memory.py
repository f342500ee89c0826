"""Odd layouts in memory, and what becomes of the tensors that go in and out."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import textwrap
from multiprocessing.reduction import ForkingPickler

import pytest
import torch

import earthwork as ew
from earthwork.kernels.cpu import run
from tests.cases import random_distribution
from tests.kernels.cpu.cases import composed_distance, space_of


def _every_other_column(x):
    wide = torch.zeros(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype)
    wide[..., ::2] = x
    return wide[..., ::2]


def _with_a_gap_between_rows(x):
    wide = torch.full((x.shape[0], x.shape[1] + 5), torch.nan, dtype=x.dtype)
    wide[:, 2:-3] = x
    return wide[:, 2:-3]


LAYOUTS = {
    "transposed": lambda x: x.t().contiguous().t(),
    "every other column": _every_other_column,
    "a gap between rows": _with_a_gap_between_rows,
    "one row for all": lambda x: x[:1].expand_as(x),
    "negated": lambda x: torch.complex(torch.zeros_like(x), -x).conj().imag,
}


@pytest.mark.parametrize("name", ["any", "chain"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(rng, name, layout):
    space = space_of(name, rng)
    p, q = (random_distribution(rng, 11, space.num_bins) for _ in range(2))
    odd = LAYOUTS[layout](p)
    leaf = odd.detach().requires_grad_() if layout != "negated" else odd.requires_grad_()
    distances = ew.emd(leaf, LAYOUTS[layout](q), space, 1.5)
    distances.sum().backward()
    values, gradient = composed_distance(odd, LAYOUTS[layout](q), space, 1.5)
    torch.testing.assert_close(distances.detach(), values)
    torch.testing.assert_close(leaf.grad, gradient)
    loss = ew.EMDLoss(space, reduction="none")
    labels = torch.arange(11) % space.num_bins
    torch.testing.assert_close(loss(odd, labels), loss(odd.clone(), labels))


@pytest.mark.parametrize("name", ["any", "chain"])
def test_broadcast(rng, name):
    space = space_of(name, rng)
    p = random_distribution(rng, 5, 1, 4, space.num_bins).requires_grad_()
    q = random_distribution(rng, 3, 1, space.num_bins).requires_grad_()
    distances = ew.emd(p, q, space, 2)
    assert distances.shape == (5, 3, 4)
    distances.sum().backward()
    values, gradient = composed_distance(p.detach().expand(5, 3, 4, -1), q.detach(), space, 2)
    torch.testing.assert_close(distances.detach(), values)
    torch.testing.assert_close(p.grad, gradient.sum(1, keepdim=True))
    torch.testing.assert_close(q.grad, -gradient.sum((0, 2)).unsqueeze(1))


@pytest.mark.parametrize("name", ["any", "chain"])
def test_no_rows(rng, name):
    space = space_of(name, rng)
    p = torch.rand(0, space.num_bins, requires_grad=True)
    distances = ew.emd(p, p.detach(), space)
    assert distances.shape == (0,)
    distances.sum().backward()
    assert p.grad.shape == p.shape
    assert ew.EMDLoss(space, reduction="sum")(p, torch.zeros(0, dtype=torch.long)) == 0


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int64])
def test_labels_of_any_type_and_layout(rng, dtype):
    space = space_of("any", rng)
    logits = torch.randn(6, space.num_bins)
    labels = torch.randint(space.num_bins, (12,))
    loss = ew.EMDLoss(space, reduction="none")
    torch.testing.assert_close(loss(logits, labels[::2].to(dtype)), loss(logits, labels[::2].clone()))
    labels = labels.to(dtype)[::2]
    torch.testing.assert_close(loss(logits, labels), loss(logits, labels.clone()))


@pytest.mark.parametrize("upstream", [1.0, 0.5])
def test_kept_graph_keeps_its_gradient(rng, upstream):
    space = space_of("any", rng)
    logits = torch.randn(6, space.num_bins, requires_grad=True)
    loss = upstream * ew.EMDLoss(space)(logits, torch.zeros(6, dtype=torch.long))
    first, second = (torch.autograd.grad(loss, logits, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    # What a user does to a gradient is no concern of the graph.
    first.add_(1)
    loss.backward(retain_graph=True)
    logits.grad.add_(1)
    loss.backward()
    torch.testing.assert_close(logits.grad, 2 * second + 1)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_have_kernels_of_their_own(rng, copied):
    loss = ew.EMDLoss(space_of("any", rng))
    logits, labels = torch.randn(6, loss.space.num_bins), torch.arange(6)
    expected = loss(logits, labels)
    twin = copied(loss)
    del loss
    torch.testing.assert_close(twin(logits, labels), expected)


def test_other_costs(rng):
    space = space_of("any", rng)
    p, q = (random_distribution(rng, 9, space.num_bins) for _ in range(2))
    torch.testing.assert_close(ew.emd(p, q, space.with_costs(2 * space.costs)), 2 * ew.emd(p, q, space))


@pytest.mark.parametrize("share", [lambda loss: loss.share_memory(), ForkingPickler.dumps], ids=["share", "send"])
@pytest.mark.parametrize("space", [ew.Chain(100, [1.0] * 99), ew.Tree([-1] + [0] * 100), ew.Ring(100)], ids=str)
def test_loss_that_shared_with_another_process(space, share):
    loss = ew.EMDLoss(space)
    logits, labels = torch.randn(64, 100), torch.randint(100, (64,))
    p = logits.softmax(-1)
    expected = loss(logits, labels), ew.expected_distance(p, loss.space)
    share(loss)
    # Whoever gets the memory that was theirs writes to it.
    _ = [torch.full((size,), -1.0e9).double() for size in range(1, 400)]
    torch.testing.assert_close((loss(logits, labels), ew.expected_distance(p, loss.space)), expected)


def test_hooks_on_saved_tensors_see_gradient_buffer(rng):
    space = space_of("any", rng)
    loss, labels = ew.EMDLoss(space), torch.arange(6) % space.num_bins
    logits = torch.randn(6, space.num_bins, requires_grad=True)
    (expected,) = torch.autograd.grad(loss(logits, labels), logits)
    packed, unpacked = [], []

    def pack(x):
        packed.append(x)
        return len(packed) - 1

    def unpack(index):
        unpacked.append(index)
        return packed[index].clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        value = loss(logits, labels)
    assert any(x.shape == logits.shape and x is not logits and torch.equal(x, expected) for x in packed)
    value.backward()
    assert unpacked
    torch.testing.assert_close(logits.grad, expected, rtol=0, atol=0)


def test_offloading_saved_tensors(rng):
    space = space_of("chain", rng)
    p, q = (random_distribution(rng, 9, space.num_bins).requires_grad_() for _ in range(2))
    expected = torch.autograd.grad(ew.emd(p, q, space, 1.5).sum(), (p, q))
    with torch.autograd.graph.save_on_cpu():
        distances = ew.emd(p, q, space, 1.5)
    torch.testing.assert_close(torch.autograd.grad(distances.sum(), (p, q)), expected)


@pytest.mark.parametrize("upstream", [1.0, 0.5])
def test_gradient_buffer_reused_unless_graph_retained(rng, upstream):
    space = space_of("any", rng)
    loss, labels = ew.EMDLoss(space), torch.arange(6) % space.num_bins
    logits = torch.randn(6, space.num_bins, requires_grad=True)
    value = loss(logits, labels)
    address = value.grad_fn.saved_tensors[0].data_ptr()
    scale = torch.tensor(upstream)
    (kept,) = torch.autograd.grad(value, logits, scale, retain_graph=True)
    assert kept.data_ptr() != address
    (last,) = torch.autograd.grad(value, logits, scale)
    assert last.data_ptr() == address
    torch.testing.assert_close(last, kept, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["any", "chain"])
def test_inference_tensors_take_kernels(rng, name, monkeypatch):
    space = space_of(name, rng)
    loss, labels = ew.EMDLoss(space), torch.arange(6) % space.num_bins
    logits, p, q = torch.randn(6, space.num_bins), *(random_distribution(rng, 6, space.num_bins) for _ in range(2))
    expected = loss(logits, labels), ew.emd(p, q, space, 2), ew.emd_gradient(p, q, space, 2)
    called = []
    for kernel in ("labels", "pairs"):
        original = getattr(run, kernel)
        monkeypatch.setattr(run, kernel, lambda *x, original=original: called.append(original) or original(*x))
    with torch.inference_mode():
        x, y, a, b = logits.clone(), labels.clone(), p.clone(), q.clone()
        assert x.is_inference()
        found = loss(x, y), ew.emd(a, b, space, 2), ew.emd_gradient(a, b, space, 2)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert len(called) == 3


def test_importing_inside_inference_mode_leaves():
    code = """
        import torch
        with torch.inference_mode():
            import earthwork as ew
        from earthwork.ops.operations import Kernels, choose
        p = torch.full((40, 10), 0.1)
        assert isinstance(choose(ew.Chain(10), p, p), Kernels)
        with torch.inference_mode():
            assert isinstance(choose(ew.Chain(10), p.clone(), p.clone()), Kernels)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
