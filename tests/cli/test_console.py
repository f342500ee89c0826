"""Errors of every command name its options, never the arguments of the library that it calls."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from earthwork.cli.app import run
from earthwork.cli.console import with_options

NAMES = {"top_k": "--top-k", "labels": "--labels-file", "decide": "--decide", "data": "DATA", "accelerator": "--acc"}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("top_k: expected 1", "--top-k: expected 1"),
        ("data a b.npz: expected x", "DATA a b.npz: expected x"),
        ("data.npz: expected x", "data.npz: expected x"),
        ("p.npz: labels: 3 can be both", "p.npz: labels: 3 can be both"),
        ('pass decide="least_risk", or labels=', "pass --decide least-risk, or --labels-file"),
        ("`accelerator='a_b'` is unknown", "`--acc a-b` is unknown"),
        ("got top_k=-3, decide=True", "got --top-k -3, --decide"),
        ("expected labels", "expected labels"),
        ("not_top_k=3 and 'top_k=3' and top_k", "not_top_k=3 and 'top_k=3' and top_k"),
    ],
)
def test_words_of_message(message: str, expected: str) -> None:
    assert with_options(message, NAMES) == expected
    assert with_options(message, {}) == message


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    monkeypatch.chdir(tmp_path)
    labels = rng.integers(0, 4, 30)
    probs = rng.dirichlet(np.ones(5), 30)
    np.savez("p.npz", probs=probs, labels=labels)
    np.savez("masses.npz", probs=2 * probs, labels=labels)
    np.savez("nan.npz", probs=np.where(probs > 0.9, np.nan, probs) * np.nan, labels=labels)
    np.savez("named-p.npz", probs=probs, labels=1 + labels)
    np.savez("unlabelled.npz", probs=probs)
    np.save("p.npy", probs)
    Path("p.csv").write_text("1,2,3,4,5\n" + "0.2,0.2,0.2,0.2,0.2\n" * 30)
    Path("paths.txt").write_text("a/b\na\n")
    Path("same.txt").write_text("a/b\nc/b\n")


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("evaluate p.npz --space chain:5 --accuracy 0.9", "--accuracy: expected only with --decide inner"),
        ("evaluate p.npz --space chain:5 --coverage 0.9 --decide least-risk", "--coverage: .* --decide inner"),
        ("evaluate p.npz --space chain:5 --vagueness 2", "--vagueness: expected only with --decide inner, got --vagu"),
        (
            "evaluate p.npz --space cifar10 --decide inner --accuracy 0.9 --coverage 0.8",
            "--accuracy: expected one of --accuracy, --coverage and --vagueness, got --accuracy 0.9, --coverage 0.8",
        ),
        (
            "evaluate p.npz --space cifar10 --decide inner --accuracy 0 --vagueness 1",
            "--accuracy: expected one of .*, got --accuracy 0.0, --vagueness 1.0",
        ),
        ("evaluate p.npz --space cifar10 --decide inner --coverage 9", "--coverage: expected a share from 0 to 1"),
        ("evaluate p.npz --space chain:5 --decide inner", "--decide: expected a Tree"),
        ("evaluate p.npz --space chian:5", "--space: expected a file, .* got 'chian:5' \\(near: 'chain:'\\)"),
        ("evaluate p.npz --space chain:5 --top-k 0", "--top-k: expected a whole number ≥ 1"),
        ("evaluate p.npz p.npz --space chain:5", "PREDICTIONS: expected each file once"),
        ("evaluate named-p.npz --space chain:1,2,3,4,5", "choose with --labels index or --labels name"),
        ("evaluate p.npy --space chain:5", "p.npy: .* pass --labels-file$"),
        ("evaluate unlabelled.npz --space chain:5", "pass --labels-file$"),
        ("evaluate p.csv --space chain:1,2,3,4,5", "pass --label-column, or pass --labels-file"),
        ("evaluate masses.npz --space chain:5", "pass --normalize softmax, or store .* pass --normalize l1"),
        ("evaluate nan.npz --space chain:5", "got nan in bin 0 of row 0$"),
        ("tree show chian:5", "TREE: expected a file"),
        ("tree show cifar10 --costs xyz", "--costs: expected one of"),
        ("tree convert cifar11 t.json", "SOURCE: expected a file, .* \\(near: 'cifar10'"),
        ("tree build paths.txt --from paths --out t.json", "--classes: .* pass --inner-bins"),
        ("tree build same.txt --from paths -o t.json", "pass --full-names"),
        ("tree build paths.txt --from paths --separator > -o t.json", "--separator: "),
        ("tree build p.npy --from embeddings --metric xyz -o t.json", "--metric: "),
        ("tree build p.npy --from embeddings --method xyz -o t.json", "--method: "),
    ],
)
def test_errors_name_options(command: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(Path.cwd().rglob("*"))
    assert run(shlex.split(command)) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert re.search(expected, line.removeprefix("error: ")), line
    # An argument of a Python function: a name, the equals sign and a value.
    assert not re.search(r"(?<!-)\b[a-z_]+=", line), line
    assert sorted(Path.cwd().rglob("*")) == before, "nothing is written"


@pytest.mark.usefixtures("files")
def test_report_of_many_models_is_whole(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    names = [f"model_with_a_rather_long_name_{number}" for number in range(9)]
    for name in names:
        Path(f"{name}.npz").write_bytes(Path("p.npz").read_bytes())
    files = [f"{name}.npz" for name in names]
    assert run(["evaluate", *files, "--space", "chain:5", "--out", str(tmp_path / "o")]) == 0
    heading = next(line for line in capsys.readouterr().out.splitlines() if "metric" in line)
    assert all(name in heading for name in names)
    assert "…" not in heading
