"""Check a user-written loss for the known defects of Earth Mover's Distance losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from earthwork.spaces import Space
from earthwork.spaces.space import check_space
from earthwork.testing import checks
from earthwork.testing.checks import Report
from earthwork.testing.probes import Subject

_CHECKS = (
    checks.knows_distance,
    checks.class_order,
    checks.batch_mean,
    checks.at_the_target,
    checks.conserves_mass,
    checks.unequal_mass,
    checks.single_precision,
    checks.half_precision,
)


def check_emd_loss(
    loss_fn: Callable[[Tensor, Tensor], Any],
    space: Space,
    *,
    logits: bool = False,
    rho: float | None = None,
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
        space: How the classes are arranged, of at least three bins. The loss is called with tensors that live where
            the space does, so ``space.cuda()`` tests it on a GPU, whose running sums are less exact than a CPU's.
        logits: Whether ``loss_fn`` takes logits in place of ``p``.
        rho: The exponent that the loss is meant to have, if it is to be the relaxed distance itself.

    Returns:
        The findings, which print as a table; ``report.failures`` names the checks that failed.

    Raises:
        TypeError: If ``loss_fn`` is not callable or does not return a tensor, or ``space`` is not a space.
        ValueError: If the space has fewer than three bins, or ``rho`` is not ≥ 1.

    Example:
        >>> import earthwork as ew
        >>> from earthwork.testing import check_emd_loss
        >>> def squared_error(p, q):
        ...     return ((p - q) ** 2).sum(-1).mean()
        >>> check_emd_loss(squared_error, ew.Chain(10)).failures
        ('distance', 'unequal mass')
        >>> check_emd_loss(ew.EMDLoss(ew.Chain(10), normalize=None), ew.Chain(10)).ok
        True
    """
    if not callable(loss_fn):
        raise TypeError(f"loss_fn: expected a function of p and q, got {type(loss_fn).__name__}")
    check_space(space)
    if space.num_bins < 3:
        raise ValueError(f"space: expected at least three bins, got {space}")
    subject = Subject(loss_fn, logits)
    findings = [check(subject, space) for check in _CHECKS]
    if rho is not None:
        space.check_rho(rho)
        findings.append(checks.value(subject, space, float(rho)))
    return Report(tuple(findings))
