"""The command line: ``earthwork``."""

from __future__ import annotations

import sys

from earthwork.extras import require

__all__ = ["main"]


def main() -> None:
    """Run the command line; if its packages are missing, print how to install them."""
    try:
        require("rich", "cli", "the command line")
        require("typer", "cli", "the command line")
        from earthwork.cli.app import run
    except ImportError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(run())
