"""The paper's tables and figures, measured again: one file for each, with its settings as data."""

from earthwork.reproduce.breathing import Breathing
from earthwork.reproduce.convergence import Convergence
from earthwork.reproduce.ellyvan import Ellyvan
from earthwork.reproduce.experiment import Experiment, Plan, Request, run
from earthwork.reproduce.gradients import Gradients
from earthwork.reproduce.imagenet import Imagenet
from earthwork.reproduce.results import Results, ResultsError
from earthwork.reproduce.stability import Stability
from earthwork.reproduce.timing import Timing

__all__ = ["EXPERIMENTS", "Experiment", "Plan", "Request", "Results", "ResultsError", "run"]

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (Ellyvan(), Stability(), Gradients(), Timing(), Breathing(), Imagenet(), Convergence())
}
