"""What the answers show, in ten lines."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from textwrap import dedent

from torch import Tensor

from earthwork_lab.demo.diamonds import GRADES, Graded, answer

# The lines that made the answers: the body of the function without its docstring and its return.
CODE = dedent("".join(inspect.getsource(answer).splitlines(keepends=True)[2:-1]))
FAR = 3


def tell(graded: Graded) -> Iterator[str]:
    """Yield the lines; every number is of this run."""
    truth, probable, answers = graded.truth, graded.p.argmax(-1), graded.answers
    train, chosen_on, calibration, test = graded.sizes.parts
    yield (
        f"Eight grades of clarity of real diamonds, from visible flaws to none: {' '.join(GRADES)}. A small network "
        f"learned {train:,} stones with cross entropy, was chosen among {graded.sizes.networks} on {chosen_on:,} "
        f"others, and graded {test:,} more:"
    )
    off = {"most probable grade": (probable - truth).abs(), "ew.decide": (answers - truth).abs()}
    yield f"{'':22}{'right':>12}{'grades off':>16}{f'{FAR} or more off':>18}"
    for name, distance in off.items():
        right, far = (distance == 0).double().mean() * 100, int((distance >= FAR).sum())
        yield f"{name:22}{f'{right:.1f} %':>12}{distance.double().mean():>16.3f}{far:>18}"
    before, after = off.values()
    accuracy, error = difference(100.0 * (after == 0), 100.0 * (before == 0))
    mean, mean_error = difference(after, before)
    yield f"{'difference':22}{f'{accuracy:+.1f} ± {error:.1f}':>12}{f'{mean:+.3f} ± {mean_error:.3f}':>16}".replace(
        "-", "−"
    )
    rarer = ", ".join(f"{GRADES[t]} called {GRADES[a]} {b} → {n}" for (t, a), b, n in rarer_mistakes(graded)[:3])
    nearer, farther = int((after < before).sum()), int((after > before).sum())
    yield f"decide was nearer to the truth for {nearer} stones, farther for {farther}; rarer mistakes: {rarer or '–'}."
    held = graded.intervals.gather(1, truth[:, None]).double().mean() * 100
    yield (
        f"Intervals that are to hold 90 % of the grades held {held:.1f} %, and are "
        f"{graded.intervals.sum(-1).double().mean():.1f} grades wide on average ({calibration:,} stones to calibrate)."
    )
    mean, error = difference((graded.mixed - truth).abs(), after)
    shown = "better" if mean < -error else "worse" if mean > error else "no difference shown"
    yield (
        f"Trained with EMD² and cross entropy instead: {mean:+.3f} ± {error:.3f} grades off, {shown}. In the study "
        "(docs/which-loss.md), no loss clearly beat tuned cross entropy with decide."
    ).replace("-0", "−0")


def difference(after: Tensor, before: Tensor) -> tuple[float, float]:
    """Return the mean difference of paired rows, and half of its 95 % interval."""
    change = after.double() - before.double()
    return change.mean().item(), 1.96 * change.std().item() / len(change) ** 0.5


def rarer_mistakes(graded: Graded) -> list[tuple[tuple[int, int], int, int]]:
    """Return far mistakes that became rarer: truth and answer, and how often they were made before and after."""
    counts = [
        Counter((t, a) for t, a in zip(graded.truth.tolist(), given.tolist(), strict=True) if abs(t - a) >= FAR)
        for given in (graded.p.argmax(-1), graded.answers)
    ]
    changes = [(pair, before, counts[1][pair]) for pair, before in counts[0].items()]
    return sorted((one for one in changes if one[2] < one[1]), key=lambda one: (one[2] - one[1], one[0]))
