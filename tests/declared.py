"""What a package imports from others, and what its ``pyproject.toml`` declares."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

# Modules whose distribution has another name.
_DISTRIBUTIONS = {"PIL": "pillow", "ot": "POT", "sklearn": "scikit-learn", "yaml": "pyyaml"}


def imported_modules(text: str) -> Iterator[str]:
    """Modules that a source file imports, also by ``require`` or ``import_module``."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            name = node.args[0]
            if node.func.id in ("require", "import_module") and isinstance(name, ast.Constant):
                yield name.value


def undeclared(source: Path, project: Path, extras: Sequence[str]) -> dict[str, str]:
    """Imports of other packages that neither the dependencies nor the extras name, with a file that has them."""
    settings = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    lists = [settings["dependencies"], *(settings["optional-dependencies"][name] for name in extras)]
    declared = {_normal(re.split(r"[^\w.-]", text)[0]) for texts in lists for text in texts}
    found = {}
    for path in source.rglob("*.py"):
        for module in imported_modules(path.read_text(encoding="utf-8")):
            top = module.partition(".")[0]
            known = top in sys.stdlib_module_names or top == source.name
            if not known and _normal(_DISTRIBUTIONS.get(top, top)) not in declared:
                found[top] = path.relative_to(source).as_posix()
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
