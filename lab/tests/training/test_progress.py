"""What a user sees while a run goes on: a bar on a terminal, a few lines in a log."""

from __future__ import annotations

import re

import pytest
import torch

from earthwork_lab.training import Settings, train
from lab.tests.training.helpers import tiny_options, write_arrays


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_terminal_gets_bar(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal
    monkeypatch.setenv("COLUMNS", "200")
    options = tiny_options(write_arrays(tmp_path / "data.npz"), tmp_path / "out", epochs=2, loss=("ce",))
    train(Settings(**options), say=print)
    *_, last, _ = capsys.readouterr().err.splitlines()
    assert re.search(r"ce .* epoch 2/2 .* left .* top-1 \d+\.\d %", last), last


def test_log_gets_few_lines(tmp_path, capsys):
    options = tiny_options(write_arrays(tmp_path / "data.npz"), tmp_path / "out", epochs=20, loss=("ce",))
    train(Settings(**options), say=print)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ce: epoch ")]
    assert [line.split()[2] for line in lines] == [f"{epoch}/20" for epoch in range(2, 21, 2)]
    assert all("top-1" in line for line in lines)


def test_only_fresh_figures_are_shown(tmp_path, capsys):
    data = write_arrays(tmp_path / "data.npz")
    train(Settings(**tiny_options(data, tmp_path / "out", epochs=4, eval_every=2, loss=("ce",))), say=print)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ce: epoch ")]
    assert ["top-1" in line for line in lines] == [False, True, False, True]
    assert ["training loss" in line for line in lines] == [True, False, True, False]
