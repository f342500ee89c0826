"""The tables of the page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from earthwork.lab.reproduce.results import Numbers, Results


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
    seconds, printed = results.summary["seconds"], results.summary["printed"]
    places = list(dict.fromkeys(", ".join(name.rsplit(", ", 2)[1:]) for name in seconds))
    rows = []
    for row in dict.fromkeys(name.rsplit(", ", 2)[0] for name in seconds):
        paper = printed.get(row, {})
        ours = [_time(seconds.get(f"{row}, {place}", {}).get("median")) for place in places]
        rows.append([row, *ours, _time(paper.get("cpu")), _time(paper.get("cuda"))])
    return _table(["", *(f"ours, {place}" for place in places), "paper, CPU", "paper, GPU"], rows)


def _breathing_table(results: Results) -> str:
    rows = [
        [name, _mean(entry["last"]), _rates(entry["rates"]), *(_mean(mean) for mean in entry["last_by_rate"].values())]
        for name, entry in results.summary["losses"].items()
    ]
    rates = [f"at rate {rate:g}" for rate in results.settings["rates"]]
    return _table(["loss", "test EMD at the end", "chosen rates", *rates], rows)


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
