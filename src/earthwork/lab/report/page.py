"""One self-contained HTML page from a folder of results."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import earthwork
from earthwork.evaluation import evaluate
from earthwork.files import to_json, write_atomically
from earthwork.lab.report.sections import (
    banners,
    claims_table,
    experiment_section,
    navigation,
    playground,
    template,
    tree_section,
)
from earthwork.lab.reproduce import EXPERIMENTS, Results, ResultsError
from earthwork.lab.reproduce.claims import judge_claims
from earthwork.lab.reproduce.ellyvan import Settings
from earthwork.lab.reproduce.figures import figures
from earthwork.spaces import Tree

_SCRIPTS = ("chart.js", "playground.js", "tree.js", "main.js")


def read_results(folder: Path) -> dict[str, Results]:
    """The results in a folder, in the order of the paper.

    Raises:
        ResultsError: If there are none, or one cannot be used.
    """
    found = {name: folder / f"{name}.json" for name in EXPERIMENTS}
    present = {name: Results.load(path) for name, path in found.items() if path.is_file()}
    if not present:
        raise ResultsError(
            f"{folder}: looked for {', '.join(f'{name}.json' for name in found)}, and found none of them"
        )
    return present


def write_report(
    results: dict[str, Results], out: Path, *, tree: str = "imagenet1k_paper", predictions: Path | None = None
) -> Path:
    """Write ``index.html`` into a folder.

    Args:
        results: What to show, by experiment.
        out: The folder; made if it is not there.
        tree: The tree to draw, a shipped tree's name or a file.
        predictions: A run's predictions on that tree's classes, for its costliest confusions.

    Returns:
        The page.
    """
    from earthwork.storage import load_tree

    space = load_tree(tree)
    confusions = None if predictions is None else costliest_confusions(predictions, space)
    try:
        sections = [claims_table(judge_claims(results)), playground(), *map(experiment_section, results.values())]
        charts = [asdict(chart) for entry in results.values() for chart in figures(entry)]
    except KeyError as error:
        raise ResultsError(
            f"results: a summary has no {error}, so another version wrote it; run the same `earthwork reproduce` again "
            "into its folder, which computes the summary from the finished parts"
        ) from error
    content = [navigation(list(results)), banners(results), *sections, tree_section(tree, confusions is not None)]
    data = {
        "charts": charts,
        "spaces": {"tree": _figure_1(), "chain": _chain(8)},
        "tree": {**_tree_data(space), "confusions": confusions},
    }
    page = template("page.html")
    for mark, text in {
        "/*STYLE*/": template("style.css"),
        "/*SCRIPT*/": "\n".join(map(template, _SCRIPTS)),
        "<!--CONTENT-->": "\n".join(content),
        "<!--FOOTER-->": f"Made by earthwork {earthwork.__version__} from its results files.",
        "<!--DATA-->": _json_for_script(data),
    }.items():
        page = page.replace(mark, text)
    path = out / "index.html"
    write_atomically(path, page)
    return path


def _json_for_script(data: Any) -> str:
    # A name with "</script>" in it must not end the element.
    return to_json(data).replace("<", "\\u003c")


def _tree_data(tree: Tree) -> dict[str, Any]:
    costs = tree.costs.tolist()
    unit = all(cost == 1 for cost in costs)
    costs.insert(tree.root, 0.0)
    names = tree.names or tuple(map(str, range(tree.num_nodes)))
    return {
        "parents": tree.parents.tolist(),
        "bins": tree.bins.tolist(),
        "names": [name.replace("_", " ") for name in names],
        "costs": None if unit else costs,
    }


def _figure_1() -> dict[str, Any]:
    """The tree of figure 1 with places for its nodes; a node comes after its parent."""
    settings = Settings()
    places = {
        "vehicle": (0.83, 1), "animal": (0.17, 1), "giraffe": (0.0, 0), "elephant": (0.34, 0),
        "truck": (0.66, 0), "plane": (1.0, 0),
    }  # fmt: skip
    return {
        "names": settings.nodes,
        "parents": settings.parents,
        "bins": [settings.nodes.index(name) for name in settings.classes],
        "x": [places[name][0] for name in settings.nodes],
        "y": [places[name][1] for name in settings.nodes],
        "p": settings.p,
        "q": settings.q,
    }


def _chain(bins: int) -> dict[str, Any]:
    """A chain as a tree: each bin hangs on the one before it."""
    hump = [1.0, 2.0, 4.0, 6.0, 4.0, 2.0, 1.0, 1.0][:bins]
    spike = [0.0, 3.0, 0.0, 0.0, 0.0, 1.0, 4.0, 0.0][:bins]
    return {
        "names": [str(i + 1) for i in range(bins)],
        "parents": list(range(-1, bins - 1)),
        "bins": list(range(bins)),
        "x": [i / (bins - 1) for i in range(bins)],
        "y": [0.4] * bins,
        "p": [value / sum(hump) for value in hump],
        "q": [value / sum(spike) for value in spike],
    }


def costliest_confusions(path: Path, tree: Tree, most: int = 5) -> dict[str, Any]:
    """For each class the answers that cost most in total: their number times their distance.

    Args:
        path: A file of predictions with labels, as for :func:`earthwork.evaluate`.
        tree: The tree over the classes.
        most: How many answers of each class to keep.

    Raises:
        ValueError: If the file does not hold predictions for the classes of the tree.
    """
    try:
        found = evaluate(path, None, tree, bootstrap=0).confusions(0, count=None)
    except ValueError as error:
        raise ValueError(f"predictions {error}") from error
    classes: list[list[tuple[int, int, float]]] = [[] for _ in range(tree.num_bins)]
    for confusion in found:
        if len(classes[confusion.truth]) < most:
            classes[confusion.truth].append((confusion.answer, confusion.times, confusion.cost))
    return {"name": path.stem, "classes": classes}
