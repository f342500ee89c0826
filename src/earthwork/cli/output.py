"""Tables on the terminal; in a pipe or a file they are as wide as they need to be."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.table import Table


def print_whole(console: Console, content: RenderableType) -> None:
    """Print tables: a terminal wraps what does not fit, anything else has no width that would have to be kept."""
    if not console.is_terminal:
        options = console.options.update(width=100_000)
        console = Console(file=console.file, highlight=False, width=console.measure(content, options=options).maximum)
    console.print(content)


def print_table(console: Console, title: str, rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose first row has the names of the columns."""
    table = Table(title=title, title_justify="left")
    for at, name in enumerate(rows[0]):
        table.add_column(name, justify="right" if at else "left", overflow="fold")
    for row in rows[1:]:
        table.add_row(*row)
    print_whole(console, table)
