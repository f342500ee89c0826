"""What the package promises as a package."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from importlib.resources import files
from pathlib import Path

import earthwork as ew

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = None

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = (
    "torchmetrics",
    "numba",
    "matplotlib",
    "scipy",
    "pandas",
    "networkx",
    "yaml",
    "ot",
    "typer",
    "rich",
    "lightning",
)


def test_importing_is_quiet_and_brings_nothing_but_torch_and_numpy():
    code = f"import sys, earthwork; print([name for name in {HEAVY!r} if name in sys.modules])"
    plain = subprocess.run(
        [sys.executable, "-c", "import sys, torch; print([n for n in " + repr(HEAVY) + " if n in sys.modules])"],
        capture_output=True,
        text=True,
        check=True,
    )
    ours = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert ours.returncode == 0, ours.stderr
    assert ours.stderr == ""
    assert ours.stdout == plain.stdout


def test_every_public_name_can_be_had():
    for name in ew.__all__:
        assert getattr(ew, name) is not None
    with pytest.raises(AttributeError, match="module 'earthwork' has no attribute 'nothing'"):
        _ = ew.nothing


def test_the_types_are_announced():
    assert files("earthwork").joinpath("py.typed").is_file()


@pytest.mark.skipif(tomllib is None, reason="tomllib is new in Python 3.11")
def test_the_version_is_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert ew.__version__ == project["version"] == metadata.version("earthwork")
    assert f"version: {ew.__version__}" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
