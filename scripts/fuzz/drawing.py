"""Random cases and forms, by number; what is slow or rarely matters is drawn less often."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from cases import Case
from forms import AXES, LAYOUTS, RUNS, SETTINGS, TARGETS, Form, fits
from measures import SUBJECTS

# The numbers of entries and of rows at which the library takes another way, and how often a case is about one of them.
_ENTRIES = {256: 0.2, 2**15: 0.002, 2**16: 0.002, 2**17: 0.001, 2**20: 0.0002}
_ROWS = {8: 0.05, 16: 0.02, 1024: 0.001}
_TYPES = {"float64": 0.35, "float32": 0.5, "float16": 0.05, "bfloat16": 0.1}
_COSTS = {"one": 0.3, "random": 0.4, "wide": 0.1, "zeros": 0.2}
_INPUTS = {"normal": 0.6, "wide": 0.15, "sparse": 0.1, "same": 0.15}
# The chance that a form with such a run is taken; compiling takes seconds.
_SLOW = {
    "value only": 0.3,
    "no_grad": 0.3,
    "inference_mode": 0.3,
    "twice": 0.3,
    "func.jvp of vjp": 0.2,
    "func.jvp": 0.3,
    "vmap(grad)": 0.5,
    "vmap": 0.5,
    "checkpoint": 0.5,
    "compile": 1e-4,
}


def draw(seed: int, number: int) -> Case:
    """The case of a number."""
    rng = np.random.default_rng([seed, number])
    while not is_determined(case := _draw(rng)):
        pass
    return case


def _draw(rng: Generator) -> Case:
    name = pick(rng, {name: subject.chance for name, subject in SUBJECTS.items()})
    subject = SUBJECTS[name]
    kind, target = str(rng.choice(subject.kinds)), str(rng.choice(subject.targets))
    options = subject.draw(rng, kind)
    if target != "labels" and options.pop("ignored", False):
        options["mask"] = True
    bins, rows = draw_size(rng)
    most_bins, most_rows = (5, 4) if is_programme(name, kind) else subject.largest
    if kind == "path":
        # Logarithmic losses take a step for each of its nodes.
        most_bins = min(most_bins, 16)
    size = min(bins, most_bins), min(rows, most_rows)
    drawn = pick(rng, _TYPES), target, pick(rng, _COSTS), pick(rng, _INPUTS)
    return Case(name, kind, *size, int(rng.integers(2**31)), *drawn, options)


def is_programme(subject: str, kind: str) -> bool:
    """Whether a linear programme is solved."""
    return kind == "matrix" and subject in ("EMDLoss", "MixedLoss", "emd", "emd_gradient")


def is_determined(case: Case) -> bool:
    """Whether definitions say what the result and its gradient are."""
    subject, sets = SUBJECTS[case.subject], case.target == "sets"
    programme = is_programme(case.subject, case.kind)
    if programme or subject.iterated:
        # Several plans may be the best, or many iterations needed.
        if case.costs != "random" or case.input in ("wide", "sparse"):
            return False
        # Where each bin's mass moves as a whole, only differences of dual variables are determined.
        return not (sets and programme and case.option("normalize", "softmax") is None)
    if (
        sets
        and case.subject == "EMDLoss"
        and (case.costs != "random" or (case.kind == "ring" and case.option("rho") == 1))
    ):
        # Which of several nearest bins is taken is left open; and on a ring, which of several edges stands still.
        return False
    # Empty bins, also those that half precision rounds to 0, have logarithms by convention only.
    return not subject.dense_only or case.takes_logits or bool((case.x > 0).all())


def draw_size(rng: Generator) -> tuple[int, int]:
    """A number of bins and of rows."""
    bins = int(rng.choice([2, 3, 4, 5, 5, rng.integers(6, 13), rng.integers(13, 61)]))
    bins = 1 if rng.random() < 0.03 else bins
    rows = int(rng.choice([1, 2, 3, 4, 6, 9, 12]))
    for size, chance in _ENTRIES.items():
        if rng.random() < chance:
            rows = max(1, size // bins + int(rng.integers(-1, 2)))
    for size, chance in _ROWS.items():
        if rng.random() < chance:
            rows = size + int(rng.integers(-1, 2))
    return bins, rows


def draw_form(case: Case, rng: Generator) -> Form:
    """A form that the case has; each part is often the first one."""

    def part(names: dict[str, object]) -> str:
        return list(names)[0 if rng.random() < 0.4 else rng.integers(len(names))]

    while True:
        form = Form(*(part(dict(names)) for names in (AXES, LAYOUTS, TARGETS, RUNS, SETTINGS)))
        if fits(case, form) and rng.random() < _SLOW.get(form.run, 1.0):
            return form


def pick(rng: Generator, chances: dict[str, float]) -> str:
    """One of the names, each with its chance."""
    weights = np.array(list(chances.values()))
    return str(rng.choice(list(chances), p=weights / weights.sum()))
