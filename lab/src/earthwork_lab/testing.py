"""Checks of user-written losses for the known defects of Earth Mover's Distance losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from earthwork import Space, emd

__all__ = ["Finding", "Report", "check_emd_loss"]


# At most this many bins are used as labels, because the number of pairs grows quadratically.
_MOST_LABELS = 24
_EXACT = 1e-6
_NOISE = 1e-3
_HALF = 0.05
# The smallest mass of random rows: far from 0, because a loss may take logarithms.
_FLOOR = 0.05

Status: TypeAlias = Literal["passed", "failed", "skipped"]

_MARKS = {"passed": "ok", "failed": "FAILED", "skipped": "skipped"}


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        name: The check.
        status: ``"passed"``, ``"failed"`` or ``"skipped"``.
        detail: What was seen, in one line.
    """

    name: str
    status: Status
    detail: str = ""

    def __str__(self) -> str:
        return f"{_MARKS[self.status]:<8} {self.name:<18} {self.detail}".rstrip()


@dataclass(frozen=True)
class Report:
    """The findings of all checks; prints as one line for each.

    Attributes:
        findings: One for each check, in the order of the table above.
    """

    findings: tuple[Finding, ...]

    @property
    def failures(self) -> tuple[str, ...]:
        """The names of the checks that failed."""
        return tuple(finding.name for finding in self.findings if finding.status == "failed")

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failures

    def __getitem__(self, name: str) -> Finding:
        """The finding of one check."""
        for finding in self.findings:
            if finding.name == name:
                return finding
        raise KeyError(f"{name!r}: expected one of {', '.join(finding.name for finding in self.findings)}")

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings))


def check_emd_loss(
    loss_fn: Callable[[Tensor, Tensor], Any],
    space: Space,
    *,
    logits: bool = False,
    rho: float | None = None,
    device: torch.device | str = "cpu",
) -> Report:
    r"""Check a loss of your own for the known defects of Earth Mover's Distance losses.

    ================ ==========================================================================================
    check            what fails it
    ================ ==========================================================================================
    distance         a far mistake costs as much as a near one: no running sum (CDF) is taken
    class order      a farther mistake costs less: sums are taken in another order than the space's
    batch mean       the sum over the batch, no reduction, or a root after the mean
    p = q            a gradient that is NaN, or a value that is not 0, for a perfect prediction
    conserved mass   a gradient that does not sum to 0 over the classes
    unequal mass     no ``ValueError`` for distributions of unequal mass
    float32          rounding errors of running sums that are treated as flow
    half precision   an error, or a value far off, in float16 or bfloat16
    value            (with ``rho``) values that are not a multiple of :math:`\mathrm{EMD}^\rho`
    ================ ==========================================================================================

    Args:
        loss_fn: Called as ``loss_fn(p, q)`` with distributions of shape ``[N, C]``; returns a tensor.
        space: How the classes are arranged, of at least three bins.
        logits: Whether ``loss_fn`` takes logits in place of ``p``.
        rho: The exponent that the loss is meant to have, if it is to be the relaxed distance itself.
        device: Where the loss is called; running sums on a GPU are less exact than those on a CPU.

    Returns:
        The findings, which print as a table; ``report.failures`` names the checks that failed.

    Raises:
        TypeError: If ``loss_fn`` is not callable or does not return a tensor, or ``space`` is not a space.
        ValueError: If the space has fewer than three bins, or ``rho`` is not ≥ 1.

    Example:
        >>> import earthwork as ew
        >>> from earthwork_lab.testing import check_emd_loss
        >>> def squared_error(p, q):
        ...     return ((p - q) ** 2).sum(-1).mean()
        >>> check_emd_loss(squared_error, ew.Chain(10)).failures
        ('distance', 'unequal mass')
        >>> check_emd_loss(ew.EMDLoss(ew.Chain(10), normalize=None), ew.Chain(10)).ok
        True
    """
    if not callable(loss_fn):
        raise TypeError(f"loss_fn: expected a function of p and q, got {type(loss_fn).__name__}")
    if not isinstance(space, Space):
        raise TypeError(f"space: expected a Chain, Ring, Tree or CostMatrix, got {type(space).__name__}")
    if space.num_bins < 3:
        raise ValueError(f"space: expected at least three bins, got {space}")
    subject = Subject(loss_fn, logits, device)
    findings = [check(subject, space) for check in _CHECKS]
    if rho is not None:
        space.check_rho(rho)
        findings.append(value(subject, space, float(rho)))
    return Report(tuple(findings))


class Subject:
    """The loss under test, as a function of probabilities ``[N, C]``."""

    def __init__(
        self, loss_fn: Callable[[Tensor, Tensor], Any], logits: bool, device: torch.device | str = "cpu"
    ) -> None:
        self._loss_fn = loss_fn
        self.logits = logits
        self.device = device

    def __call__(self, p: Tensor, q: Tensor) -> Tensor:
        """The loss as it is returned."""
        loss = self._loss_fn(self._as_input(p), q.to(self.device))
        if not isinstance(loss, Tensor):
            raise TypeError(f"loss_fn: expected it to return a tensor, got {type(loss).__name__}")
        return loss

    def value(self, p: Tensor, q: Tensor) -> float:
        """The loss of a batch as one number: the mean, if it is returned row by row."""
        return float(self(p, q).double().mean())

    def gradient(self, p: Tensor, q: Tensor) -> Tensor:
        """The gradient with respect to the input: probabilities, or logits where the loss takes these."""
        x = self._as_input(p).detach().clone().requires_grad_()
        loss = self._loss_fn(x, q.to(self.device))
        (gradient,) = torch.autograd.grad(loss.double().sum(), x)
        return gradient.cpu()

    def _as_input(self, p: Tensor) -> Tensor:
        p = p.to(self.device)
        # The logit of an empty bin would be -inf, which no model outputs.
        return p.clamp(min=1e-30 if p.dtype in (torch.float32, torch.float64) else 1e-7).log() if self.logits else p


def random_rows(space: Space, rows: int, seed: int = 0) -> Tensor:
    """Distributions without empty bins, in float64: ``[rows, num_bins]``."""
    generator = torch.Generator().manual_seed(seed)
    mass = torch.rand(rows, space.num_bins, generator=generator, dtype=torch.float64) + _FLOOR
    return mass / mass.sum(-1, keepdim=True)


def cancelling_rows(space: Space) -> tuple[Tensor, Tensor]:
    """Pairs of float32 rows whose flow is exactly 0 past some bins, but whose running sum in float32 is not.

    The masses a and b go in and come out again: (a + b) - a - b is 0, and in float32 it is not whenever a + b had to
    be rounded. In float64 it is exact.
    """
    order = space.bin_order()
    a = torch.tensor([0.31, 0.37, 0.23, 0.41], dtype=torch.float32)
    b = torch.tensor([0.0123, 0.00987, 0.0457, 0.00341], dtype=torch.float32)
    p = torch.zeros(len(a), space.num_bins)
    q = torch.zeros_like(p)
    rest = 1 - a - b
    for row in (p, q):
        row[:, order[-1]] = rest
    p[:, order[0]], p[:, order[1]] = a, b
    q[:, order[2]], q[:, order[3]] = a, b
    return p, q


def knows_distance(subject: Subject, space: Space) -> Finding:
    """Without a running sum (CDF), a near miss costs as much as a far one."""
    values, distances = _one_hot_costs(subject, space)
    spread = (values.max() - values.min()) / values.abs().max().clamp(min=1e-30)
    if distances.max() - distances.min() <= _EXACT * distances.max():
        return Finding("distance", "skipped", "every pair of classes is equally far")
    if not values.isfinite().all():
        return Finding("distance", "failed", "not finite for certain predictions")
    if spread < _EXACT:
        return Finding("distance", "failed", f"every mistake costs {values[0]:.4g}, near or far: no CDF")
    return Finding("distance", "passed")


def class_order(subject: Subject, space: Space) -> Finding:
    """A loss that sums in another order than the space's takes a far class for a near one."""
    values, distances = _one_hot_costs(subject, space)
    by_distance = distances.argsort()
    values, distances = values[by_distance], distances[by_distance]
    slack = _EXACT * values.abs().max()
    # Each mistake against the cheapest one at a distance that is larger by more than rounding.
    farther = torch.searchsorted(distances, distances * (1 + _EXACT) + 1e-12, right=True)
    cheapest_after = torch.cat([values.flip(0).cummin(0).values.flip(0), values.new_full((1,), torch.inf)])
    wrong = cheapest_after[farther] < values - slack
    if not values.isfinite().all() or (values.max() - values.min()) <= slack:
        return Finding("class order", "skipped", "it does not know distances at all")
    if wrong.any():
        share = float(wrong.double().mean())
        return Finding("class order", "failed", f"{share:.0%} of mistakes cost more than some farther mistake")
    return Finding("class order", "passed")


def batch_mean(subject: Subject, space: Space) -> Finding:
    """A sum, or a root taken after the mean, makes a row's loss depend on its batch."""
    p, q = random_rows(space, 5), random_rows(space, 5, seed=1)
    q[0] = p[0]
    rows = torch.tensor([subject.value(p[i : i + 1], q[i : i + 1]) for i in range(len(p))])
    loss = subject(p, q)
    if loss.ndim:
        same = loss.shape == rows.shape and torch.allclose(loss.detach().double().cpu(), rows.double(), rtol=1e-5)
        what = "one value for each row, not their mean" if same else f"shape {tuple(loss.shape)}, not a mean"
        return Finding("batch mean", "failed", what)
    ratio = float(loss) / float(rows.mean())
    if abs(ratio - 1) < 1e-5:
        return Finding("batch mean", "passed")
    if abs(ratio - len(p)) < 1e-4:
        return Finding("batch mean", "failed", "the sum over the batch, not the mean")
    return Finding("batch mean", "failed", f"{ratio:.3g} times the mean of the rows: rows are mixed")


def at_the_target(subject: Subject, space: Space) -> Finding:
    """A root has no gradient at 0, so the gradient of a perfect prediction may be NaN."""
    p = random_rows(space, 3)
    gradient = subject.gradient(p, p.clone())
    if not gradient.isfinite().all():
        return Finding("p = q", "failed", "the gradient is NaN or infinite where the prediction is right")
    value, scale = subject.value(p, p.clone()), abs(subject.value(p, random_rows(space, 3, seed=1)))
    if abs(value) > _EXACT * max(scale, 1e-12):
        return Finding("p = q", "failed", f"the loss of a perfect prediction is {value:.3g}, not 0")
    return Finding("p = q", "passed")


def conserves_mass(subject: Subject, space: Space) -> Finding:
    """A gradient step must not change the total mass, so the gradient sums to 0."""
    if subject.logits:
        return Finding("conserved mass", "skipped", "a softmax conserves mass whatever the loss")
    gradient = subject.gradient(random_rows(space, 4), random_rows(space, 4, seed=1))
    drift = gradient.sum(-1).abs().max() / gradient.abs().sum(-1).max().clamp(min=1e-30)
    if not drift <= 1e-6:
        return Finding("conserved mass", "failed", f"the gradient's sum is {drift:.0%} of its size")
    return Finding("conserved mass", "passed")


def unequal_mass(subject: Subject, space: Space) -> Finding:
    """The distance between rows of unequal mass is undefined; returning a value would hide a missing softmax."""
    if subject.logits:
        return Finding("unequal mass", "skipped", "logits have no mass")
    p = random_rows(space, 3)
    try:
        subject(p, p * 2)
    except ValueError:
        return Finding("unequal mass", "passed")
    return Finding("unequal mass", "failed", "masses of 1 and 2 are silently compared")


def single_precision(subject: Subject, space: Space) -> Finding:
    """In float32 a running sum leaves noise where the flow is 0; its sign is a wrong gradient of full size."""
    if space.num_bins < 6:
        return Finding("float32", "skipped", "needs a space of 6 bins or more")
    p, q = cancelling_rows(space)
    if subject.logits:
        # The softmax rounds too, so the masses do not cancel exactly: only the accuracy on random rows is checked.
        p, q = random_rows(space, 4).float(), random_rows(space, 4, seed=1).float()
    exact = subject.gradient(p.double(), q.double())
    error = (subject.gradient(p, q).double() - exact).abs().max() / exact.abs().max().clamp(min=1e-30)
    if not error <= _NOISE:
        return Finding("float32", "failed", f"the gradient is off by {error:.0%} of its largest entry")
    return Finding("float32", "passed")


def half_precision(subject: Subject, space: Space) -> Finding:
    """Half precision is a storage type: sums must be computed in float32 or float64."""
    p, q = random_rows(space, 4), random_rows(space, 4, seed=1)
    worst = 0.0
    for dtype in (torch.float16, torch.bfloat16):
        low, high = (p.to(dtype), q.to(dtype)), (p.to(dtype).double(), q.to(dtype).double())
        try:
            value = subject.value(*low)
        except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
            return Finding("half precision", "failed", f"{dtype} raises: {str(error).splitlines()[0][:80]}")
        # Rounding changes the masses of the rows, so the reference is computed from the rounded rows.
        mass = 1 if subject.logits else high[0].sum(-1, keepdim=True)
        exact = subject.value(high[0], high[1] * (mass / high[1].sum(-1, keepdim=True)))
        worst = max(worst, abs(value - exact) / max(abs(exact), 1e-30))
    if not worst <= _HALF:
        return Finding("half precision", "failed", f"the value is off by {worst:.0%}")
    return Finding("half precision", "passed")


def value(subject: Subject, space: Space, rho: float) -> Finding:
    """Up to a factor, the values are those of EMD^ρ."""
    p, q = random_rows(space, 6), random_rows(space, 6, seed=1)
    ours = emd(p, q, space, rho).detach().cpu()
    theirs = torch.tensor([subject.value(p[i : i + 1], q[i : i + 1]) for i in range(len(p))], dtype=torch.float64)
    factors = theirs / ours
    if not (factors.max() - factors.min()) <= 1e-4 * factors.abs().max():
        low, high = float(factors.min()), float(factors.max())
        return Finding("value", "failed", f"between {low:.3g} and {high:.3g} times EMD^{rho:g}, not always the same")
    return Finding("value", "passed", f"{float(factors.mean()):.4g} times EMD^{rho:g}")


def _one_hot_costs(subject: Subject, space: Space) -> tuple[Tensor, Tensor]:
    """The loss of a certain, wrong prediction and its distance to the label, for each pair of classes."""
    step = -(-space.num_bins // _MOST_LABELS)
    bins = torch.arange(0, space.num_bins, step)
    i, j = torch.triu_indices(len(bins), len(bins), 1)
    distances = space.distance(bins[i], bins[j])
    one_hot = torch.eye(space.num_bins, dtype=torch.float64)[bins]
    pairs = zip(one_hot[i].split(1), one_hot[j].split(1), strict=True)
    values = [subject.value(p, q) for p, q in pairs]
    return torch.tensor(values, dtype=torch.float64), distances


_CHECKS = (
    knows_distance,
    class_order,
    batch_mean,
    at_the_target,
    conserves_mass,
    unequal_mass,
    single_precision,
    half_precision,
)
