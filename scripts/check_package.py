"""Builds the sdists and the wheels of both packages into ``dist/``, checks them, and tries out the wheels.

The library is installed into an empty environment with nothing but what it depends on, and runs the README's example
there, with its compiled kernels. Its command line then asks for the lab, which is installed into the same environment
and answers. Run by ``make package``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"


def run(*command: str | Path, cwd: str | Path = ROOT, code: int = 0) -> None:
    """Run a command, or stop if its exit code is another one."""
    print("$", *command, flush=True)
    found = subprocess.run([str(part) for part in command], cwd=cwd, check=False).returncode
    if found != code:
        sys.exit(f"expected exit code {code}, got {found}")


def build() -> tuple[Path, Path]:
    """Build both packages, check their metadata, and return the wheels of the library and the lab."""
    shutil.rmtree(DIST, ignore_errors=True)
    os.environ["EARTHWORK_REQUIRE_CORE"] = "1"
    for folder in (ROOT, ROOT / "lab"):
        run(sys.executable, "-m", "build", "--outdir", DIST, folder)
    run(sys.executable, "-m", "twine", "check", "--strict", *sorted(DIST.iterdir()))
    return next(DIST.glob("earthwork-*.whl")), next(DIST.glob("earthwork_lab-*.whl"))


def example() -> str:
    """The first Python block of the README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError("README.md: expected a block of Python")
    return found[1]


def try_out(library: Path, lab: Path) -> None:
    """Install the wheels into an empty environment, one after the other, and use them there."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        scripts = Path(folder) / ("Scripts" if sys.platform == "win32" else "bin")
        python = scripts / "python"
        install = [python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt"]
        run(*install, library)
        # From another folder, so that the source is not importable.
        run(python, "-W", "error", "-c", example(), cwd=folder)
        run(python, "-c", "import earthwork; assert earthwork.backend() != 'none'", cwd=folder)
        run(*install, f"earthwork[cli] @ {library.as_uri()}")
        run(scripts / "earthwork", "tree", "info", "cifar10", cwd=folder)
        run(scripts / "earthwork", "demo", cwd=folder, code=2)
        run(*install, lab)
        run(scripts / "earthwork", "demo", "--quick", cwd=folder)
        run(python, "-m", "pip", "check")
    print(f"{library.name}, {lab.name}: the README's example and the commands run in an empty environment")


if __name__ == "__main__":
    try_out(*build())
