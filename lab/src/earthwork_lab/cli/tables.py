"""The tables that commands print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from earthwork.cli.console import print_whole

if TYPE_CHECKING:
    from rich.console import Console


def print_table(console: Console, title: str, rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose first row has the names of the columns."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for at, name in enumerate(rows[0]):
        table.add_column(name, justify="right" if at else "left", overflow="fold")
    for row in rows[1:]:
        table.add_row(*row)
    print_whole(console, table)
