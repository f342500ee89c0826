"""The pages about the results: one answer with one figure, and the tables behind it."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    text = (
        "**Train with cross entropy, tune its learning rate, weight decay and label smoothing, scale the temperature, "
        "and answer with [`decide`](guides/deciding.md)."
    )
    if not others:
        tests = len(analysis.primary)
        return f"{text} No other loss was better by a margin that survives correction for the {tests} comparisons.**"
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
    """What to expect of contenders that are not recommended, but were better on tasks that they were not chosen on."""
    hints = []
    for situation in analysis.situations:
        gain, *ends = left_out(analysis, situation, significant=False)
        if analysis.recommended(situation) == REFERENCE and ends[1] < 0:
            text = f"{number(gain)} {span((ends[0], ends[1]))} with {situation_title(situation)}"
            hints.append(f"{text} (`{analysis.lowest(situation)}`)")
    if not hints:
        return ""
    return (
        "Worth adding to a comparison on your own data, no more: the contender with the lowest mean, chosen from all "
        f"other tasks, changed the mean distance of the task that was left out by {'; '.join(hints)}."
    )


def check_sentence(analysis: Analysis) -> str:
    """How much better cross entropy is when it is trained longer."""
    found = {situation: analysis.pooled(situation, LONGER) for situation in analysis.situations}
    parts = [
        f"{number(entry.mean)} {span(entry.interval())} for {situation_title(situation)} ({entry.tasks} tasks)"
        for situation, entry in found.items()
        if entry is not None
    ]
    if not parts:
        return ""
    return (
        "Training cross entropy with four times the epochs and learning rates, which no loss had in the study, changed "
        f"its mean distance by {'; '.join(parts)}."
    )


def decision_sentence(analysis: Analysis) -> str:
    """What `decide` brings without any other loss."""
    parts = []
    for situation in analysis.situations:
        found = analysis.pooled(situation, ARGMAX)
        if situation.amount == "many" and found is not None:
            # From the change of not deciding against deciding to that of deciding against not deciding.
            parts.append(f"{number(-100 * found.mean / (100 + found.mean))} for {_KINDS[situation.kind]}")
    return f"`decide` instead of the most probable class changed cross entropy's mean distance by {', '.join(parts)}."


def held_out_text(analysis: Analysis) -> str:
    """What the recommendation and the best contender did on the tasks that were left out of everything."""
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
            words = "recommended: cross entropy; the best contender, " if pick == REFERENCE else "recommended: "
            note = (
                " (cross entropy hardly beats a constant answer here)"
                if analysis.broken(task, situation.amount)
                else ""
            )
            lines.append(
                f"- {analysis.results[task].data}, {situation.amount} labels: {words}`{shown}`: {number(effect.mean)} "
                f"{span((effect.mean - half, effect.mean + half))}. Cross entropy without `decide`: "
                f"{number(decided.mean)}{note}."
            )
    return "\n".join(lines) if lines else "They have not been run yet."


def facts(analysis: Analysis) -> str:
    """How much was measured."""
    totals = analysis.totals()
    competing = {loss for situation in analysis.situations for loss in analysis.losses(situation)}
    return (
        f"{totals['tasks']:.0f} tasks, cross entropy and {len(competing)} other losses, {totals['networks']:,.0f} "
        f"trained networks, at most {totals['hours']:.1f} core hours."
    )


def make_summary(analysis: Analysis) -> str:
    """The answer for the README."""
    text = answer(analysis).replace("(guides/", "(docs/guides/")
    return f"{text} {decision_sentence(analysis)} {hint_sentence(analysis)} Measured: {facts(analysis)}"


def make_page(analysis: Analysis) -> str:
    """The page `which-loss.md`."""
    return f"""# Which loss should I use?

{_HEADER}

{answer(analysis)}

{decision_sentence(analysis)} {hint_sentence(analysis)}

![Changes of the mean distance against tuned cross entropy](results/figures/{FIGURE}.svg)

*Mean distance of least-risk decisions against tuned cross entropy, in per cent; left is better. Dot and thick line:
mean over tasks and its 95 % interval, which excludes 0 where it is dark. Thin line: 95 % interval for a new task.
Gold: better after Holm's correction for {len(analysis.primary)} tests. Grey: cross entropy without `decide`.*

{summary_table(analysis)}
"On a new task": where 95 % of tasks like these are expected ([nominally](study-tables.md)). "Left-out gain": what the
choice of a loss from all other tasks brought on the task that was left out, in the plain mean over tasks, which large
changes dominate; not the protocol's test, and not corrected. "Detectable": the smallest mean change that this study
would have found in four of five attempts. Where cross entropy is recommended, the contender with the lowest mean is
shown.

Held out of all tuning, and run once at the end:

{held_out_text(analysis)}

**How it was measured.** {facts(analysis)} Every loss had 12 configurations, cross entropy included; networks were
chosen by validation log loss, after temperature scaling. The task is a random effect, so the intervals are about
tasks like these: tables with a small network, and frozen sentence embeddings with a linear model. They say nothing
about networks that are trained from pixels. {check_sentence(analysis)} The
[protocol](https://github.com/earthwork-project/earthwork/blob/main/lab/PROTOCOL.md) was written before the first
result. [All tables](study-tables.md) · [how to run it, also on your data](studies.md).
"""


def make_tables(analysis: Analysis) -> str:
    """The page with all tables."""
    parts = ["# All tables of the study\n", f"{_HEADER}\n", _METHOD]
    for situation in analysis.situations:
        parts.append(f"## {situation_title(situation)[0].upper()}{situation_title(situation)[1:]}\n")
        parts.append(_counted(analysis, situation))
        parts.append(_primary_table(analysis, situation))
        parts.append("Secondary endpoints: mean changes and their intervals, without correction for their number.\n")
        parts.append(_secondary_table(analysis, situation))
        parts.append("Each task:\n")
        parts.append(_task_table(analysis, situation))
    parts += [_CHECKED, _check_table(analysis)]
    parts.append("## Losses\n")
    parts.append(markdown(["name", "what it is", "hyper-parameter"], [
        [f"`{name}`", entry.source, ", ".join(map(str, entry.values)) if len(entry.values) > 1 else "–"]
        for name, entry in CONTENDERS.items()]))  # fmt: skip
    parts.append(_PRIOR)
    return "\n".join(parts)


_METHOD = """Behind [Which loss should I use?](which-loss.md): every number is a change against tuned cross entropy +
`decide`, in per cent of its mean (accuracy, calibration error and kappa: in points). Intervals are 95 %,
over tasks. p is corrected by Holm over the primary endpoint of all situations. Intervals for a new task are
nominal: where τ is of the size of the sampling errors, which makes it hard to estimate, they held 83 to 92 % of
simulated new tasks instead of 95 %.
"""
_PRIOR = """
Decisions of least expected cost in hierarchies: Karthik et al. 2021, Plaud et al. 2025. Edge cross entropy: on
chains the ranked ignorance score (Tödter & Ahrens 2012), with the cumulative binary targets of Cheng et al. 2008
and CORAL; on trees see Wu, Tygert & LeCun 2019 and Urbani et al. 2024. EMD²: on chains the ranked probability score
(Epstein 1969), as a loss Hou et al. 2016.
"""


_CHECKED = f"""## Was the baseline trained well?

Two checks, against the tuned cross entropy of the study, + `decide`. `{LONGER}`: learning rates four times as high, at
most 320 instead of 80 epochs and eight times the patience. `{SCIKIT}`: the best of three logistic regressions and two
networks of scikit-learn. Only tables, the cheapest first, as far as time allowed; negative: the check is better.
"""


def _check_table(analysis: Analysis) -> str:
    rows = []
    for situation in analysis.situations:
        found = [analysis.pooled(situation, name) for name in CHECKS]
        cells = ["–" if entry is None else f"{number(entry.mean)} {span(entry.interval())}" for entry in found]
        rows.append([situation_title(situation), str(max(entry.tasks if entry else 0 for entry in found)), *cells])
    return markdown(["", "tasks", *(f"`{name}`" for name in CHECKS)], rows)


def _counted(analysis: Analysis, situation: Situation) -> str:
    tasks, every = analysis.tasks(situation), analysis.of_kind(situation)
    broken = [f"`{task}`" for task in every if task not in tasks]
    text = f"{len(tasks)} tasks count."
    if broken:
        text += f" Left out, because cross entropy is less than 5 % better than a constant answer: {', '.join(broken)}."
    return f"{text}\n"


def _primary_table(analysis: Analysis, situation: Situation) -> str:
    rows = []
    losses = sorted(analysis.losses(situation), key=lambda loss: analysis.primary[situation, loss].mean)
    for loss in (*losses, ARGMAX, CONSTANT):
        found = analysis.pooled(situation, loss)
        assert found is not None
        p = analysis.adjusted.get((situation, loss))
        better = p is not None and p < LEVEL and found.mean < 0
        name = f"**`{loss}`**" if better else f"`{loss}`" if loss in CONTENDERS else loss
        wins = sum(
            effect is not None and effect.mean < 0
            for effect in (analysis.effect(task, situation.amount, loss, PRIMARY) for task in analysis.tasks(situation))
        )
        rows.append(
            [name, number(found.mean), span(found.interval()), span(found.new_task()), f"{found.spread:.1f}",
             "–" if p is None else f"{p:.3f}", f"{wins} of {found.tasks}", f"{found.detectable():.1f}"]
        )  # fmt: skip
    header = ["loss", "mean change", "95 %", "new task", "τ", "p", "lower on", "detectable"]
    return markdown(header, rows)


def _secondary_table(analysis: Analysis, situation: Situation) -> str:
    metrics = [name for name in METRICS if name != PRIMARY and (name != "kappa" or situation.kind == "ordered")]
    rows = []
    for loss in (*analysis.losses(situation), CONSTANT):
        found = [analysis.pooled(situation, loss, metric) for metric in metrics]
        rows.append(
            [
                f"`{loss}`" if loss in CONTENDERS else loss,
                *(_cell(entry, name) for entry, name in zip(found, metrics, strict=True)),
            ]
        )
    return markdown(["loss", *(METRICS[name].title for name in metrics)], rows)


def _cell(found: Pooled | None, metric: str) -> str:
    if found is None:
        return "–"
    return f"{number(found.mean, ' %' if METRICS[metric].relative else '')} {span(found.interval())}"


def _task_table(analysis: Analysis, situation: Situation) -> str:
    losses = analysis.losses(situation)
    rows = []
    for task in analysis.of_kind(situation):
        settings = analysis.results[task].settings
        level = analysis.numbers(task, situation.amount, REFERENCE, PRIMARY)
        assert level is not None
        cells = []
        for loss in (CONSTANT, ARGMAX, *losses):
            effect = analysis.effect(task, situation.amount, loss, PRIMARY)
            cells.append("–" if effect is None else number(effect.mean, ""))
        train = settings["sizes"][situation.amount]["train"]
        rows.append([f"`{task}`", str(settings["classes"]), str(train), f"{fmean(level):.3f}", *cells])
    header = ["task", "classes", "rows", "`ce`", CONSTANT, "`ce`, most probable", *(f"`{loss}`" for loss in losses)]
    return markdown(header, rows)


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
    """Write `which-loss.md`, `study-tables.md` and ``results/figures/study-forest.svg`` into a folder; return them."""
    analysis = Analysis.read(results)
    figure = docs / "results" / "figures" / f"{FIGURE}.svg"
    draw(analysis, figure)
    pages = {docs / "which-loss.md": make_page(analysis), docs / "study-tables.md": make_tables(analysis)}
    for path, text in pages.items():
        write_atomically(path, text)
    return [*pages, figure]
