"""The pieces that distances are computed from, one by one, against their definitions."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest
import torch

import earthwork as ew
from earthwork import private_api
from earthwork.kernels.cpu import without_kernels
from earthwork.transport import closed_form, masses, routes
from earthwork.transport import sinkhorn_solver as solver
from earthwork.transport.closed_form import (
    balanced,
    composed_cost,
    composed_gradient,
    composed_root,
    first_order_cost,
    first_order_label_cost,
    unchanging,
    widened,
)
from earthwork.transport.emd import label_distances
from earthwork.transport.portable_routes import COMPOSED, PROGRAMME, Route
from earthwork.transport.routes import Kernels, choose
from tests.cases import KINDS, random_distribution, random_space

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
def test_every_solver_finds_the_plan(problem, lam):
    matrix, p, q = problem
    plans = torch.stack([plan_of(matrix, lam, *row) for row in zip(p, q, strict=True)])
    cost = (plans * matrix).sum((-2, -1))
    minimum = cost + torch.xlogy(plans, plans).sum((-2, -1)) / lam
    potentials = (plans / torch.exp(-lam * matrix)).log() / lam
    slopes = [potentials[:, :, 0], potentials[:, 0]]
    rows, scaled = solver.scale(p, q, solver.make_kernel(matrix, lam, p.dtype), 500, None)
    assert rows.tolist() == [0, 1, 2, 3]
    whole = solver._Solver(matrix, lam, 500, None, p.dtype, True)
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


def test_the_error_of_the_marginals_ends_the_iteration(problem):
    matrix, p, q = problem
    kernel = solver.make_kernel(matrix, 4.0, p.dtype)
    for solve in (
        lambda count, tol: solver.scale(p, q, kernel, count, tol)[1],
        lambda count, tol: solver.iterate_logs(p, q, matrix, 4.0, count, tol),
        lambda count, tol: solver.algorithm_1(p, q, matrix, 4.0, count, tol),
    ):
        errors = [float(solve(count, None).error.max()) for count in range(1, 12)]
        assert all(after < before for before, after in pairwise(errors))
        tol = (errors[5] + errors[6]) / 2
        assert solve(100, tol).iterations.tolist() == [7] * 4
        assert solve(100, errors[4]).iterations.tolist() == [5] * 4
        assert solve(3, tol).iterations.tolist() == [3] * 4


def test_what_underflows_in_a_kernel():
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


def test_rows_are_kept_as_long_as_their_numbers_are_in_range():
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
    assert solver._without(torch.tensor([4, 5, 6, 7]), torch.tensor([1, 3])).tolist() == [4, 6]
    log_u, log_v = torch.tensor([[1.0, -math.inf]]), torch.tensor([[-math.inf, 3.0]])
    left, right = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    assert solver.dual_value(left, log_u, right, log_v, 2.0).tolist() == [2.0]
    tiny = torch.finfo(torch.float32).tiny
    found = solver.dual(left, torch.tensor([[0.5, 1.5]]), 2.0, torch.float32)
    slope = torch.tensor([[-0.5, math.log(tiny) - 1.5]]) / 2
    torch.testing.assert_close(found, slope - slope.mean())
    parts = [
        (torch.tensor([2, 0]), solver.counted(*(torch.tensor([2.0, 0.0]) for _ in range(5)), 7)),
        (torch.tensor([1]), solver.counted(*(torch.tensor([1.0], dtype=torch.float64) for _ in range(5)), 3)),
    ]
    whole = solver.scattered(parts, torch.float32)
    assert all(x.tolist() == [0.0, 1.0, 2.0] for x in whole[:5])
    assert {x.dtype for x in whole[:5]} == {torch.float32}
    assert whole.iterations.tolist() == [7, 3, 7]
    assert whole.iterations.dtype == torch.int64
    torch.testing.assert_close(solver.printed_kernel(torch.tensor([0.0, 2.0]), 3.0), torch.tensor([-1.0, -7.0]).exp())


def test_labels_need_no_iterations(problem):
    matrix, p, _ = problem
    q = torch.eye(N, dtype=torch.float64)[[3, 0, 2, 2]]
    solution = solver._Solver(matrix, 4.0, 100, None, p.dtype, False)(p, q)
    assert solution.iterations.tolist() == [1] * 4
    assert not solution.error.any()
    cost = (p * matrix[:, [3, 0, 2, 2]].T).sum(-1)
    torch.testing.assert_close(solution.value, cost)
    torch.testing.assert_close(solution.minimum, cost + torch.xlogy(p, p).sum(-1) / 4)
    slope = matrix[:, [3, 0, 2, 2]].T + p.log() / 4
    torch.testing.assert_close(solution.p_gradient, slope - slope.mean(-1, keepdim=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rho", [1.0, 1.5, 2.0, 3.0])
def test_roots_and_first_order(monkeypatch, rng, kind, rho):
    """The root is that of the sum, and values come with their gradients in any number of parts."""
    space = random_space(rng, kind, 8)
    n = space.num_bins
    p, q = (random_distribution(rng, 2, 3, n) for _ in range(2))
    q[1, 1] = p[1, 1]
    x = (p - q).requires_grad_()
    cost = composed_cost(x, space, rho)
    root = composed_root(x, space, rho)
    torch.testing.assert_close(root, cost.pow(1 / rho))
    (slope,) = torch.autograd.grad(cost.sum(), x)
    torch.testing.assert_close(composed_gradient(x, space, rho), slope)
    assert root[1, 1] == 0
    assert not torch.autograd.grad(root.sum(), x)[0][1, 1].any()
    if not space.acyclic:
        return
    labels = torch.from_numpy(rng.integers(n, size=(2, 3)))
    logits = torch.from_numpy(rng.normal(size=(2, 3, n))).requires_grad_()
    target = torch.nn.functional.one_hot(labels, n)
    expected = composed_cost(logits.softmax(-1) - target, space, rho)
    (steep,) = torch.autograd.grad(expected.sum(), logits)
    for block in (1, 2 * n, 4 * n, 1000):
        monkeypatch.setattr(closed_form, "_BLOCK", block)
        value = first_order_cost(x, space, rho, lambda x: composed_cost(x, space, rho))
        torch.testing.assert_close(value, cost)
        torch.testing.assert_close(torch.autograd.grad(value.sum(), x)[0], slope)
        value = first_order_label_cost(logits, labels, space, rho, lambda x: x)
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(torch.autograd.grad(value.sum(), logits)[0], steep)
        with torch.no_grad():
            assert not first_order_label_cost(logits, labels, space, rho, lambda x: x).requires_grad


def test_what_is_balanced():
    x = torch.tensor([[1.0, 0.0, -0.4], [1.0, 0.0, -1.0]], requires_grad=True)
    torch.testing.assert_close(balanced(x), torch.tensor([[0.8, -0.2, -0.6], [1.0, 0.0, -1.0]]))
    (slope,) = torch.autograd.grad(balanced(x)[..., 0].sum(), x)
    torch.testing.assert_close(slope, torch.tensor([2 / 3, -1 / 3, -1 / 3]).expand(2, 3))
    # A mean that is no more than rounding leaves the values as they are.
    noise = torch.tensor([1.0, 0.0, -1.0 + 1e-7])
    assert torch.equal(balanced(noise), noise)
    sizes = torch.tensor([[1e-6], [1.0], [1e6]])
    assert torch.equal(balanced(noise * sizes), noise * sizes)
    rows = torch.stack([noise, torch.tensor([1.0, 0.0, -1.00001])]) * torch.tensor([[1.0], [1e-6]])
    assert torch.equal(balanced(rows), torch.stack([balanced(row) for row in rows]))
    assert not torch.equal(balanced(rows)[1], rows[1])
    chain, ring = ew.Chain(3), ew.Ring(3)
    for space, rho, dtype in (
        (chain, 1.5, torch.float32),
        (ring, 1.0, torch.float32),
        (ring, 1.5, torch.float64),
        (ring, 2.0, torch.float32),
        (ring, 3.0, torch.float32),
    ):
        assert widened(noise, space, rho).dtype == dtype
    with torch.inference_mode():
        frozen = torch.ones(2)
    assert unchanging((None, frozen, noise)) == [noise]


@pytest.mark.parametrize("function", [ew.emd, ew.emd_gradient])
@pytest.mark.parametrize("rows", [1, 100])
def test_the_range_is_checked_beyond_rho_2(function, rows):
    p, q = (torch.eye(3)[[place]].repeat(rows, 1) * 1e30 for place in (0, 2))
    with pytest.raises(ValueError, match=r"distance at rho = 2\.5 is in the range of torch\.float32"):
        function(p, q, ew.Chain(3), 2.5)
    assert not function(p, q, ew.Chain(3), 2.5, validate=False).isfinite().all()
    assert ew.emd(p, q, ew.Chain(3), 2.0).isinf().all()


def test_masses():
    assert [masses.mass_tolerance(x) for x in (torch.float16, torch.bfloat16)] == [1e-2, 1e-2]
    assert [masses.mass_tolerance(x) for x in (torch.float32, torch.float64)] == [1e-4, 1e-4]
    assert [masses.of_row(row) for row in ((), (3,), (1, 2))] == ["", " of row 3", " of row (1, 2)"]
    assert masses.of_row((3,), 10) == " of row 13"
    x = torch.tensor([[1.0, -3.0], [2.0, 2.0]])
    torch.testing.assert_close(masses.l1_normalized("x", x, True), torch.tensor([[0.25, -0.75], [0.5, 0.5]]))
    assert masses.l1_normalized("x", 0 * x, False).isnan().all()
    meta = x.to("meta")
    assert masses.can_look(x)
    assert masses.can_look()
    assert not masses.can_look(meta)
    assert not masses.can_look(x, meta)
    assert masses.l1_normalized("x", meta, True).is_meta
    seen = torch.func.vmap(lambda row: row * masses.can_look(row))(x)
    assert not seen.any()


@pytest.mark.parametrize("stored", [torch.float16, torch.float32])
def test_the_tolerance_of_masses(stored):
    tolerance = masses.mass_tolerance(stored)
    p = torch.tensor([0.5, 0.5], dtype=torch.float64)
    for error, good in ((0.9 * tolerance, True), (1.1 * tolerance, False)):
        for sign in (1, -1):
            off = p * (1 + sign * error)
            for check in (
                lambda off=off: masses.check_masses(p, off, stored),
                lambda off=off: masses.check_distributions(off, stored=stored),
                lambda off=off: masses.check_distributions(off[None].float(), "x", stored),
            ):
                if good:
                    check()
                else:
                    with pytest.raises(ValueError, match="expected"):
                        check()


@pytest.mark.parametrize("normalize", ["softmax", "l1"])
def test_gradients_before_the_normalisation(rng, normalize):
    """Also of masses of any sign, which are divided by the sum of their sizes."""
    x = torch.from_numpy(rng.normal(size=(2, 3, N))).requires_grad_()
    q = random_distribution(rng, 3, N)
    for space in (ew.Chain(N), ew.Ring(N)):
        value = ew.emd(x, q, space, 1.5, normalize=normalize, validate=False)
        (expected,) = torch.autograd.grad(value.sum(), x)
        found = ew.emd_gradient(x, q, space, 1.5, normalize=normalize, validate=False)
        torch.testing.assert_close(found, expected)
    half = x.detach().half()
    assert ew.emd_gradient(half, q.half(), ew.Chain(N), 2, normalize=normalize, validate=False).dtype == half.dtype


@pytest.mark.parametrize("rho", [1.5, 3.0])
def test_the_gradient_of_a_ring_moves_with_its_flow_and_costs(rng, rho):
    """The derivatives of the gradient, with respect to masses and costs, by finite differences of the closed form."""
    costs = torch.from_numpy(rng.random(N) + 0.5).requires_grad_()
    x = torch.from_numpy(rng.normal(size=(3, N)))
    x = (x - x.mean(-1, keepdim=True)) * torch.tensor([[1e-2], [1.0], [30.0]])
    x.requires_grad_()
    weights = torch.from_numpy(rng.normal(size=(3, N)))

    def slope(x, costs):
        return (composed_gradient(x, ew.Ring(N, costs), rho) * weights).sum(-1)

    (gradient,) = torch.autograd.grad(composed_cost(x, ew.Ring(N, costs), rho).sum(), x, create_graph=True)
    by_x, by_costs = torch.autograd.grad((gradient * weights).sum(), (x, costs))
    fixed = x.detach(), costs.detach()
    for place in range(N):
        step = 1e-6 * torch.eye(N, dtype=torch.float64)[place]
        difference = slope(fixed[0], fixed[1] + step) - slope(fixed[0], fixed[1] - step)
        torch.testing.assert_close(difference.sum() / 2e-6, by_costs[place], rtol=1e-5, atol=1e-6)
        move = torch.tensor([1e-2, 1.0, 30.0]).double()
        moved = move.unsqueeze(-1) * step
        difference = slope(fixed[0] + moved, fixed[1]) - slope(fixed[0] - moved, fixed[1])
        torch.testing.assert_close(difference / (2e-6 * move), by_x[:, place], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rows", [2, 100])
def test_second_derivatives_of_every_route(rng, rows):
    """Of few rows in plain PyTorch, and of many by kernels: the same as those of the composed route."""
    chain = ew.Chain(N, torch.linspace(0.5, 2.0, N - 1).double())
    logits = torch.from_numpy(rng.normal(size=(2, rows, N))).requires_grad_()
    labels = torch.from_numpy(rng.integers(N, size=(2, rows)))
    weights = torch.from_numpy(rng.normal(size=(2, rows)))
    results = []
    for route in (choose(chain, logits, labels), COMPOSED):
        value = route.logit_distances(logits, labels, chain, 1.5)
        (slope,) = torch.autograd.grad((value * weights).sum(), logits, create_graph=True)
        results.append([value, slope, *torch.autograd.grad(slope.square().sum(), logits)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-8, rtol=1e-6)
    loss = ew.EMDLoss(chain, reduction="none")(logits.flatten(0, 1), labels.flatten())
    labels += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.sum().backward()


def test_smoothed_labels_on_a_cost_matrix(problem):
    matrix, p, _ = problem
    labels = torch.tensor([0, 1, 4, 4])
    target = torch.nn.functional.one_hot(labels, N).double()
    space = ew.CostMatrix(matrix)
    for smoothing in (0.0, 0.3):
        expected = ew.emd(p, (1 - smoothing) * target + smoothing / N, space)
        torch.testing.assert_close(PROGRAMME.label_distances(p, labels, space, 1, smoothing), expected)
    torch.testing.assert_close(PROGRAMME.label_distances(p, labels, space, 1), (p * matrix[:, labels].T).sum(-1))
    chain = ew.Chain(N)
    torch.testing.assert_close(Route.label_distances(COMPOSED, p, labels, chain, 2), ew.emd(p, target, chain, 2))


@pytest.mark.parametrize("space", [ew.Chain(16), ew.Ring(16), ew.Tree([-1, *[0] * 16])], ids=["chain", "ring", "tree"])
def test_expected_distances_are_their_own_transpose(space):
    """By kernels, whose gradient may need another route: here the kernels are switched off in between."""
    p = torch.rand(4096, 16).softmax(-1).requires_grad_()
    expected = choose(space, p, expected=True).expected(p, space)
    upstream = torch.rand(4096, 16)
    (slope,) = torch.autograd.grad((expected * upstream).sum(), p)
    torch.testing.assert_close(slope, upstream @ space.distances().float())
    torch.testing.assert_close(expected, p @ space.distances().float())
    expected = choose(space, p, expected=True).expected(p, space)
    with without_kernels():
        (again,) = torch.autograd.grad((expected * upstream).sum(), p)
    torch.testing.assert_close(slope, again)


def test_kernels_check_masses_by_the_type_they_were_stored_in():
    p = torch.full((100, 4), 0.25)
    q = p * (1 + 5e-3)
    assert ew.emd(p.half(), q.half(), ew.Chain(4)).isfinite().all()
    with pytest.raises(ValueError, match="expected rows of equal mass"):
        ew.emd(p, q, ew.Chain(4))
    assert ew.emd(p.view(4, 25, 4).half(), q[0].half(), ew.Chain(4)).shape == (4, 25)


def test_a_trace_reads_no_values(monkeypatch):
    monkeypatch.setattr(private_api, "tracing_state", lambda: "a state")
    assert not masses.can_look(torch.ones(2))


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


def test_distances_to_smoothed_labels(rng):
    p, labels = random_distribution(rng, 3, N), torch.tensor([0, 2, 4])
    target = 0.7 * torch.nn.functional.one_hot(labels, N) + 0.3 / N
    torch.testing.assert_close(label_distances(p, labels, ew.Chain(N), 2, 0.3), ew.emd(p, target, ew.Chain(N), 2))
    with pytest.raises(ValueError, match='expected some mass in each row to normalise by "l1"'):
        ew.emd_gradient(0 * p, target, ew.Chain(N), normalize="l1")


def test_first_order_without_rows_or_values(rng):
    """Of no rows, and of rows on another device, which are solved all at once."""
    chain = ew.Chain(N)
    for x in (torch.zeros(0, N), torch.zeros(3, N, device="meta"), torch.zeros(0, N, device="meta")):
        x.requires_grad_()
        value = first_order_cost(x, chain, 1.5, lambda x: x)
        assert value.shape == x.shape[:1]
        assert torch.autograd.grad(value.sum(), x)[0].shape == x.shape
        assert composed_cost(x, chain, 1.5).shape == x.shape[:1]
        assert composed_gradient(x, chain, 1.5).shape == x.shape


def test_hessians_of_shapes_that_broadcast(rng):
    p, q = random_distribution(rng, 2, 1, N, zeros=0.0), random_distribution(rng, 3, N, zeros=0.0)
    for rho in (1.5, 2.0, 3.0):
        for pair in ((p, q), (q, p)):
            found = ew.emd_hessian(*pair, ew.Chain(N), rho)
            assert found.shape == (2, 3, N, N)
            torch.testing.assert_close(found[1, 2], ew.emd_hessian(p[1, 0], q[2], ew.Chain(N), rho))


@pytest.mark.parametrize("function", [ew.emd, ew.emd_gradient])
def test_without_validation_there_is_no_error(function):
    p = torch.tensor([[0.5, 0.5], [0.0, 0.0]])
    assert function(p, p, ew.Chain(2), normalize="l1", validate=False)[1].isnan().all()
    assert function(p, 2 * p, ew.Chain(2), validate=False).isfinite().all()
    meta = p.to("meta")
    assert function(meta, p.to("meta"), ew.Chain(2)).is_meta


@pytest.mark.parametrize("error", [0.6e-4, 0.9e-4, 1.2e-4])
def test_kernels_check_masses_as_everything_else(error):
    p = torch.full((100, 4), 0.25, dtype=torch.float64)
    for q in (p * (1 + error), p * (1 - error)):
        if error < 1e-4:
            assert ew.emd(p, q, ew.Chain(4)).isfinite().all()
        else:
            with pytest.raises(ValueError, match="expected rows of equal mass"):
                ew.emd(p, q, ew.Chain(4))


def test_pairs_by_kernels(rng):
    chain = ew.Chain(N, torch.linspace(0.5, 2.0, N - 1).double())
    p, q = random_distribution(rng, 60, 2, N).requires_grad_(), random_distribution(rng, 2, N)
    route = choose(chain, p, q)
    assert isinstance(route, Kernels)
    results = []
    for way in (route, COMPOSED):
        value = way.distances(p, q, chain, 3.0)
        (slope,) = torch.autograd.grad(value.sum(), p, create_graph=True)
        results.append([value, slope, way.gradient(p, q, chain, 3.0), *torch.autograd.grad(slope.square().sum(), p)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-6)
    smoothed = ew.EMDLoss(chain, 1.5, label_smoothing=0.2, reduction="none", normalize=None)
    labels = torch.from_numpy(rng.integers(N, size=60))
    target = 0.8 * torch.nn.functional.one_hot(labels, N) + 0.2 / N
    torch.testing.assert_close(smoothed(p[:, 0], labels), ew.emd(p[:, 0], target, chain, 1.5))
    torch.testing.assert_close(COMPOSED.label_distances(p[:, 0], labels, chain, 1.5, 0.2), smoothed(p[:, 0], labels))


def test_losses_that_are_not_a_number_are_replaced():
    """With their slopes, weights and the sum that a mean is divided by."""
    rows = torch.tensor([[1.0, 2.0], [3.0, 5.0], [0.0, 4.0]])
    labels, weight = torch.tensor([0, 1, 1]), torch.tensor([2.0, 3.0], dtype=torch.float64)
    for given, factor in ((None, torch.tensor([1.0, 1.0])), (weight, torch.tensor([2.0, 3.0]))):
        losses, slopes = torch.tensor([math.nan, 7.0, math.nan]), torch.full((3, 2), 9.0)
        routes._replace_nan(losses, slopes, rows, labels, given, 4.0, lambda x, y: x.square().sum(-1) + y)
        expected = torch.tensor([5.0, 17.0]) * factor / 4
        torch.testing.assert_close(losses, torch.tensor([expected[0], 7.0, expected[1]]))
        torch.testing.assert_close(slopes[[0, 2]], 2 * rows[[0, 2]] * factor[:, None] / 4)
        assert slopes[1].tolist() == [9.0, 9.0]
        losses[0] = math.nan
        routes._replace_nan(losses, None, rows, labels, given, 4.0, lambda x, y: x.square().sum(-1) + y)
        torch.testing.assert_close(losses[0], expected[0])


def test_sharded_tensors_are_named(monkeypatch):
    class Sharded(torch.Tensor):
        pass

    monkeypatch.setattr(private_api, "is_sharded", lambda x: isinstance(x, Sharded))
    p = torch.tensor([0.5, 0.5])
    text = "expected a plain tensor, got a DTensor; pass x.full_tensor(), or x.to_local() if only rows are sharded"
    for name, pair in {"p": (p.as_subclass(Sharded), p), "q": (p, p.as_subclass(Sharded))}.items():
        with pytest.raises(TypeError, match=f"^{re.escape(f'{name}: {text}')}$"):
            ew.emd(*pair, ew.Chain(2))
    masses.check_not_sharded("p", p)
    masses.check_not_sharded("p", None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tolerances_of_half_types(dtype):
    masses.check_distributions(torch.tensor([0.5, 0.504], dtype=dtype))
    with pytest.raises(ValueError, match="a sum of"):
        masses.check_distributions(torch.tensor([0.5, 0.55], dtype=dtype))
    one, two = torch.tensor([0.5, 0.505]), torch.tensor([1.0, 1.0])
    with pytest.raises(ValueError, match=r"; for votes or counts divide target by its sum over the classes$"):
        masses.check_masses(one, two, dtype, ("input", "target"))
    with pytest.raises(ValueError, match=r'; normalize="l1" divides both by their mass$'):
        masses.check_masses(one, two, torch.float32, ("input", "target"))


def test_second_derivatives_of_distances_by_kernels(rng):
    chain = ew.Chain(N)
    p, q = random_distribution(rng, 100, N).requires_grad_(), random_distribution(rng, 100, N)
    second = []
    for value in (ew.emd(p, q, chain, 3), COMPOSED.distances(p, q, chain, 3)):
        (slope,) = torch.autograd.grad(value.sum(), p, create_graph=True)
        second.append(torch.autograd.grad(slope.square().sum(), p)[0])
    torch.testing.assert_close(*second)
