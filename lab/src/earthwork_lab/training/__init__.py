"""The training harness: compare losses on your own data, with runs that can be resumed.

The names that need Lightning are imported on first use, because importing it takes seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from earthwork_lab.training.data import TrainingData, load_data, make_data, simulated_data
from earthwork_lab.training.losses import LossExpression, parse_loss
from earthwork_lab.training.models import MODELS, load_model
from earthwork_lab.training.settings import Settings, read_config

if TYPE_CHECKING:
    from earthwork_lab.training.module import Classifier
    from earthwork_lab.training.run import train

__all__ = [
    "MODELS",
    "Classifier",
    "LossExpression",
    "Settings",
    "TrainingData",
    "load_data",
    "load_model",
    "make_data",
    "parse_loss",
    "read_config",
    "simulated_data",
    "train",
]

_LAZY = {"Classifier": "module", "train": "run"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"earthwork_lab.training.{_LAZY[name]}"), name)
