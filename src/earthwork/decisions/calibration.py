"""Tuning on held-out data: the temperature of probabilities, the risk of answers, and how vague they may be."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Any

import numpy as np
import torch
from torch import Tensor

from earthwork.decisions.decide import as_tensor, check_labels, first_least, fixed_risk, node_risk
from earthwork.ops.masses import as_distributions
from earthwork.spaces import Tree
from earthwork.spaces.space import check_number, first_true
from earthwork.spaces.tree import as_tree

# Temperatures outside this range make no measurable difference.
_COLDEST, _HOTTEST, _STEPS = 1e-2, 1e2, 10**8
# The number of risks held in memory at a time: 64 MiB.
_BLOCK = 2**23


def fit_temperature(logits: Any, labels: Any) -> float:
    r"""Find the temperature at which a model's probabilities fit held-out labels best.

    It minimises the log loss of :math:`\mathrm{softmax}(z / T)` over :math:`T` (Guo et al., "On calibration of modern
    neural networks", ICML 2017).

    Args:
        logits: The logits of held-out rows, shape ``[N, C]``: a tensor or an array. The logarithms of probabilities
            are logits too.
        labels: Their class indices, shape ``[N]``.

    Returns:
        The temperature to divide the logits by, from 0.01 to 100. It is above 1 if the model is overconfident.

    Raises:
        TypeError: If the logits are not floating point numbers or the labels not integers.
        ValueError: If the shapes do not fit, a label is out of range or a logit is not finite.

    Example:
        >>> import torch, earthwork as ew
        >>> logits = torch.tensor([[8.0, 0.0], [8.0, 0.0], [8.0, 0.0], [0.0, 8.0]])
        >>> temperature = ew.fit_temperature(logits, torch.tensor([0, 0, 1, 1]))
        >>> round(temperature, 2)   # right three times out of four: log(3) = 8 / T
        7.28
    """
    z = as_tensor(np.asarray(logits) if isinstance(logits, list) else logits)
    if not isinstance(z, Tensor) or not z.is_floating_point():
        raise TypeError(f"logits: expected floating point numbers, got {getattr(z, 'dtype', type(z).__name__)}")
    check_rows("logits", z)
    y = check_labels(labels, z.shape[:1], z.shape[1]).to(z.device)
    if (place := first_true(~torch.isfinite(z))) is not None:
        raise ValueError(f"logits: expected finite numbers, got NaN or infinity in row {place[0]}")
    z = z.detach().double()
    z = z - z.amax(-1, keepdim=True)
    own = z.gather(-1, y.unsqueeze(-1)).squeeze(-1)

    def temperature(step: int) -> float:
        return _HOTTEST * math.pow(_COLDEST / _HOTTEST, step / _STEPS)

    def slope(step: int) -> float:
        """Compute the derivative of the log loss with respect to 1 / T, which increases with 1 / T."""
        p = (z / temperature(step)).softmax(-1)
        return float(((p * z).sum(-1) - own).mean())

    return temperature(bisect_left(range(_STEPS), 0.0, key=slope))


def check_rows(name: str, rows: Tensor, classes: int | str = "C") -> None:
    """Raise unless there is at least one row, shape ``[N, C]``."""
    if rows.ndim != 2 or not len(rows):
        raise ValueError(f"{name}: expected shape [N, {classes}] with N ≥ 1, got {tuple(rows.shape)}")


def at_temperature(p: Tensor, temperature: float) -> Tensor:
    """Return the distributions whose logits are those of ``p`` divided by a temperature."""
    return p if temperature == 1 else (log_of(p) / temperature).softmax(-1)


def log_of(p: Tensor) -> Tensor:
    """Compute finite logarithms of probabilities."""
    return p.clamp(min=torch.finfo(p.dtype).tiny).log()


def control_risk(losses: Any, level: float, *, confidence: float | None = None, bound: float = 1.0) -> int | None:
    r"""Return the index of the boldest of several answers whose risk is guaranteed, or ``None`` if none is.

    Without ``confidence`` the guarantee is on the mean: over calibration and new rows, the expected loss is at most
    ``level`` (conformal risk control, Angelopoulos et al., ICLR 2024). Each loss counts as the largest up to it.

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
    level, bound = check_number("level", level, "a finite number ≥ 0"), check_number("bound", bound)
    losses = losses.detach().double() / bound
    if (place := first_true(~((losses >= 0) & (losses <= 1)))) is not None:
        raise ValueError(f"losses: expected numbers from 0 to {bound:g}, got {float(losses[place]) * bound:g}")
    if level > bound or not (confidence is None or 0 < confidence < 1):
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


def tune_vagueness(
    p: Any,
    labels: Any,
    tree: Tree,
    *,
    accuracy: float | None = None,
    coverage: float | None = None,
    confidence: float | None = None,
) -> float:
    """Find the ``vagueness`` with which :func:`~earthwork.decide` reaches a target, from held-out data.

    Args:
        p: The probabilities of held-out rows, shape ``[N, C]``: a tensor or an array.
        labels: Their class indices, shape ``[N]``.
        tree: The tree.
        accuracy: The share of answers to new rows that shall be the label or one of its ancestors. The result is the
            largest vagueness for which :func:`~earthwork.control_risk` guarantees it; if the rows are too few for that,
            the answer is always the root.
        coverage: The share of answers that shall be classes. The result is the least vagueness that reaches it.
        confidence: The probability with which ``accuracy`` is reached, over the held-out rows; by default it is reached
            on average.

    Returns:
        The vagueness, from -2 (always the root) to 2 (always a class).

    Raises:
        TypeError: If the space is not a tree, or the labels are not integers.
        ValueError: Unless exactly one target is given, a share from 0 to 1; or if a shape or a label does not fit.

    Example:
        >>> import torch, earthwork as ew
        >>> tree = ew.Tree([-1, 0, 0, 1, 1])
        >>> p = torch.tensor([[0.1, 0.5, 0.4], [0.0, 0.9, 0.1], [0.8, 0.1, 0.1]])
        >>> y = torch.tensor([2, 1, 0])
        >>> vagueness = ew.tune_vagueness(p.repeat(5, 1), y.repeat(5), tree, accuracy=0.9)
        >>> ew.decide(p, tree, allow_inner=True, vagueness=vagueness)   # the first is only right at node 1
        tensor([1, 3, 2])
    """
    as_tree(tree, "tree", "whose inner nodes are answers")
    given = {name: value for name, value in (("accuracy", accuracy), ("coverage", coverage)) if value is not None}
    if len(given) != 1:
        raise ValueError(f"accuracy, coverage: expected one of them, got {len(given)}")
    ((name, target),) = given.items()
    if not isinstance(target, int | float) or not 0 <= target <= 1:
        raise ValueError(f"{name}: expected a share from 0 to 1, got {target!r}")
    p = as_distributions(as_tensor(p), tree).detach()
    check_rows("p", p)
    labels = check_labels(labels, p.shape[:1], p.shape[1]).to(p.device)
    candidates: list[float] = [-2.0, *np.linspace(-1, 1, 129).tolist(), 2.0]
    wrong, classes = _answers(p, labels, tree, candidates)
    if name == "coverage":
        return candidates[int((classes >= target - 1e-12).int().argmax())]
    # The first candidate is the root, which is never wrong.
    return candidates[control_risk(wrong, 1 - target, confidence=confidence) or 0]


def _answers(p: Tensor, labels: Tensor, tree: Tree, candidates: list[float]) -> tuple[Tensor, Tensor]:
    """For each vagueness which answers are neither the label nor above it, and the share of those that are classes."""
    fixed = [fixed_risk(tree, vagueness, p.double()) for vagueness in candidates]
    is_class = torch.zeros(tree.num_nodes, dtype=torch.bool, device=p.device)
    is_class[tree.bins.to(p.device)] = True
    wrong = torch.zeros(len(p), len(candidates), dtype=torch.bool, device=p.device)
    classes = torch.zeros(len(candidates), dtype=torch.float64, device="cpu")
    for part in torch.arange(len(p)).split(max(1, _BLOCK // tree.num_nodes)):
        risk = node_risk(p[part].double(), tree).between
        truth = tree.nodes_of(labels[part])
        for place, cost in enumerate(fixed):
            answers = first_least(risk, cost, like=p)
            wrong[part, place] = tree.lowest_common_ancestor(answers, truth) != answers
            classes[place] += is_class[answers].sum()
    return wrong, classes / len(p)
