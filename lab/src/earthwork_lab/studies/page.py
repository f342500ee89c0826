"""The page "Which loss should I use?" and the README's table, from the results of a study.

All of their numbers are computed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from earthwork.files import write_atomically
from earthwork_lab.studies.figures import charts, save_charts
from earthwork_lab.studies.findings import Comparison, Findings, verdict
from earthwork_lab.studies.findings import difference_cell as _cell
from earthwork_lab.studies.findings import markdown as _markdown
from earthwork_lab.studies.questions import COARSE, NOISE, RECIPES
from earthwork_lab.studies.study import table
from earthwork_lab.studies.training import METRICS, TITLES

_GOALS = {"top1": "accuracy", "distance": "mean distance", "proper": "EMD²", "log_loss": "log loss"}
_ALL_GOALS = {**_GOALS, "calibration": "calibration", "decided": "mean distance of least-risk decisions"}
_SPACES = {"Chain": "ordered classes", "Ring": "classes on a ring", "Tree": "a hierarchy", "CostMatrix": "costs"}
_EXPONENTS = ("emd1", "emd1.5", "emd2", "emd3")
# How a loss of the study is written in Python.
_IN_PYTHON = {
    "ce": "`nn.CrossEntropyLoss()`",
    "mse": "`nn.MSELoss()` of the probabilities and the one-hot target",
    "emd2": "`EMDLoss(space)`; `emd1`, `emd1.5`, `emd3`: `EMDLoss(space, rho)`",
    "emd2+ce": "`MixedLoss((w, EMDLoss(space)), (1 - w, nn.CrossEntropyLoss()))`",
    "sd+ce": "`MixedLoss((w, SinkhornLoss(space)), (1 - w, nn.CrossEntropyLoss()))`",
    "edge": "`EdgeCrossEntropyLoss(space)`",
    "hxe": "`HierarchicalCrossEntropyLoss(tree, alpha)`",
    "soft": "`SoftLabelLoss(space, beta)`",
}

_NO_RESULTS = "There are no results yet: `make study` computes them.\n"
_ONLY_QUICK = "**These are results of `--quick`, which only show that everything runs.**\n"

_HEAD = """\
# Which loss should I use?

<!-- Written by `earthwork study page` from docs/results/study-*.json; do not edit. -->
"""

_HOW = """\
Differences are to cross entropy with the same data, split and initial weights: in percentage points for accuracy and
calibration, in per cent of cross entropy's mean for everything else. Intervals are 95 % intervals of the paired
differences over seeds, by Student's t. A loss is called better (✓ in the tables below) or worse (✗) only if its
interval excludes 0. Each interval holds on its own: where nothing differs, about one comparison in 40 is called better
by chance, and the best of several losses seems better than it is. **Bold** differences also exclude 0 after
Bonferroni's correction for the number of losses compared. Learning rate, hyper-parameter and epoch were chosen on
validation data, for each loss and each goal; [how](studies.md).
"""


def write_page(results: Path, page: Path) -> None:
    """Write the page, and its figures into the subfolder ``figures`` of the results."""
    findings = Findings.read(results)
    save_charts(charts(findings), results / "figures")
    write_atomically(page, make_page(findings))


def make_page(findings: Findings) -> str:
    """The page as Markdown; figures are expected in ``results/figures`` beside it."""
    if not findings.tasks():
        return f"{_HEAD}\n{_NO_RESULTS}"
    drawn = {chart.key: chart.alt for chart in charts(findings)}
    parts = [_HEAD, _introduction(findings), _decisions(findings), _HOW, _names(findings)]
    for title, section, keys in (
        ("Which loss wins, on which measure?", _wins(findings), ("study-top1", "study-distance")),
        ("Does the right tree matter?", _trees(findings), ()),
        ("How much do the weight of the mixture and ρ matter?", _mixing(findings), ("study-mixing",)),
        ("How few labels before the structure pays?", _labels(findings), ("study-labels",)),
        ("Is deciding by least risk worth more than the loss?", _deciding(findings), ()),
        ("What does label noise do?", _noise(findings), ()),
        ("What do coarse labels do?", _coarse(findings), ()),
        ("And gradient boosting?", _boosting(findings), ()),
        ("Every task", _every_task(findings), ()),
    ):
        if section:
            shown = [f"![{alt}](results/figures/{key}.svg)\n" for key, alt in drawn.items() if key.startswith(keys)]
            parts.append("\n".join([f"## {title}\n", section, *(shown if keys else [])]))
    return "\n".join(parts)


def short_table(findings: Findings) -> str:
    """The README's table, without label noise: for each situation and goal, the loss to use and its difference."""
    if not findings.tasks():
        return _NO_RESULTS
    situations = _situations(findings, questions=("labels",))
    rows = [[title, str(len(tasks)), *_winners(findings, tasks, _GOALS)] for title, tasks in situations.items()]
    shown = _markdown(["you have", "tasks", *(f"for {goal}" for goal in _GOALS.values())], rows)
    return f"{_ONLY_QUICK}\n{shown}" if _is_quick(findings) else shown


def _is_quick(findings: Findings) -> bool:
    return any(results.quick for results in findings.results.values())


def _introduction(findings: Findings) -> str:
    cells = [cell for results in findings.results.values() for cell in results.parts.values()]
    main = findings.tasks()
    losses = {loss for task in main for loss in findings.losses(task)}
    return (
        f"{len(losses)} losses on {len(main)} tasks with real data, and variants of these tasks: "
        f"{sum(len(cell['tried']) for cell in cells)} training runs. For each situation and goal, the table names the "
        "loss with the largest gain over cross entropy (`ce`), averaged over the tasks, among the losses whose average "
        "gain has an interval above 0 and that are worse on none of the tasks. Where there is no such loss, it says "
        "`ce`. Beside each loss stands its difference to cross entropy with a 95 % interval: accuracy is better when "
        "it is higher, everything else when it is lower. Here `emd2` is `EMDLoss`, `edge` is `EdgeCrossEntropyLoss`, "
        "`soft` is `SoftLabelLoss`, `sd+ce` a mixture of `SinkhornLoss` and `ce`; a table below has all names.\n"
        + (f"\n{_ONLY_QUICK}" if _is_quick(findings) else "")
    )


def _names(findings: Findings) -> str:
    """How the losses are written, and which values of their hyper-parameters were chosen."""
    used = {loss for task in findings.tasks() for loss in findings.losses(task)}
    rows = []
    for loss, text in _IN_PYTHON.items():
        if loss in used:
            chosen = [_chosen(findings, loss, metric) for metric in ("top1", "distance")]
            rows.append([f"`{loss}`", text, *chosen])
    text = (
        "How the losses are written, and how often each value of a hyper-parameter (w, α, β) was chosen on the "
        "validation data, over all tasks and seeds:\n\n"
    ) + _markdown(["name", "in Python", "chosen for accuracy", "chosen for mean distance"], rows)
    ends = [f"`{loss}` ({value})" for loss in _IN_PYTHON if (value := _at_an_end(findings, loss))]
    if ends:
        text += f"\nThe best value for the mean distance may lie beyond those tried, for {', '.join(ends)}: the value "
        text += "at an end was chosen in more than half of the cases.\n"
    return text


def _at_an_end(findings: Findings, loss: str) -> str:
    """The smallest or largest value of a hyper-parameter, if it was chosen in more than half of the cases."""
    counts = findings.chosen_values(loss, "distance")
    ends = [value for value in (*list(counts)[:1], *list(counts)[-1:]) if 2 * counts[value] > sum(counts.values())]
    return ends[0] if ends else ""


def _chosen(findings: Findings, loss: str, metric: str) -> str:
    counts = findings.chosen_values(loss, metric)
    return ", ".join(f"{value}: {count}" for value, count in counts.items()) or "–"


def _by_space(findings: Findings) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for task in findings.tasks():
        groups.setdefault(_SPACES[findings.fact(task, "space")], []).append(task)
    return groups


_VARIANTS = {"labels": "few labels", "noise": f"{NOISE:.0%} of the labels moved to a neighbour"}


def _situations(findings: Findings, questions: Sequence[str] = tuple(_VARIANTS)) -> dict[str, list[str]]:
    """Groups of tasks, by what a reader has."""
    groups = _by_space(findings)
    for question in questions:
        for base in findings.bases(question):
            tasks = findings.tasks(question, base)
            # Half of the numbers of labels, the smaller ones, are few.
            tasks = tasks[: (len(tasks) + 1) // 2]
            groups[f"{_SPACES[findings.fact(base, 'space')]}, {_VARIANTS[question]}"] = tasks
    return groups


def _common_losses(findings: Findings, tasks: Sequence[str]) -> list[str]:
    """The losses other than cross entropy that were trained on all of the tasks."""
    first, *others = (findings.losses(task) for task in tasks)
    return [loss for loss in first if loss != "ce" and all(loss in other for other in others)]


def _decisions(findings: Findings) -> str:
    rows = []
    for title, tasks in _situations(findings).items():
        cells = _winners(findings, tasks, _ALL_GOALS)
        rows.append([f"{title} ({', '.join(f'`{task}`' for task in tasks)})", *cells])
    if findings.tasks("coarse"):
        cells = [_coarse_winner(findings, goal) for goal in _ALL_GOALS]
        rows.append([f"a hierarchy, {COARSE:.0%} [coarse labels](#what-do-coarse-labels-do)", *cells])
    return _markdown(["you have", *(f"for {goal}" for goal in _ALL_GOALS.values())], rows) + _deciding_first(findings)


def _deciding_first(findings: Findings) -> str:
    """What deciding by least risk does without another loss, if that is known."""
    found = findings.over_tasks(findings.tasks(), "ce", "decided", other_metric="distance")
    if found is None or not (found.better() or found.worse()):
        return ""
    return (
        "\nWithout another loss: taking the class of least expected distance ([`decide`](guides/deciding.md)) instead "
        f"of the most probable one changed the mean distance of `ce` by {found}, on average over the tasks. In the "
        "last column, both losses decide this way.\n"
    )


def _winners(findings: Findings, tasks: Sequence[str], goals: Iterable[str]) -> list[str]:
    """For each goal, the best loss among those that were trained on all of the tasks."""
    losses = _common_losses(findings, tasks)
    return [_winner(findings, tasks, losses, metric) for metric in goals]


def _winner(findings: Findings, tasks: Sequence[str], losses: Sequence[str], metric: str) -> str:
    found = {}
    for loss in losses:
        overall = findings.over_tasks(tasks, loss, metric)
        each = [findings.compare(task, loss, metric) for task in tasks]
        if overall is not None and overall.better() and not any(entry is None or entry.worse() for entry in each):
            found[f"`{loss}`"] = overall
    return _best(found, len(losses)) or "`ce`"


def _best(found: dict[str, Comparison], tests: int) -> str:
    if not found:
        return ""
    name = min(found, key=lambda name: found[name].sign * found[name].mean)
    return f"{name} " + (f"**{found[name]}**" if found[name].better(tests) else str(found[name]))


def _coarse_winner(findings: Findings, metric: str) -> str:
    everything = _coarse_comparisons(findings, metric)
    found = {f"`{loss}`, {recipe}": entry for (recipe, loss), entry in everything.items() if entry and entry.better()}
    return _best(found, len(everything) - 1) or "`ce`, drop"


def _wins(findings: Findings) -> str:
    tasks = findings.tasks()
    names = dict.fromkeys(loss for task in tasks for loss in findings.losses(task) if loss != "ce")
    rows = []
    for loss in names:
        everything = {metric: [findings.compare(task, loss, metric) for task in tasks] for metric in METRICS}
        found = {metric: [entry for entry in entries if entry] for metric, entries in everything.items()}
        counts = [
            f"{sum(entry.better() for entry in entries)} / {sum(entry.worse() for entry in entries)}"
            for entries in found.values()
        ]
        rows.append([f"`{loss}`", str(len(found["top1"])), *counts])
    counted = _markdown(["loss", "tasks", *(TITLES[metric] for metric in METRICS)], rows)
    return (
        "The number of tasks on which a loss was better / worse than cross entropy; the others are undecided.\n\n"
        f"{counted}\nThese losses did not help: averaged over the tasks of a kind, they were better than cross entropy "
        f"on none of {len(_ALL_GOALS)} measures, with Bonferroni's correction for that number.\n\n" + _useless(findings)
    )


def _useless(findings: Findings) -> str:
    lines = []
    for title, tasks in _by_space(findings).items():
        useless, harmful = [], []
        for loss in _common_losses(findings, tasks):
            found = [findings.over_tasks(tasks, loss, metric) for metric in _ALL_GOALS]
            if not any(entry and entry.better(len(found)) for entry in found):
                useless.append(f"`{loss}`")
            if all(entry and entry.worse() for entry in found):
                harmful.append(f"`{loss}`")
        text = f"- {title}: {', '.join(useless) or 'none'}"
        lines.append(text + (f"; worse on every measure: {', '.join(harmful)}" if harmful else ""))
    return "\n".join(lines) + "\n"


def _trees(findings: Findings) -> str:
    parts = []
    for base in findings.bases("tree"):
        variants = findings.tasks("tree", base)
        rows, against = [], dict[str, list[Comparison | None]]()
        for loss in findings.losses(variants[0]):
            rows.append([f"`{loss}`", "right tree against cross entropy", *_goal_cells(findings, base, loss)])
            for task in variants:
                kind = task.removeprefix(f"{base}-").replace("-", " ")
                entries = [findings.compare(task, loss, goal, other_task=base, other_loss=loss) for goal in _GOALS]
                against.setdefault(kind, []).extend(entries)
                rows.append([f"`{loss}`", f"{kind} against right tree", *map(_cell, entries)])
                entries = [findings.compare(task, loss, goal, other_task=base) for goal in _GOALS]
                rows.append([f"`{loss}`", f"{kind} against cross entropy", *map(_cell, entries)])
        said = [f"a {kind} was {verdict(entries, 'the right tree')}" for kind, entries in against.items()]
        parts.append(f"**{_title(findings, base)}.** Over all losses and goals, {'; '.join(said)}. ")
        parts[-1] += "Distances are always those of the right tree.\n"
        parts.append(_markdown(["loss", "comparison", *_GOALS.values()], rows))
    return "\n".join(parts)


def _goal_cells(findings: Findings, task: str, loss: str) -> list[str]:
    tests = len(findings.losses(task)) - 1
    return [_cell(findings.compare(task, loss, goal), tests) for goal in _GOALS]


def _mixing(findings: Findings) -> str:
    parts = []
    for task in findings.tasks():
        exponents = [loss for loss in _EXPONENTS if f"{loss}+ce" in findings.losses(task)]
        if len(exponents) < 2:
            continue
        weights = list(next(iter(findings.cells(task, f"{exponents[0]}+ce").values()))["by_value"])
        parts.append(f"**{_title(findings, task)}.** {_mixing_verdict(findings, task, exponents, weights)}\n")
        for metric in ("top1", "distance"):
            rows = []
            for loss in exponents:
                cells = [findings.compare(task, f"{loss}+ce", metric, value=value) for value in weights]
                rows.append([f"ρ = {loss[3:]}", *map(_cell, [*cells, findings.compare(task, loss, metric)])])
            parts.append(_markdown([f"{_GOALS[metric]}: weight of EMD", *weights, "1 (no cross entropy)"], rows))
    return "\n".join(parts)


def _mixing_verdict(findings: Findings, task: str, exponents: Sequence[str], weights: Sequence[str]) -> str:
    low, high = weights[0], weights[-1]
    by_weight = [
        findings.compare(task, f"{loss}+ce", goal, value=high, other_loss=f"{loss}+ce", other_value=low)
        for loss in exponents
        for goal in _GOALS
    ]
    said = [f"the weight {high} was {verdict(by_weight, low)}"]
    for loss in exponents:
        if loss != "emd2":
            entries = [findings.compare(task, f"{loss}+ce", goal, other_loss="emd2+ce") for goal in _GOALS]
            said.append(f"ρ = {loss[3:]} was {verdict(entries, 'ρ = 2')}")
    return f"Over the four goals above, {'; '.join(said)}."


def _labels(findings: Findings) -> str:
    parts = []
    for base in findings.bases("labels"):
        tasks = findings.tasks("labels", base)
        losses = [loss for loss in findings.losses(tasks[0]) if loss != "ce"]
        for metric in ("top1", "distance"):
            rows, helped = [], []
            for task in [*tasks, base]:
                found = {loss: findings.compare(task, loss, metric) for loss in losses}
                examples = str(findings.fact(task, "examples"))
                helped += [examples] if any(entry and entry.better(len(losses)) for entry in found.values()) else []
                count = "all" if task == base else task.removeprefix(f"{base}-").removesuffix("-labels")
                rows.append([count, examples, *(_cell(entry, len(losses)) for entry in found.values())])
            header = ["labels per class", "examples", *(f"`{loss}`" for loss in losses)]
            said = f"with {', '.join(helped)} training examples" if helped else "at no number of training examples"
            text = f"At least one loss was better {said}, with Bonferroni's correction."
            parts.append(f"**{_title(findings, base)}: {_GOALS[metric]}.** {text}\n")
            parts.append(_markdown(header, rows))
    return "\n".join(parts)


def _deciding(findings: Findings) -> str:
    main = findings.tasks()
    rows, against = [], []
    for loss in dict.fromkeys(loss for task in main for loss in findings.losses(task)):
        tasks = [task for task in main if findings.compare(task, loss, "decided") is not None]
        if not tasks:
            continue
        alone = None if loss == "ce" else findings.over_tasks(tasks, loss, "distance")
        decided = findings.over_tasks(tasks, loss, "decided", other_loss=loss, other_metric="distance")
        both = findings.over_tasks(tasks, loss, "decided", other_metric="distance")
        versus = None
        if loss != "ce":
            versus = findings.over_tasks(tasks, "ce", "decided", other_loss=loss, other_metric="distance")
            against.append(versus)
        rows.append([f"`{loss}`", str(len(tasks)), *map(_cell, (alone, decided, both, versus))])
    header = ["loss", "tasks", "the loss alone", "deciding, with this loss", "both, against `ce` alone"]
    header.append("deciding with `ce`, against the loss alone")
    return (
        "The change of the mean distance, averaged over the tasks: by the loss, if the most probable class is taken; "
        "by taking the class of least expected distance instead; by both. Deciding with cross entropy was "
        f"{verdict(against, 'a loss alone')}.\n\n"
    ) + _markdown(header, rows)


def _noise(findings: Findings) -> str:
    parts = []
    for base in findings.bases("noise"):
        (task,) = findings.tasks("noise", base)
        rows, entries = [], dict[str, list[Comparison | None]]()
        for loss in findings.losses(task):
            if loss != "ce":
                rows.append([f"`{loss}`", "against cross entropy", *_goal_cells(findings, task, loss)])
                for name in (task, base):
                    entries.setdefault(name, []).extend(findings.compare(name, loss, goal) for goal in _GOALS)
            harm = [findings.compare(task, loss, goal, other_task=base, other_loss=loss) for goal in _GOALS]
            rows.append([f"`{loss}`", "against the same loss without noise", *map(_cell, harm)])
        parts.append(
            f"**{findings.title(task)}** (in the training data). The losses were "
            f"{verdict(entries[task], 'cross entropy')}; without noise they were {verdict(entries[base])}.\n"
        )
        parts.append(_markdown(["loss", "comparison", *_GOALS.values()], rows))
    return "\n".join(parts)


def _coarse_comparisons(findings: Findings, metric: str) -> dict[tuple[str, str], Comparison | None]:
    base = findings.bases("coarse")[0]
    return {
        (recipe, loss): findings.compare(f"{base}-coarse-{recipe}", loss, metric, other_task=f"{base}-coarse-drop")
        for recipe in RECIPES
        for loss in findings.losses(f"{base}-coarse-{recipe}")
    }


def _coarse(findings: Findings) -> str:
    if not findings.bases("coarse"):
        return ""
    base = findings.bases("coarse")[0]
    found = {metric: _coarse_comparisons(findings, metric) for metric in _GOALS}
    pairs = [pair for pair in found["top1"] if pair != ("drop", "ce")]
    rows = [[recipe, f"`{loss}`", *(_cell(found[goal][recipe, loss], len(pairs)) for goal in _GOALS)]
            for recipe, loss in pairs]  # fmt: skip
    said = []
    for recipe in RECIPES[1:]:
        entries = [entry for goal in found.values() for (name, _), entry in goal.items() if name == recipe]
        said.append(f"*{recipe}* was {verdict(entries, 'this baseline')}")
    full = [findings.compare(base, "ce", goal, other_task=f"{base}-coarse-drop") for goal in _GOALS]
    rows.append(["(all labels fine)", "`ce`", *map(_cell, full)])
    return (
        f"{_title(findings, base)}; {COARSE:.0%} of the training labels name only the parent of the class. "
        "Recipes: *drop* these examples; a set of classes as the target, for which cross entropy is −log of its "
        "*mass*; *spread* the label evenly over the set; the parents as further classes of the network (*inner*). "
        "The baseline is cross entropy without these examples. "
        f"Over all losses and goals, {'; '.join(said)}.\n\n" + _markdown(["recipe", "loss", *_GOALS.values()], rows)
    )


def _boosting(findings: Findings) -> str:
    rows = []
    for task in findings.tasks():
        for model in findings.models(task):
            if model in findings.losses(task):
                continue
            other = "ce" if model == "lgbm" else "lgbm"
            entries = [findings.compare(task, model, goal, other_loss=other) for goal in _GOALS]
            rows.append([f"`{task}`", f"`{model}` against `{other}`", *map(_cell, entries)])
    if not rows:
        return ""
    text = "LightGBM with its own multiclass objective (`lgbm`) against a network with cross entropy; and the\n"
    text += "objectives of [`earthwork.boosting`](guides/tables.md) against LightGBM's own.\n\n"
    return text + _markdown(["task", "comparison", *_GOALS.values()], rows)


def _title(findings: Findings, task: str) -> str:
    """What a task is, with a capital letter."""
    title = findings.title(task)
    return title[0].upper() + title[1:]


def _every_task(findings: Findings) -> str:
    parts = [
        "Means over seeds with 95 % intervals; * marks the best mean. Accuracy and calibration error in per cent.\n"
    ]
    for task in findings.tasks():
        header, *rows = table(findings.results[task])
        seeds = len(findings.values(task, "ce", "top1"))
        facts = f"{findings.fact(task, 'examples')} training examples, {seeds} seeds"
        parts.append(f"### {_title(findings, task)}\n\n`{task}`: {facts}.\n")
        parts.append(_markdown(header, [[f"`{row[0]}`", *row[1:]] for row in rows]))
    return "\n".join(parts)
