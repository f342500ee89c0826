"""The lab as a package: what it imports, its version, and what is published."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from packaging.specifiers import SpecifierSet

import earthwork as ew
import earthwork_lab
from tests.declared import undeclared

LAB = Path(__file__).parents[1]
SOURCE = LAB / "src" / "earthwork_lab"
PROJECT = tomllib.loads((LAB / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Public modules of the library beside those that `earthwork` names itself; their names are on API pages.
FOR_PACKAGES = ("evaluation", "files", "array_files", "text", "cli.console")


def private_imports(text: str) -> Iterator[str]:
    """Names of the library that a file uses and that are not public."""
    aliases = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            aliases |= {alias.asname or alias.name for alias in node.names if alias.name == "earthwork"}
            yield from (alias.name for alias in node.names if alias.name.startswith("earthwork."))
        elif isinstance(node, ast.ImportFrom) and re.fullmatch(r"earthwork(\..+)?", node.module or ""):
            public = public_names(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names if alias.name not in public)
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in aliases
            and node.attr not in {*ew.__all__, "__version__"}
        ):
            yield f"earthwork.{node.attr}"


def public_names(module: str) -> set[str]:
    if module == "earthwork":
        return {*ew.__all__}
    name = module.removeprefix("earthwork.")
    listed = name in FOR_PACKAGES or (isinstance(getattr(ew, name, None), ModuleType) and name in ew.__all__)
    return {*import_module(module).__all__} if listed else set()


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_only_public_names_of_library_imported(path: Path) -> None:
    assert list(private_imports(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from earthwork import emd, Chain\nfrom earthwork.trees import restrict", []),
        ("import earthwork as ew\new.Chain, ew.__version__", []),
        ("from earthwork.spaces.tree import as_tree", ["earthwork.spaces.tree.as_tree"]),
        ("from earthwork.files import place", ["earthwork.files.place"]),
        ("def f():\n    import earthwork.storage", ["earthwork.storage"]),
        ("import earthwork as ew\new.storage.load", ["earthwork.storage"]),
    ],
)
def test_private_imports_are_found(text: str, found: list[str]) -> None:
    assert list(private_imports(text)) == found


def test_every_imported_package_is_declared() -> None:
    assert not undeclared(SOURCE, LAB / "pyproject.toml", ["train", "study", "tasks"])


def test_both_packages_have_same_version() -> None:
    assert earthwork_lab.__version__ == ew.__version__
    (needed,) = (text for text in PROJECT["dependencies"] if text.startswith("earthwork["))
    assert SpecifierSet(needed.partition("]")[2]).contains(ew.__version__)


def test_commands_not_import_lightning_or_experiments() -> None:
    code = "import sys, earthwork.cli.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    shown = {name for name in done.stdout.split() if name.startswith("earthwork_lab")}
    commands = [f"earthwork_lab.cli.{name}" for name in ("demo", "reproduce", "study", "tables", "train")]
    assert shown <= {"earthwork_lab", "earthwork_lab.cli", "earthwork_lab.extras", *commands}
    assert shown >= {*commands}


def test_what_is_published(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(tmp_path)]
    done = subprocess.run(command, cwd=LAB, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    files = {path.relative_to(LAB / "src").as_posix() for path in SOURCE.rglob("*.*") if path.suffix != ".pyc"}
    with zipfile.ZipFile(next(tmp_path.glob("earthwork_lab-*.whl"))) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        assert names == files
        (entry,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
        assert b"[earthwork.commands]\nlab = earthwork_lab.cli:app" in wheel.read(entry)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert names - {".gitignore"} == {
        *(f"src/{name}" for name in files),
        "README.md",
        "LICENSE",
        "pyproject.toml",
        "PKG-INFO",
    }
