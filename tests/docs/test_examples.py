"""The scripts of the documentation run, and do what their pages say."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_two_processes():
    result = subprocess.run(
        [sys.executable, str(SCRIPTS / "ddp.py")], capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "two halves give the gradient of the whole batch" in result.stdout


@pytest.mark.parametrize("script", GALLERY, ids=lambda path: path.stem)
def test_the_gallery_shows_every_example(script):
    page = (ROOT / "docs" / "gallery" / "index.md").read_text(encoding="utf-8")
    picture = ROOT / "docs" / "gallery" / f"{script.stem}.png"
    assert f"`{script.name}`" in page
    assert f"({picture.name})" in page
    assert 1_000 < picture.stat().st_size <= 100 * 1024


def test_an_example_of_the_gallery_makes_its_picture(tmp_path):
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
