"""The commands that the lab adds to ``earthwork``, by its entry point."""

import typer

from earthwork.cli.console import Command
from earthwork_lab.cli import demo, reproduce, study, train

__all__ = ["app"]

app = typer.Typer()
app.command("demo", cls=Command)(demo.demo)
app.command("report", cls=Command)(reproduce.report)
app.command("reproduce", cls=Command)(reproduce.reproduce)
app.command("study", cls=Command)(study.command)
app.command("train", cls=train.TrainCommand)(train.train)
