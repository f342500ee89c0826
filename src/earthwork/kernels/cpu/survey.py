"""A look at all labels before any work is done."""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

from typing import Any

from earthwork.kernels.cpu.compiled import kernel
from earthwork.kernels.cpu.jobs import address_of, words
from earthwork.kernels.cpu.lanes import peek, poke


@kernel
def survey_labels(pointer: Any) -> None:
    """Count the labels, or add up their weights.

    The job is the address and the number of labels, the number of bins, the address of the classes' weights (or 0) and
    the label that does not count. In place of the last one comes how many labels are wrong, and after it the weight of
    those that count, a double.
    """
    job = address_of(pointer)
    labels, count, bins, weights, ignore = words(job, 0, 5)
    wrong, total = 0, 0.0
    for i in range(count):
        label: Any = peek(0, labels, i)
        if label == ignore:
            continue
        if label < 0 or label >= bins:
            wrong += 1
        else:
            total += 1.0 if weights == 0 else peek(0.0, weights, label)
    poke(0, job, 4, wrong)
    poke(0.0, job, 5, total)
