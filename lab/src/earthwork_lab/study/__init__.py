"""The study: losses compared on many tasks, by the protocol in lab/PROTOCOL.md."""

from earthwork_lab.study import images, tables, texts
from earthwork_lab.study.contenders import CONTENDERS, Contender
from earthwork_lab.study.run import Request, run_study
from earthwork_lab.study.tasks import TASKS, Table, Task, register

__all__ = [
    "CONTENDERS",
    "TASKS",
    "Contender",
    "Request",
    "Table",
    "Task",
    "images",
    "register",
    "run_study",
    "tables",
    "texts",
]
