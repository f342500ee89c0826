"""Every derivative, by finite differences and through every transform."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode

import earthwork as ew
from earthwork.ops import label_costs
from tests.cases import KINDS, random_distribution, random_space

RHOS = [1.0, 1.5, 2.0, 2.5, 3.0]


@pytest.fixture(params=KINDS)
def case(request, rng):
    space = random_space(rng, request.param, 7)
    p, q = random_distribution(rng, 2, 3, space.num_bins, zeros=0)
    return p.requires_grad_(), q.requires_grad_(), space


@pytest.mark.parametrize("rho", RHOS)
def test_finite_differences(case, rho):
    p, q, space = case
    assert gradcheck(lambda p, q: ew.emd(p, q, space, rho), (p, q))


@pytest.mark.parametrize("rho", [1.5, 2.0, 3.0])
def test_second_finite_differences(case, rho):
    p, q, space = case
    assert gradgradcheck(lambda p, q: ew.emd(p, q, space, rho), (p, q))


@pytest.mark.parametrize("rho", RHOS)
def test_edge_costs_have_gradient(case, rho):
    p, q, space = case
    costs = (space.costs + 0.1).requires_grad_()
    assert gradcheck(lambda w: ew.emd(p.detach(), q.detach(), space, rho, costs=w), costs)


@pytest.mark.parametrize("normalize", ["l1", "softmax"])
def test_normalisation_has_gradient(case, normalize):
    p, q, space = case
    assert gradcheck(
        lambda p: ew.emd(p, q.detach(), space, 2, normalize=normalize), (2.0 * p.detach()).requires_grad_()
    )


@pytest.mark.parametrize("normalize", ["l1", "softmax"])
def test_normalisation_is_over_bins(case, normalize):
    p, q, space = (x.detach() if isinstance(x, torch.Tensor) else x for x in case)
    rows = 3 * p
    expected = ew.emd(p if normalize == "l1" else rows.softmax(-1), q, space, 2)
    torch.testing.assert_close(ew.emd(rows, q, space, 2, normalize=normalize), expected)
    torch.testing.assert_close(ew.emd(rows[0], q[0], space, 2, normalize=normalize), expected[0])
    torch.testing.assert_close(
        ew.emd(rows[:, None].expand(3, 2, -1), q[:, None], space, 2, normalize=normalize)[:, 1], expected
    )


@pytest.mark.parametrize("rho", RHOS)
def test_functional_transforms(case, rho):
    p, q, space = (x.detach() if isinstance(x, torch.Tensor) else x for x in case)

    def distance(p, q):
        return ew.emd(p, q, space, rho)

    gradient = ew.emd_gradient(p, q, space, rho)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(distance))(p, q), gradient)
    torch.testing.assert_close(torch.func.vmap(distance, in_dims=(1, None))(p.T, q[0]), distance(p, q[0]))
    jacobian = torch.func.jacrev(distance)(p, q)
    torch.testing.assert_close(jacobian.diagonal(dim1=0, dim2=1).T, gradient)
    if rho > 1:
        hessian = torch.func.vmap(torch.func.hessian(distance))(p, q)
        torch.testing.assert_close(hessian, ew.emd_hessian(p, q, space, rho), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("outer", [torch.func.jacfwd, torch.func.jacrev])
@pytest.mark.parametrize("inner", [torch.func.jacfwd, torch.func.jacrev])
def test_one_mode_over_other(case, outer, inner):
    p, q, space = (x.detach() if isinstance(x, torch.Tensor) else x for x in case)
    hessian = outer(inner(lambda p: ew.emd(p, q[0], space, 3)))(p[0])
    torch.testing.assert_close(hessian, ew.emd_hessian(p[0], q[0], space, 3))

    def of_logits(x):
        return ew.emd(x, q[0], space, 3, normalize="softmax")

    expected = torch.autograd.functional.hessian(of_logits, p[0])
    torch.testing.assert_close(outer(inner(of_logits))(p[0]), expected)


@pytest.mark.parametrize("rho", RHOS)
def test_forward_mode(case, rho):
    p, q, space = (x.detach() if isinstance(x, torch.Tensor) else x for x in case)
    direction = torch.randn_like(p)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(ew.emd(forward_ad.make_dual(p, direction), q, space, rho)).tangent
    torch.testing.assert_close(tangent, (ew.emd_gradient(p, q, space, rho) * direction).sum(-1))


def test_whoever_watches_operations_sees_them(rng):
    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            seen.append(function)
            return function(*arguments, **(options or {}))

    seen: list[object] = []
    p, q = random_distribution(rng, 2, 64, 8)
    with Watch():
        ew.emd(p, q, ew.Chain(8))
    assert torch.ops.aten.cumsum.default in seen


@pytest.mark.parametrize("rho", [1.0, 1.5, 2.0])
def test_compiled_without_graph_break(case, rho):
    p, q, space = case
    torch.compiler.reset()
    # Code from inductor is compared in tests/losses/test_compiled.py, many cases in one graph, which takes less time.
    compiled = torch.compile(lambda p, q: ew.emd(p, q, space, rho), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(p, q), ew.emd(p, q, space, rho))
    ours, theirs = torch.autograd.grad(compiled(p, q).sum(), (p, q))
    torch.testing.assert_close(ours, ew.emd_gradient(p, q, space, rho))
    torch.testing.assert_close(theirs, -ew.emd_gradient(p, q, space, rho))


@pytest.mark.parametrize("rho", [1.0, 2.0])
def test_layouts_and_leading_shapes(case, rho):
    p, q, space = (x.detach() if isinstance(x, torch.Tensor) else x for x in case)
    expected = ew.emd(p, q, space, rho)
    strided = torch.stack([p, p], -1)[..., 0]
    assert not strided.is_contiguous() or p.numel() <= 1
    torch.testing.assert_close(ew.emd(strided, q, space, rho), expected)
    torch.testing.assert_close(ew.emd(p.T.contiguous().T, q, space, rho), expected)
    torch.testing.assert_close(ew.emd(p[0].expand(3, -1), q, space, rho), ew.emd(p[0], q, space, rho))
    every = ew.emd(p[:, None], q[None], space, rho)
    assert every.shape == (3, 3)
    torch.testing.assert_close(every.diagonal(), expected)
    empty = torch.zeros(0, 4, space.num_bins, dtype=torch.float64, requires_grad=True)
    result = ew.emd(empty, q[0], space, rho)
    assert result.shape == (0, 4)
    result.sum().backward()
    assert empty.grad.shape == empty.shape


def test_broadcast_gradient_is_summed(case):
    p, q, space = case
    (gradient,) = torch.autograd.grad(ew.emd(p, q[0], space, 2).sum(), q)
    torch.testing.assert_close(gradient[0], -ew.emd_gradient(p, q[0], space, 2).sum(0))
    assert (gradient[1:] == 0).all()


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_copies_of_space_give(case, twin):
    p, q, space = case
    assert torch.equal(ew.emd(p, q, twin(space), 2), ew.emd(p, q, space, 2))


@pytest.mark.parametrize("space", [ew.Chain(1), ew.Ring(1), ew.Tree([-1]), ew.Tree([-1, 0, 1], bins=[1])])
def test_one_bin(space):
    p = torch.ones(2, 1, requires_grad=True)
    for rho in (1, 1.5, 2):
        distance = ew.emd(p, torch.ones(1), space, rho)
        assert distance.tolist() == [0.0, 0.0]
        assert torch.autograd.grad(distance.sum(), p)[0].tolist() == [[0.0], [0.0]]
    assert ew.emd_hessian(None, None, space).tolist() == [[0.0]]


def test_subtrees_without_flow_get_no_gradient_from():
    """Masses that miss 1 by a rounding error must not leave a trace of flow, whose sign would count in full."""
    tree = ew.Tree([-1, 0, 0, 0, 1, 1, 2, 2, 3, 3])
    p = torch.tensor([[0.1, 0.6, 0.0, 0.0, 0.3, 0.0]])
    q = torch.tensor([[0.3, 0.1, 0.0, 0.0, 0.1, 0.5]])
    assert p.double().sum() != q.double().sum()
    gradient = ew.emd_gradient(p, q, tree)
    expected = ew.emd_gradient((p * 10).round().double() / 10, (q * 10).round().double() / 10, tree)
    torch.testing.assert_close(gradient, expected.float(), rtol=0, atol=1e-6)
    assert gradient[0, 2] == gradient[0, 3]


@pytest.mark.parametrize("rho", [1.5, 2.0, 3.0])
def test_ring_where_one_edge_several_stands_still(rho):
    p = torch.tensor([0.5, 0.0, 0.5], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64)
    distance = ew.emd(p, q, ew.Ring(3), rho)
    assert distance.item() == pytest.approx(2 * 0.25**rho)
    (gradient,) = torch.autograd.grad(distance, p)
    torch.testing.assert_close(gradient, ew.emd_gradient(p, q, ew.Ring(3), rho))
    steep = rho * 0.25 ** (rho - 1)
    torch.testing.assert_close(gradient, torch.tensor([1.0, -2.0, 1.0]).double() * steep / 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_gradient_has_type_of_its_input(case, dtype):
    p, q, space = case
    gradient = ew.emd_gradient(p.detach().to(dtype), q.detach().to(dtype), space, 2)
    assert gradient.dtype == dtype
    torch.testing.assert_close(gradient.double(), ew.emd_gradient(p, q, space, 2), rtol=0.05, atol=0.02)


def test_cost_to_label_that_to_distribution(case):
    p, _, space = case
    labels = torch.arange(3) % space.num_bins
    target = torch.nn.functional.one_hot(labels, space.num_bins).to(p)
    torch.testing.assert_close(label_costs(p, labels, space, 2.0), ew.emd(p, target, space, 2))


@pytest.mark.parametrize("rho", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("normalize", ["softmax", "l1"])
@pytest.mark.parametrize("kind", ["chain", "ring", "tree"])
def test_gradient_passes_through_normalisation(rng, kind, normalize, rho):
    space = random_space(rng, kind, 7)
    x = torch.from_numpy(rng.random((3, space.num_bins)) + 0.1).requires_grad_()
    q = random_distribution(rng, 3, space.num_bins)
    (expected,) = torch.autograd.grad(ew.emd(x, q, space, rho, normalize=normalize).sum(), x)
    torch.testing.assert_close(ew.emd_gradient(x, q, space, rho, normalize=normalize), expected)


def test_gradient_may_skip_check_of_masses():
    p, q = torch.tensor([0.5, 0.6]), torch.tensor([1.0, 0.0])
    with pytest.raises(ValueError, match="expected rows of equal mass"):
        ew.emd_gradient(p, q, ew.Chain(2))
    assert ew.emd_gradient(p, q, ew.Chain(2), validate=False).tolist() == [-0.5, 0.5]


@pytest.mark.parametrize("rows", [2, 64])
def test_one_distribution_may_computed_from(rng, rows):
    chain = ew.Chain(7)
    logits = torch.randn(rows, 7, dtype=torch.float64, requires_grad=True)
    p = logits.softmax(-1)
    distance = ew.emd(p, 0.5 * p + 0.5 / 7, chain, 2).sum()
    (once,) = torch.autograd.grad(distance, logits, retain_graph=True)
    (again,) = torch.autograd.grad(distance, logits, create_graph=True)
    torch.testing.assert_close(again, once)
    flow = chain.flow(0.5 * (p - 1 / 7))
    torch.testing.assert_close(once, torch.autograd.grad(flow.square().sum(), logits)[0])
