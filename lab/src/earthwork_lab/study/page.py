"""The pages about the results: one answer with one figure, the tables behind it, and files with all numbers."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from matplotlib import pyplot
from matplotlib.axes import Axes

from earthwork.files import write_atomically
from earthwork_lab.statistics import half_width, mean_interval
from earthwork_lab.study.analysis import ARGMAX, LEVEL, METRICS, PRIMARY, Analysis, Situation
from earthwork_lab.study.contenders import CONTENDERS, REFERENCE
from earthwork_lab.study.meta import Pooled
from earthwork_lab.study.run import CHECKS, CONSTANT, LONGER, SCIKIT
from earthwork_lab.study.tasks import AMOUNTS, SPLITS

FIGURE = "study-forest"
POOLED, TASKS = "study-pooled.csv", "study-tasks.csv"
_HEADER = "<!-- Written by `earthwork study page` from docs/results/study/*.json; do not edit. -->"
_KINDS = {"ordered": "ordered classes", "hierarchy": "a hierarchy", "ring": "classes on a ring"}


def situation_title(situation: Situation) -> str:
    """A situation in words."""
    return f"{_KINDS[situation.kind]}, {situation.amount} labels"


def number(value: float, unit: str = " %") -> str:
    """A signed number with a true minus sign."""
    text = f"{value:+.1f}".replace("-", "−")
    return f"{'0.0' if text in ('+0.0', '−0.0') else text}{unit}"


def span(ends: tuple[float, float]) -> str:
    """An interval."""
    return f"[{number(ends[0], '')}, {number(ends[1], '')}]"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def answer(analysis: Analysis) -> str:
    """The first line: what to do by default."""
    picks = {situation: analysis.recommended(situation) for situation in analysis.situations}
    others = {situation: loss for situation, loss in picks.items() if loss != REFERENCE}
    most = max(others.values(), key=list(picks.values()).count, default=REFERENCE)
    count = list(picks.values()).count(most)
    if most != REFERENCE and 2 * count > len(picks):
        return (
            f"**Train with `{most}`, scale the temperature, and answer with [`decide`](guides/deciding.md): it was "
            f"better than tuned cross entropy in {count} of {len(picks)} situations.**"
        )
    text = "**Train with cross entropy, tune it, scale the temperature, and answer with [`decide`](guides/deciding.md)."
    if not others:
        tests = len(analysis.primary)
        return f"{text} No other loss was better after correction for the {tests} comparisons.**"
    cells = "; ".join(f"with {situation_title(situation)}, `{loss}`" for situation, loss in others.items())
    return f"{text} Something else was better only here: {cells}.**"


def summary_table(analysis: Analysis) -> str:
    """For each situation, the recommendation, and what to expect of the best contender."""
    rows = []
    for situation in analysis.situations:
        pick, best = analysis.recommended(situation), analysis.lowest(situation)
        shown = best if pick == REFERENCE else pick
        found = analysis.primary[situation, shown]
        gain, *ends = left_out(analysis, situation, significant=pick != REFERENCE)
        rows.append(
            [
                situation_title(situation),
                str(found.tasks),
                "`ce` + `decide`" if pick == REFERENCE else f"**`{pick}`** + `decide`",
                f"`{shown}` {number(found.mean)} {span(found.interval())}",
                span(found.new_task()),
                f"{number(gain)} {span((ends[0], ends[1]))}",
                f"{found.detectable():.1f} %",
            ]
        )
    header = ["you have", "tasks", "use", "best contender: mean change", "on a new task", "left-out gain", "detectable"]
    return markdown(header, rows)


def left_out(analysis: Analysis, situation: Situation, *, significant: bool) -> tuple[float, float, float]:
    """The mean over tasks of what the choice from the others brought, and its 95 % interval."""
    found = mean_interval(analysis.left_out_gains(situation, significant=significant))
    return float(found["mean"] or 0), float(found["low"] or 0), float(found["high"] or 0)


def hint_sentence(analysis: Analysis) -> str:
    """Contenders that are not recommended, but were better on tasks that they were not chosen on."""
    hints = []
    for situation in analysis.situations:
        if analysis.recommended(situation) == REFERENCE and left_out(analysis, situation, significant=False)[2] < 0:
            loss = analysis.lowest(situation)
            few = " with few labels" if situation.amount == "few" else ""
            found = _expected(analysis.primary[situation, loss])
            hints.append(f"`{loss}` {found} for {_KINDS[situation.kind]}{few}")
    return f"Losses worth comparing on your own data, and their expected change: {'; '.join(hints)}." if hints else ""


def decision_sentence(analysis: Analysis) -> str:
    """What cross entropy loses without `decide`."""
    parts = []
    for situation in analysis.situations:
        found = analysis.pooled(situation, ARGMAX)
        if situation.amount == "many" and found is not None:
            parts.append(f"{_expected(found)} for {_KINDS[situation.kind]}")
    return (
        "Without `decide`, the mean distance on a new task is expected to change by "
        f"{', '.join(parts)} (many labels; nominal 95 % intervals)."
    )


def _expected(found: Pooled) -> str:
    """The mean change, and its interval for a new task."""
    return f"{number(found.mean)} {span(found.new_task())}"


def held_out_table(analysis: Analysis) -> str:
    """What the recommendation or the best contender did on the tasks that were left out of everything."""
    lines = []
    for situation in analysis.situations:
        for task in analysis.of_kind(situation, held_out=True):
            pick, best = analysis.recommended(situation), analysis.lowest(situation)
            shown = best if pick == REFERENCE else pick
            effect = analysis.effect(task, situation.amount, shown, PRIMARY)
            decided = analysis.effect(task, situation.amount, ARGMAX, PRIMARY)
            assert effect is not None
            assert decided is not None
            half = half_width(math.sqrt(effect.variance), SPLITS - 1)
            note = " (hardly better than a constant)" if analysis.broken(task, situation.amount) else ""
            lines.append([
                f"{analysis.results[task].data}, {situation.amount} labels",
                f"`{shown}` {number(effect.mean)} {span((effect.mean - half, effect.mean + half))}",
                f"{number(decided.mean)}{note}",
            ])  # fmt: skip
    return markdown(["task", "contender", "`ce` without `decide`"], lines) if lines else "Not run yet.\n"


def facts(analysis: Analysis) -> str:
    """How much was measured."""
    totals = analysis.totals()
    competing = {loss for situation in analysis.situations for loss in analysis.losses(situation)}
    return (
        f"{totals['tasks']:.0f} tasks, {1 + len(competing)} losses, {totals['networks']:,.0f} "
        f"trained networks, at most {totals['hours']:.1f} core hours."
    )


def make_summary(analysis: Analysis) -> str:
    """The answer for the README."""
    text = answer(analysis).replace("(guides/", "(docs/guides/").replace("**", "**Which loss should I use? ", 1)
    study = "[The study](docs/which-loss.md), by a [protocol](lab/PROTOCOL.md) written before its results:"
    return f"{text} {decision_sentence(analysis)} {hint_sentence(analysis)} {study} {facts(analysis)}"


def make_page(analysis: Analysis) -> str:
    """The page `which-loss.md`."""
    return f"""# Which loss should I use?

{_HEADER}

{answer(analysis)} {decision_sentence(analysis)} {hint_sentence(analysis)}

![Changes of the mean distance against tuned cross entropy](results/figures/{FIGURE}.svg)

*Mean distance of least-risk decisions against tuned cross entropy, in per cent; left is better. Thick line: 95 %
interval of the mean over tasks; thin line: of a new task. Gold: better after Holm's correction for
{len(analysis.primary)} tests. Dark blue: the interval of the mean excludes 0, without correction. Grey: cross
entropy's most probable class, without `decide`.*

{summary_table(analysis)}
"On a new task": where 95 % of tasks like these are expected ([nominally](study-tables.md)). "Left-out gain": what the
loss chosen from all other tasks brought on the task that was left out, in the plain mean over tasks, which large
changes dominate; not the protocol's test, and not corrected. "Detectable": the smallest mean change that four of five
such studies would find.

Held out of all tuning, and run once at the end. The images were added after this page had been written; their features
were learned with cross entropy, which may favour it.

{held_out_table(analysis)}
**How it was measured.** {facts(analysis)} Every loss had 12
configurations; cross entropy's were of learning rate, weight decay and label smoothing. Networks were chosen by
validation log loss, after temperature scaling. The intervals are about tasks like these: tables with a small network,
and frozen sentence embeddings with a linear model. They say nothing about networks that are trained from pixels. The
[protocol](https://github.com/earthwork-project/earthwork/blob/main/lab/PROTOCOL.md) was written before the first
result. [Tables](study-tables.md) · [how to run it, also on your data](studies.md).
"""


def make_tables(analysis: Analysis) -> str:
    """The page with the tables."""
    parts = ["# Tables of the study\n", f"{_HEADER}\n", _METHOD, _primary_table(analysis), _left_out(analysis)]
    parts += [_CHECKED, _check_table(analysis)]
    parts += ["## Tasks\n\nClasses and, with many labels, training rows.\n", _task_list(analysis)]
    parts.append("## Losses\n")
    parts.append(markdown(["name", "what it is", "hyper-parameter"], [
        [f"`{name}`", entry.source, ", ".join(map(str, entry.values)) if len(entry.values) > 1 else "–"]
        for name, entry in CONTENDERS.items()]))  # fmt: skip
    parts.append(_PRIOR)
    return "\n".join(parts)


_METHOD = f"""Behind [Which loss should I use?](which-loss.md): changes against tuned cross entropy + `decide`.
`earthwork study page` writes this page and two files. [{POOLED}](results/{POOLED}) has every
endpoint (also EMD², log loss, accuracy, calibration error and kappa) with its intervals, τ, p and detectable change,
[{TASKS}](results/{TASKS}) every task. Intervals for a new task are nominal: where τ is of the
size of the sampling errors, they held 83 to 92 % of simulated new tasks instead of 95 %.

## Mean distance

Mean change in per cent over the tasks (their number in brackets), and its 95 % interval. Bold: better with p < 0.05,
corrected by Holm over all contenders in the table.
"""
_PRIOR = """Decisions of least expected cost in hierarchies: Karthik et al. 2021, Plaud et al. 2025.
"""


_CHECKED = f"""## Was the baseline trained well?

`{LONGER}`: cross entropy with learning rates four times as high, at most 320 instead of 80 epochs and eight times the
patience. `{SCIKIT}`: the best of three logistic regressions and two networks of scikit-learn. Only tables, the cheapest
first, as far as time allowed; negative: the check is better.
"""


def _check_table(analysis: Analysis) -> str:
    rows = []
    for situation in analysis.situations:
        found = [analysis.pooled(situation, name) for name in CHECKS]
        cells = ["–" if entry is None else f"{number(entry.mean)} {span(entry.interval())}" for entry in found]
        rows.append([situation_title(situation), str(max(entry.tasks if entry else 0 for entry in found)), *cells])
    return markdown(["", "tasks", *(f"`{name}`" for name in CHECKS)], rows)


def _left_out(analysis: Analysis) -> str:
    parts = []
    for situation in analysis.situations:
        counted = analysis.tasks(situation)
        broken = [f"`{task}`" for task in analysis.of_kind(situation) if task not in counted]
        if broken:
            parts.append(f"- {situation_title(situation)}: {', '.join(broken)}\n")
    if not parts:
        return ""
    return f"Left out, because cross entropy is less than 5 % better than a constant answer:\n\n{''.join(parts)}"


def _primary_table(analysis: Analysis) -> str:
    rows = []
    for loss in (*(name for name in CONTENDERS if name != REFERENCE), ARGMAX, CONSTANT):
        cells = []
        for situation in analysis.situations:
            found = analysis.pooled(situation, loss)
            if found is None or (loss in CONTENDERS and loss not in analysis.losses(situation)):
                cells.append("–")
                continue
            better = analysis.adjusted.get((situation, loss), 1.0) < LEVEL and found.mean < 0
            text = f"{number(found.mean, '')} {span(found.interval())}"
            cells.append(f"**{text}**" if better else text)
        rows.append([f"`{loss}`" if loss in CONTENDERS else loss, *cells])
    titles = [f"{situation_title(situation)} ({len(analysis.tasks(situation))})" for situation in analysis.situations]
    return markdown(["loss", *titles], rows)


def _task_list(analysis: Analysis) -> str:
    rows = []
    for kind in dict.fromkeys(situation.kind for situation in analysis.situations):
        entries = []
        for task, result in analysis.results.items():
            settings = result.settings
            if settings["kind"] == kind:
                held_out = ", held out" if settings["held_out"] else ""
                sizes = settings["sizes"]["many"] or settings["sizes"]["few"]
                entries.append(f"`{task}` ({settings['classes']}, {sizes['train']}{held_out})")
        rows.append([_KINDS[kind], "; ".join(entries)])
    return markdown(["classes", "tasks"], rows)


def _as_csv(rows: Iterator[dict[str, object]]) -> str:
    lines = list(rows)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(key for line in lines for key in line)), lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow({key: f"{value:.4f}" if isinstance(value, float) else value for key, value in line.items()})
    return out.getvalue()


def pooled_rows(analysis: Analysis) -> Iterator[dict[str, object]]:
    """Every endpoint of every loss in every situation, over the tasks that count."""
    for situation in analysis.situations:
        metrics = [name for name in METRICS if name != "kappa" or situation.kind == "ordered"]
        for loss in (*analysis.losses(situation), ARGMAX, CONSTANT):
            for metric in [PRIMARY] if loss == ARGMAX else metrics:
                found = analysis.pooled(situation, loss, metric)
                if found is None:
                    continue
                effects = (analysis.effect(task, situation.amount, loss, metric) for task in analysis.tasks(situation))
                low, high = found.interval()
                new_low, new_high = found.new_task()
                yield {
                    "situation": situation_title(situation), "loss": loss, "endpoint": metric,
                    "unit": "%" if METRICS[metric].relative else "points", "tasks": found.tasks,
                    "lower_on": sum(effect is not None and effect.mean < 0 for effect in effects),
                    "mean": found.mean, "low": low, "high": high, "new_task_low": new_low, "new_task_high": new_high,
                    "tau": found.spread, "detectable": found.detectable(),
                    "holm_p": analysis.adjusted.get((situation, loss), "") if metric == PRIMARY else "",
                }  # fmt: skip


def task_rows(analysis: Analysis) -> Iterator[dict[str, object]]:
    """The mean distance of cross entropy for each task, and its change by each loss in per cent."""
    for situation in analysis.situations:
        for held_out in (False, True):
            for task in analysis.of_kind(situation, held_out=held_out):
                settings = analysis.results[task].settings
                level = analysis.numbers(task, situation.amount, REFERENCE, PRIMARY)
                assert level is not None
                row: dict[str, object] = {
                    "situation": situation_title(situation), "task": task, "classes": settings["classes"],
                    "rows": settings["sizes"][situation.amount]["train"], "held_out": held_out,
                    "counts": not held_out and not analysis.broken(task, situation.amount), REFERENCE: fmean(level),
                }  # fmt: skip
                for loss in (CONSTANT, ARGMAX, *analysis.losses(situation)):
                    effect = analysis.effect(task, situation.amount, loss, PRIMARY)
                    row[loss] = "" if effect is None else effect.mean
                yield row


def draw(analysis: Analysis, path: Path) -> None:
    """The forest plot."""
    kinds = list(dict.fromkeys(situation.kind for situation in analysis.situations))
    with pyplot.rc_context({"svg.hashsalt": "earthwork", "font.size": 9}):
        heights = [max(len(analysis.losses(s)) for s in analysis.situations if s.kind == kind) + 1 for kind in kinds]
        figure, axes = pyplot.subplots(
            len(kinds), 2, figsize=(10, 0.2 * sum(heights) + 1.1 * len(kinds)), squeeze=False, sharex=True,
            height_ratios=heights, layout="constrained",
        )  # fmt: skip
        for ax in axes.flat:
            ax.set_visible(False)
        for situation in analysis.situations:
            ax = axes[kinds.index(situation.kind), AMOUNTS.index(situation.amount)]
            ax.set_visible(True)
            _draw_situation(analysis, situation, ax)
        figure.supxlabel("← better     change of the mean distance, per cent     worse →", size=9)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        pyplot.close(figure)


def _draw_situation(analysis: Analysis, situation: Situation, ax: Axes) -> None:
    losses = sorted(analysis.losses(situation), key=lambda loss: -analysis.primary[situation, loss].mean)
    names = [ARGMAX, *losses]
    for place, loss in enumerate(names):
        found = analysis.pooled(situation, loss)
        assert found is not None
        significant = loss in CONTENDERS and analysis.adjusted[situation, loss] < LEVEL
        low, high = found.interval()
        plain = "#0072b2" if low > 0 or high < 0 else "#7fb8d8"
        colour = "#999999" if loss == ARGMAX else "#d09a00" if significant and found.mean < 0 else plain
        text = f"{number(found.mean, '')} {span((low, high))}"
        ax.annotate(text, (1.01, place), xycoords=("axes fraction", "data"), va="center", size=7, color="#444444")
        ax.plot(found.new_task(), [place, place], color=colour, linewidth=0.8)
        ax.plot(found.interval(), [place, place], color=colour, linewidth=3, solid_capstyle="butt")
        ax.plot(found.mean, place, "o", color=colour, markersize=4.5)
    ax.axvline(0, color="#333333", linewidth=0.8)
    ax.set_yticks(range(len(names)), ["ce, no decide" if name == ARGMAX else name for name in names])
    ax.set_xlim(-20, 20)
    ax.grid(axis="x", alpha=0.3)
    ax.set_title(f"{situation_title(situation)} ({len(analysis.tasks(situation))} tasks)", size=9)


def write_pages(results: Path, docs: Path) -> list[Path]:
    """Write the pages, the files with all numbers and the figure into a folder; return them."""
    analysis = Analysis.read(results)
    figure = docs / "results" / "figures" / f"{FIGURE}.svg"
    draw(analysis, figure)
    pages = {
        docs / "which-loss.md": make_page(analysis),
        docs / "study-tables.md": make_tables(analysis),
        docs / "results" / POOLED: _as_csv(pooled_rows(analysis)),
        docs / "results" / TASKS: _as_csv(task_rows(analysis)),
    }
    for path, text in pages.items():
        write_atomically(path, text)
    return [*pages, figure]
