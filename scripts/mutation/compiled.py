"""Mutants that only the tests of ``torch.compile`` can kill.

mutmut keeps all mutants of a function beside it and chooses one when the function is called, which the compiler cannot
trace. Here a mutant is written into a copy of the source, as anybody's mistake would be.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import libcst
from mutmut.mutation import diff_apply

TESTS = ("tests/spaces", "tests/ops", "tests/transport", "tests/losses", "tests/decisions", "tests/kernels/cpu")
SURVIVED, NO_TESTS = 0, 33


def look_again(mutants: list[tuple[Any, str]], processes: int) -> None:
    """Run the tests of the compiler on those of the mutants that it may see, and note which of them it kills.

    Args:
        mutants: What mutmut knows of the file of each mutant, and the mutant's name.
        processes: How many mutants at a time.
    """
    seen = [(data, name) for data, name in mutants if may_be_compiled(data, name)]
    print(f"{len(seen)} mutants in what the compiler sees")
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(processes, initializer=copy_source, initargs=(folder,)) as pool,
    ):
        for (data, name), killed in zip(seen, pool.map(is_killed, [name for _, name in seen]), strict=True):
            print(f"{'killed' if killed else 'survived'}: {name}", flush=True)
            if killed:
                data.exit_code_by_key[name] = 1
                data.save()


def may_be_compiled(data: Any, name: str) -> bool:
    """Whether a mutant was not killed and is in a function that asks for the compiler, or that no other test runs."""
    code = data.exit_code_by_key[name]
    functions = diff_apply.read_functions_from_index(name, data.path) if code == SURVIVED else None
    return code == NO_TESTS or (functions is not None and "compil" in libcst.Module([functions[0]]).code)


def copy_source(parent: str) -> None:
    """Go to a folder of this process's own."""
    folder = Path(tempfile.mkdtemp(dir=parent))
    for part in ("src", "tests", "mutants"):
        shutil.copytree(part, folder / part)
    for file in ("pyproject.toml", "README.md"):
        shutil.copy(file, folder)
    os.chdir(folder)


def is_killed(name: str) -> bool:
    """Whether the tests fail with this mutant in place."""
    path = Path(diff_apply.find_mutant(name).path)
    original = path.read_text()
    diff_apply.apply_mutant(name)
    try:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-k", "compile", *TESTS]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": "src"}, capture_output=True, check=False)
        return done.returncode == 1
    finally:
        path.write_text(original)
