"""The training harness: compare losses on your own data, with runs that can be resumed.

The names that need Lightning are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from earthwork.lab.training.data import TrainingData, load_data, make_data, simulated_data
from earthwork.lab.training.losses import LossExpression, parse_loss
from earthwork.lab.training.models import MODELS, load_model
from earthwork.lab.training.settings import Settings, read_config

if TYPE_CHECKING:
    from earthwork.lab.training.module import Classifier
    from earthwork.lab.training.run import train

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

_NEED_LIGHTNING = {"Classifier": "module", "train": "run"}


def __getattr__(name: str) -> Any:
    if name not in _NEED_LIGHTNING:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from earthwork.extras import require

    require("lightning.pytorch", "train", "training")
    return getattr(import_module(f"earthwork.lab.training.{_NEED_LIGHTNING[name]}"), name)
