"""The command line as a whole."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import earthwork as ew
from earthwork.cli import app, tree
from earthwork.cli.app import run
from earthwork.storage import reading

MISSING = "error: earthwork {} needs `earthwork-lab`: pip install earthwork-lab"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that makes modules with Typer apps the only packages that add commands."""

    def installed(**modules: str) -> None:
        for name, text in modules.items():
            (tmp_path / f"{name}.py").write_text(text)
        plugins = [EntryPoint(name, f"{name}:app", app.GROUP) for name in modules]
        monkeypatch.setattr(app, "app", app.make_app(plugins))

    monkeypatch.syspath_prepend(tmp_path)
    return installed


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

    monkeypatch.setattr("earthwork.load", fail)
    assert run(["evaluate", "a.npz", "--space", "chain:3"]) == code
    assert capsys.readouterr().err == said


def test_other_errors_of_runtime_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr("earthwork.load", fail)
    with pytest.raises(RuntimeError, match="a defect"):
        run(["evaluate", "a.npz", "--space", "chain:3"])


@pytest.mark.parametrize("bins", ["9" * 20, "9" * 18])
def test_more_bins_than_memory(bins: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tree", "info", f"chain:{bins}"]) == 2
    said = capsys.readouterr().err
    assert "expected fewer than 2⁶² bins, got 1e+20" in said or "not enough memory" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("arguments", [["train", "--help"], ["reproduce", "all", "--quick"]])
def test_without_lab_commands_say_how_to_install(arguments, install, capsys):
    install()
    assert run(arguments) == 2
    assert capsys.readouterr() == ("", MISSING.format(arguments[0]) + "\n")


def test_without_lab_all_commands_are_listed(install, capsys):
    install()
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    for name in ("demo", "evaluate", "report", "reproduce", "study", "train", "tree"):
        assert f" {name} " in shown


def test_help_names_what_there_is():
    assert ", ".join(ew.trees.SHIPPED) == tree.SHIPPED
    assert ", ".join(reading.SOURCES) == tree.SOURCES


def test_completion(capsys, monkeypatch):
    monkeypatch.setenv("_EARTHWORK_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "earthwork tree in")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit, match="0"):
        run([])
    assert capsys.readouterr().out.strip() == "info"


def test_help_of_every_command_needs_no_torch():
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'numpy', 'lightning']))\n"
        "import typer; from earthwork.cli.app import app, run\n"
        "todo = [([], typer.main.get_command(app))]\n"
        "for words, command in todo:\n"
        "    assert run([*words, '--help']) == (2 if words and command.help == 'Needs earthwork-lab.' else 0), words\n"
        "    todo += [([*words, name], sub) for name, sub in getattr(command, 'commands', {}).items()]\n"
        "assert len(todo) >= 12\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_package_adds_command(install, capsys):
    install(
        plugin="import typer\nfrom earthwork.cli.console import Command\napp = typer.Typer()\n"
        "@app.command(cls=Command)\ndef count(number: int):\n"
        "    if number < 1: raise ValueError('number: expected at least 1')\n    print(number + 1)\n"
    )
    assert run(["count", "3"]) == 0
    assert capsys.readouterr() == ("4\n", "")
    assert run(["count", "0"]) == 2
    assert capsys.readouterr() == ("", "error: NUMBER: expected at least 1\n")


def test_package_cannot_loaded_leaves_commands_alone(install, capsys):
    install(broken="raise RuntimeError('old version')")
    assert run(["tree", "info", "cifar10"]) == 0
    assert "nodes" in capsys.readouterr().out
    assert run(["demo"]) == 2
    assert capsys.readouterr().err == MISSING.format("demo") + " (broken:app cannot be loaded: old version)\n"
