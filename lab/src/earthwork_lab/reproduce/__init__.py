"""The paper's tables and figures, measured again: a module for each, with its settings as a dataclass; its claims."""

from collections.abc import Mapping

from earthwork_lab.reproduce.breathing import Breathing
from earthwork_lab.reproduce.claims_learning import LEARNING
from earthwork_lab.reproduce.claims_numerics import NUMERICS
from earthwork_lab.reproduce.convergence import Convergence
from earthwork_lab.reproduce.ellyvan import Ellyvan
from earthwork_lab.reproduce.experiment import Experiment, Plan, Request, Results, ResultsError, run
from earthwork_lab.reproduce.gradients import Gradients
from earthwork_lab.reproduce.imagenet import Imagenet
from earthwork_lab.reproduce.stability import Stability
from earthwork_lab.reproduce.timing import Timing
from earthwork_lab.reproduce.verdicts import Claim, judge

__all__ = ["EXPERIMENTS", "Experiment", "Plan", "Request", "Results", "ResultsError", "judge_claims", "run"]

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (Ellyvan(), Stability(), Gradients(), Timing(), Breathing(), Imagenet(), Convergence())
}


def judge_claims(results: Mapping[str, Results]) -> list[Claim]:
    """Every claim with its verdict; a claim whose experiment was not run is not measurable."""
    numerics = [judge(check, results.get(check.experiment), needs_time=False) for check in NUMERICS]
    return numerics + [judge(check, results.get(check.experiment), needs_time=True) for check in LEARNING]
