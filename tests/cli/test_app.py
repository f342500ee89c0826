"""The command line as a whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import earthwork as ew
from earthwork.cli.app import run

# Runs the command line with other entry points than those that are installed.
WITH_ENTRY = """
import importlib.metadata, sys
from importlib.metadata import EntryPoint
entries = [EntryPoint("x", value, "earthwork.commands") for value in {values!r}]
importlib.metadata.entry_points = lambda group: entries if group == "earthwork.commands" else []
from earthwork.cli import main
main()
"""
MISSING = "error: earthwork {} needs `earthwork-lab`: pip install earthwork-lab"


def run_with(values: list[str], *arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    code = WITH_ENTRY.format(values=values)
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, cwd=folder
    )


def test_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"earthwork {ew.__version__}\n"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (MemoryError("Unable to allocate 8.00 TiB"), 2, "error: not enough memory: Unable to allocate 8.00 TiB\n"),
        (RuntimeError("can't allocate memory"), 2, "error: not enough memory: can't allocate memory\n"),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
        (PermissionError(13, "Permission denied", "a.npz"), 2, "error: a.npz: Permission denied\n"),
    ],
)
def test_errors_are_one_line(
    error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("earthwork.cli.evaluate.load", fail)
    assert run(["evaluate", "a.npz", "--space", "chain:3"]) == code
    assert capsys.readouterr().err == said


def test_other_errors_of_the_runtime_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr("earthwork.cli.evaluate.load", fail)
    with pytest.raises(RuntimeError, match="a defect"):
        run(["evaluate", "a.npz", "--space", "chain:3"])


@pytest.mark.parametrize("bins", ["9" * 20, "9" * 18])
def test_more_bins_than_memory(bins: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tree", "info", f"chain:{bins}"]) == 2
    said = capsys.readouterr().err
    assert "expected fewer than 2⁶² bins, got 1e+20" in said or "not enough memory" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("arguments", [("train", "--help"), ("reproduce", "all", "--quick")])
def test_without_the_lab_its_commands_say_how_to_install_it(arguments):
    done = run_with([], *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", MISSING.format(arguments[0]) + "\n")


def test_without_the_lab_all_commands_are_listed():
    shown = run_with([], "--help").stdout
    for name in ("demo", "evaluate", "report", "reproduce", "study", "train", "tree"):
        assert f" {name} " in shown


def test_a_package_adds_a_command(tmp_path):
    (tmp_path / "plugin.py").write_text(
        "import typer\nfrom earthwork.cli.console import Command\napp = typer.Typer()\n"
        "@app.command(cls=Command)\ndef count(number: int):\n"
        "    if number < 1: raise ValueError('number: expected at least 1')\n    print(number + 1)\n"
    )
    good, bad = (run_with(["plugin:app"], "count", number, folder=tmp_path) for number in ("3", "0"))
    assert (good.stdout, good.stderr) == ("4\n", "")
    assert (bad.returncode, bad.stderr) == (2, "error: NUMBER: expected at least 1\n")


def test_a_package_that_cannot_be_loaded_leaves_other_commands_alone(tmp_path):
    (tmp_path / "broken.py").write_text("raise RuntimeError('old version')")
    assert "nodes" in run_with(["broken:app"], "tree", "info", "cifar10", folder=tmp_path).stdout
    done = run_with(["broken:app"], "demo", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr == MISSING.format("demo") + " (broken:app cannot be loaded: old version)\n"
