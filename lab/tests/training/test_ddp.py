from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from earthwork_lab.training import Settings, train
from lab.tests.training.helpers import LINEAR, TINY, load_weights, tiny_options, write_arrays

RUN = ("0.5emd2+0.5ce", "seed-0")
# One step of plain gradient descent with rate 1: the weights move by the gradient.
ONE_STEP = {"epochs": 1, "batch_size": 80, "lr": 1.0, "lr_decay": 0.0, "momentum": 0.0, "weight_decay": 0.0}
WHOLE = {"epochs": 3, "batch_size": 20}


def command(options):
    data = options.pop("data")
    return ["train", data, *(f"--{name.replace('_', '-')}={value}" for name, value in options.items()), "//"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three runs by two processes: one step, a whole run of the same network, and one with batch normalisation."""
    folder = tmp_path_factory.mktemp("ddp")
    data = write_arrays(folder / "data.npz")
    ddp = {"strategy": "ddp", "accelerator": "cpu"}
    lines = [
        *command(tiny_options(data, folder / "step", model=LINEAR, **ONE_STEP, **ddp)),
        *command(tiny_options(data, folder / "whole", model=LINEAR, **WHOLE, **ddp)),
        *command(tiny_options(data, folder / "normalised", model=TINY, **WHOLE, **ddp)),
    ]
    script = Path(__file__).with_name("ddp_script.py")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*torchrun, str(script), *lines], env=environment, cwd=root, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return folder


def weights(folder):
    return load_weights(folder.joinpath(*RUN, "weights-last.pt"))


def test_two_processes_give_gradient_of(folder):
    train(Settings(**tiny_options(folder / "data.npz", folder / "step-1", model=LINEAR, **ONE_STEP)), say=print)
    one, two = weights(folder / "step-1"), weights(folder / "step")
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=0, atol=1e-6)


def test_whole_run_is_that_of_one_process(folder):
    (result,) = train(
        Settings(**tiny_options(folder / "data.npz", folder / "whole-1", model=LINEAR, **WHOLE)), say=print
    )
    one, two = weights(folder / "whole-1"), weights(folder / "whole")
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-4, atol=1e-5)
    summary = json.loads((folder / "whole" / "summary.json").read_text())
    last = summary["runs"][0]["last"]
    assert last == pytest.approx(result.last, rel=1e-3)
    ours, theirs = (np.load(folder.joinpath(name, *RUN, "predictions.npz")) for name in ("whole", "whole-1"))
    assert np.array_equal(ours["labels"], theirs["labels"])
    np.testing.assert_allclose(ours["probs"], theirs["probs"], rtol=1e-3, atol=1e-5)


def test_run_with_batch_normalisation_completes(folder):
    summary = json.loads((folder / "normalised" / "summary.json").read_text())
    assert summary["runs"][0]["last"]["epoch"] == 3
    assert (folder / "normalised").joinpath(*RUN, "result.json").is_file()
