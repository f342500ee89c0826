"""``earthwork demo``, on less of its data than a user gets."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from earthwork.cli.app import run
from earthwork_lab.cli.train import PAPER_LOSSES, fresh_folder
from earthwork_lab.training import data

pytest.importorskip("lightning")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    small = partial(data.simulated_data, per_class=1, val_per_class=1)
    monkeypatch.setattr(data, "simulated_data", small)


@pytest.mark.usefixtures("_small")
def test_compares_papers_losses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "demo"
    assert run(["demo", "--quick", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert all(loss in said for loss in PAPER_LOSSES)
    assert "after 2 epochs" in said
    assert "One seed cannot tell" in said
    assert f"Picture: {out / 'curves.png'}" in said
    assert "With your own data: earthwork train DATA --space SPACE" in said
    assert {path.name for path in out.glob("*.*")} >= {"summary.md", "summary.json", "summary.csv", "curves.png"}


def test_another_demo_gets_folder_of_its_own(tmp_path: Path) -> None:
    name = str(tmp_path / "demo")
    assert fresh_folder(name) == name
    for taken in ("demo", "demo-2"):
        (tmp_path / taken).mkdir()
        (tmp_path / taken / "config.yaml").touch()
    assert fresh_folder(name) == f"{name}-3"


@pytest.mark.usefixtures("_small")
def test_one_stopped_says_how_to_resume_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from earthwork_lab.training.console import RunProgress

    out = tmp_path / "demo"
    with monkeypatch.context() as interrupted:
        interrupted.setattr(RunProgress, "on_train_batch_end", lambda *_: signal.raise_signal(signal.SIGINT))
        assert run(["demo", "--quick", "--out", str(out)]) == 130
    assert f"to resume: earthwork train --resume {out}" in " ".join(capsys.readouterr().err.split())
    assert run(["train", "--resume", str(out)]) == 0
    assert (out / "summary.md").is_file()
