"""Measure the coverage and the size of conformal sets, and compare them with the flat sets of MAPIE.

    python scripts/measure_conformal.py coverage        # simulated, on random spaces: about 15 minutes on one core
    EARTHWORK_DATA=… python scripts/measure_conformal.py tasks   # real data, 50 splits; with MAPIE if it is installed
    EARTHWORK_DATA=… python scripts/measure_conformal.py splits  # the coverage only, over 4,000 splits
    python scripts/measure_conformal.py speed           # 100,000 rows of 1000 classes
    EARTHWORK_DATA=… python scripts/measure_conformal.py figure  # docs/figures/conformal.png

The tasks need the lab and scikit-learn; MAPIE 1.6 is optional: `pip install mapie`.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import earthwork as ew
from earthwork.decisions.conformal import exact_threshold
from earthwork.decisions.nested_sets import FAMILIES

Array = NDArray[Any]
KINDS = ("interval", "arc", "node", "subtrees", "ball")
SIZES = (20, 50, 100, 200, 500, 1000, 2000)
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


# ---- simulated rows ------------------------------------------------------------------------------------------------


def random_space(rng: np.random.Generator, kind: str) -> ew.Space:
    """Return a space of 5 to 40 classes with random costs on which a kind of sets is defined."""
    n = int(rng.integers(5, 41))
    if kind in ("interval", "arc"):
        return ew.Chain(n, rng.random(n - 1) + 0.1) if kind == "interval" else ew.Ring(n, rng.random(n) + 0.1)
    if kind == "ball":
        return ew.CostMatrix(rng.random((n, n)) * (1 - np.eye(n)))
    return ew.Tree([-1, *(int(rng.integers(0, node)) for node in range(1, 2 * n))], rng.random(2 * n) + 0.1)


def draw(rng: np.random.Generator, space: ew.Space, rows: int) -> tuple[Tensor, Tensor]:
    """Return probabilities of a model that confuses near classes and is overconfident, and labels."""
    labels = rng.integers(0, space.num_bins, rows)
    near = -6 * space.normalized().distances().numpy()[:, labels].T
    return torch.from_numpy(2 * (near + rng.normal(size=near.shape))).softmax(-1), torch.from_numpy(labels)


def holds(sets: Tensor, labels: Tensor) -> float:
    """Return the share of sets that hold the label."""
    return float(sets.gather(-1, labels.unsqueeze(-1)).double().mean())


def uncorrected(p: Tensor, y: Tensor, space: ew.Space, kind: Any, alpha: float) -> ew.ConformalPredictor:
    """Return a predictor with the plain quantile of the calibration scores, without the + 1."""
    # The quantile of n rows is that of n + 1 at a higher alpha.
    n = len(y)
    return ew.ConformalPredictor(space, 1 - math.ceil(n * (1 - alpha)) / (n + 1), kind).fit(p, y)


def coverage(sizes: Sequence[int], repeats: int, alpha: float, seed: int, test_rows: int = 400) -> list[list[str]]:
    """Return the mean coverage of each kind of sets by the number of calibration rows, with its standard error."""
    table = [["calibration rows", *KINDS, "randomised", "interval without the + 1", "exact"]]
    for n in sizes:
        found: dict[str, list[float]] = {name: [] for name in (*KINDS, "randomised", "uncorrected")}
        for repeat in range(repeats):
            rng = np.random.default_rng([seed, n, repeat])
            for kind in KINDS:
                space = random_space(rng, kind)
                p, y = draw(rng, space, n + test_rows)
                fit = ew.ConformalPredictor(space, alpha, kind).fit(p[:n], y[:n])  # type: ignore[arg-type]
                found[kind].append(holds(fit.predict(p[n:]), y[n:]))
                if kind == "interval":
                    plain = uncorrected(p[:n], y[:n], space, kind, alpha)
                    found["uncorrected"].append(holds(plain.predict(p[n:]), y[n:]))
                    draws = ew.ConformalPredictor(space, alpha, randomized=True).fit(p[:n], y[:n])
                    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
                    found["randomised"].append(holds(draws.predict(p[n:], generator=generator), y[n:]))
        cells = [f"{np.mean(x):.3f} ± {np.std(x) / math.sqrt(len(x)):.3f}" for x in found.values()]
        exact = 1 - math.floor(round(alpha * (n + 1), 9)) / (n + 1)
        table.append([str(n), *cells, f"{exact:.3f}"])
        print(" ".join(table[-1]), flush=True)
    return table


# ---- real tasks ----------------------------------------------------------------------------------------------------

Rows = tuple[ew.Space, Array, Array]


def text_model(texts: Sequence[str], labels: Sequence[int], new: Sequence[str]) -> Array:
    """Return the probabilities of a logistic regression on words."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    words = TfidfVectorizer(sublinear_tf=True, min_df=2, max_features=5000)
    model = LogisticRegression(C=10, tol=1e-3, max_iter=200).fit(words.fit_transform(texts), labels)
    p: Array = model.predict_proba(words.transform(new))
    return p


def reviews(data: Path, name: str) -> list[list[str]]:
    """Return the stars and the texts of film reviews."""
    with lzma.open(data / "sst5" / f"sst_{name}.txt.xz", "rt", encoding="utf-8") as file:
        return [line.rstrip("\n").removeprefix("__label__").split("\t", 1) for line in file if line.strip()]


def sst5(data: Path) -> Rows:
    """Return the stars of film reviews."""
    train, new = reviews(data, "train"), reviews(data, "dev") + reviews(data, "test")
    labels = np.array([int(label) - 1 for label, _ in new])
    p = text_model([text for _, text in train], [int(label) - 1 for label, _ in train], [text for _, text in new])
    return ew.Chain(5, names=[f"{k} star{'s' * (k > 1)}" for k in range(1, 6)]), p, labels


def clinc(data: Path) -> Rows:
    """Return the intents of requests in their domains, from ten training requests for each intent."""
    domains = json.loads((data / "clinc150" / "domains.json").read_text(encoding="utf-8"))
    with lzma.open(data / "clinc150" / "data_full.json.xz", "rt", encoding="utf-8") as file:
        parts = json.load(file)
    domain = {intent: name for name, intents in domains.items() for intent in intents}
    intents = sorted(domain)
    index = {intent: place for place, intent in enumerate(intents)}
    order = np.random.default_rng(0).permutation(len(parts["train"]))[:1500]
    train, new = [parts["train"][place] for place in order], parts["val"] + parts["test"]
    p = text_model([text for text, _ in train], [index[intent] for _, intent in train], [text for text, _ in new])
    tree = ew.trees.from_paths([(domain[intent], intent) for intent in intents])
    return tree, p, np.array([index[intent] for _, intent in new])


def wikivitals(data: Path) -> Rows:
    """Return the categories of articles."""
    from earthwork_lab.study.texts import article_texts

    texts, y, tree = article_texts(data / "wikivitals")
    order = np.random.default_rng(0).permutation(len(y))
    train, new = np.split(order, 2) if len(order) % 2 == 0 else np.split(order[:-1], 2)
    return tree, text_model([texts[k] for k in train], y[train], [texts[k] for k in new]), y[new]


def table_task(name: str) -> Callable[[Path], Rows]:
    """Return a task of the study, with a linear model of its features."""

    def load(data: Path) -> Rows:
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.linear_model import LogisticRegression

        from earthwork_lab.study.tables import CLARITIES, dataset, one_hot, vega

        if name == "clarity":
            frame, count, train = dataset("diamonds"), 13_000, 2000
            x = frame[["carat", "depth", "table", "price", "x", "y", "z"]].to_numpy(float)
            x = np.hstack([x, np.log(x[:, [0, 3]]), one_hot(frame["color"]), one_hot(frame["cut"])])
            space: ew.Space = ew.Chain(8, names=CLARITIES)
            y = np.array([CLARITIES.index(grade) for grade in frame["clarity"]])
            make = HistGradientBoostingClassifier(max_iter=60)
        else:
            frame = vega("seattle_weather")
            count, train = len(frame), round(0.6 * len(frame))
            x = frame[["precipitation", "temp_max", "temp_min", "wind"]].to_numpy(float)
            x = np.hstack([x, np.log1p(x[:, :1]), one_hot(frame["weather"])])
            space, y = ew.Ring(12, names=MONTHS), frame["date"].dt.month.to_numpy() - 1
            make = LogisticRegression(max_iter=1000)
        order = np.random.default_rng([0, 16]).permutation(len(x))[:count]
        x, y = x[order].astype(np.float32), y[order]
        x = (x - x[:train].mean(0)) / np.where(x[:train].std(0) > 0, x[:train].std(0), 1)
        return space, make.fit(x[:train], y[:train]).predict_proba(x[train:]), y[train:]

    return load


TASKS: dict[str, tuple[Callable[[Path], Rows], tuple[str, ...]]] = {
    "film reviews, 5 stars": (sst5, ("interval",)),
    "diamonds, 8 clarities": (table_task("clarity"), ("interval",)),
    "days, 12 months": (table_task("month"), ("arc",)),
    "requests, 150 intents": (clinc, ("node", "subtrees")),
    "articles, 104 categories": (wikivitals, ("node", "subtrees")),
}


def mapie_sets(p: Array, y: Array, new: Array, alpha: float, seed: int) -> dict[str, Array]:
    """Return the flat sets of MAPIE for new rows."""
    from mapie.classification import SplitConformalClassifier

    class Known:
        """A fitted classifier whose features are the probabilities."""

        classes_ = np.arange(p.shape[1])
        _estimator_type = "classifier"

        def fit(self, features: Array, labels: Array) -> Known:
            return self

        def predict_proba(self, features: Array) -> Array:
            return features

        def predict(self, features: Array) -> Array:
            found: Array = features.argmax(-1)
            return found

        def __sklearn_is_fitted__(self) -> bool:
            return True

    sets = {}
    for name in ("lac", "aps"):
        model = SplitConformalClassifier(Known(), 1 - alpha, name, prefit=True, random_state=seed).conformalize(p, y)
        # Randomised, APS has the coverage that is asked for; as it is by default it has more.
        options = {"conformity_score_params": {"include_last_label": "randomized"}} if name == "aps" else {}
        sets[f"MAPIE, {name.upper()}"] = model.predict_set(new, **options)[1][:, :, 0]
    return sets


def runs(sets: Array, space: ew.Space) -> float:
    """Return the mean number of pieces of a set: intervals, arcs, or nodes of a tree."""
    if space.hierarchical:
        found = ew.ConformalPredictor(space).nodes(sets).sum(-1)
    else:
        before = np.roll(sets, 1, -1)
        if space.ordered:
            before[:, 0] = False
        found = np.where(sets.all(-1), 1, (sets & ~before).sum(-1))
    return float(found.mean())


def tasks(names: Iterable[str], splits: int, alpha: float, data: Path) -> list[list[str]]:
    """Return coverage, size, width and pieces of the sets on real tasks, over random halves for calibration."""
    table = [["task", "sets", "coverage", "classes", "width", "pieces"]]
    for task in names:
        load, kinds = TASKS[task]
        space, p, y = load(data)
        p = p / p.sum(-1, keepdims=True)
        found: dict[str, list[list[float]]] = {}
        for seed in range(splits):
            order = np.random.default_rng(seed).permutation(len(y))
            half, rest = order[: len(y) // 2], order[len(y) // 2 :]
            sets = {}
            for kind in kinds:
                fitted = ew.ConformalPredictor(space, alpha, kind).fit(p[half], y[half])  # type: ignore[arg-type]
                sets[kind] = fitted.predict(p[rest])
            if find_spec("mapie") is not None:
                sets |= mapie_sets(p[half], y[half], p[rest], alpha, seed)
            for name, each in sets.items():
                report = ew.metrics.set_report(each, y[rest], space)
                found.setdefault(name, []).append([report.coverage, report.size, report.width, runs(each, space)])
        for name, rows in found.items():
            mean = np.mean(rows, 0)
            cells = [f"{mean[0]:.3f}", *(f"{value:.2f}" for value in mean[1:])]
            table.append([task, name, *cells])
            print(" | ".join(table[-1]), flush=True)
    return table


def splits(names: Iterable[str], repeats: int, alpha: float, data: Path) -> list[list[str]]:
    """Return the coverage on real tasks over many random halves, from the scores of the labels alone."""
    table, rng = [["task", "sets", "coverage"]], np.random.default_rng(0)
    for task in names:
        load, kinds = TASKS[task]
        space, p, y = load(data)
        p, n = torch.from_numpy(p / p.sum(-1, keepdims=True)), len(y) // 2
        for kind in kinds:
            scores = FAMILIES[kind][0](p, space).gather(-1, torch.from_numpy(y).unsqueeze(-1)).squeeze(-1)
            found = []
            for _ in range(repeats):
                half, rest = scores[torch.from_numpy(rng.permutation(len(y)))].tensor_split([n])
                found.append(float((rest <= exact_threshold(half, alpha).limit).double().mean()))
            table.append([task, kind, f"{np.mean(found):.4f} ± {np.std(found) / math.sqrt(repeats):.4f}"])
            print(" | ".join(table[-1]), flush=True)
    return table


# ---- speed ---------------------------------------------------------------------------------------------------------


def speed(rows: int, classes: int) -> list[list[str]]:
    """Return the seconds that the prediction of sets takes."""
    p = (2 * torch.randn(rows, classes, generator=torch.manual_seed(0))).softmax(-1)
    y = torch.multinomial(p[:2000], 1, generator=torch.manual_seed(1))[:, 0]
    tree = ew.trees.imagenet1k() if classes == 1000 else ew.Tree([-1] + [0] * classes)
    costs = torch.rand(classes, classes, generator=torch.manual_seed(2), dtype=torch.float64).fill_diagonal_(0)
    spaces = (ew.Chain(classes), ew.Ring(classes), tree, tree, ew.CostMatrix(costs))
    table = [["sets", "mean size", "seconds", "CPU seconds"]]
    for kind, space in zip(KINDS, spaces, strict=True):
        predictor = ew.ConformalPredictor(space, 0.1, kind).fit(p[:2000], y)  # type: ignore[arg-type]
        predictor.predict(p[:100])
        start, used = time.perf_counter(), time.process_time()
        sets = predictor.predict(p)
        took = f"{time.perf_counter() - start:.2f}", f"{time.process_time() - used:.2f}"
        table.append([kind, f"{float(sets.sum(-1).double().mean()):.0f}", *took])
        print(" ".join(table[-1]), flush=True)
    return table


# ---- the figure of the guide ---------------------------------------------------------------------------------------

GOLD, GREY, INK = "#e0922f", "#d9d3cc", "#3b332b"


def figure(data: Path, path: Path, alpha: float) -> None:
    """Draw intervals on a row of stars, and a node on a tree."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    plot = pyplot.figure(figsize=(12, 4.6), layout="constrained")
    left, right = plot.subfigures(1, 2, width_ratios=[1, 1.15])
    draw_stars(left, data, alpha)
    draw_digits(right.subplots(), alpha)
    path.parent.mkdir(parents=True, exist_ok=True)
    plot.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(plot)


def draw_stars(part: Any, data: Path, alpha: float) -> None:
    """Draw the intervals of three short reviews: of one, two and four classes."""
    space, p, y = sst5(data)
    texts = [text for _, text in reviews(data, "dev") + reviews(data, "test")]
    half = len(reviews(data, "dev"))
    predictor = ew.ConformalPredictor(space, alpha).fit(p[:half], y[:half])
    sets = predictor.predict(p)
    panels = part.subplots(3, 1, sharex=True)
    part.suptitle(f"An interval of stars holds the truth with probability {1 - alpha:.0%}", color=INK)
    for axes, size in zip(panels, (2, 3, 4), strict=True):
        row = next(
            k for k in range(half, len(y)) if sets[k].sum() == size and sets[k, y[k]] and 25 < len(texts[k]) < 60
        )
        colours = [GOLD if inside else GREY for inside in sets[row]]
        axes.bar(range(1, 6), p[row], color=colours, width=0.8)
        axes.plot(y[row] + 1, 0.03, marker="*", color=INK, ms=11)
        text = texts[row].replace(" ,", ",").replace(" .", ".").replace(" '", "'").replace(" n't", "n't")
        axes.set_title(f"“{text}”: {predictor.describe(sets[row : row + 1])[0]}", fontsize=9, loc="left", color=INK)
        axes.set(ylim=(0, 0.75), yticks=[])
        axes.spines[["top", "right", "left"]].set_visible(False)
    panels[-1].set_xticks(
        range(1, 6), [name.replace(" stars", " ★").replace(" star", " ★") for name in space.names or ()]
    )


def draw_digits(axes: Any, alpha: float) -> None:
    """Draw the node of a noisy digit in a tree of shapes."""
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    from earthwork.plot import plot_tree

    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    noisy = images / 16 + 0.35 * rng.normal(size=images.shape)
    shapes = {"round": {"closed": ["0", "6", "8", "9"], "open": ["2", "3", "5"]}, "straight": ["1", "4", "7"]}
    tree = ew.trees.restrict(ew.trees.from_nested(shapes), [str(digit) for digit in range(10)])
    model = LogisticRegression(max_iter=300, C=0.05).fit(noisy[:900], labels[:900])
    p = model.predict_proba(noisy[900:])
    predictor = ew.ConformalPredictor(tree, alpha, "node").fit(p[:450], labels[900:1350])
    sets = predictor.predict(p)
    answers = predictor.describe(sets)
    row = next(
        k for k in range(450, len(p)) if answers[k] == "closed" and sets[k, labels[900 + k]] and p[k].max() < 0.8
    )
    node = int(predictor.nodes(sets[row]).argmax())
    plot_tree(tree, torch.from_numpy(p[row].round(2)), ax=axes)
    below = [int(child) for child in range(tree.num_nodes) if int(tree.lowest_common_ancestor(child, node)) == node]
    children = [child for child in range(tree.num_nodes) if int(tree.parents[child]) >= 0]
    for line, child in zip(axes.lines, children, strict=False):
        if child in below and child != node:
            line.set(color=GOLD, linewidth=4)
    inset = axes.inset_axes((0.0, 0.74, 0.16, 0.26))
    inset.imshow(noisy[900 + row].reshape(8, 8), cmap="gray_r")
    inset.set(xticks=[], yticks=[], xlabel=f"a {labels[900 + row]}")
    axes.set_title(f"A node holds the truth with probability {1 - alpha:.0%}: “{answers[row]}”", color=INK)


def markdown(table: list[list[str]]) -> str:
    """Return a table as Markdown."""
    head, *rows = table
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)) + "\n"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["coverage", "tasks", "splits", "speed", "figure"])
    parser.add_argument("--alpha", type=float, default=0.1)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--repeats", type=int, help="by default 600 simulations, 50 or 4000 splits of a task")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    data = Path(os.environ.get("EARTHWORK_DATA", "data"))
    if options.what == "figure":
        figure(data, Path(__file__).parents[1] / "docs" / "figures" / "conformal.png", options.alpha)
        return
    if options.what == "coverage":
        found = coverage(options.sizes, options.repeats or 600, options.alpha, options.seed)
    elif options.what == "tasks":
        found = tasks(options.tasks, options.repeats or 50, options.alpha, data)
    elif options.what == "splits":
        found = splits(options.tasks, options.repeats or 4000, options.alpha, data)
    else:
        found = speed(100_000, 1000)
    print("\n" + markdown(found))


if __name__ == "__main__":
    main()
