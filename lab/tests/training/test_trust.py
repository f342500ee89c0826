"""Functions that only a file names are not imported, unless the user says so."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import earthwork as ew
from earthwork.cli.app import run
from earthwork_lab.training import Settings, load_model, train
from lab.tests.training.helpers import LINEAR, tiny_options, write_arrays

LOSS = "lab.tests.training.helpers:squared_distance"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run of one epoch, with a model and a loss that are functions."""
    folder = tmp_path_factory.mktemp("run")
    options = tiny_options(write_arrays(folder / "data.npz"), folder / "out", epochs=1, model=LINEAR, loss=LOSS)
    train(Settings(**options), say=lambda _: None)
    return folder / "out"


@pytest.mark.parametrize(
    ("arguments", "untrusted"),
    [
        ([], f"{LINEAR}, {LOSS}"),
        (["--model", LINEAR], LOSS),
        (["--loss", LOSS], LINEAR),
    ],
)
def test_resuming_not_import_what_folder_names(finished, capsys, monkeypatch, arguments, untrusted):
    monkeypatch.setattr("earthwork_lab.training.models.import_module", lambda name: pytest.fail(f"{name} was imported"))
    assert run(["train", "--resume", str(finished), *arguments]) == 2
    said = capsys.readouterr().err
    assert re.search(rf"resume .*: its config\.yaml names functions that would be .*: {untrusted}; pass --trust", said)
    assert said.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--trust"], ["--model", LINEAR, "--loss", LOSS]])
def test_resuming_what_user_trusts(finished, capsys, arguments):
    assert run(["train", "--resume", str(finished), *arguments]) == 0


def test_weights_do_not_import_what_they_name(finished, monkeypatch):
    path = finished / LOSS.replace(":", "-") / "seed-0" / "weights-last.pt"
    assert load_model(path, trust=True)(torch.zeros(2, 8, 8, 3, dtype=torch.uint8)).shape == (2, 4)
    monkeypatch.setattr("earthwork_lab.training.models.import_module", lambda name: pytest.fail(f"{name} was imported"))
    with pytest.raises(
        ValueError, match=rf"weights-last\.pt: its network is made by '{LINEAR}', which would be .* trust=True"
    ):
        load_model(path)


@pytest.mark.parametrize("content", [3, {"model": "mlp"}])
def test_other_files_are_not_weights(tmp_path, content):
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"a\.pt: expected the weights that `earthwork train` writes"):
        load_model(tmp_path / "a.pt")


def test_hierarchical_losses_are_no_functions():
    settings = Settings(data="a", space="b", loss=("hxe:0.1+soft:10", "ce"), model="mlp")
    assert settings.functions == ()


EVIL = "\x1b[2Jcat\x07"


def test_control_characters_not_reach_terminal(tmp_path, capsys):
    names = [EVIL, "dog\x9b31m", "[bold]$\\x^{$"]
    ew.save(ew.Chain(3, names=names), tmp_path / "space.json")
    probs = torch.randn(20, 3).softmax(-1).numpy()
    paths = [tmp_path / f"{EVIL}{number}.npz" for number in range(2)]
    for path in paths:
        np.savez(path, probs=probs, labels=np.arange(20) % 3)
    out = tmp_path / "out\x1b[31m"
    command = ["evaluate", *map(str, paths), "--space", str(tmp_path / "space.json")]
    assert run([*command, "--calibrate", "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert run([*command, "--labels", "x\x1b[31m"]) == 2
    shown = (*shown, *capsys.readouterr(), str(ew.evaluate(paths, None, ew.Chain(3, names=names))))
    for text in shown:
        assert not [letter for letter in text if not letter.isprintable() and letter != "\n"]
    assert r"\x1b[2Jcat\x070" in shown[0]
