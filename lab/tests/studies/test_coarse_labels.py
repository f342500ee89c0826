"""The guide to coarse labels shows what the committed results say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from earthwork_lab.statistics import half_width

ROOT = Path(__file__).parents[3]


def test_coarse_labels() -> None:
    def study(name: str) -> dict[str, list[float]]:
        path = ROOT / "docs" / "results" / f"study-{name}.json"
        parts = json.loads(path.read_text(encoding="utf-8"))["parts"]
        runs = [parts[f"ce, seed {seed}"]["chosen"] for seed in range(5)]
        return {
            "accuracy": [100 * run["top1"]["test"]["top1"] for run in runs],
            "distance": [run["distance"]["test"]["distance"] for run in runs],
        }

    def interval(values: list[float]) -> float:
        return half_width(float(np.std(values, ddof=1)) / len(values) ** 0.5, len(values) - 1)

    recipes = {
        "−log of the group's mass": study("wikivitals-coarse-mass"),
        "spread evenly over the group's classes": study("wikivitals-coarse-spread"),
        "dropped": study("wikivitals-coarse-drop"),
        "groups as further classes of the network": study("wikivitals-coarse-inner"),
        "(all labels fine)": study("wikivitals"),
    }
    page = " ".join((ROOT / "docs" / "guides" / "coarse-labels.md").read_text(encoding="utf-8").split())
    for name, found in recipes.items():
        accuracy, distance = found["accuracy"], found["distance"]
        row = f"| {name} | {np.mean(accuracy):.1f} ± {interval(accuracy):.1f} "
        assert row + f"| {np.mean(distance):.3f} ± {interval(distance):.3f} |" in page
    mass, dropped = recipes["−log of the group's mass"], recipes["dropped"]
    for seed in range(5):
        figures = [f"{found['accuracy'][seed]:.1f}" for found in (mass, dropped)]
        figures += [f"{found['distance'][seed]:.3f}" for found in (mass, dropped)]
        assert f"| {seed} | {' | '.join(figures)} |" in page
    gains = np.subtract(mass["accuracy"], dropped["accuracy"])
    assert (gains > 0).all()
    ends = gains.mean() + np.array([-1, 1]) * interval(gains)
    assert f"gains {gains.mean():.1f} points of accuracy over dropping the coarse labels" in page
    assert f"(95 % interval {ends[0]:.1f} to {ends[1]:.1f})" in page
    saved = np.subtract(dropped["distance"], mass["distance"])
    assert (saved > 0).sum() == 4
    saved = 100 * saved / np.mean(dropped["distance"])
    ends = saved.mean() + np.array([-1, 1]) * interval(saved)
    assert f"{saved.mean():.1f} % of the distance ({ends[0]:.1f} to {ends[1]:.1f})".replace("-", "−") in page
    three = [f"{np.mean(found['accuracy'][:3]):.1f}" for found in (mass, dropped)]
    three += [f"{np.mean(found['distance'][:3]):.3f}" for found in (mass, dropped)]
    assert "{} against {} in accuracy and {} against {} in distance".format(*three) in page
