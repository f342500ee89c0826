"""What `sinkhorn` takes and returns: shapes, types, transforms, warnings and errors."""

from __future__ import annotations

import math
import warnings
from contextlib import nullcontext

import pytest
import torch

import earthwork as ew
from earthwork.transport import sinkhorn_solver
from earthwork.transport.sinkhorn_solver import solve
from tests.cases import random_distribution

CHAIN = ew.Chain(4)


@pytest.fixture
def pair(rng):
    return tuple(random_distribution(rng, 5, 4, zeros=0.0) for _ in range(2))


@pytest.mark.parametrize("method", ["log", "paper"])
@pytest.mark.parametrize(
    ("left", "right", "shape"),
    [((), (), ()), ((3,), (), (3,)), ((), (2, 3), (2, 3)), ((2, 1), (3,), (2, 3)), ((0,), (), (0,))],
)
def test_shapes_broadcast(left, right, shape, method, rng):
    p, q = (random_distribution(rng, *size, 4, zeros=0.0) for size in (left, right))
    p, q = p.requires_grad_(), q.requires_grad_()
    result = ew.sinkhorn(p, q, CHAIN, method=method)
    assert result.value.shape == shape
    assert result.gradient.shape == (*shape, 4)
    assert not result.gradient.requires_grad
    assert isinstance(result.iterations, int)
    assert isinstance(result.converged, bool)
    result.value.sum().backward()
    assert p.grad.shape == p.shape
    assert q.grad.shape == q.shape
    for place in torch.ones(shape).nonzero().tolist():
        rows = (x.detach().expand(*shape, 4)[tuple(place)] for x in (p, q))
        torch.testing.assert_close(result.value[tuple(place)], ew.sinkhorn(*rows, CHAIN).value)


def test_strided_input(pair):
    p, q = pair
    strided = p.T.contiguous().T
    assert not strided.is_contiguous()
    torch.testing.assert_close(ew.sinkhorn(strided, q, CHAIN).value, ew.sinkhorn(p, q, CHAIN).value)


@pytest.mark.parametrize("chunk_size", [1, 2, 5, 100])
def test_chunks_change_nothing(pair, chunk_size):
    whole, parts = ew.sinkhorn(*pair, CHAIN), ew.sinkhorn(*pair, CHAIN, chunk_size=chunk_size)
    torch.testing.assert_close(parts.value, whole.value)
    torch.testing.assert_close(parts.gradient, whole.gradient)
    assert parts[2:] == whole[2:]


def test_gradients_for_both_and_weighted_rows(pair):
    p, q = (x.clone().requires_grad_() for x in pair)
    weight = torch.arange(5.0).double()
    result = ew.sinkhorn(p, q, CHAIN)
    (result.value * weight).sum().backward()
    torch.testing.assert_close(p.grad, result.gradient * weight[:, None])
    # On a symmetric cost the two sides may change places once converged.
    turned = ew.sinkhorn(q.detach(), p.detach(), CHAIN, max_iter=2000).gradient
    torch.testing.assert_close(q.grad, turned * weight[:, None], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("side", [0, 1])
def test_second_derivative_is_error_and_not_0(pair, side):
    logits = pair[0].clone().requires_grad_()
    sides = [logits.softmax(-1), pair[1]]
    value = ew.sinkhorn(sides[side], sides[1 - side], CHAIN).value
    (gradient,) = torch.autograd.grad(value.sum(), logits, create_graph=True)
    message = r"^a solver's duals give the first derivative of the distance, and not the second$"
    with pytest.raises(NotImplementedError, match=message):
        gradient.square().sum().backward()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_only_stored(pair, dtype):
    p, q = (x.to(dtype) for x in pair)
    wide = ew.sinkhorn(*(x.float() / x.float().sum(-1, keepdim=True) for x in (p, q)), CHAIN)
    result = ew.sinkhorn(p, q, CHAIN)
    assert result.value.dtype == result.gradient.dtype == dtype
    torch.testing.assert_close(result.value, wide.value.to(dtype))
    torch.testing.assert_close(result.gradient, wide.gradient.to(dtype))
    assert ew.sinkhorn(p, q, CHAIN, method="paper").value.dtype == dtype


@pytest.mark.parametrize("method", ["log", "paper"])
def test_types_are_promoted(pair, method):
    p, q = (x.float() for x in pair)
    expected = ew.sinkhorn(p.double(), q.double(), CHAIN, method=method)
    for mixed in ((p.double(), q), (p, q.double())):
        result = ew.sinkhorn(*mixed, CHAIN, method=method)
        torch.testing.assert_close(result.value, expected.value, rtol=1e-13, atol=0)
        torch.testing.assert_close(result.gradient, expected.gradient, rtol=1e-13, atol=1e-13)


def test_algorithm_printed_computes_in_type_input():
    p, q = torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.tensor([0.0, 0.0, 0.0, 1.0])
    assert ew.sinkhorn(p, q, CHAIN, 8.0, method="paper").value.isfinite()
    # e^-24 is 0 in half precision.
    assert ew.sinkhorn(p.half(), q.half(), CHAIN, 8.0, method="paper").value.isnan()
    assert ew.sinkhorn(p.half(), q.half(), CHAIN, 8.0).value == 3


@pytest.mark.parametrize("lam", [5.0, 400.0, 4000.0])
@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("method", ["log", "paper"])
def test_inside_operator_too_nothing_made_on_default(pair, method, watched, lam):
    # Torch lays the default aside while an operator runs, but a tensor on another device would then meet those of the
    # CPU; so the function beneath the operator is called here.
    p, q = pair[0], torch.cat([pair[1][:3], torch.eye(4)[:2]])
    options = p, q, CHAIN.distances(), lam, 50, None, method, 2, watched
    expected = solve(*options)
    with torch.device("meta"):
        torch.testing.assert_close(solve._init_fn(*options), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("method", ["log", "paper"])
def test_autocast_changes_nothing(pair, method):
    p, q = (x.float() for x in pair)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = ew.sinkhorn(p, q, CHAIN, method=method)
    outside = ew.sinkhorn(p, q, CHAIN, method=method)
    assert torch.equal(inside.value, outside.value)
    assert torch.equal(inside.gradient, outside.gradient)


def test_functional_transforms(pair):
    p, q = pair
    result = ew.sinkhorn(p, q, CHAIN)
    mapped = torch.func.vmap(lambda a, b: ew.sinkhorn(a, b, CHAIN).value)
    torch.testing.assert_close(mapped(p, q), result.value)
    torch.testing.assert_close(torch.func.vmap(lambda a: ew.sinkhorn(a, q[0], CHAIN).value)(p)[0], result.value[0])
    slope = torch.func.grad(lambda a, b: ew.sinkhorn(a, b, CHAIN).value)
    torch.testing.assert_close(slope(p[0], q[0]), result.gradient[0])
    torch.testing.assert_close(torch.func.vmap(slope)(p, q), result.gradient)
    count = torch.func.vmap(lambda a, b: ew.sinkhorn(a, b, CHAIN, max_iter=7).iterations)(p, q)
    assert count.tolist() == [7] * 5
    for tol, enough in ((1e-12, False), (1.0, True)):
        with pytest.warns(ew.ConvergenceWarning) if not enough else nullcontext():
            solve_all = torch.func.vmap(lambda a, b, tol=tol: ew.sinkhorn(a, b, CHAIN, max_iter=7, tol=tol).converged)
            solved = solve_all(p, q)
        assert solved.tolist() == [enough] * 5


@pytest.mark.parametrize("space", [CHAIN, ew.Ring(4), ew.Tree([-1, 0, 0, 1, 1, 1])], ids=["chain", "ring", "tree"])
def test_compiler_takes_it_as_one_step(pair, space):
    p, q = pair
    compiled = torch.compile(lambda a, b: ew.sinkhorn(a, b, space).value, backend="eager", fullgraph=True)
    p = p.clone().requires_grad_()
    value = compiled(p, q)
    value.sum().backward()
    expected = ew.sinkhorn(p, q, space)
    torch.testing.assert_close(value, expected.value)
    torch.testing.assert_close(p.grad, expected.gradient)


def test_stops_at_tolerance(pair):
    result = ew.sinkhorn(*pair, CHAIN, max_iter=10_000, tol=1e-10)
    assert 1 < result.iterations < 10_000
    assert result.converged
    earlier = ew.sinkhorn(*pair, CHAIN, max_iter=10_000, tol=1e-3)
    assert earlier.iterations < result.iterations
    paper = ew.sinkhorn(*pair, CHAIN, max_iter=10_000, tol=1e-10, method="paper")
    assert paper.iterations == result.iterations


@pytest.mark.parametrize("method", ["log", "paper"])
def test_warns_once_when_iterations_not_reach(pair, method):
    message = r"sinkhorn: 2 iterations did not reach tol = 1e-12"
    with pytest.warns(ew.ConvergenceWarning, match=message):
        result = ew.sinkhorn(*pair, CHAIN, max_iter=2, tol=1e-12, method=method)
    assert (result.iterations, result.converged) == (2, False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            ew.sinkhorn(*pair, CHAIN, max_iter=2, tol=1e-12, method=method)
    assert len(caught) == 1


def test_no_tolerance_no_warning(pair):
    result = ew.sinkhorn(*pair, CHAIN, max_iter=2)
    assert (result.iterations, result.converged) == (2, False)
    assert ew.sinkhorn(*pair, CHAIN, lam=0.1).converged


def test_chunk_is_all_that_is_solved_at_time(pair, monkeypatch):
    sizes = []
    algorithm_1 = sinkhorn_solver.algorithm_1
    monkeypatch.setattr(sinkhorn_solver, "algorithm_1", lambda p, *rest: sizes.append(len(p)) or algorithm_1(p, *rest))
    ew.sinkhorn(*pair, CHAIN, method="paper", chunk_size=2)
    assert sizes == [2, 2, 1]


def test_both_ways_give_both_gradients(pair):
    gradients = []
    for method in ("log", "paper"):
        p, q = (x.clone().requires_grad_() for x in pair)
        value = ew.sinkhorn(p, q, CHAIN, 2.0, 500, method=method).value
        gradients.append(torch.autograd.grad(value.sum(), (p, q)))
    torch.testing.assert_close(gradients[0], gradients[1])


def test_matrix_of_space_is_made_once(monkeypatch, pair):
    made = []
    distances = ew.Space.distances
    monkeypatch.setattr(ew.Space, "distances", lambda space: made.append(1) or distances(space))
    space, labels = ew.Chain(4, torch.ones(3)), torch.arange(5) % 4
    first = ew.sinkhorn(*pair, space)
    assert torch.equal(first.value, ew.sinkhorn(*pair, space).value)
    assert len(made) == 1
    loss = ew.SinkhornLoss(space)
    assert loss(pair[0], labels) == loss(pair[0], labels)
    assert len(made) == 2, "and once more for labels, in the other order"
    assert (ew.sinkhorn(*pair, space.with_costs(2.0)).value > first.value).all()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"lam": 0.0}, ValueError, "lam: expected a finite number > 0, got 0.0"),
        ({"lam": -1}, ValueError, "lam: expected a finite number > 0, got -1"),
        ({"lam": math.inf}, ValueError, "lam: expected a finite number > 0, got inf"),
        ({"lam": math.nan}, ValueError, "lam: expected a finite number > 0, got nan"),
        ({"lam": "3"}, TypeError, "lam: expected a finite number > 0, got '3'"),
        ({"max_iter": 0}, ValueError, "max_iter: expected a whole number ≥ 1, got 0"),
        ({"max_iter": 1.5}, TypeError, "max_iter: expected a whole number ≥ 1, got 1.5"),
        ({"tol": 0}, ValueError, "tol: expected None or a finite number > 0, got 0"),
        ({"method": "exp"}, ValueError, 'method: expected "log" or "paper", got \'exp\''),
        ({"chunk_size": 0}, ValueError, "chunk_size: expected a whole number ≥ 1, got 0"),
    ],
)
def test_options_that_make_no_sense(pair, options, error, message):
    with pytest.raises(error, match=message):
        ew.sinkhorn(*pair, CHAIN, **options)
    if "chunk_size" not in options:
        with pytest.raises(error, match=message):
            ew.SinkhornLoss(CHAIN, **options)


def test_masses_that_make_no_sense(pair):
    p, q = pair
    metric = ew.CostMatrix(torch.ones(3, 3).fill_diagonal_(0))
    with pytest.raises(ValueError, match=r"p: expected a last axis of 3, the bins of CostMatrix.* got shape \(5, 4\)"):
        ew.sinkhorn(p, q, metric)
    with pytest.raises(ValueError, match=r"p and q: expected shapes that broadcast"):
        ew.sinkhorn(p, q[:2], CHAIN)
    with pytest.raises(ValueError, match="p and q: expected rows of equal mass, got 2 in p and 1 in q of row 0"):
        ew.sinkhorn(2 * p, q, CHAIN)
    with pytest.raises(ValueError, match="p: expected finite masses ≥ 0, got nan in bin 0 of row 0"):
        ew.sinkhorn(p * math.nan, q, CHAIN)
    with pytest.raises(TypeError, match="p: expected a tensor, got list"):
        ew.sinkhorn(p.tolist(), q, CHAIN)
    with pytest.raises(TypeError, match=r"q: expected floating point masses, got torch\.int64"):
        ew.sinkhorn(p, q.long(), CHAIN)


@pytest.mark.parametrize("method", ["log", "paper"])
@pytest.mark.parametrize("lam", [3.0, 300.0])
@pytest.mark.parametrize("tol", [1e-1, 1e-2, 1e-5])
def test_row_does_not_depend_on_its_neighbours(rng, tol, lam, method):
    """Each row is iterated until its own error is small, alone or in a batch."""
    if method == "paper" and lam > 3:
        pytest.skip("overflows, as printed")
    space = ew.Chain(6)
    p, q = (random_distribution(rng, 40, 6, zeros=0.0) for _ in range(2))
    q[0] = p[0] + 1e-4 * (torch.arange(6) - 2.5)  # converges long before the others
    found = []
    for rows in ([slice(None)], [slice(row, row + 1) for row in range(40)], [slice(None, None, 3)]):
        for some in rows:
            x = p[some].clone().requires_grad_()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ew.ConvergenceWarning)
                result = ew.sinkhorn(x, q[some], space, lam, 400, tol, method)
            (gradient,) = torch.autograd.grad(result.value.sum(), x)
            assert torch.equal(gradient, result.gradient)
            found.append((result.value.detach(), gradient, result.iterations))
    together, *alone, third = found
    for given, part in ((alone, slice(None)), ([third], slice(None, None, 3))):
        for at in range(2):
            torch.testing.assert_close(torch.cat([one[at] for one in given]), together[at][part], rtol=1e-9, atol=1e-12)
    assert max(one[2] for one in alone) == together[2]
    assert len({one[2] for one in alone}) > 1 or tol == 1e-5
