"""The scripts of the documentation run, and do what their pages say."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version

from tests.processes import launch

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "examples" / "integrations"
GALLERY = sorted(path for path in (ROOT / "examples" / "gallery").glob("*.py") if path.name != "common.py")


def main_of(name: str):
    return runpy.run_path(str(SCRIPTS / f"{name}.py"))["main"]


def test_plain_pytorch():
    assert main_of("plain_pytorch")(epochs=4) < 1.0  # always answering the middle grade: about 1.2


def test_compiled():
    assert main_of("compiled")() < 1e-6


def test_amp():
    assert main_of("amp")(steps=30) < 1.0


@pytest.mark.filterwarnings("ignore")
def test_lightning():
    pytest.importorskip("lightning")
    logged = main_of("lightning_module")(epochs=1)
    assert logged["loss"] == pytest.approx((logged["EMDLoss"] + logged["CrossEntropyLoss"]) / 2, rel=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_hugging_face():
    pytest.importorskip("transformers", reason="needs transformers and accelerate")
    pytest.importorskip("accelerate", reason="needs transformers and accelerate")
    assert main_of("huggingface_trainer")(epochs=2) < 2.0


@pytest.mark.filterwarnings("ignore")
def test_causal_language_model():
    pytest.importorskip("transformers", reason="needs transformers and accelerate")
    # Always answering 9 has a mean absolute error of 3.3, and a loss that is not shifted learns nothing else.
    assert main_of("huggingface_causal")(epochs=2) < 1.5


def updated_weights(name: str, accumulation: int, folder: str, loss: Any = None) -> list[torch.Tensor]:
    """The weights after two updates that follow the size of the gradient: SGD, and no clipping."""
    script = runpy.run_path(str(SCRIPTS / f"{name}.py"))
    data = [script["Reviews"](128)] if "Reviews" in script else []
    trainer = script["make_trainer"](folder, *data, accumulation, max_steps=2, optim="sgd", max_grad_norm=0)
    if loss is not None:
        trainer.compute_loss_func = loss
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    trainer.train()
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["huggingface_trainer", "huggingface_causal"])
def test_accumulated_gradients_give_update_whole_batch(name, tmp_path):
    pytest.importorskip("transformers", reason="needs transformers and accelerate")
    whole, parts = (updated_weights(name, accumulation, str(tmp_path)) for accumulation in (1, 4))
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6)

    def mean_of_each_batch(outputs, labels, num_items_in_batch=None):
        return runpy.run_path(str(SCRIPTS / f"{name}.py"))["compute_loss"](outputs, labels)

    # The Trainer does not divide by the number of batches: the mean of each would make the update four times as large.
    wrong = updated_weights(name, 4, str(tmp_path), mean_of_each_batch)
    assert max((a - b).abs().max() for a, b in zip(wrong, whole, strict=True)) > 1e-4


def test_two_processes():
    result = subprocess.run(
        [sys.executable, str(SCRIPTS / "ddp.py")], capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "two halves give the gradient of the whole batch" in result.stdout


def run_sharded(said: str) -> None:
    """In a process that torchrun's launcher started."""
    with open(said if os.environ["RANK"] == "0" else os.devnull, "w") as file, redirect_stdout(file):
        main_of("sharded")()


@pytest.mark.skipif(Version(torch.__version__) < Version("2.10"), reason="`fully_shard` is wrong on CPUs")
def test_sharded(tmp_path):
    said = tmp_path / "said.txt"
    launch(run_sharded, 4, str(said))
    one, four, largest = said.read_text(encoding="utf-8").splitlines()
    assert float(largest.split()[-1]) <= 1e-5
    assert one.split(":")[1].strip() == four.split(":")[1].strip()
    first, last = (float(x) for x in re.findall(r"loss (\S+) to (\S+),", four)[0])
    assert last < 0.8 * first


@pytest.mark.parametrize("script", GALLERY, ids=lambda path: path.stem)
def test_gallery_shows_every_example(script):
    page = (ROOT / "docs" / "gallery" / "index.md").read_text(encoding="utf-8")
    picture = ROOT / "docs" / "gallery" / f"{script.stem}.png"
    assert f"`{script.name}`" in page
    assert f"({picture.name})" in page
    assert 1_000 < picture.stat().st_size <= 100 * 1024


def test_example_of_gallery_makes_its_picture(tmp_path):
    script = "learnable_costs"
    result = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / "gallery" / f"{script}.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr
    assert (tmp_path / f"{script}.png").stat().st_size > 1_000
