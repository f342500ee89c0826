"""The sections of the page as HTML: banners, claims, and for each experiment the paper's words, tables and charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files

from earthwork.lab.reproduce import EXPERIMENTS
from earthwork.lab.reproduce.claims import MEANINGS, count_verdicts
from earthwork.lab.reproduce.experiment import Numbers, Results
from earthwork.lab.reproduce.figures import Chart, figures
from earthwork.lab.reproduce.verdicts import Claim, Verdict

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
    links = {"claims": "Verdicts", "playground": "Playground", **papers, "tree": "Tree"}
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


def playground() -> str:
    """The playground's frame; the script fills it."""
    return template("playground.html")


def tree_section(name: str, confusions: bool) -> str:
    """The frame of the zoomable tree; the script fills it."""
    more = ", its neighbours and its costliest confusions" if confusions else " and its neighbours"
    return template("tree.html").replace("<!--NAME-->", escape(name)).replace("<!--MORE-->", more)


def template(name: str) -> str:
    """A file of the page."""
    return files("earthwork.lab.report").joinpath("templates", name).read_text(encoding="utf-8")


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
    distances = f"<p>EMD = {summary['emd']:.4g}, EMD² = {summary['emd2']:.4g}. The tree is in the playground above.</p>"
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
