"""Sinkhorn's solver as one operator.

Each row of a batch is solved by the fastest form that stays in range: in closed form, by matrix products in the type of
the input, in float64 (`scale`), or on logarithms (`iterate_logs`). `algorithm_1` is the paper's, as printed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from earthwork.ops.labels import label_gradient
from earthwork.ops.linear_programme import centred
from earthwork.spaces.space import batch_first, widest


class ConvergenceWarning(UserWarning):
    """An iteration reached ``max_iter`` before ``tol``."""


# A custom operator is opaque to the compiler and to functional transforms.
@torch.library.custom_op("earthwork::sinkhorn", mutates_args=())
def solve(
    p: Tensor,
    q: Tensor,
    matrix: Tensor,
    lam: float,
    max_iter: int,
    tol: float | None,
    method: str,
    chunk_size: int,
    needs_q: bool,
    regularized: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return value, gradients for p and q, and a tensor of the number of iterations and whether they converged.

    ``needs_q`` says that the gradient for q is needed, which the closed form does not provide. The value is ⟨M, T⟩, or
    if ``regularized`` the minimum ⟨M, T⟩ + ⟨T, log T⟩/λ.
    """
    shape = p.shape
    pairs = zip(*(x.reshape(-1, shape[-1]).split(chunk_size) for x in (p, q)), strict=True)
    with torch.autocast(p.device.type, enabled=False):
        if method == "paper":
            parts = [algorithm_1(a, b, matrix, lam, max_iter, tol) for a, b in pairs]
        else:
            solve_rows = row_solver(matrix, lam, max_iter, tol, p.dtype, needs_q)
            parts = [solve_rows(*pair) for pair in pairs]
    cost, minimum, p_gradient, q_gradient, error, iterations = joined(parts)
    value = minimum if regularized else cost
    limit = math.sqrt(torch.finfo(p.dtype).eps) if tol is None else tol
    converged = bool((error <= limit).all())
    if tol is not None and not converged:
        warnings.warn(
            f"sinkhorn: {max_iter} iterations did not reach tol = {tol:g}; raise max_iter or tol, or lower lam",
            ConvergenceWarning,
            stacklevel=1,
        )
    report = torch.tensor([max(iterations.tolist(), default=0), int(converged)], device="cpu")
    # Contiguous, as the compiler is told below.
    p_gradient, q_gradient = (x.reshape(shape).contiguous() for x in (p_gradient, q_gradient))
    return value.reshape(shape[:-1]), p_gradient, q_gradient, report


@solve.register_fake
def _(p: Tensor, q: Tensor, matrix: Tensor, *options: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    report = torch.empty(2, dtype=torch.int64, device="cpu")
    return p.new_empty(p.shape[:-1]), p.new_empty(p.shape), p.new_empty(p.shape), report


@solve.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], p: Tensor, q: Tensor, matrix: Tensor, *options: Any
) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
    if in_dims[2] is not None:
        raise NotImplementedError("sinkhorn: expected one space for the whole of a vmap, got one for each entry")
    *solution, report = solve(*batch_first(info, in_dims, p, q), matrix, *options)
    return (*solution, report.expand(info.batch_size, 2)), (0, 0, 0, 0)


def row_solver(
    matrix: Tensor, lam: float, max_iter: int, tol: float | None, dtype: torch.dtype, needs_q: bool
) -> Callable[[Tensor, Tensor], Solution]:
    """Return what solves batches on one ground cost; the kernels are built on first use."""
    wide = widest(matrix.device)
    matrix = matrix.to(wide)
    kernel = cache(lambda dtype: make_kernel(matrix, lam, dtype))

    def to_labels(p: Tensor, labels: Tensor) -> Solution:
        distances = matrix.T[labels].to(p.dtype)
        value = (p * distances).sum(-1)
        gradient = label_gradient(p, distances, lam)
        minimum = value + torch.xlogy(p, p).sum(-1) / lam
        return Solution(value, minimum, gradient, torch.zeros_like(p), torch.zeros_like(value), torch.ones_like(labels))

    def solve_rows(p: Tensor, q: Tensor) -> Solution:
        mass = q.sum(-1)
        p, q = _distributions(p), _distributions(q)
        single = (q > 0).sum(-1) == 1 if not needs_q else torch.zeros_like(mass, dtype=torch.bool)
        parts = [(single.nonzero()[:, 0], to_labels(p[single], q[single].argmax(-1)))]
        waiting = ~single
        for tried in dict.fromkeys((dtype, wide)):
            if len(left := waiting.nonzero()[:, 0]):
                done, solution = scale(p[left], q[left], kernel(tried), max_iter, tol)
                parts.append((left[done], solution))
                waiting[left[done]] = False
        if len(left := waiting.nonzero()[:, 0]):
            parts.append((left, iterate_logs(p[left], q[left], matrix, lam, max_iter, tol)))
        result = scattered(parts, dtype)
        return result._replace(value=result.value * mass, minimum=result.minimum * mass)

    return solve_rows


def _distributions(x: Tensor) -> Tensor:
    """Return each row divided by its mass; a row without mass becomes uniform."""
    mass = x.sum(-1, keepdim=True)
    return torch.where(mass > 0, x / torch.where(mass > 0, mass, 1), 1 / x.shape[-1])


# The number of values that `iterate_logs` holds at a time: 4 MB of float64, which fit into a processor's cache.
_BLOCK = 2**19


class Solution(NamedTuple):
    """The result of an iteration for each row of a batch."""

    value: Tensor  # ⟨M, T⟩, shape `[rows]`
    minimum: Tensor  # ⟨M, T⟩ + ⟨T, log T⟩/λ, which is (⟨p, log u⟩ + ⟨q, log v⟩)/λ, shape `[rows]`
    p_gradient: Tensor  # centred log(u)/λ, shape `[rows, n]`
    q_gradient: Tensor  # centred log(v)/λ, shape `[rows, n]`
    error: Tensor  # The ℓ1 distance of the plan's marginals from p and q, shape `[rows]`
    iterations: Tensor  # The iterations made, shape `[rows]`


def joined(parts: Sequence[Solution]) -> Solution:
    """Return the concatenated solutions of the parts of a batch."""
    return Solution(*map(torch.cat, zip(*parts, strict=True)))


def scattered(parts: Sequence[tuple[Tensor, Solution]], dtype: torch.dtype) -> Solution:
    """Return the solution of a batch from parts that each solved the rows with these indices, in one type."""
    order = torch.cat([rows for rows, _ in parts]).argsort()
    whole = Solution(*(x[order] for x in joined([solution for _, solution in parts])))
    return Solution(*(x if x is whole.iterations else x.to(dtype) for x in whole))


def dual_value(p: Tensor, log_u: Tensor, q: Tensor, log_v: Tensor, lam: float) -> Tensor:
    """Return (⟨p, log u⟩ + ⟨q, log v⟩)/λ; an empty bin, whose logarithm is -∞, adds nothing."""
    return (torch.where(p > 0, p * log_u, 0) + torch.where(q > 0, q * log_v, 0)).sum(-1) / lam


def dual(mass: Tensor, log_sum: Tensor, lam: float, stored: torch.dtype) -> Tensor:
    """Return centred log(u)/λ with u = mass / sum; an empty bin counts as the least normal number of ``stored``."""
    return centred((mass.clamp(min=torch.finfo(stored).tiny).log() - log_sum) / lam)


State: TypeAlias = tuple[Tensor, ...]


def _iterated(
    state: State,
    step: Callable[..., State],
    error: Callable[..., Tensor],
    max_iter: int,
    tol: float | None,
    in_range: Callable[..., Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """Return the rows that stay in range, ascending, their iterations and errors, and their state after these.

    A row's result does not depend on its neighbours: one that is finished, by its own error, may be iterated on without
    effect. A number that is out of range stays so, so it is enough to check at iterations 1, 2, 4, 8, …
    """
    rows = torch.arange(len(state[0]), device=state[0].device)
    waiting, parts = torch.ones_like(rows, dtype=torch.bool), list[tuple[Tensor, ...]]()
    for iteration in range(1, max_iter + 1):
        state, last = step(*state), iteration == max_iter
        if in_range is not None and (last or iteration & (iteration - 1) == 0):
            kept = in_range(*state)
            if not kept.all():
                rows, state = rows[kept], tuple(x[kept] for x in state)
        if tol is None and not last and len(rows):
            continue
        missed = error(*state)
        done = waiting[rows] if tol is None or last else waiting[rows] & (missed <= tol)
        if done.any() or not parts:
            which = rows[done]
            parts.append((which, torch.full_like(which, iteration), *(x[done] for x in (missed, *state))))
            waiting[which] = False
        if not waiting[rows].any():
            break
    found = tuple(map(torch.cat, zip(*parts, strict=True)))
    order = found[0].argsort()
    return tuple(x[order] for x in found)


class Kernel(NamedTuple):
    """The kernel of a ground cost in one type."""

    weights: Tensor
    costs: Tensor
    lam: float
    lossy: bool  # Whether some weights underflow in the type


def make_kernel(matrix: Tensor, lam: float, dtype: torch.dtype) -> Kernel:
    """Return the kernel of ``matrix``, rounded once."""
    weights = torch.exp(-lam * matrix)
    # Arithmetic with subnormal numbers is slow.
    lost = lam * matrix >= -math.log(torch.finfo(dtype).tiny)
    weights = weights.masked_fill(lost, 0)
    return Kernel(weights.to(dtype), (weights * matrix).to(dtype), lam, bool(lost.any()))


def scale(p: Tensor, q: Tensor, kernel: Kernel, max_iter: int, tol: float | None) -> tuple[Tensor, Solution]:
    """Iterate u = p / (K v), v = q / (Kᵀ u) in the kernel's type; return the rows that stay in range, and their result.

    The kernel's entries are at most 1, with 1 on the diagonal, and everything is ≥ 0, so sums lose no digits; the rows
    in which a number leaves the range of its type are left to another method. A row ends when its marginals miss by no
    more than ``tol``.
    """
    weights, stored = kernel.weights, p.dtype
    p, q = p.to(weights.dtype), q.to(weights.dtype)

    def step(p: Tensor, q: Tensor, *rest: Tensor) -> State:
        v = q / rest[-1]
        above = v @ weights.T
        u = p / above
        return p, q, u, v, above, u @ weights

    found = _iterated(
        (p, q, torch.ones_like(p) @ weights),
        step,
        # Of the column sums of the plan u K v; its row sums are p.
        lambda _, q, u, v, above, below: (v * below - q).abs_().sum(-1),
        max_iter,
        tol,
        lambda _, q, u, v, above, below: _in_range(u, v, above, below, kernel),
    )
    rows, iterations, missed, p, q, u, _, above, below = found
    v = q / below
    solution = Solution(
        (u * (v @ kernel.costs.T)).sum(-1),
        dual_value(p, u.log(), q, v.log(), kernel.lam),
        dual(p, above.log(), kernel.lam, stored),
        dual(q, below.log(), kernel.lam, stored),
        missed,
        iterations,
    )
    kept = _in_range(u, v, above, below, kernel)
    return rows[kept], Solution(*(x[kept] for x in solution))


# A sum K v is accurate if what underflowed in it is small in comparison: at most `tiny` for each product and, if the
# kernel is lossy, at most `tiny`·v for each weight.
def _in_range(u: Tensor, v: Tensor, above: Tensor, below: Tensor, kernel: Kernel) -> Tensor:
    info = torch.finfo(u.dtype)
    floor = u.shape[-1] * info.tiny / info.eps
    low_above, low_below = above.amin(-1), below.amin(-1)
    kept = (low_above >= floor) & (low_below >= floor) & (above.amax(-1) <= 1 / floor) & (below.amax(-1) <= 1 / floor)
    if kernel.lossy:
        kept &= (floor * v.amax(-1) <= low_above) & (floor * u.amax(-1) <= low_below)
    return kept


def iterate_logs(
    p: Tensor, q: Tensor, matrix: Tensor, lam: float, max_iter: int, tol: float | None, block: int = _BLOCK
) -> Solution:
    """Iterate log u = log p − log K v, log v = log q − log Kᵀ u, and hold at most ``block`` numbers at a time."""
    most = max(1, block // len(matrix) ** 2)
    if len(p) > most:
        pairs = zip(p.split(most), q.split(most), strict=True)
        return joined([iterate_logs(*pair, matrix, lam, max_iter, tol, block) for pair in pairs])
    forth, back = lam * matrix, (lam * matrix).T.contiguous()
    stored = p.dtype
    p, q = p.to(matrix.dtype), q.to(matrix.dtype)
    log_p, log_q = p.log(), q.log()

    def step(*state: Tensor) -> State:
        log_v = log_q - state[-1]
        above = _log_sums(log_v, forth, block)
        log_u = log_p - above
        return log_u, log_v, above, _log_sums(log_u, back, block)

    start = _log_sums(torch.zeros_like(p), back, block)
    found = _iterated((start,), step, lambda _, v, __, below: ((v + below).exp() - q).abs().sum(-1), max_iter, tol)
    _, iterations, error, log_u, _, above, below = found
    log_v = log_q - below
    return Solution(
        _mean_cost(log_u, log_v, matrix, forth, block),
        dual_value(p, log_u, q, log_v, lam),
        dual(p, above, lam, stored),
        dual(q, below, lam, stored),
        error,
        iterations,
    )


def _log_sums(scores: Tensor, scaled: Tensor, block: int) -> Tensor:
    """Return ``log Σ_j exp(scores_j − scaled_ij)``, over the last axis of ``scores[rows, n]``."""
    smallest = math.log(torch.finfo(scores.dtype).tiny)
    parts = []
    for costs in scaled.split(_height(scores, block)):
        terms = scores.unsqueeze(1) - costs
        top = terms.amax(-1, keepdim=True)
        # Arithmetic with subnormal numbers is slow.
        terms.sub_(top).clamp_(min=smallest).exp_()
        parts.append(terms.sum(-1).log_().add_(top.squeeze(-1)))
    return torch.cat(parts, -1)


def _mean_cost(log_u: Tensor, log_v: Tensor, matrix: Tensor, scaled: Tensor, block: int) -> Tensor:
    """Return ``Σ_ij M_ij exp(log u_i + log v_j − scaled_ij)``."""
    height = _height(log_u, block)
    value = log_u.new_zeros(len(log_u))
    for u, costs, exponents in zip(log_u.split(height, -1), matrix.split(height), scaled.split(height), strict=True):
        plan = (u.unsqueeze(-1) + log_v.unsqueeze(1)).sub_(exponents).exp_()
        value += plan.mul_(costs).sum((-2, -1))
    return value


def _height(rows: Tensor, block: int) -> int:
    return max(1, block // max(1, rows.numel()))


def algorithm_1(p: Tensor, q: Tensor, matrix: Tensor, lam: float, max_iter: int, tol: float | None) -> Solution:
    """Iterate u = p / (K (q / Kᵀ u)) with K = exp(−λM − 1), all in the type of ``p``.

    The printed loop never increments its counter; this one does. And log(u)/λ is centred, so that it conserves mass.
    """
    matrix = matrix.to(p.dtype)
    kernel = torch.exp(-lam * matrix - 1)

    def step(u: Tensor, *_: Tensor) -> State:
        v = q / (u @ kernel)
        return p / (v @ kernel.T), v

    found = _iterated((torch.ones_like(p),), step, lambda u, v: (v * (u @ kernel) - q).abs().sum(-1), max_iter, tol)
    _, iterations, error, u, _ = found
    v = q / (u @ kernel)
    value = (u * (v @ (kernel * matrix).T)).sum(-1)
    # This kernel is 1/e of the others', so the logarithm of a plan of mass 1 is less by 1.
    minimum = dual_value(p, u.log(), q, v.log(), lam) - p.sum(-1) / lam
    return Solution(value, minimum, centred(u.log() / lam), centred(v.log() / lam), error, iterations)
