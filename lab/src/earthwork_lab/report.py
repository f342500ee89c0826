"""One self-contained HTML page from a folder of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import earthwork
from earthwork import Chain, Ring, Space, Tree, evaluate, load
from earthwork.files import to_json, write_atomically
from earthwork_lab.reproduce import EXPERIMENTS, Results, ResultsError, judge_claims
from earthwork_lab.reproduce.experiment import Numbers
from earthwork_lab.reproduce.figures import Chart, figures
from earthwork_lab.reproduce.verdicts import MEANINGS, Claim, Verdict, count_verdicts

__all__ = ["read_results", "write_report"]

_SCRIPTS = ("chart.js", "space.js", "main.js")
_KINDS: dict[type[Space], str] = {Tree: "tree", Chain: "chain", Ring: "ring"}
# A matrix of all costs is part of the page: at most some megabytes.
_MOST_COSTS = 1000


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
    results: dict[str, Results], out: Path, *, space: str = "imagenet1k_paper", predictions: Path | None = None
) -> Path:
    """Write ``index.html`` into a folder.

    Args:
        results: What to show, by experiment.
        out: The folder; made if it is not there.
        space: The space to draw: what :func:`earthwork.load` takes.
        predictions: A run's predictions on that space's classes, for its costliest confusions.

    Returns:
        The page.
    """
    drawn = load(space)
    classes = _space_data(drawn)
    confusions = None if predictions is None else costliest_confusions(predictions, drawn)
    try:
        sections = [claims_table(judge_claims(results)), *map(experiment_section, results.values())]
        charts = [asdict(chart) for entry in results.values() for chart in figures(entry)]
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        what = f"has no {error}" if isinstance(error, KeyError) else f"is of another form ({error})"
        raise ResultsError(
            f"results: a summary {what}, so another version wrote it; run the same `earthwork reproduce` again "
            "into its folder, which computes the summary from the finished parts"
        ) from error
    content = [
        navigation(list(results)),
        banners(results),
        *sections,
        space_section(drawn, space, confusions is not None),
    ]
    data = {
        "charts": charts,
        "space": {**classes, "confusions": confusions},
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


def _space_data(space: Space) -> dict[str, Any]:
    if isinstance(space, Tree):
        return _tree_data(space)
    names = space.bin_names or tuple(map(str, range(space.num_bins)))
    # A star, of which the script draws the leaves; the distances are not those of its edges.
    return {
        "parents": [-1] + [0] * space.num_bins,
        "bins": list(range(1, space.num_bins + 1)),
        "names": ["", *names],
        "costs": None,
        **_distance_data(space),
    }


def _distance_data(space: Space) -> dict[str, Any]:
    """The places of the classes along a chain or around a ring, or all distances."""
    if isinstance(space, Chain | Ring):
        costs = space.costs.double()
        around = 0.0 if space.acyclic else costs.sum().item()
        return {"places": [0.0, *costs[: space.num_bins - 1].cumsum(0).tolist()], "around": around}
    if space.num_bins > _MOST_COSTS:
        raise ValueError(f"space: expected a cost matrix of at most {_MOST_COSTS} classes to draw, got {space}")
    return {"matrix": space.distances().tolist()}


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


def costliest_confusions(path: Path, space: Space, most: int = 5) -> dict[str, Any]:
    """For each class the answers that cost most in total: their number times their distance.

    Rows with a coarse label are left out.

    Args:
        path: A file of predictions with labels, as for :func:`earthwork.evaluate`.
        space: How the classes are arranged.
        most: How many answers of each class to keep.

    Raises:
        ValueError: If the file does not hold predictions for the classes of the space.
    """
    try:
        found = evaluate(path, None, space, intervals=False).confusions(0, count=None)
    except ValueError as error:
        raise ValueError(f"predictions {error}") from error
    classes: list[list[tuple[int, int, float]]] = [[] for _ in range(space.num_bins)]
    for confusion in found:
        if confusion.truth < space.num_bins and len(classes[confusion.truth]) < most:
            classes[confusion.truth].append((confusion.answer, confusion.times, confusion.cost))
    return {"name": path.stem, "classes": classes}


# What the paper shows, in words and printed numbers; its curves are not copied.
PAPER: dict[str, str] = {
    "ellyvan": (
        "Figure 1: a network sees a hybrid of an elephant and a van. Printed are its output p = (0.2, 0.4, 0.2, "
        "0.2), the label q = (0, 0.5, 0.5, 0), the dirt on each edge (0.2, 0.1, 0.3, 0.2 and 0.1 between animal "
        "and vehicle), ∇EMD = (1.5, −0.5, −1.5, 0.5) and ∇EMD² = (0.5, −0.1, −0.7, 0.3)."
    ),
    "stability": (
        "Figure 2: on the WordNet tree of the 1000 ImageNet classes, SD / EMD (axis 0 to 1.1) and the angle "
        "between the gradients (0 to π/2) against λ from 0.1 to 100. Panels a, c: 10, 100 and 1000 iterations. "
        "Panels b, d: float64 and float32. A dashed line is 10,000 iterations in float64. It does not say how p "
        "and q were drawn, nor whether M is in edges or normalised, so both are here."
    ),
    "gradients": (
        "Figure 4: gradients that turn a smooth p into a spiky q. a: MSE, rough and local. b: EMD and EMD², over "
        "the whole space, EMD² smoother. c: SD at λ = 0.5, 1 and 10; the largest is close to EMD. The "
        "distributions are drawn, not printed; ours look like them."
    ),
    "timing": (
        "Table 1: one minibatch of 512 on the tree of 1374 nodes, on an i5-6600K (float64) and a GTX 1080 "
        "(float32). SD with 10, 100, 1000 iterations: 942 ms, 7.51 s, 74.5 s and 15.1, 88.9, 865 ms. EMD²: 126 ms "
        "and 25 ms."
    ),
    "breathing": (
        "Figure 5: test EMD (axis 0 to 10) over 12 epochs for MSE, EMD² and SD; 75 patients of a sleep "
        "laboratory, 200 one-minute clips of each, 60 patients for training. EMD² and SD learn much faster than "
        "MSE; over a longer period EMD² is more accurate than SD. The learning rate, the bins and the unit of M "
        "are not given."
    ),
    "imagenet": (
        "Figure 6: ImageNet, an AlexNet with batch normalisation at 112 × 112. a: top-1 over 100 epochs with all "
        "images (axis to 50 %). b: top-1 over 200 epochs with 50,000 images, 4 % (axis to 10 %). c: their EMD "
        "(axis to 10). Losses: CE, EMD², their 1:1 mixture, and SD with CE at 1:3."
    ),
    "convergence": (
        "Section 5.3: “SD and EMD alone do not converge using SGD on a large variation of parameter combinations "
        "that we tried”, and SD with CE at 1:1 did not converge."
    ),
}

_CLASSES: dict[Verdict, str] = {
    "holds": "holds",
    "does not hold": "fails",
    "undecided": "open",
    "beats a broken baseline": "open",
    "judged too early": "open",
    "not measurable here": "unknown",
}


def navigation(names: Sequence[str]) -> str:
    """Links to the sections."""
    papers = {name: EXPERIMENTS[name].paper for name in names}
    links = {"claims": "Verdicts", **papers, "space": "Classes"}
    items = "".join(f'<li><a href="#{key}">{escape(text)}</a></li>' for key, text in links.items())
    return f'<nav class="no-print" aria-label="Contents"><ul>{items}</ul></nav>'


def banners(results: Mapping[str, Results]) -> str:
    """Warnings that a reader must see first."""
    lines = []
    quick = [name for name, entry in results.items() if entry.quick]
    if quick:
        lines.append(f"Quick runs, which only show that everything runs: {', '.join(quick)}.")
    simulated = [name for name, entry in results.items() if "SIMULATED" in entry.data]
    if simulated:
        lines.append(f"Simulated data, not real data: {', '.join(simulated)}.")
    unfinished = [name for name, entry in results.items() if not entry.complete]
    if unfinished:
        lines.append(f"Not run to the end: {', '.join(unfinished)}.")
    return "".join(f'<p class="banner">{escape(line)}</p>' for line in lines)


def claims_table(claims: Sequence[Claim]) -> str:
    """The claims with their verdicts, and a summary above them."""
    rows = "".join(
        f'<tr><td data-label="where">{escape(c.where)}</td><td data-label="the paper says">{escape(c.says)}</td>'
        f'<td data-label="verdict" class="verdict {_CLASSES[c.verdict]}">{escape(c.verdict)}</td>'
        f'<td data-label="measured">{escape(c.measured)}</td></tr>'
        for c in claims
    )
    counts = "".join(
        f'<li><b class="{_CLASSES[word]}">{count}</b>{escape(word)}<small>{escape(MEANINGS[word])}</small></li>'
        for word, count in count_verdicts(claims).items()
    )
    return template("claims.html").replace("<!--COUNTS-->", counts).replace("<!--ROWS-->", rows)


def space_section(space: Space, name: str, confusions: bool) -> str:
    """The frame of the zoomable space; the script fills it."""
    kind = _KINDS.get(type(space), "costs")
    shown = [*(["what is above it"] if kind == "tree" else []), "its neighbours"]
    shown += ["its costliest confusions"] if confusions else []
    *most, last = shown
    listed = f"{', '.join(most)} and {last}" if most else last
    first = space.bin_names[0] if space.bin_names else "0"
    example = "tabby" if "tabby" in (space.bin_names or ()) else first
    marks = {"<!--KIND-->": kind, "<!--NAME-->": name, "<!--SHOWN-->": listed, "<!--EXAMPLE-->": example}
    section = template("space.html")
    for mark, text in marks.items():
        section = section.replace(mark, escape(text))
    return section


def template(name: str) -> str:
    """A file of the page."""
    return files("earthwork_lab").joinpath("templates", name).read_text(encoding="utf-8")


def experiment_section(results: Results) -> str:
    """The paper's figure or table in words beside ours."""
    experiment = EXPERIMENTS[results.experiment]
    content = [_figure(chart) for chart in figures(results)]
    return (
        f'<section id="{results.experiment}"><h2>{escape(experiment.title)} <small>({experiment.paper})</small></h2>'
        f'<div class="pair"><div class="paper"><h3>The paper</h3>{escape(PAPER[results.experiment])}</div>'
        f'<div><h3>Ours</h3><p class="soft">{escape(_measured_on(results))}</p>{table_of(results)}'
        f'<div class="charts">{"".join(content)}</div></div></div></section>'
    )


def _measured_on(results: Results) -> str:
    facts = results.environment
    state = "" if results.complete else f"Not finished: {len(results.parts)} parts so far. "
    quick = "Quick run. " if results.quick else ""
    return (
        f"{state}{quick}Data: {results.data}. Measured with earthwork {facts.get('earthwork')}, torch "
        f"{facts.get('torch')} and Python {facts.get('python')} on {facts.get('processor')}, "
        f"threads: {facts.get('threads')}."
    )


def _figure(chart: Chart) -> str:
    note = f"<figcaption>{escape(chart.note)}</figcaption>" if chart.note else ""
    return (
        f'<figure class="chart" id="chart-{chart.key}"><h3>{escape(chart.title)}</h3><div class="plot"></div>'
        f'<div class="tip" aria-live="polite"></div><ul class="legend"></ul>{note}</figure>'
    )


def table_of(results: Results) -> str:
    """The table of an experiment as HTML; nothing for one that has none or is not complete."""
    tables = {"ellyvan": _ellyvan_table, "timing": _timing_table, "breathing": _breathing_table}
    return tables[results.experiment](results) if results.complete and results.experiment in tables else ""


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col"{" class=number" if i else ""}>{escape(t)}</th>' for i, t in enumerate(header))
    body = "".join(
        "<tr>" + "".join(f"<td{' class=number' if i else ''}>{escape(t)}</td>" for i, t in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _ellyvan_table(results: Results) -> str:
    classes, summary = results.settings["classes"], results.summary
    rows = [["p", *map(_short, results.settings["p"])], ["q", *map(_short, results.settings["q"])]]
    for key, name in (("gradient_emd", "∇EMD"), ("gradient_emd2", "∇EMD²")):
        rows.append([f"{name}, ours", *map(_short, summary[key])])
        rows.append([f"{name}, printed", *map(_short, summary["printed"][key])])
    distances = f"<p>EMD = {summary['emd']:.4g}, EMD² = {summary['emd2']:.4g}.</p>"
    return _table(["", *classes], rows) + distances


def _timing_table(results: Results) -> str:
    seconds, table = results.summary["seconds"], results.summary["printed"]
    comparable = results.settings["batch"] == results.summary["printed_batch"]
    places = list(dict.fromkeys(", ".join(name.rsplit(", ", 2)[1:]) for name in seconds))
    rows = []
    for row in dict.fromkeys(name.rsplit(", ", 2)[0] for name in seconds):
        paper = table.get(row, {})
        ours = [_time(seconds.get(f"{row}, {place}", {}).get("median")) for place in places]
        # The paper's times are for its own batch, so they are not shown beside those of another one.
        printed = [_time(paper.get("cpu")), _time(paper.get("cuda"))] if comparable else []
        rows.append([row, *ours, *printed])
    header = ["paper, CPU", "paper, GPU"] if comparable else []
    return _table(["", *(f"ours, {place}" for place in places), *header], rows)


def _breathing_table(results: Results) -> str:
    rows = [
        [
            f"{name}, {head}",
            _mean(entry["last"]),
            _rates(entry["rates"]),
            *(_mean(mean) for mean in entry["last_by_rate"].values()),
        ]
        for head, losses in results.summary["heads"].items()
        for name, entry in losses.items()
    ]
    rates = [f"at rate {rate:g}" for rate in results.settings["rates"]]
    return _table(["loss, head", "test EMD at the end", "chosen rates", *rates], rows)


def _rates(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in sorted(set(rates)))


def _mean(mean: Numbers) -> str:
    if mean["mean"] is None:
        return f"NaN ({mean['failed']} of {mean['count']})"
    interval = "" if mean["low"] is None else f" ± {mean['high'] - mean['mean']:.2f}"
    return f"{mean['mean']:.2f}{interval}"


def _short(value: float) -> str:
    return f"{round(value, 3) + 0.0:g}".replace("-", "−")


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
