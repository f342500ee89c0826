from __future__ import annotations

from pathlib import Path

import pytest

from earthwork.cli.app import run
from lab.tests.reproduce.tiny import tiny_settings


def test_experiment_writes_numbers_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reproduce", "ellyvan", "--quick", "--out", str(tmp_path)]) == 0
    figures = {f"{name}.{kind}" for name in ("ellyvan", "chain") for kind in ("svg", "png")}
    assert {path.name for path in tmp_path.rglob("*.*")} == {"ellyvan.json", *figures}
    assert "earthwork report" in capsys.readouterr().out


def test_page_is_written(tmp_path: Path) -> None:
    with tiny_settings():
        assert run(["reproduce", "timing", "--quick", "--out", str(tmp_path)]) == 0
    page, claims = tmp_path / "page", tmp_path / "claims.md"
    assert run(["report", str(tmp_path), "-o", str(page), "--claims", str(claims)]) == 0
    assert "<title>" in (page / "index.html").read_text()
    assert claims.read_text().startswith("| where |")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "figure7"], "NAME: expected ellyvan, stability"),
        (["reproduce", "timing", "--data", "x"], "--data: timing needs no data"),
        (["reproduce", "breathing", "--data", "/no/such/place"], "no such folder"),
        (["reproduce", "ellyvan", "--seeds", "0"], "seeds: expected at least 1, got 0"),
        (["report", "/no/such/place"], "RESULTS: no such folder"),
        (["report", "."], "looked for ellyvan.json"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
