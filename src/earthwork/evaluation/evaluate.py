"""From predictions to a result: one pass over each model's predictions, which keeps a few numbers for each row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from earthwork.decisions.calibration import fit_temperature, tune_vagueness
from earthwork.decisions.conformal import ConformalPredictor
from earthwork.decisions.decide import check_vagueness
from earthwork.evaluation.labels import ClassIndex, LabelKind
from earthwork.evaluation.result import Evaluation, Model, compare
from earthwork.evaluation.sources import Predictions, open_predictions
from earthwork.metrics.batch import Batch, check_whole, log_probabilities
from earthwork.metrics.measure import Measure, Rows
from earthwork.metrics.report import check_extra, joined, measure_rows, report_of, standard_measures
from earthwork.metrics.sets import SetCoverage, SetSize, SetWidth
from earthwork.ops.masses import Normalize, check_distributions, check_normalize, l1_normalized
from earthwork.spaces import Space
from earthwork.spaces.space import check_space, check_word, first_true, from_array
from earthwork.spaces.tree import as_tree

Deciding: TypeAlias = Literal["least_risk", "inner"]

_REMEDY = 'for logits pass normalize="softmax", or store them as `logits`; for other masses pass normalize="l1"'
# The number of values of the held-out half that are kept for tuning: at most 256 MiB.
_KEPT = 2**25


def evaluate(
    predictions: Any,
    labels: Any,
    space: Space,
    *,
    normalize: Normalize = None,
    decide: Deciding | None = None,
    vagueness: float = 0.0,
    accuracy: float | None = None,
    coverage: float | None = None,
    calibrate: bool = False,
    conformal: float | None = None,
    label_kind: LabelKind | None = None,
    label_column: str | None = None,
    answers: Literal["class", "node"] | None = None,
    top_k: int | None = None,
    extra: Sequence[Measure] = (),
    intervals: bool = True,
    seed: int = 0,
    progress: Callable[[str, float], None] | None = None,
) -> Evaluation:
    """Evaluate the predictions of one or several models, given how the classes are arranged.

    Several models are compared with the first one, on the same rows. Intervals and p-values come from the jackknife.
    Everything is computed in double precision, whatever the type of the predictions.

    Args:
        predictions: Probabilities, ``[rows, classes]``, or answers, ``[rows]``: an array, a tensor, a pandas or polars
            data frame, or the path of a file; see :func:`~earthwork.evaluation.open_predictions`. Several models: a
            mapping from names to those, or a list of paths. All have the same rows in the same order.
        labels: The classes, by index or by name: an array, a series, a list or the path of a file. ``None``: those that
            the files or data frames hold. Names of a tree's inner nodes are coarse labels, see below.
        space: How the classes are arranged.
        normalize: What makes the predictions distributions: ``"softmax"`` for logits, ``"l1"`` for other masses. By
            default ``"softmax"`` for what a file calls logits.
        decide: Adds a model for each model: its ``"least_risk"`` decisions, or those that may be ``"inner"`` nodes of a
            tree (see :func:`~earthwork.decide`).
        vagueness: The cost of an inner node, with ``decide="inner"``.
        accuracy: In place of ``vagueness``, which is tuned: the share of inner decisions to be the label or above it.
        coverage: In place of ``vagueness``, which is tuned: the share of inner decisions to be classes.
        calibrate: Adds a model for each model: its probabilities at the temperature that fits best.
        conformal: Adds the coverage, the size and the width of sets that hold the label of a new row with probability
            ``1 - conformal``: those of :class:`~earthwork.ConformalPredictor`.
        label_kind: How to read labels that could be either: as ``"index"`` or as ``"name"``.
        label_column: The column of a table that holds the labels. Default: the one called label, labels or target.
        answers: What integers that are answers on a tree mean: ``"class"`` indices, or ``"node"``.
        top_k: The number of answers in the top-k metrics. Default: 5 on a tree, else 1.
        extra: Further measures, also of your own, each a line of the report.
        intervals: Whether to compute 95 % intervals, and the differences between models.
        seed: The seed of the split into halves.
        progress: Called with the name of the current step and the fraction of it that is done.

    What ``accuracy``, ``coverage``, ``calibrate`` and ``conformal`` ask for is fitted on one half of the rows, and all
    models are evaluated on the other half.

    A label may be the name of an inner node of a tree: a coarse label, "one of the classes below". Then an answer at or
    below that node is right; its distance is that to the nearest class below the node; the log loss is −log of the mass
    of these classes; the EMD moves each class's mass to the nearest of them. What needs the class itself leaves such
    rows out: hierarchical precision, recall and F1, accuracy at depth, expected − measured cost, and all tuning.

    Returns:
        A result that prints as the command ``earthwork evaluate`` does, also with rich, and has ``to_frame()``.

    Raises:
        ValueError: If predictions or labels are invalid, or the models have different rows or labels.

    Example:
        >>> import numpy as np, earthwork as ew
        >>> rng = np.random.default_rng(0)
        >>> labels = rng.integers(0, 5, 200)
        >>> near = rng.normal(size=(200, 5)) - abs(np.arange(5) - labels[:, None])
        >>> models = {"near": near, "sharper": 2 * near}
        >>> result = ew.evaluate(models, labels, ew.Chain(5), normalize="softmax")
        >>> result.report.line("accuracy").estimates[0].value
        0.635
    """
    check_space(space)
    check_normalize(normalize)
    check_whole("seed", seed)
    plan = _Plan(space, normalize, decide, vagueness, accuracy, coverage, calibrate, conformal)
    plan.check()
    check_extra(extra, space)
    classes = ClassIndex(space, label_kind, inner=True)
    sources = _open(predictions, classes, labels, label_column=label_column, answers=answers)
    if (plan.tunes or decide is not None) and all(source.kind == "answers" for source in sources.values()):
        raise ValueError("predictions: expected probabilities, to decide or calibrate by, got answers")
    kinds = [Batch.empty(space, probs=source.kind != "answers") for source in sources.values()]
    inner = decide == "inner" or any(source.nodes for source in sources.values())
    lines = standard_measures(space, top_k, inner)
    measures = [*(line for line in lines if any(map(line.is_defined, kinds))), *extra]
    if conformal is not None:
        measures += [SetCoverage(), SetSize(), SetWidth()]
    tuning = sample = None
    if plan.tunes:
        tuning, sample = _held_out(len(next(iter(sources.values())).labels), space.num_bins, seed)
    models: list[Model] = []
    for name, source in sources.items():
        told = None if progress is None else partial(progress, f"reading {name}")
        forms = _forms(Model(name, 0 if models else None), len(models), source, plan, sample)
        pieces: list[list[Rows]] = [[] for _ in forms]
        for batch in _batches(source, plan, tuning, told):
            for form, found in zip(forms, pieces, strict=True):
                found.append(measure_rows(_answered(batch, form), measures))
        models += [form._replace(rows=joined(found)) for form, found in zip(forms, pieces, strict=True)]
    names, rows = [model.name for model in models], [model.rows for model in models]
    report = report_of(names, rows, measures, space, intervals)
    differences = compare(models, measures, space) if intervals else []
    return Evaluation(space, tuple(models), report, tuple(differences), 0 if tuning is None else int(tuning.sum()))


class _Plan(NamedTuple):
    """What is evaluated of each model; see :func:`evaluate`."""

    space: Space
    normalize: Normalize
    decide: Deciding | None
    vagueness: float
    accuracy: float | None
    coverage: float | None
    calibrate: bool
    conformal: float | None

    @property
    def tunes(self) -> bool:
        return self.calibrate or any(each is not None for each in (self.accuracy, self.coverage, self.conformal))

    def check(self) -> None:
        decide, conformal = self.decide, self.conformal
        if decide is not None:
            check_word("decide", decide, "least_risk", "inner")
        if decide == "inner":
            as_tree(self.space, "decide", 'for "inner"')
        targets = {"accuracy": self.accuracy, "coverage": self.coverage, "vagueness": self.vagueness or None}
        given = {name: value for name, value in targets.items() if value is not None}
        for name, value in given.items():
            if decide != "inner":
                raise ValueError(f'{name}: expected only with decide="inner", got {name}={value!r} without it')
            if len(given) > 1:
                got = ", ".join(f"{other}={number!r}" for other, number in given.items())
                raise ValueError(f"{name}: expected one of accuracy=, coverage= and vagueness=, got {got}")
            if name != "vagueness" and (not isinstance(value, int | float) or not 0 <= value <= 1):
                raise ValueError(f"{name}: expected a share from 0 to 1, got {value!r}")
        check_vagueness(self.vagueness)
        if conformal is not None and not (isinstance(conformal, int | float) and 0 < conformal < 1):
            raise ValueError(f"conformal: expected a probability between 0 and 1, both excluded, got {conformal!r}")


def _log_p(batch: Batch) -> Tensor:
    return log_probabilities(batch.p) if batch.logits is None else batch.logits


def _softened(batch: Batch, temperature: float) -> Batch:
    """Return the distributions whose logits are divided by a temperature."""
    if temperature == 1:
        return batch
    logits = _log_p(batch) / temperature
    return replace(batch, probs=logits.softmax(-1), logits=logits)


def _answered(batch: Batch, form: Model) -> Batch:
    """Return the rows with the probabilities, answers and sets of one form of a model."""
    if batch.probs is None:
        return batch
    batch = _softened(batch, form.temperature)
    sets = None if form.predictor is None else form.predictor.predict(batch.p)
    return replace(batch, decision=form.decision, vagueness=form.vagueness, sets=sets)


def _forms(model: Model, place: int, source: Predictions, plan: _Plan, sample: NDArray[np.bool_] | None) -> list[Model]:
    """Return the forms in which a model is evaluated; temperatures and decisions are tuned on the held-out rows."""
    if source.kind == "answers":
        return [model._replace(decision="node" if source.nodes else "class")]
    forms, last = [model], model._replace(baseline=place, vagueness=plan.vagueness)
    if sample is not None:
        kept = rest = _kept(_batches(source, plan, ~sample, None))
        if plan.calibrate and plan.conformal is not None:
            # Sets have no guarantee on the rows that the temperature was fitted on.
            rows = len(kept.labels)
            chosen = torch.randperm(rows, generator=torch.Generator().manual_seed(0)) < (rows + 1) // 2
            kept, rest = kept.where(chosen), kept.where(~chosen)
        if plan.calibrate:
            temperature = fit_temperature(_log_p(kept), kept.labels)
            last = last._replace(name=f"{model.name}, calibrated", temperature=temperature)
            forms.append(last._replace(vagueness=0.0))
        if plan.accuracy is not None or plan.coverage is not None:
            p, target = _softened(kept, last.temperature).p, {"accuracy": plan.accuracy, "coverage": plan.coverage}
            last = last._replace(vagueness=tune_vagueness(p, kept.labels, kept.tree, **target))
    if plan.decide is not None:
        words = {"least_risk": "least risk", "inner": "inner nodes"}[plan.decide]
        base = place + len(forms) - 1
        forms.append(last._replace(name=f"{last.name}, {words}", baseline=base, decision=plan.decide))
    if sample is None or plan.conformal is None:
        return forms
    probs = [_softened(rest, form.temperature).p for form in forms]
    predictors = [ConformalPredictor(plan.space, plan.conformal).fit(p, rest.labels) for p in probs]
    return [form._replace(predictor=predictor) for form, predictor in zip(forms, predictors, strict=True)]


def _held_out(rows: int, classes: int, seed: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return one half of the rows, at random, and as many of these as fit the memory set aside for tuning."""
    if rows < 2:
        raise ValueError(f"predictions: expected at least 2 rows to hold one half out, got {rows}")
    order = np.random.default_rng(seed).permutation(rows)[: rows // 2]
    held_out, sample = np.zeros((2, rows), dtype=bool)
    held_out[order], sample[order[: max(1, _KEPT // classes)]] = True, True
    return held_out, sample


def _kept(batches: Iterator[Batch]) -> Batch:
    """Return the rows whose class is known."""
    known = [batch.where(batch.exact > 0) for batch in batches]
    if not any(len(batch.labels) for batch in known):
        raise ValueError("predictions: expected held-out rows with a class as label to tune on, got only inner nodes")
    logits = None if known[0].logits is None else torch.cat([_log_p(batch) for batch in known])
    labels, probs = (torch.cat(parts) for parts in zip(*((batch.labels, batch.p) for batch in known), strict=True))
    return replace(known[0], labels=labels, probs=probs, logits=logits)


def _batches(
    source: Predictions, plan: _Plan, left_out: NDArray[np.bool_] | None, progress: Callable[[float], None] | None
) -> Iterator[Batch]:
    """Return the rows that are not left out, checked once."""
    space, start = plan.space, 0
    normalize = plan.normalize or ("softmax" if source.kind == "logits" else None)
    for values, classes in source:
        end, labels = start + len(classes), torch.from_numpy(classes)
        if source.kind == "answers":
            answers = torch.from_numpy(values)
            batch = Batch(space, labels, given=answers, decision="node" if source.nodes else "class")
        else:
            numbers = _checked(values, source, normalize, start)
            logits = numbers if normalize == "softmax" else None
            batch = Batch(space, labels, numbers if logits is None else logits.softmax(-1), logits=logits)
        yield batch if left_out is None else batch.where(torch.from_numpy(~left_out[start:end]))
        start = end
        if progress is not None:
            progress(start / len(source.labels))


def _checked(values: NDArray[Any], source: Predictions, normalize: Normalize, first_row: int) -> Tensor:
    """Return distributions, or logits if ``normalize`` is ``"softmax"``."""
    stored = torch.float16 if source.half or values.dtype == np.float16 else torch.float32
    x = from_array(values.astype(np.float64, copy=False))
    if normalize is not None and (place := first_true(~torch.isfinite(x))) is not None:
        row = first_row + place[0]
        raise ValueError(f"{source.source}: expected finite numbers, got NaN or infinity in row {row}")
    if normalize == "softmax":
        return x
    if normalize == "l1":
        x = l1_normalized(source.source, x, validate=True)
    check_distributions(x, source.source, stored, _REMEDY, first_row)
    return x / x.sum(-1, keepdim=True) if stored == torch.float16 else x


def _open(predictions: Any, classes: ClassIndex, labels: Any, **options: Any) -> dict[str, Predictions]:
    """Return the predictions of each model by its name, all with the same labels."""
    given, opened = _by_name(predictions), {}
    for name, source in given.items():
        called = "predictions" if len(given) == 1 else f"predictions[{name!r}]"
        opened[name] = open_predictions(source, classes, labels, name=called, **options)
    first, *others = opened.values()
    if len(first.labels) == 0:
        raise ValueError(f"{first.source}: expected at least one prediction, got none")
    for other in others:
        if len(first.labels) != len(other.labels):
            raise ValueError(
                f"{other.source}: expected as many rows as {first.source}, which has {len(first.labels)}, to compare "
                f"them row by row, got {len(other.labels)}"
            )
        different = np.flatnonzero(first.labels != other.labels)
        if len(different):
            raise ValueError(
                f"{other.source}: expected the labels of {first.source}, row by row, got another one in row "
                f"{different[0]} and {len(different) - 1} more"
            )
    return opened


def _by_name(predictions: Any) -> dict[str, Any]:
    if isinstance(predictions, Mapping):
        if not predictions:
            raise ValueError("predictions: expected at least one model, got an empty mapping")
        named = {str(name): source for name, source in predictions.items()}
        if len(named) < len(predictions):
            raise ValueError(f"predictions: expected names that differ as text, got {list(predictions)}")
        return named
    if isinstance(predictions, str | Path):
        return {Path(predictions).stem: predictions}
    if isinstance(predictions, Sequence) and predictions and all(isinstance(x, str | Path) for x in predictions):
        return dict(zip(_names([Path(path) for path in predictions]), predictions, strict=True))
    return {"model": predictions}


def _names(paths: Sequence[Path]) -> list[str]:
    """Return short names that tell the files apart: their stems, or the parts of their paths that differ."""
    parts = [(*path.parent.parts, path.stem) for path in paths]
    for end in (0, -1):
        while min(map(len, parts)) > 1 and len({part[end] for part in parts}) == 1:
            parts = [part[1:] if end == 0 else part[:-1] for part in parts]
    for names in ([path.stem for path in paths], ["/".join(part) for part in parts], list(map(str, paths))):
        if len(set(names)) == len(names):
            return names
    raise ValueError(f"predictions: expected each file once, got {', '.join(map(str, paths))}")
