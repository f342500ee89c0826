"""Draw cases, call them in many forms, compare every value and gradient with the oracle, and shrink what differs."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace

import numpy as np
import torch
from torch import Tensor

from cases import Case
from drawing import draw, draw_form, is_determined
from exact import Exact
from forms import Form, fits, outcome
from measures import SUBJECTS

# What a result may miss by, in parts of the largest number that went into it.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
# The forms of each case.
FORMS = 39
# So many findings of each subject are shrunk and printed.
SHOWN = 3


class DifferenceError(AssertionError):
    """A number that is not the oracle's."""


def close(name: str, found: Tensor, exact: Tensor, dtype: torch.dtype, size: Tensor | float) -> None:
    """Raise unless a result agrees as far as its dtype can tell."""
    limits = torch.finfo(dtype)
    if found.shape != exact.shape:
        raise DifferenceError(f"{name}: shape {tuple(found.shape)}, expected {tuple(exact.shape)}")
    allowed = TOLERANCE[dtype] * (exact.abs() + size) + limits.tiny
    found = found.double()
    right = (found - exact).abs() <= allowed
    if right.all():
        return
    wrong = ~right & ~(found.isnan() & exact.isnan())
    # What the dtype cannot hold is not compared.
    wrong &= exact.abs() < 1e-2 * limits.max
    if wrong.any():
        at = tuple(wrong.nonzero()[0].tolist())
        limit = allowed.expand(exact.shape)[at]
        raise DifferenceError(
            f"{name}{list(at)}: {found[at].item()!r}, expected {exact[at].item()!r} ± {limit.item():.2g} ({dtype})"
        )


def compare(case: Case, form: Form, exact: Exact) -> None:
    """Raise unless value and derivatives in a form are the oracle's."""
    found = outcome(case, form)
    dtype = case.type
    if SUBJECTS[case.subject].differences:
        # Where the Hessian is 0, as on a ring with free edges, the quotient consists of rounding errors.
        close("value", found.value, exact.value, at_most_single(dtype), exact.value.abs().max() + 1e-6 * exact.size)
        return
    close("value", found.value, exact.value, dtype, exact.size)
    if found.gradient is not None:
        assert exact.gradient is not None
        close("gradient", found.gradient, exact.gradient, dtype, exact.slope_size)
    if found.along is not None:
        assert exact.gradient is not None
        along = (exact.gradient * torch.from_numpy(case.direction)).sum(-1)
        size = 3 * exact.slope_size.squeeze(-1) * case.width**0.5
        if found.along.ndim == 0:
            along, size = along.sum(), size.sum()
        close("derivative along a direction", found.along, along, dtype, size)
    if found.second is not None:
        close_second(found.second, exact)


def close_second(found: Tensor, exact: Exact) -> None:
    """Raise unless a second derivative agrees, row by row."""
    size = exact.slope_size * 10 + exact.second.abs().amax(-1, keepdim=True)
    close("second derivative", found, exact.second, at_most_single(exact.case.type), size)


def at_most_single(dtype: torch.dtype) -> torch.dtype:
    """The dtype whose tolerance a difference quotient has: it is exact to about the root of the rounding error."""
    return torch.float32 if dtype == torch.float64 else dtype


def is_unstable(case: Case, form: Form, exact: Exact) -> bool:
    """Whether the oracle's own result changes as much if input and flow change by rounding: at a kink or a tie."""
    eps = torch.finfo(case.type).eps
    rng = np.random.default_rng(0)
    for noise in (8 * eps, -8 * eps) * 2:
        x = torch.from_numpy(case.x * (1 + 8 * eps * rng.normal(size=case.x.shape)))
        moved = Exact(case, x, noise)
        try:
            close("value", moved.value, exact.value, case.type, exact.size)
            if exact.gradient is not None and moved.gradient is not None:
                close("gradient", moved.gradient, exact.gradient, case.type, exact.slope_size)
            if "second" in exact.__dict__:
                close_second(moved.second_by(1e-6), exact)
        except DifferenceError:
            return True
    return False


@dataclass
class Search:
    """What was compared, by subject, and what was found.

    Attributes:
        cases: Of which so many.
        compared: Calls of a case in a form whose results were those of the oracle.
        with_gradient: Those of which the value and the gradient, or a derivative along a direction, were compared.
        rows: The rows of these.
        unstable: Calls whose results differ where the oracle's differ too if the input is rounded: not counted.
        failed: Calls that raised something, or whose results differ.
        last: The last case.
    """

    cases: Counter[str] = field(default_factory=Counter)
    compared: Counter[str] = field(default_factory=Counter)
    with_gradient: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    unstable: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    last: Case = field(init=False)

    def run(self, seed: int, number: int) -> list[str]:
        """Call the case of a number in several forms; returns a text for each finding."""
        case = self.last = draw(seed, number)
        self.cases[case.subject] += 1
        rng = np.random.default_rng([seed, number, 1])
        exact = Exact(case)
        forms = Form(), *(draw_form(case, rng) for _ in range(FORMS))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # PyTorch's own, in forward mode and while compiling.
            warnings.filterwarnings("ignore", ".*torch.jit.script", DeprecationWarning)
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor")
            return [found for form in forms if (found := self.problem(case, form, exact)) is not None]

    def problem(self, case: Case, form: Form, exact: Exact) -> str | None:
        """What is wrong, if anything."""
        found = failure(case, form, exact)
        if found is None:
            self.compared[case.subject] += 1
            if exact.gradient is not None and form.run not in ("value only", "no_grad", "inference_mode"):
                self.with_gradient[case.subject] += 1
                self.rows[case.subject] += case.rows
            return None
        if isinstance(found, DifferenceError) and is_unstable(case, form, exact):
            self.unstable[case.subject] += 1
            return None
        self.failed[case.subject] += 1
        # Shrinking takes seconds, and what is systematic fails often.
        simple = shrunk(case, form, found) if self.failed[case.subject] <= SHOWN else (case, form)
        return f"{type(found).__name__}: {found}\n{reproduction(*simple)}"

    def table(self) -> str:
        """The counts, with a line for each subject and one for all."""
        counts = (self.cases, self.compared, self.with_gradient, self.rows, self.unstable, self.failed)
        heads = ("cases", "compared", "with gradient", "their rows", "unstable", "failed")
        lines = [f"{'':<28}" + "".join(f"{head:>15}" for head in heads)]
        lines += [f"{name:<28}" + "".join(f"{count[name]:>15,}" for count in counts) for name in sorted(self.cases)]
        return "\n".join([*lines, f"{'all':<28}" + "".join(f"{count.total():>15,}" for count in counts)])


def failure(case: Case, form: Form, exact: Exact) -> Exception | None:
    """What is raised when a case is compared in a form."""
    try:
        compare(case, form, exact)
    except Exception as error:
        return error
    return None


def shrunk(case: Case, form: Form, problem: Exception, seconds: float = 20.0) -> tuple[Case, Form]:
    """A simpler case and form with the same kind of failure, found greedily."""
    end = time.monotonic() + seconds
    again = True
    while again and time.monotonic() < end:
        again = False
        for simpler in _simpler(case, form):
            if is_determined(simpler[0]) and fits(*simpler) and _fails(*simpler, problem):
                case, form = simpler
                again = True
                break
    return case, form


def _fails(case: Case, form: Form, like: Exception) -> bool:
    try:
        exact = Exact(case)
    except Exception:
        # The simpler case has no meaning, such as inner nodes of a chain.
        return False
    found = failure(case, form, exact)
    if type(found) is not type(like) or str(found)[:8] != str(like)[:8]:
        return False
    return not (isinstance(found, DifferenceError) and is_unstable(case, form, exact))


def _simpler(case: Case, form: Form) -> Iterator[tuple[Case, Form]]:
    for part in fields(Form):
        if getattr(form, part.name) != part.default:
            yield case, replace(form, **{part.name: part.default})
    for name in case.options:
        yield replace(case, options={key: value for key, value in case.options.items() if key != name}), form
    for rows in (1, 2, case.rows // 2, case.rows - 1):
        if 0 < rows < case.rows:
            yield replace(case, rows=rows), form
    for bins in (2, 3, case.bins // 2, case.bins - 1):
        if 0 < bins < case.bins:
            yield replace(case, bins=bins), form
    for name, plain in {"kind": "chain", "costs": "one", "input": "normal", "dtype": "float64"}.items():
        if getattr(case, name) != plain and (name != "kind" or plain in SUBJECTS[case.subject].kinds):
            yield replace(case, **{name: plain}), form


def reproduction(case: Case, form: Form) -> str:
    """A few lines of Python that compare a case again, run in the folder of this file."""
    parts = {part.name: getattr(form, part.name) for part in fields(Form) if getattr(form, part.name) != part.default}
    written = ", ".join(f"{name}={value!r}" for name, value in parts.items())
    return f"from search import *\ncase = {case!r}\ncompare(case, Form({written}), Exact(case))"
