"""The training harness: compare losses on your own data, with runs that can be resumed.

Names are imported on first use: PyTorch and Lightning take seconds, and ``earthwork train --help`` needs neither.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from earthwork_lab.training.data import TrainingData, load_data, make_data, simulated_data
    from earthwork_lab.training.losses import LossExpression, parse_loss
    from earthwork_lab.training.models import MODELS, load_model
    from earthwork_lab.training.module import Classifier
    from earthwork_lab.training.run import train
    from earthwork_lab.training.settings import Settings, read_config

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

_MODULES = {
    "Classifier": "module", "LossExpression": "losses", "MODELS": "models", "Settings": "settings",
    "TrainingData": "data", "load_data": "data", "load_model": "models", "make_data": "data", "parse_loss": "losses",
    "read_config": "settings", "simulated_data": "data", "train": "run",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"earthwork_lab.training.{_MODULES[name]}"), name)
