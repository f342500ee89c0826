"""The Typer app; errors become one line on stderr and exit code 2."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated

import typer

import earthwork
from earthwork.cli import evaluate, tree
from earthwork.text import printable

# Other packages add commands: Typer apps in this group of entry points.
GROUP = "earthwork.commands"
# Commands of earthwork-lab, which are known here so that they can say how to install it.
_LAB = ("demo", "report", "reproduce", "study", "train")


def make_app(plugins: Iterable[EntryPoint]) -> typer.Typer:
    """Return the command line with the commands of the library and of other packages."""
    app = typer.Typer(
        name="earthwork",
        help="Losses that know how classes are arranged: in a row, around a circle, in a hierarchy.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    app.command("evaluate", cls=evaluate.EvaluateCommand)(evaluate.command)
    app.add_typer(tree.app, name="tree")
    reason = ""
    for plugin in plugins:
        try:
            app.registered_commands += plugin.load().registered_commands
        except Exception as error:  # of a package that is not ours; the other commands still work
            reason += f" ({plugin.value} cannot be loaded: {error})"

    def explain(context: typer.Context) -> None:
        raise ImportError(f"earthwork {context.info_name} needs `earthwork-lab`: pip install earthwork-lab{reason}")

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    found = {command.name for command in app.registered_commands}
    for name in (name for name in _LAB if name not in found):
        app.command(name, help="Needs earthwork-lab.", context_settings=anything, add_help_option=False)(explain)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"earthwork {earthwork.__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Handle the options of ``earthwork`` itself."""


app = make_app(entry_points(group=GROUP))

# click's own classes, or their copies inside newer versions of Typer
_ClickException: type[Exception] = typer.BadParameter.mro()[2]


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line with arguments, by default those of this process, and return its exit code."""
    try:
        code = app(args=None if arguments is None else list(arguments), prog_name="earthwork", standalone_mode=False)
    except BrokenPipeError:
        # The reading process (head, less) has exited, so nothing more can be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _fail(str(error) if error.filename is None else f"{error.filename}: {error.strerror}")
    except (TypeError, ValueError, ImportError) as error:
        return _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", code=130)
    except (MemoryError, RuntimeError) as error:
        # PyTorch raises a plain RuntimeError.
        if not isinstance(error, MemoryError) and "allocate memory" not in str(error):
            raise
        return _fail(f"not enough memory: {error}")
    except _ClickException as error:
        message = getattr(error, "format_message", error.__str__)()
        if type(error).__name__ == "NoArgsIsHelpError":
            print(message)
            return 0
        context = getattr(error, "ctx", None)
        return _fail(f"{message} (see {context.command_path} --help)" if context else message)
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int = 2) -> int:
    print(f"error: {printable(' '.join(message.split()))}", file=sys.stderr)
    return code
