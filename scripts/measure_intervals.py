"""Measure how often `earthwork.evaluate` finds a difference between two models where there is none.

Two models see the same rows: each knows the label and adds noise of its own to a noise that both share. So their
metrics differ by chance only, and a 95 % interval should miss 0 in 5 % of the simulations. With `--other` the second
model is overconfident, and the interval should contain the true difference, which is measured on two million rows.

    python scripts/measure_intervals.py                    # about half an hour on one core
    python scripts/measure_intervals.py --other --rows 60 --simulations 500
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import earthwork as ew

SPACES: dict[str, ew.Space] = {
    "chain of 5": ew.Chain(5),
    "tree of 8": ew.Tree([-1, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]),
}
TRUTH_ROWS, PIECE = 2_000_000, 100_000
OVERCONFIDENCE = 1.8


def draw(
    rng: np.random.Generator, space: ew.Space, rows: int, other: bool
) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.int64]]:
    """The logits of two models, and the labels, of which the first class has two fifths."""
    classes = space.num_bins
    labels = rng.choice(classes, rows, p=[0.4, *[0.6 / (classes - 1)] * (classes - 1)])
    distances = space.normalized().distances().numpy()
    shared = -4 * distances[labels] + 1.2 * rng.normal(size=(rows, classes))
    first, second = (shared + rng.normal(size=(rows, classes)) for _ in range(2))
    return {"first": first, "second": second * (OVERCONFIDENCE if other else 1)}, labels


def true_differences(space: ew.Space) -> dict[str, float]:
    """The differences between the two models with `--other`, by metric."""
    rng = np.random.default_rng(0)
    pieces = [draw(rng, space, PIECE, True) for _ in range(TRUTH_ROWS // PIECE)]
    models = {name: np.concatenate([logits[name] for logits, _ in pieces]) for name in ("first", "second")}
    labels = np.concatenate([labels for _, labels in pieces])
    lines = ew.evaluate(models, labels, space, normalize="softmax").report.lines
    return {line.label: line.estimates[1].value - line.estimates[0].value for line in lines}


def count_misses(
    space: ew.Space, rows: int, simulations: int, seed: int, truth: dict[str, float] | None = None
) -> dict[str, int]:
    """How many intervals of the difference miss the truth, by metric.

    Args:
        space: How the classes are arranged.
        rows: The number of rows in each simulation.
        simulations: The number of simulations.
        seed: The seed.
        truth: The differences of two unequal models; by default the models are equal, and all differences are 0.
    """
    rng = np.random.default_rng(seed)
    missed: Counter[str] = Counter()
    for _ in range(simulations):
        logits, labels = draw(rng, space, rows, truth is not None)
        result = ew.evaluate(logits, labels, space, normalize="softmax")
        missed.update(dict.fromkeys((line.label for line in result.report.lines), 0))
        for row in result.differences:
            if (row.p < 0.05) != (row.low > 0 or row.high < 0):
                raise AssertionError(f"the p-value and the interval disagree: {row}")
            value = 0.0 if truth is None else truth[row.label]
            missed[row.label] += row.low > value or row.high < value
    return {label: count for label, count in missed.items() if not label.startswith("accuracy at depth")}


def table(sizes: Sequence[int], simulations: int, seed: int, other: bool) -> str:
    """The least and the largest share of misses over the metrics, in per cent, by space and number of rows."""
    lines = [f"| | {' | '.join(f'{rows} rows' for rows in sizes)} |", "|---|" + "---:|" * len(sizes)]
    for name, space in SPACES.items():
        truth = true_differences(space) if other else None
        found = [count_misses(space, rows, simulations, seed, truth) for rows in sizes]
        shares = [[100 * count / simulations for count in missed.values()] for missed in found]
        cells = [f"{min(column):.1f} to {max(column):.1f}" for column in shares]
        lines.append(f"| {name}, {len(found[0])} metrics | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[20, 60, 200, 1000])
    parser.add_argument("--simulations", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--other", action="store_true", help="the second model is overconfident")
    arguments = parser.parse_args()
    print(table(arguments.rows, arguments.simulations, arguments.seed, arguments.other))
