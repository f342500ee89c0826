"""The reference of commands, from the command line itself: ``python scripts/docs_build/commands.py`` prints it.

The page is built with the site, so it cannot be out of date.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from earthwork.cli.app import app

_HEAD = """\
# Commands

`pip install '.[cli]'` installs the command `earthwork`; `python -m earthwork` is the same. The commands `demo`,
`report`, `reproduce`, `study` and `train` are part of the package [earthwork-lab](index.md#install). An error is one
line on stderr and exit code 2.
"""


def command_reference() -> str:
    """The whole page in Markdown."""
    root = get_command(app)
    return "\n".join([_HEAD, *(_section(name, command) for name, command in _leaves(root, "earthwork"))])


def commands() -> dict[str, list[str]]:
    """Every command that runs something, with its options and arguments as a user types them."""
    return {
        name: [_spelled(parameter) for parameter in command.params]
        for name, command in _leaves(get_command(app), "earthwork")
    }


def _leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    children: dict[str, Any] = getattr(command, "commands", {})
    for child in sorted(children):
        yield from _leaves(children[child], f"{name} {child}")
    if not children:
        yield name, command


def _section(name: str, command: Any) -> str:
    if hasattr(command, "fill_defaults"):
        command.fill_defaults()
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    usage = " ".join([name, *(_spelled(argument) for argument in arguments), "[OPTIONS]" if options else ""]).strip()
    parts = [f"## {name}\n", f"```text\n{usage}\n```\n", f"{inspect.cleandoc(command.help or '')}\n"]
    if arguments:
        parts.append(_table("argument", [(f"`{_spelled(a)}`", _text(a.help), "") for a in arguments]))
    if options:
        parts.append(_table("option", [(_as_code(o), _text(o.help), _default(o)) for o in options]))
    return "\n".join(parts)


def _spelled(parameter: Any) -> str:
    """``--epochs``, ``--normalize/--no-normalize`` or ``DATA``."""
    if parameter.param_type_name == "argument":
        name = (parameter.metavar or parameter.name).upper()
        return f"{name}…" if parameter.nargs == -1 else name
    return ", ".join([*parameter.opts, *parameter.secondary_opts])


def _as_code(option: Any) -> str:
    """Each spelling apart, so that a narrow cell breaks between them."""
    return ", ".join(f"`{spelling}`" for spelling in _spelled(option).split(", "))


def _default(option: Any) -> str:
    if option.required:
        return "required"
    if option.default in (None, (), []) or (option.is_flag and not option.secondary_opts):
        return ""
    if option.is_flag:
        return f"`{(option.opts if option.default else option.secondary_opts)[0]}`"
    values = option.default if isinstance(option.default, (list, tuple)) else [option.default]
    return ", ".join(f"`{value}`" for value in values)


def _table(kind: str, rows: list[tuple[str, str, str]]) -> str:
    lines = (
        [f"| {kind} | | default |", "|---|---|---|"] if any(row[2] for row in rows) else [f"| {kind} | |", "|---|---|"]
    )
    width = lines[0].count("|") - 1
    return "\n".join([*lines, *("| " + " | ".join(row[:width]) + " |" for row in rows)]) + "\n"


def _text(text: str | None) -> str:
    """Help in a cell of a table, its characters as they are."""
    return re.sub(r"([|*_<\[])", r"\\\1", " ".join((text or "").split()))


if __name__ == "__main__":
    print(command_reference())
