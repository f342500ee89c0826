"""The paper's tables and figures, measured again: one module for each, with its settings as a dataclass."""

from earthwork.lab.reproduce.breathing import Breathing
from earthwork.lab.reproduce.convergence import Convergence
from earthwork.lab.reproduce.ellyvan import Ellyvan
from earthwork.lab.reproduce.experiment import Experiment, Plan, Request, Results, ResultsError, run
from earthwork.lab.reproduce.gradients import Gradients
from earthwork.lab.reproduce.imagenet import Imagenet
from earthwork.lab.reproduce.stability import Stability
from earthwork.lab.reproduce.timing import Timing

__all__ = ["EXPERIMENTS", "Experiment", "Plan", "Request", "Results", "ResultsError", "run"]

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (Ellyvan(), Stability(), Gradients(), Timing(), Breathing(), Imagenet(), Convergence())
}
