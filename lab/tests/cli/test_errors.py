"""Errors of the lab's commands are one line and name their options, never the arguments of Python functions."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from earthwork.cli.app import run

RESULTS = Path(__file__).parents[3] / "docs" / "results"


@pytest.fixture
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    monkeypatch.chdir(tmp_path)
    labels = rng.integers(0, 4, 30)
    np.savez("nan.npz", probs=np.full((30, 5), np.nan), labels=labels)
    np.savez("t.npz", x=rng.normal(size=(30, 3)), y=labels)
    np.savez("named.npz", x=rng.normal(size=(30, 3)), y=1 + np.arange(30) % 4)
    Path("results").mkdir()
    shutil.copy(RESULTS / "ellyvan.json", "results")


@pytest.mark.usefixtures("_files")
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("train t.npz --space chian:5", "--space: expected a file"),
        ("train none.npz --space chain:5", "DATA: no such file or folder: none.npz"),
        ("train t.npz --space chain:2", "DATA t.npz: y and y_val: expected class indices from 0 to 1"),
        ("train t.npz --space chain:5 --batch-size 0", "--batch-size: expected a whole number ≥ 1, got 0"),
        ("train t.npz --space chain:5 --loss xyz", "--loss 'xyz', position 1: expected a loss"),
        ("train t.npz --space chain:5 --loss no_module:f", "--loss 'no_module:f': No module named 'no_module'"),
        ("train t.npz --space chain:5 --model xyz", "--model: expected one of"),
        ("train t.npz --space chain:5 --labels xyz", "--labels: expected one of index, name"),
        ("train named.npz --space chain:1,2,3,4,5", "choose with --labels index or --labels name"),
        ("train t.npz --space chain:5 --config none.yaml", "--config none.yaml: No such file"),
        ("train t.npz --space chain:5 --loss hxe:0.1", "--loss 'hxe:0.1': expected a tree"),
        ("train t.npz --space ring:5 --loss edge", "--loss 'edge': space: expected a Chain or a Tree"),
        (
            "train t.npz --space chain:5 --devices xyz",
            "--accelerator auto, --devices xyz, --strategy auto, --precision 32-true: rejected",
        ),
        ("train t.npz --space chain:5 --accelerator xyz", "`--accelerator xyz`"),
        ("train --resume none", "--resume none: expected the folder of a run"),
        ("study xyz", "NAME|DATA: expected losses, boosting, page, answer"),
        ("study losses --task xyz", "--task: expected some of"),
        ("study losses --workers 0", "--workers: expected at least 1, got 0"),
        ("study losses --labels index", "--labels: expected only with DATA"),
        ("study t.npz", "--space: expected how the classes are arranged"),
        ("study t.npz --space chain:5 --labels xyz", '--labels: expected "index", "name"'),
        ("study named.npz --space chain:1,2,3,4,5", "choose with --labels index or --labels name"),
        ("study boosting --space chain:5", "--space: expected only with DATA"),
        ("study page --task shoes", "--task: expected only with losses or boosting, got it with page"),
        ("study answer --quick", "--quick: expected only with DATA or losses or boosting, got it with answer"),
        ("report none", "RESULTS: no such folder: none"),
        ("report results --space chian:5", "--space: expected a file"),
        ("report results --space chain:5 --predictions nan.npz", "--predictions nan.npz: expected probabilities"),
        ("reproduce xyz", "NAME: expected ellyvan"),
        ("reproduce ellyvan --data .", "--data: ellyvan needs no data"),
        ("reproduce ellyvan --workers 0", "--workers: expected at least 1, got 0"),
        ("reproduce ellyvan --share few", "--share: expected with imagenet, got ellyvan"),
        ("reproduce imagenet --quick --share some", "--share: expected few or all, got 'some'"),
        ("demo --seed -1", "Invalid value for '--seed'"),
        ("demo --out t.npz", "t.npz: File exists"),
    ],
)
def test_errors_name_options(command: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    if command.startswith("study"):
        pytest.importorskip("sklearn")
    before = sorted(Path.cwd().rglob("*"))
    assert run(shlex.split(command)) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert re.search(expected, line.removeprefix("error: ")), line
    # An argument of a Python function: a name, the equals sign and a value.
    assert not re.search(r"(?<!-)\b[a-z_]+=", line), line
    assert sorted(Path.cwd().rglob("*")) == before, "nothing is written"
