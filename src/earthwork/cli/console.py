"""How commands talk: errors that name options, and tables that a pipe does not cut."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["Command", "print_table"]


class Command(TyperCommand):
    """A command whose errors name its options rather than the arguments of the library.

    Attributes:
        aliases: Arguments of the library that the command calls otherwise, with the names of its parameters.
    """

    aliases: ClassVar[Mapping[str, str]] = {"what": "space", "label_kind": "labels"}

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # Typer would end silently.
            raise typer.Abort from None
        except (TypeError, ValueError, ImportError) as error:
            raise ValueError(self.in_options(str(error))) from None

    def in_options(self, message: str) -> str:
        """Return a message of the library in the words of this command."""
        names = {str(parameter.name): _spelling(parameter) for parameter in self.params}
        others = {argument: names[name] for argument, name in self.aliases.items() if name in names}
        return with_options(message, names | others)


def _spelling(parameter: Any) -> str:
    """Return how a user writes a parameter: ``--top-k``, or ``DATA`` for an argument without a name."""
    option: str = max(parameter.opts, key=len)
    return option if option.startswith("-") else str(parameter.metavar or option.upper())


def with_options(message: str, options: Mapping[str, str]) -> str:
    """Return a message about arguments as one about options.

    An argument is named at the start of a message, before a colon, alone or with its value; or anywhere, with ``=``
    and a value.

    Args:
        message: The message.
        options: The option for each argument.

    Example:
        >>> from earthwork.cli.console import with_options
        >>> with_options('top_k: expected 1 with decide="least_risk"', {"top_k": "--top-k", "decide": "--decide"})
        '--top-k: expected 1 with --decide least-risk'
        >>> with_options("pass full_names=True to name each node", {"full_names": "--full-names"})
        'pass --full-names to name each node'
    """
    names = "|".join(map(re.escape, options))
    if not names:
        return message
    message = re.sub(rf"\A({names})(?=: | .*?: )", lambda found: options[found[1]], message)
    assigned = rf"(?<![\w'\"./-])({names})=(?:True\b|([\"'])(.*?)\2|(-?[\w.]+))?"
    return re.sub(assigned, lambda found: _assigned(options[found[1]], found[3], found[4]), message)


def _assigned(option: str, text: str | None, number: str | None) -> str:
    value = number if text is None else text.replace("_", "-")
    return option if value is None else f"{option} {value}"


def print_whole(console: Console, content: RenderableType) -> None:
    """Print tables: a terminal wraps what does not fit, anything else has no width that would have to be kept."""
    from rich.console import Console

    if not console.is_terminal:
        options = console.options.update(width=100_000)
        console = Console(file=console.file, highlight=False, width=console.measure(content, options=options).maximum)
    console.print(content)


def print_table(console: Console, title: str, rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose first row has the names of the columns."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for at, name in enumerate(rows[0]):
        table.add_column(name, justify="right" if at else "left", overflow="fold")
    for row in rows[1:]:
        table.add_row(*row)
    print_whole(console, table)
