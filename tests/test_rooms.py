"""One way through the house: a room imports only rooms above it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "earthwork"
ROOMS = [
    "extras",
    "kernels",
    "spaces",
    "transport",
    "losses",
    "trees",
    "decisions",
    "metrics",
    "evaluation",
    "testing",
    "plot",
    "lab",
    "cli",
]


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        rooms |= {name.split(".")[1] for name in names if name.startswith("earthwork.")}
    return rooms


def test_every_room_has_its_place():
    found = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert found - {"__init__", "__main__"} == set(ROOMS)


# A tree shows itself with what the room of trees knows about showing.
ASIDES = {("spaces", "trees")}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_above_it(room):
    files = [SOURCE / f"{room}.py"] if (SOURCE / f"{room}.py").exists() else sorted((SOURCE / room).rglob("*.py"))
    allowed = set(ROOMS[: ROOMS.index(room) + 1])
    for path in files:
        beyond = {other for other in imported_rooms(path) - allowed if (room, other) not in ASIDES}
        assert not beyond, f"{path.relative_to(SOURCE)} imports {sorted(beyond)}"
