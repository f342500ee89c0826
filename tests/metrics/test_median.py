"""Medians: against NumPy, over batches, with weights, and their intervals by simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import earthwork as ew
from earthwork.metrics.batch import Batch
from earthwork.metrics.intervals import jackknife
from earthwork.metrics.measures import MeanDistance, MedianDistance, WeightedKappa
from earthwork.metrics.report import measure_rows, values_of
from earthwork.spaces import Space


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 101])
def test_median_is_that_of_numpy(rows: int, rng: np.random.Generator) -> None:
    chain = ew.Chain(9, rng.random(8))
    answers, labels = torch.from_numpy(rng.integers(0, 9, (2, rows)))
    distances = chain.distance(answers, labels).numpy()
    assert_allclose(MedianDistance()(answers, labels, chain), np.median(distances))
    metric = ew.metrics.MedianDistance(chain)
    for part in torch.arange(rows).split(3):
        metric.update(answers[part], labels[part])
    assert_allclose(metric.compute(), np.median(distances))
    metric.reset()
    with pytest.warns(UserWarning, match="called before"):
        assert metric.compute().isnan()


@pytest.mark.parametrize("measure", [MedianDistance(), MeanDistance(), WeightedKappa()], ids=lambda x: x.label)
def test_weight_is_number_of_copies(measure, rng: np.random.Generator) -> None:
    chain, weights = ew.Chain(7), rng.integers(0, 4, 30)
    answers, labels = torch.from_numpy(rng.integers(0, 7, (2, 30)))
    batch = Batch(chain, labels, given=answers, decision="class", weights=torch.from_numpy(weights).double())
    times = torch.from_numpy(np.repeat(np.arange(30), weights))
    copies = Batch(chain, labels[times], given=answers[times], decision="class")
    assert_allclose(measure.of(batch), measure.of(copies), rtol=1e-12)
    assert_allclose(measure.of(replace(copies, weights=torch.full((len(times),), 0.3).double())), measure.of(copies))


def difference(chain: Space, rng: np.random.Generator, rows: int) -> bool:
    """Whether two models that are equally good, and often wrong together, are told apart."""
    labels = torch.from_numpy(rng.integers(200, 800, rows))
    common = rng.normal(0, 30, rows)
    models = [
        measure_rows(
            Batch(
                chain,
                labels,
                given=(labels + torch.from_numpy(common + rng.normal(0, 30, rows)).round().long()).clamp(0, 999),
                decision="class",
            ),
            [MedianDistance()],
        )
        for _ in range(2)
    ]
    (line,) = values_of(models, [MedianDistance()], chain)
    low, high, _ = jackknife(line.values[0] - line.values[1], *line.left_out)
    return bool(low > 0 or high < 0)


def test_equal_medians_are_rarely_told_apart() -> None:
    chain = ew.Chain(1000)
    for rows in (40, 400):
        rng = np.random.default_rng(rows)
        found = sum(difference(chain, rng, rows) for _ in range(400))
        assert 3 <= found <= 36, "about 5 % of 400, or less"


def test_different_medians_are_told_apart() -> None:
    chain, rng = ew.Chain(1000), np.random.default_rng(0)
    labels = torch.from_numpy(rng.integers(300, 700, 400))
    answers = [labels + torch.from_numpy(rng.normal(0, size, 400)).round().long() for size in (20, 30)]
    rows = [measure_rows(Batch(chain, labels, given=x, decision="class"), [MedianDistance()]) for x in answers]
    (line,) = values_of(rows, [MedianDistance()], chain)
    low, high, p = jackknife(line.values[0] - line.values[1], *line.left_out)
    assert high < 0
    assert p < 0.01
    low, high, _ = jackknife(line.values[0], line.left_out[0])
    assert low < 0.6745 * 20 < high
