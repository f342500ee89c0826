"""Studies: losses compared on real data, with hyper-parameters chosen for each loss on validation data."""

from earthwork_lab.studies import boosted_tables, contenders, external, gradient_boosting, questions, tables
from earthwork_lab.studies.registry import Contender, Part, Split, Task, named, register_loss, register_task
from earthwork_lab.studies.study import Request, run_study

__all__ = [
    "Contender",
    "Part",
    "Request",
    "Split",
    "Task",
    "boosted_tables",
    "contenders",
    "external",
    "gradient_boosting",
    "named",
    "questions",
    "register_loss",
    "register_task",
    "run_study",
    "tables",
]
