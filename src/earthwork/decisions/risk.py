"""Guarantees on the risk of answers that were tuned on held-out rows."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from earthwork.decisions.decide import as_tensor


def control_risk(losses: Any, level: float, *, confidence: float | None = None, bound: float = 1.0) -> int | None:
    r"""Return the boldest of several answers whose risk is guaranteed, or ``None`` if none is.

    Without ``confidence`` the guarantee is on the mean: over calibration and new rows, the expected loss is at most
    ``level`` (conformal risk control, Angelopoulos et al., ICLR 2024). A loss that falls from one candidate to a bolder
    one counts as the largest before it, so losses need not be monotone.

    With ``confidence`` the expected loss of the chosen candidate on new rows is at most ``level``, except with
    probability ``1 - confidence`` over the calibration rows (Learn then Test, Angelopoulos et al., 2021). Candidates
    are tested from the most cautious one on, until one fails: by the p-value of Hoeffding and Bentkus, or if all losses
    are 0 or ``bound`` by that of the binomial distribution.

    Args:
        losses: The loss of each row with each candidate, shape ``[rows, candidates]``, from 0 to ``bound``: a tensor
            or an array. The first candidate is the most cautious, the last one the boldest.
        level: The risk, from 0 to ``bound``.
        confidence: The confidence, between 0 and 1.
        bound: The largest loss there can be.

    Returns:
        The index of the candidate.

    Example:
        >>> import torch, earthwork as ew
        >>> losses = (torch.rand(200, 1, generator=torch.manual_seed(0)) < torch.tensor([0.0, 0.02, 0.05, 0.3])).float()
        >>> ew.control_risk(losses, 0.1), ew.control_risk(losses, 0.1, confidence=0.99)
        (2, 1)
    """
    losses = as_tensor(losses)
    if not isinstance(losses, Tensor) or losses.ndim != 2 or 0 in losses.shape:
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise ValueError(f"losses: expected a tensor of shape [rows, candidates], at least one each, got {shape}")
    losses = losses.detach().double() / bound
    if not bool(((losses >= 0) & (losses <= 1)).all()):
        bad = losses[~((losses >= 0) & (losses <= 1))][0]
        raise ValueError(f"losses: expected numbers from 0 to {bound:g}, got {float(bad) * bound:g}")
    if not 0 <= level <= bound or not (confidence is None or 0 < confidence < 1):
        got = f"{level!r} and {confidence!r}"
        raise ValueError(f"level, confidence: expected 0 to {bound:g}, and None or between 0 and 1, got {got}")
    if confidence is None:
        passes = mean_passes(losses.cummax(-1).values.mean(0), len(losses), level / bound)
    else:
        binary = bool(((losses == 0) | (losses == 1)).all())
        passes = p_values(losses.mean(0), len(losses), level / bound, binary) <= 1 - confidence
    accepted = int(passes.cumprod(0).sum())
    return accepted - 1 if accepted else None


def mean_passes(means: Tensor, rows: int, level: float) -> Tensor:
    """Return where a mean loss bounds the expected loss on a new row: if the row's loss were 1, it would still do."""
    return (means * rows + 1) / (rows + 1) <= level + 1e-12


def p_values(means: Tensor, rows: int, level: float, binary: bool) -> Tensor:
    """Return the p-values of the hypothesis that the expected loss is above ``level``, from the mean losses of rows."""
    if not 0 < level < 1:
        return torch.full_like(means, float(level <= 0))
    tail = _binomial_tails(rows, level).to(means.device)[(means * rows - 1e-9).ceil().long()]
    if binary:
        return tail
    least = means.clamp(max=level)
    entropy = torch.xlogy(least, least / level) + torch.xlogy(1 - least, (1 - least) / (1 - level))
    return torch.minimum((-rows * entropy).exp(), math.e * tail)


def _binomial_tails(rows: int, level: float) -> Tensor:
    """Return the probabilities of at most 0, 1, … ``rows`` successes."""
    k = torch.arange(rows + 1, dtype=torch.float64, device="cpu")
    log_ways = math.lgamma(rows + 1) - torch.lgamma(k + 1) - torch.lgamma(rows - k + 1)
    return (log_ways + k * math.log(level) + (rows - k) * math.log1p(-level)).logcumsumexp(0).exp().clamp(max=1)
