"""The structure of the package: which layer imports which.

Layers are the packages and modules directly below ``earthwork``. A layer imports itself and the layers before it in
``LAYERS``; imports inside functions, imports of names and modules given as strings count as well.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "earthwork"
LAYERS = [
    "extras",
    "private_api",
    "files",
    "array_files",
    "text",
    "overrides",
    "spaces",
    "kernels",
    "ops",
    "transport",
    "targets",
    "losses",
    "trees",
    "storage",
    "decisions",
    "metrics",
    "sharded",
    "evaluation",
    "boosting",
    "sklearn",
    "plot",
    "cli",
]

# Where a call is left to a later layer, which packages before it do not know.
HOOKS = {("overrides", "sharded")}

MODULE_NAME = re.compile(r"earthwork(\.\w+)+")


class Import(NamedTuple):
    layer: str  # "" for the package itself, "*" where the name is only known at run time
    line: int
    lazy: bool  # inside a function, or given as a string
    typing: bool  # below `if TYPE_CHECKING`


def layer_of_exports(init: Path = SOURCE / "__init__.py") -> dict[str, str]:
    """The layer that each name exported by ``earthwork`` comes from."""
    homes = {layer: layer for layer in LAYERS}
    for node in ast.walk(ast.parse(init.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("earthwork."):
            homes |= {alias.asname or alias.name: (node.module or "").split(".")[1] for alias in node.names}
    return homes


class Imports(ast.NodeVisitor):
    """Collects what a module imports from this package."""

    def __init__(self, package: str, homes: dict[str, str]) -> None:
        self.found: list[Import] = []
        self._package = package  # that relative imports start from
        self._homes = homes
        self._aliases: set[str] = set()  # names bound to the package itself
        self._depth = 0
        self._typing = False

    def _add(self, dotted: str, line: int, *, lazy: bool = False) -> None:
        parts = dotted.split(".")
        if parts[0] == "earthwork":
            layer = self._homes.get(parts[1], "") if len(parts) > 1 else ""
            self.found.append(Import(layer, line, lazy or self._depth > 0, self._typing))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name, node.lineno)
            if alias.name == "earthwork":
                self._aliases.add(alias.asname or alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = self._package.split(".")[: len(self._package.split(".")) - node.level + 1] if node.level else []
        module = ".".join([*base, node.module] if node.module else base)
        for alias in node.names:
            self._add(f"{module}.{alias.name}" if module == "earthwork" else module, node.lineno)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name) and node.value.id in self._aliases:
            self._add(f"earthwork.{node.attr}", node.lineno)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and MODULE_NAME.fullmatch(node.value):
            self._add(node.value, node.lineno, lazy=True)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        first = node.values[0].value if node.values and isinstance(node.values[0], ast.Constant) else ""
        if isinstance(first, str) and re.fullmatch(r"earthwork\.(\w+\.)*", first):
            known = first.rstrip(".")
            if known == "earthwork":
                self.found.append(Import("*", node.lineno, lazy=True, typing=self._typing))
            else:
                self._add(known, node.lineno, lazy=True)
        self.generic_visit(node)

    def _visit_function(self, node: ast.AST) -> None:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _visit_function  # noqa: N815

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            self.generic_visit(node)
            return
        self._typing = True
        for child in node.body:
            self.visit(child)
        self._typing = False
        for child in node.orelse:
            self.visit(child)


def imports_in(text: str, package: str = "earthwork", homes: dict[str, str] | None = None) -> list[Import]:
    """Every import from this package, with "*" resolved to the layers that the module names in its strings."""
    tree = ast.parse(text)
    visitor = Imports(package, layer_of_exports() if homes is None else homes)
    visitor.visit(tree)
    constants = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    named = sorted(constants.intersection(LAYERS))
    return [
        one._replace(layer=layer)
        for one in visitor.found
        for layer in ((named or ["*"]) if one.layer == "*" else [one.layer])
    ]


def files_of(layer: str) -> list[Path]:
    module = SOURCE / f"{layer}.py"
    return [module] if module.exists() else sorted((SOURCE / layer).rglob("*.py"))


def imports_of(path: Path) -> list[Import]:
    package = ".".join(["earthwork", *path.relative_to(SOURCE).parent.parts])
    return imports_in(path.read_text(encoding="utf-8"), package)


def against_the_order(layer: str) -> Iterator[tuple[str, Import]]:
    allowed = {*LAYERS[: LAYERS.index(layer) + 1]}
    for path in files_of(layer):
        for one in imports_of(path):
            if one.layer not in allowed and (layer, one.layer) not in HOOKS:
                yield path.relative_to(SOURCE).as_posix(), one


def test_every_package_has_a_place_in_the_order():
    found = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert found - {"__init__", "__main__"} == set(LAYERS)


@pytest.mark.parametrize("layer", LAYERS[:-1])
def test_a_layer_imports_only_layers_before_it(layer):
    wrong = [f"{name}:{one.line} imports {one.layer or 'earthwork'}" for name, one in against_the_order(layer)]
    assert not wrong


def test_the_library_does_not_know_the_lab():
    assert [path.name for path in SOURCE.rglob("*.py") if "earthwork_lab" in path.read_text(encoding="utf-8")] == []


HOMES = {**{layer: layer for layer in LAYERS}, "Chain": "spaces", "emd": "transport"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import earthwork.trees.show", [("trees", False)]),
        ("from earthwork.trees import show", [("trees", False)]),
        ("from earthwork import trees, emd", [("trees", False), ("transport", False)]),
        ("import earthwork", [("", False)]),
        ("import earthwork as ew\new.Chain", [("", False), ("spaces", False)]),
        ("def f():\n    from earthwork.plot import x", [("plot", True)]),
        ("f = lambda: import_module('earthwork.plot.trees')", [("plot", True)]),
        ("import_module('earthwork.trees.show')", [("trees", True)]),
        ("import_module(f'earthwork.metrics.{home}')", [("metrics", True)]),
        ("LAZY = ('plot', 'cli')\nimport_module(f'earthwork.{name}')", [("cli", True), ("plot", True)]),
        ("from .tree import Tree", [("spaces", False)]),
        ("from ..kernels import cpu", [("kernels", False)]),
        ("from .. import kernels", [("kernels", False)]),
        ("import torch\n'earthwork.trees is lazy'", []),
    ],
)
def test_the_guard_sees(text, found):
    assert [(one.layer, one.lazy) for one in imports_in(text, "earthwork.spaces", HOMES)] == found


def test_the_guard_tells_imports_for_type_checkers_apart():
    text = "if TYPE_CHECKING:\n    from earthwork.plot import x\nelse:\n    import earthwork.trees\n"
    assert [(one.layer, one.typing) for one in imports_in(text, homes=HOMES)] == [("plot", True), ("trees", False)]
