"""A short run of the fuzzers in `scripts/fuzz`, and whether they would find anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts" / "fuzz"))

import round_trips
from cases import Case
from drawing import draw
from exact import Exact
from forms import Form
from measures import SUBJECTS
from oracle import derivative
from search import DifferenceError, Search, compare

# Of one thread each; a run of all takes about 20 seconds.
PARTS, CASES = 8, 16


@pytest.mark.parametrize("part", range(PARTS))
def test_form_gives_same_value_and_gradient(part):
    done = Search()
    findings = [text for number in range(part, PARTS * CASES, PARTS) for text in done.run(2, number)]
    assert findings == []
    assert done.with_gradient.total() > 10 * CASES
    # Too many would mean that the comparisons say little.
    assert done.unstable.total() < 0.02 * done.compared.total() + 50


def test_wrong_gradient_of_one_layout_is_found(monkeypatch):
    subject = SUBJECTS["EMDLoss"]

    def broken(case, axis):
        function = subject.call(case, axis)

        def call(x, *rest):
            value = function(x, *rest)
            return value if x.is_contiguous() else value + (x - x.detach()).mean()

        return call

    object.__setattr__(wrong := type(subject)(**subject.__dict__), "call", broken)
    monkeypatch.setitem(SUBJECTS, "EMDLoss", wrong)
    done = Search()
    finding = next(text for number in range(200) for text in done.run(0, number))
    reproduction = finding[finding.index("from search") :]
    with pytest.raises(DifferenceError, match="gradient"):
        exec(reproduction, {})
    monkeypatch.undo()
    exec(reproduction, {})
    assert "rows=2" in reproduction or "rows=1" in reproduction


@pytest.mark.parametrize("name", [name for name, subject in SUBJECTS.items() if subject.order == 2])
def test_oracle_differentiates_its_own_values(name):
    kind = SUBJECTS[name].kinds[-1] if name != "TokenEMDLoss" else "chain"
    kind = "tree" if kind == "matrix" else kind
    case = next(
        case
        for case in (draw(seed, 0) for seed in range(5000))
        if (case.subject, case.kind, case.dtype, case.input) == (name, kind, "float64", "normal") and case.bins > 2
    )
    exact = Exact(case)
    along = torch.from_numpy(case.rng("test").normal(size=case.x.shape) * case.x)
    upstream = case.upstream(tuple(exact.value.shape))
    slope = derivative(lambda x: (Exact(case, x).value * upstream).sum(), torch.from_numpy(case.x), along, 1e-5)
    torch.testing.assert_close(slope, (exact.gradient * along).sum(), rtol=1e-5, atol=1e-7 * exact.size)


def test_case_is_its_repr():
    case = draw(0, 7)
    again = eval(repr(case), {"Case": Case})
    assert (again.x == case.x).all()
    assert (again.labels == case.labels).all()
    compare(again, Form(), Exact(again))


@pytest.mark.parametrize("case", range(2 * len(round_trips.CHECKS)))
def test_files_are_read_as_they_were_written(case, tmp_path):
    round_trips.check(0, case, tmp_path)
