"""The solvers of the Sinkhorn distance and what they are made of, against their definitions."""

from __future__ import annotations

import math

import pytest
import torch

import earthwork as ew
from earthwork.ops.definition import COMPOSED
from earthwork.transport import sinkhorn_solver as solver
from tests.cases import random_distribution

N = 5


@pytest.fixture
def problem(rng):
    """A ground cost and pairs of distributions without empty bins."""
    points = torch.from_numpy(rng.random((N, 2)))
    matrix = torch.cdist(points, points)
    return matrix, random_distribution(rng, 4, N, zeros=0.0), random_distribution(rng, 4, N, zeros=0.0)


def plan_of(matrix, lam, p, q):
    """Sinkhorn's plan of one row, by 400 steps in double precision."""
    kernel, u = torch.exp(-lam * matrix), torch.ones_like(p)
    for _ in range(400):
        v = q / (u @ kernel)
        u = p / (kernel @ v)
    return u[:, None] * kernel * (q / (u @ kernel))


@pytest.mark.parametrize("lam", [0.5, 4.0])
def test_every_solver_finds_plan(problem, lam):
    matrix, p, q = problem
    plans = torch.stack([plan_of(matrix, lam, *row) for row in zip(p, q, strict=True)])
    cost = (plans * matrix).sum((-2, -1))
    minimum = cost + torch.xlogy(plans, plans).sum((-2, -1)) / lam
    potentials = (plans / torch.exp(-lam * matrix)).log() / lam
    slopes = [potentials[:, :, 0], potentials[:, 0]]
    rows, scaled = solver.scale(p, q, solver.make_kernel(matrix, lam, p.dtype), 500, None)
    assert rows.tolist() == [0, 1, 2, 3]
    whole = solver.row_solver(matrix, lam, 500, None, p.dtype, True)
    for solution in (
        scaled,
        solver.iterate_logs(p, q, matrix, lam, 500, None),
        solver.iterate_logs(p, q, matrix, lam, 500, None, block=2 * N),
        solver.iterate_logs(p, q, matrix, lam, 500, None, block=2 * N * N),
        solver.algorithm_1(p, q, matrix, lam, 500, None),
        whole(p, q),
    ):
        torch.testing.assert_close(solution.value, cost)
        torch.testing.assert_close(solution.minimum, minimum)
        for found, slope in zip((solution.p_gradient, solution.q_gradient), slopes, strict=True):
            torch.testing.assert_close(found, slope - slope.mean(-1, keepdim=True))
        assert (solution.error < 1e-12).all()
        assert solution.iterations.tolist() == [500] * 4
    heavy = whole(3 * p, 3 * q)
    torch.testing.assert_close(heavy.value, 3 * cost)
    torch.testing.assert_close(heavy.minimum, 3 * minimum)


def test_error_of_marginals_ends_iteration(problem):
    matrix, p, q = problem
    kernel = solver.make_kernel(matrix, 4.0, p.dtype)
    for solve in (
        lambda count, tol: solver.scattered([solver.scale(p, q, kernel, count, tol)], p.dtype),
        lambda count, tol: solver.iterate_logs(p, q, matrix, 4.0, count, tol),
        lambda count, tol: solver.algorithm_1(p, q, matrix, 4.0, count, tol),
    ):
        errors = torch.stack([solve(count, None).error for count in range(1, 12)])
        assert (errors.diff(dim=0) < 0).all()
        # Between the errors of the slowest row after six and seven iterations, and hardly above that after five.
        for tol in (float(errors[5:7].amax(-1).mean()), float(errors[4].max()) * (1 + 1e-12)):
            expected = 1 + (errors > tol).sum(0)
            assert expected.min() < expected.max()
            assert torch.equal(solve(100, tol).iterations, expected)
            assert torch.equal(solve(3, tol).iterations, expected.clamp(max=3))


def test_what_underflows_in_kernel():
    limit = -math.log(torch.finfo(torch.float32).tiny)
    near, far = limit * (1 - 1e-9), limit * (1 + 1e-9)
    matrix = torch.tensor([[0.0, near / 2], [near / 2, 0.0]], dtype=torch.float64)
    kernel = solver.make_kernel(matrix, 2.0, torch.float32)
    assert not kernel.lossy
    assert (kernel.weights > 0).all()
    assert kernel.lam == 2.0
    torch.testing.assert_close(kernel.weights, torch.exp(-2 * matrix).float())
    torch.testing.assert_close(kernel.costs, (torch.exp(-2 * matrix) * matrix).float())
    matrix[0, 1] = far / 2
    kernel = solver.make_kernel(matrix, 2.0, torch.float32)
    assert kernel.lossy
    assert (kernel.weights == 0).tolist() == [[False, True], [False, False]]
    assert not solver.make_kernel(matrix, 2.0, torch.float64).lossy


def test_rows_kept_as_long_as_numbers_in_range():
    info = torch.finfo(torch.float32)
    floor = N * info.tiny / info.eps
    ones = torch.ones(1, N)

    def kept(lossy=False, **changed):
        values = {"u": ones, "v": ones, "above": ones, "below": ones, **changed}
        kernel = solver.Kernel(ones, ones, 1.0, lossy)
        return bool(solver._in_range(*(values[name] for name in ("u", "v", "above", "below")), kernel))

    def one(value):
        x = ones.clone()
        x[0, 2] = value
        return x

    assert kept()
    for name in ("above", "below"):
        assert kept(**{name: one(1.1 * floor)})
        assert not kept(**{name: one(0.9 * floor)})
        assert kept(**{name: one(0.9 / floor)})
        assert not kept(**{name: one(1.1 / floor)})
        assert not kept(True, **{name: one(1.1 / floor)})
    # What is lost of a weight is as large as the factor that it is multiplied by.
    for factor, total in (("u", "below"), ("v", "above")):
        large = {factor: one(1e-3 / floor), total: one(1e-4)}
        assert kept(**large)
        assert not kept(True, **large)
        assert kept(True, **{factor: one(1e-3 / floor), total: one(1e-2)})


def test_pieces_of_solutions():
    p = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 0.0], [2.0, 0.0, 6.0], [0.125, 0.0, 0.125]])
    expected = torch.tensor([[0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3], [0.25, 0.0, 0.75], [0.5, 0.0, 0.5]])
    torch.testing.assert_close(solver._distributions(p), expected)
    log_u, log_v = torch.tensor([[1.0, -math.inf]]), torch.tensor([[-math.inf, 3.0]])
    left, right = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    assert solver.dual_value(left, log_u, right, log_v, 2.0).tolist() == [2.0]
    tiny = torch.finfo(torch.float32).tiny
    found = solver.dual(left, torch.tensor([[0.5, 1.5]]), 2.0, torch.float32)
    slope = torch.tensor([[-0.5, math.log(tiny) - 1.5]]) / 2
    torch.testing.assert_close(found, slope - slope.mean())
    parts = [
        (torch.tensor([2, 0]), solver.Solution(*[torch.tensor([2.0, 0.0])] * 5, torch.tensor([7, 7]))),
        (torch.tensor([1]), solver.Solution(*[torch.tensor([1.0], dtype=torch.float64)] * 5, torch.tensor([3]))),
    ]
    whole = solver.scattered(parts, torch.float32)
    assert all(x.tolist() == [0.0, 1.0, 2.0] for x in whole[:5])
    assert {x.dtype for x in whole[:5]} == {torch.float32}
    assert whole.iterations.tolist() == [7, 3, 7]
    assert whole.iterations.dtype == torch.int64


def test_labels_need_no_iterations(problem):
    matrix, p, _ = problem
    q = torch.eye(N, dtype=torch.float64)[[3, 0, 2, 2]]
    solution = solver.row_solver(matrix, 4.0, 100, None, p.dtype, False)(p, q)
    assert solution.iterations.tolist() == [1] * 4
    assert not solution.error.any()
    cost = (p * matrix[:, [3, 0, 2, 2]].T).sum(-1)
    torch.testing.assert_close(solution.value, cost)
    torch.testing.assert_close(solution.minimum, cost + torch.xlogy(p, p).sum(-1) / 4)
    slope = matrix[:, [3, 0, 2, 2]].T + p.log() / 4
    torch.testing.assert_close(solution.p_gradient, slope - slope.mean(-1, keepdim=True))


def test_smoothed_labels_on_cost_matrix(problem):
    matrix, p, _ = problem
    labels = torch.tensor([0, 1, 4, 4])
    target = torch.nn.functional.one_hot(labels, N).double()
    space = ew.CostMatrix(matrix)
    for smoothing in (0.0, 0.3):
        expected = ew.emd(p, (1 - smoothing) * target + smoothing / N, space)
        loss = ew.EMDLoss(space, normalize=None, reduction="none", label_smoothing=smoothing)
        torch.testing.assert_close(loss(p, labels), expected)
    torch.testing.assert_close(COMPOSED.label_distances(p, labels, space, 1), (p * matrix[:, labels].T).sum(-1))
    chain = ew.Chain(N)
    torch.testing.assert_close(COMPOSED.label_distances(p, labels, chain, 2), ew.emd(p, target, chain, 2))


def test_defaults_of_sinkhorn(problem):
    matrix, p, q = problem
    space = ew.CostMatrix(matrix)
    result = ew.sinkhorn(p, q, space)
    assert result.iterations == 100
    torch.testing.assert_close(result.value, ew.sinkhorn(p, q, space, 3.0, 100, None, "log").value, rtol=0, atol=0)
    assert ew.sinkhorn(p, q, space, max_iter=1, chunk_size=1).iterations == 1
    torch.testing.assert_close(ew.sinkhorn(p, q, space, chunk_size=1).value, result.value)
    for solve in (solver.algorithm_1, solver.iterate_logs):
        found = solve(p.float(), q.float(), matrix, 3.0, 100, None)
        torch.testing.assert_close(found.value.double(), result.value, rtol=1e-5, atol=1e-6)
    assert solver.algorithm_1(p.float(), q.float(), matrix, 3.0, 5, None).value.dtype == torch.float32
    _, found = solver.scale(p.float(), q.float(), solver.make_kernel(matrix, 3.0, torch.float64), 100, None)
    torch.testing.assert_close(found.value, result.value, rtol=1e-6, atol=1e-6)
    mixed = ew.sinkhorn(p.float(), q, space)
    assert mixed.value.dtype == torch.float64
    for empty in (q[:0], q[:0].clone().requires_grad_()):
        nothing = ew.sinkhorn(p[:0], empty, space)
        assert nothing.value.shape == (0,)
        assert nothing.gradient.shape == (0, N)
