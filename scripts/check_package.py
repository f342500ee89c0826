"""Builds the sdist and the wheel into ``dist/``, checks them, and runs the README's example with the wheel alone.

The wheel is installed into an empty environment with nothing but what it depends on. Run by ``make package``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"


def run(*command: str | Path, **options: str) -> None:
    """Run a command, or stop with its exit code."""
    print("$", *command, flush=True)
    code = subprocess.run([str(part) for part in command], cwd=options.get("cwd", str(ROOT)), check=False).returncode
    if code:
        sys.exit(code)


def build() -> Path:
    """Build both packages, check their metadata, and return the wheel."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST)
    run(sys.executable, "-m", "twine", "check", "--strict", *sorted(DIST.iterdir()))
    return next(DIST.glob("*.whl"))


def example() -> str:
    """The first Python block of the README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError("README.md: expected a block of Python")
    return found[1]


def try_out(wheel: Path) -> None:
    """Install the wheel into an empty environment and run the example there."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
        run(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel)
        # From another folder, so that the source is not importable.
        run(python, "-W", "error", "-c", example(), cwd=folder)
    print(f"{wheel.name}: the README's example runs in an empty environment")


if __name__ == "__main__":
    try_out(build())
