"""How commands talk: errors that name options, and tables that a pipe does not cut."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["Command", "print_whole"]


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
        names = {}
        for parameter in self.params:
            # ``--top-k``, or ``DATA`` for an argument without a name
            option = max(parameter.opts, key=len)
            names[str(parameter.name)] = option if option.startswith("-") else parameter.metavar or option.upper()
        others = {argument: names[name] for argument, name in self.aliases.items() if name in names}
        return with_options(message, names | others)


def with_options(message: str, options: Mapping[str, str]) -> str:
    """Return a message about arguments as one about options.

    An argument is named at the start of a message, before a colon, alone or with its value; or anywhere, with ``=``
    and a value.

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

    def option(found: re.Match[str]) -> str:
        value = found[4] if found[3] is None else found[3].replace("_", "-")
        return options[found[1]] if value is None else f"{options[found[1]]} {value}"

    return re.sub(assigned, option, message)


def print_whole(console: Console, content: RenderableType) -> None:
    """Print tables: a terminal wraps what does not fit, anything else has no width that would have to be kept."""
    from rich.console import Console

    if not console.is_terminal:
        options = console.options.update(width=100_000)
        console = Console(file=console.file, highlight=False, width=console.measure(content, options=options).maximum)
    console.print(content)
