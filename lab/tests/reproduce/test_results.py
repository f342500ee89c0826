from __future__ import annotations

import json
import math
import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch

from earthwork_lab.reproduce import EXPERIMENTS, Plan, Request, Results, ResultsError, run


class Counting:
    """An experiment of three parts that remembers which it ran."""

    name, paper, title = "counting", "nowhere", "Counting"

    def __init__(self, stop_at: str = "", size: int = 1) -> None:
        self.ran: list[str] = []
        self.stop_at = stop_at
        self.size = size

    def plan(self, request: Request) -> Plan:
        parts = {name: (lambda name=name: self.part(name)) for name in "abc"}
        return Plan({"size": self.size}, parts, lambda found: {"order": list(found)})

    def part(self, name: str) -> dict[str, object]:
        if name == self.stop_at:
            raise KeyboardInterrupt
        self.ran.append(name)
        return {"name": name, "nan": math.nan, "pair": (1, 2)}


def test_interrupted_run_goes_on_where_stopped(tmp_path: Path) -> None:
    first, second = Counting(stop_at="b"), Counting()
    with pytest.raises(KeyboardInterrupt):
        run(first, Request(out=tmp_path))
    assert not Results.load(tmp_path / "counting.json").complete
    results = run(second, Request(out=tmp_path))
    assert (first.ran, second.ran) == (["a"], ["b", "c"])
    assert results.complete
    assert results.summary == {"order": ["a", "b", "c"]}


def test_what_cannot_be_json_is_null(tmp_path: Path) -> None:
    run(Counting(), Request(out=tmp_path))
    text = (tmp_path / "counting.json").read_text()
    content = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert content["parts"]["a"] == {"name": "a", "nan": None, "pair": [1, 2]}


def test_no_other_file_is_left(tmp_path: Path) -> None:
    run(Counting(), Request(out=tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["counting.json"]


def test_versions_and_machine_are_recorded(tmp_path: Path) -> None:
    facts = run(Counting(), Request(out=tmp_path)).environment
    assert {"earthwork", "python", "torch", "numpy", "processor", "cores", "threads", "gpus"} <= set(facts)


def test_progress_counts_parts(tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    run(Counting(), Request(out=tmp_path), lambda *step: seen.append(step))
    assert seen == [(0, 3, "a"), (1, 3, "b"), (2, 3, "c"), (3, 3, "")]


def test_other_settings_are_not_mixed_in(tmp_path: Path) -> None:
    run(Counting(), Request(out=tmp_path))
    with pytest.raises(ResultsError, match=r"other settings \(size = 1, now 2\); choose another --out"):
        run(Counting(size=2), Request(out=tmp_path))


def test_quick_and_full_are_not_mixed(tmp_path: Path) -> None:
    run(Counting(), Request(out=tmp_path))
    with pytest.raises(ResultsError, match="other quick"):
        run(Counting(), Request(out=tmp_path, quick=True))


def _changed(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_results_another_version_not_gone_on(tmp_path: Path) -> None:
    run(Counting(), Request(out=tmp_path))
    _changed(tmp_path / "counting.json", environment={"earthwork": "0.0.1"})
    with pytest.raises(ResultsError, match=r"results of earthwork 0\.0\.1, this is"):
        run(Counting(), Request(out=tmp_path))


def test_another_format_is_named(tmp_path: Path) -> None:
    run(Counting(), Request(out=tmp_path))
    _changed(tmp_path / "counting.json", format=99)
    with pytest.raises(ResultsError, match="expected results of format 1, got format 99"):
        Results.load(tmp_path / "counting.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "got other JSON"),
        (
            '{"experiment": "x", "format": 1, "settings": {}, "data": [], "quick": 0}',
            "expected the field 'data' of type str, got list",
        ),
        ('{"experiment": "x", "format": 1}', "expected the field 'settings' of type dict, got nothing"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "timing.json"
    path.write_text(text)
    with pytest.raises(ResultsError, match=message):
        Results.load(path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"nothing\.json"):
        Results.load(tmp_path / "nothing.json")


def test_seeds_must_be_positive() -> None:
    with pytest.raises(ValueError, match="seeds: expected at least 1, got 0"):
        Request(seeds=0)


def test_every_experiment_has_words() -> None:
    for name, experiment in EXPERIMENTS.items():
        assert experiment.name == name
        assert experiment.paper
        assert experiment.title


@dataclass
class Elsewhere:
    """Parts that say in which process, and with how many threads, they were run."""

    folder: Path
    timed: bool = False
    name: str = "elsewhere"
    paper: str = ""
    title: str = ""

    def plan(self, request: Request) -> Plan:
        wanted = 1 if self.timed else request.workers
        parts = {name: partial(_whereabouts, name, self.folder, wanted) for name in "abcd"}
        return Plan({}, parts, dict, timed=self.timed)


def _whereabouts(name: str, folder: Path, processes: int) -> dict[str, object]:
    (folder / f"{os.getpid()}.pid").touch()
    end = time.monotonic() + 60
    while len(list(folder.glob("*.pid"))) < processes and time.monotonic() < end:
        time.sleep(0.05)  # so that one process does not take all parts
    return {"name": name, "process": os.getpid(), "threads": torch.get_num_threads()}


def test_parts_in_several_processes(tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    results = run(Elsewhere(tmp_path), Request(out=tmp_path, workers=2), lambda *step: seen.append(step))
    assert {name: part["name"] for name, part in results.parts.items()} == {name: name for name in "abcd"}
    processes = {part["process"] for part in results.parts.values()}
    assert len(processes) == 2
    assert os.getpid() not in processes
    assert {part["threads"] for part in results.parts.values()} == {1}
    assert [step[:2] for step in seen] == [(1, 4), (2, 4), (3, 4), (4, 4), (4, 4)]
    assert {step[2] for step in seen} == {*"abcd", ""}


def test_what_is_timed_runs_alone(tmp_path: Path) -> None:
    results = run(Elsewhere(tmp_path, timed=True), Request(out=tmp_path, workers=2))
    assert {part["process"] for part in results.parts.values()} == {os.getpid()}


def test_no_workers(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="workers: expected at least 1, got 0"):
        Request(out=tmp_path, workers=0)
