"""The parts of the page as HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files

from earthwork.lab.report.tables import table_of
from earthwork.lab.report.words import PAPER
from earthwork.lab.reproduce import EXPERIMENTS
from earthwork.lab.reproduce.charts import Chart
from earthwork.lab.reproduce.claims import Claim
from earthwork.lab.reproduce.figures import figures
from earthwork.lab.reproduce.results import Results

_CLASSES = {"holds": "holds", "does not hold": "fails", "not measurable here": "unknown"}


def navigation(names: Sequence[str]) -> str:
    """Links to the sections."""
    links = {"claims": "Claims", "playground": "Playground", **{n: EXPERIMENTS[n].paper for n in names}, "tree": "Tree"}
    items = "".join(f'<li><a href="#{key}">{escape(text)}</a></li>' for key, text in links.items())
    return f'<nav class="no-print" aria-label="Contents"><ul>{items}</ul></nav>'


def banners(results: Mapping[str, Results]) -> str:
    """Warnings that a reader must see first."""
    lines = []
    quick = [name for name, entry in results.items() if entry.quick]
    if quick:
        lines.append(f"Quick runs, which only show that everything works: {', '.join(quick)}.")
    simulated = [name for name, entry in results.items() if "SIMULATED" in entry.data]
    if simulated:
        lines.append(f"Simulated data, not real data: {', '.join(simulated)}.")
    unfinished = [name for name, entry in results.items() if not entry.complete]
    if unfinished:
        lines.append(f"Not run to the end: {', '.join(unfinished)}.")
    return "".join(f'<p class="banner">{escape(line)}</p>' for line in lines)


def claims_table(claims: Sequence[Claim]) -> str:
    """The claims with their verdicts."""
    holds, fails, unknown = (sum(claim.verdict == word for claim in claims) for word in _CLASSES)
    rows = "".join(
        f'<tr><td data-label="where">{escape(c.where)}</td><td data-label="the paper says">{escape(c.says)}</td>'
        f'<td data-label="we measured">{escape(c.measured)}</td>'
        f'<td data-label="verdict" class="verdict {_CLASSES[c.verdict]}">{escape(c.verdict)}</td></tr>'
        for c in claims
    )
    counts = f"Of {len(claims)} claims {holds} hold, {fails} do not, and {unknown} cannot be judged here."
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
