"""The command line as a whole."""

from __future__ import annotations

import pytest

import earthwork as ew
from earthwork.cli.app import run


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
