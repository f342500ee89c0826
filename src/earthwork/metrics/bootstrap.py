"""How far a value may be off by the luck of the draw: resampling the rows' columns, never the predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]

# Counts held at a time: 64 MiB.
_COUNTS = 2**24


def resampled_sums(
    columns: Sequence[Floats], replicates: int, seed: int, progress: Callable[[float], None] | None = None
) -> list[Floats]:
    """The sums of the columns over rows drawn with replacement, the same rows for all models.

    Args:
        columns: For each model ``[rows, width]``.
        replicates: How many draws of as many rows.
        seed: Of the random numbers.
        progress: Told the share that is done.

    Returns:
        For each model ``[replicates, width]``.
    """
    rng = np.random.default_rng(seed)
    rows = len(columns[0])
    group = max(1, min(replicates, _COUNTS // max(rows, 1)))
    sums: list[Floats] = [np.empty((replicates, model.shape[1])) for model in columns]
    for start in range(0, replicates, group):
        end = min(start + group, replicates)
        drawn = np.empty((end - start, rows), dtype=np.float32)
        for count in drawn:
            count[:] = np.bincount(rng.integers(0, rows, rows, dtype=np.int32), minlength=rows)
        for model, total in zip(columns, sums, strict=True):
            total[start:end] = drawn @ model.astype(np.float32, copy=False)
        if progress is not None:
            progress(end / replicates)
    return sums


def interval(values: Floats, confidence: float = 0.95) -> tuple[float, float]:
    """The percentile interval of a statistic's replicates; NaN if there is none."""
    known = values[np.isfinite(values)]
    if len(known) == 0:
        return float("nan"), float("nan")
    low, high = np.quantile(known, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def p_value(differences: Floats) -> float:
    """Two-sided: how often the sign of a difference is chance, never below one in the number of replicates."""
    known = differences[np.isfinite(differences)]
    if len(known) == 0:
        return float("nan")
    smaller = min((known <= 0).sum(), (known >= 0).sum())
    return float(min(1.0, 2 * (smaller + 1) / (len(known) + 1)))
