from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from earthwork_lab.statistics import bands, calibration_error, interval_text, mean_interval, paired_difference


def test_against_scipy(rng: np.random.Generator) -> None:
    values = rng.normal(3, 2, 7)
    found = mean_interval(values.tolist())
    low, high = stats.t.interval(0.95, 6, loc=values.mean(), scale=stats.sem(values))
    assert (found["mean"], found["low"], found["high"]) == pytest.approx((values.mean(), low, high))


def test_one_value_has_no_interval() -> None:
    assert mean_interval([2.0]) == {"mean": 2.0, "low": None, "high": None, "count": 1, "failed": 0}


@pytest.mark.parametrize("bad", [None, math.nan, math.inf])
def test_failed_run_is_not_left_out_of_average(bad: float | None) -> None:
    assert mean_interval([1.0, bad]) == {"mean": None, "low": None, "high": None, "count": 2, "failed": 1}


def test_differences_are_taken_pair_by_pair() -> None:
    found = paired_difference([1.0, 11.0, 21.0], [0.0, 10.0, 20.0])
    assert (found["mean"], found["low"], found["high"]) == pytest.approx((1, 1, 1))
    assert paired_difference([1.0, None], [0.0, 0.0])["failed"] == 1


def test_bands_are_intervals_at_each_point() -> None:
    found = bands([[1.0, None], [3.0, 2.0]])
    assert found["mean"] == [2.0, None]
    assert found["low"][0] == pytest.approx(mean_interval([1.0, 3.0])["low"])


def test_calibration_error_against_brute_force(rng: np.random.Generator) -> None:
    p, labels = rng.dirichlet(np.ones(4), 500), rng.integers(0, 4, 500)
    confidence, right = p.max(1), p.argmax(1) == labels
    total = 0.0
    for low in np.arange(15) / 15:
        inside = (confidence >= low) & (confidence < low + 1 / 15)
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    assert calibration_error(torch.from_numpy(p), torch.from_numpy(labels)) == pytest.approx(total)


def test_texts_of_intervals() -> None:
    assert interval_text(mean_interval([0.5]), 100, 1) == "50.0"
    assert interval_text(mean_interval([0.5, 0.5]), sign="+") == "+0.50 ± 0.00"
    assert interval_text(mean_interval([0.5, None])) == "–"
