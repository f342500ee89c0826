"""What every loss with the contract of cross entropy must do, as checks of a function that makes it.

`tests/losses/test_contract.py` runs all of them on every loss of the catalogue, `tests/test_extending.py` on those that
CONTRIBUTING shows, and on wrong ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from earthwork.kernels.cpu import without_kernels
from earthwork.losses.contract import StructuredLoss
from tests.catalogue import CLASSES, weights

Make = Callable[..., StructuredLoss]

# Of one tile of the kernels, and of several.
SIZES = (4, 100)


def batch(rows: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, labels, and distributions."""
    generator = torch.Generator().manual_seed(rows)
    logits, other = (2 * torch.randn(rows, CLASSES, dtype=dtype, generator=generator) for _ in range(2))
    return logits, torch.randint(CLASSES, (rows,), generator=generator), other.softmax(-1)


def batches() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Small and large batches, with and without kernels."""
    for rows in SIZES:
        for context in (nullcontext, without_kernels):
            with context():
                yield batch(rows)


def targets_of(loss: StructuredLoss, labels: Tensor, like: Tensor) -> Tensor:
    """The distributions that labels stand for: one-hot ones, unless the loss is one of soft labels."""
    return loss.label_targets(labels, like)


def labels_are_distributions(make: Make) -> None:
    """A label is the distribution that it stands for, weighted and normalised like one."""
    for logits, labels, _ in batches():
        for options in ({}, {"weight": weights().double()}):
            loss = make(reduction="none", **options)
            weight = 1 if loss.weight is None else loss.weight[labels]
            plain = make(reduction="none")(logits, targets_of(loss, labels, logits))
            torch.testing.assert_close(loss(logits, labels), plain * weight, rtol=1e-6, atol=1e-8)
        for normalize in ("l1", None):
            p, loss = logits.softmax(-1), make(reduction="none", normalize=normalize)
            torch.testing.assert_close(loss(p, labels), make(reduction="none")(logits, labels), rtol=1e-6, atol=1e-8)
            target = targets_of(loss, labels, logits)
            torch.testing.assert_close(loss(p, target), loss(p, labels), rtol=1e-6, atol=1e-8)


def targets_are_smoothed(make: Make) -> None:
    """A share of every target is spread over all classes, whatever kind of target it is."""
    for logits, labels, q in batches():
        plain, smooth = make(reduction="none"), make(reduction="none", label_smoothing=0.3)
        for target, distribution in ((labels, targets_of(plain, labels, logits)), (q, q)):
            spread = 0.7 * distribution + 0.3 / CLASSES
            torch.testing.assert_close(smooth(logits, target), plain(logits, spread), rtol=1e-6, atol=1e-8)
        assert not torch.allclose(smooth(logits, labels), plain(logits, labels))


def masses_are_checked(make: Make) -> None:
    """A target that is not a distribution is an error that names the row, smoothed or not."""
    for logits, _, q in batches():
        for smoothing in (0.0, 0.3):
            loss = make(label_smoothing=smoothing)
            for change, message in (
                (lambda row: row.mul_(35), r"rows of equal mass, got 1 in input and 35 in target of row 2"),
                (lambda row: row.neg_(), r"target: expected finite masses ≥ 0, got -.* of row 2"),
                (lambda row: row.fill_(torch.nan), r"target: expected finite masses ≥ 0, got nan in bin 0 of row 2"),
            ):
                wrong = q.clone()
                change(wrong[2])
                with pytest.raises(ValueError, match=message):
                    loss(logits, wrong)
        for target in (q, torch.zeros(len(q), dtype=torch.int64)):
            with pytest.raises(ValueError, match=r"input and (the )?target: expected rows of equal mass, got 2 in"):
                make(normalize=None)(2 * q, target)


def labels_are_checked(make: Make) -> None:
    """A label that is no class is an error that names it, or a loss of NaN where values cannot be read."""
    for logits, labels, _ in batches():
        for option in ({}, {"label_smoothing": 0.3}, {"weight": weights().double()}, {"normalize": None}):
            loss, rows = make(reduction="none", **option), logits
            if "normalize" in option:
                rows = logits.softmax(-1)
            for label in (-1, CLASSES, 10**6):
                wrong = labels.clone()
                wrong[1] = label
                with pytest.raises(ValueError, match=rf"target: expected class indices .*got {label} at position 1"):
                    loss(rows, wrong)
                # Inside of a transform.
                losses = torch.vmap(loss)(rows[:4].view(2, 2, CLASSES), wrong[:4].view(2, 2)).flatten()
                assert losses.isnan().tolist() == [False, True, False, False]
                torch.testing.assert_close(losses[2:], loss(rows, labels)[2:4], rtol=1e-6, atol=1e-8)


def rows_are_independent(make: Make) -> None:
    """The loss of a row does not depend on the others, and the mean is that of the rows."""
    for logits, labels, q in batches():
        for target in (labels, q):
            each, mean = make(reduction="none")(logits, target), make()(logits, target)
            assert each.shape == labels.shape
            torch.testing.assert_close(mean, each.mean(), rtol=1e-6, atol=1e-8)
            alone = torch.stack([make()(logits[row : row + 1], target[row : row + 1]) for row in range(4)])
            torch.testing.assert_close(alone, each[:4], rtol=1e-6, atol=1e-8)


def means_are_weighted(make: Make) -> None:
    """The mean over labels divides by their weights, that over distributions by the number of rows; sums by nothing."""
    weight = weights().double()
    for logits, labels, q in batches():
        for target, total in ((labels, weight[labels].sum()), (q, torch.tensor(float(len(q))))):
            each, mean, added = (make(reduction=how, weight=weight)(logits, target) for how in ("none", "mean", "sum"))
            torch.testing.assert_close(mean, each.sum() / total, rtol=1e-6, atol=1e-8)
            torch.testing.assert_close(added, each.sum(), rtol=1e-6, atol=1e-8)


def gradients_are_derivatives(make: Make) -> None:
    """The gradient is that of finite differences along a direction, for labels and distributions."""
    if getattr(make(), "value", "") == "cost":
        pytest.skip("the gradient of Sinkhorn's distance is that of its minimum")
    for logits, labels, q in batches():
        step = 1e-6 * torch.randn(logits.shape, dtype=logits.dtype, generator=torch.Generator().manual_seed(0))
        for target in (labels, q):
            loss, x = make(reduction="sum"), logits.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(loss(x, target), x)
            difference = (loss(logits + step, target) - loss(logits - step, target)) / 2
            torch.testing.assert_close((gradient * step).sum(), difference, rtol=1e-4, atol=1e-9)


def sure_predictions_are_finite(make: Make) -> None:
    """Saturated logits give finite losses and gradients, in single precision too."""
    for rows in SIZES:
        logits, labels, q = batch(rows, torch.float32)
        for scale in (50.0, 1e4):
            for target in (labels, q):
                x = (scale * logits.sign()).requires_grad_()
                loss = make()(x, target)
                assert loss.isfinite()
                assert torch.autograd.grad(loss, x)[0].isfinite().all()


CHECKS = (
    labels_are_distributions,
    targets_are_smoothed,
    masses_are_checked,
    labels_are_checked,
    rows_are_independent,
    means_are_weighted,
    gradients_are_derivatives,
    sure_predictions_are_finite,
)
