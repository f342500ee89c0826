"""Every option of a training run; the defaults are the paper's settings."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from earthwork.files import read_yaml

if TYPE_CHECKING:
    from earthwork_lab.training.losses import LossExpression, SinkhornOptions

REPORTED = ("top1", "top5", "distance", "severity", "emd", "emd2", "log_loss", "val_loss")
LEARNING_RATES = {"sgd": 0.05, "adam": 0.001}
_POSITIVE = (
    "epochs", "batch_size", "seeds", "per_class", "image_size", "save_every", "eval_every", "sinkhorn_iter",
    "num_nodes",
)  # fmt: skip
_COUNTS = ("crop", "seed", "workers")
_NOT_NEGATIVE = ("lr", "lr_decay", "momentum", "weight_decay", "sinkhorn_lam")
_SWITCHES = ("standardize", "skip_bad", "sync_batchnorm")

_TEXT = ("data", "space", "out", "model", "accelerator", "devices", "strategy", "precision")
_TEXT_OR_NUMBER = ("devices", "precision")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of ``earthwork train``.

    Attributes:
        data: A folder, an archive of one, an ``.npz`` file, or a table (.csv, .tsv or .parquet).
        space: What ``ew.load`` takes: a file, a shipped tree's name, or a specification such as ``chain:7``.
        out: The folder to write to.
        loss: One or more losses, as `parse_loss` reads them.
        model: A name from `MODELS`, ``package.module:function``, or ``auto``: ``alexnet-bn`` for images, ``mlp`` for
            features.
        epochs: Passes over the training data.
        batch_size: The global batch, over all processes.
        optimizer: ``sgd`` or ``adam``.
        lr: The learning rate at step 0; ``None``: 0.05 for ``sgd``, 0.001 for ``adam``.
        lr_decay: At step t the learning rate is ``lr / (1 + t·lr_decay)``.
        momentum: SGD's momentum.
        weight_decay: The ℓ₂ penalty.
        target: The column of a table that holds the labels; ``None``: that called label, labels, target or y.
        features: The columns of a table that hold the features, separated by commas; ``None``: all others.
        labels: How integer labels are read if the space has numbers as names: ``index`` or ``name``.
        standardize: Whether inputs are shifted and scaled to mean 0 and standard deviation 1, feature by feature or
            channel by channel, with the statistics of the training data; they are saved with the weights.
        per_class: Use at most this many training examples of each class, drawn with the seed.
        image_size: Images are scaled and cropped to this height and width.
        crop: The largest shift of a random crop in pixels; ``None``: an eighth of the image.
        seed: The seed of the first run.
        seeds: The number of runs of each loss, with seeds ``seed``, ``seed + 1`` …
        best: The metric that selects ``weights-best.pt``.
        skip_bad: Leave out unreadable images, and count them.
        cache: Where decoded images are kept: ``memory``, ``disk``, or ``auto``: in memory if they fit.
        workers: Number of processes that decode images; ``None``: one for each core, at most 8.
        save_every: Also save a checkpoint after every ``save_every`` steps.
        eval_every: Validate after every ``eval_every`` epochs.
        sinkhorn_lam: λ of the loss ``sd``.
        sinkhorn_iter: The maximum number of iterations of the loss ``sd``.
        accelerator: Lightning's, as are the following.
        devices: The number of devices, or ``auto``.
        num_nodes: The number of machines.
        strategy: Such as ``ddp``.
        precision: Such as ``bf16-mixed``.
        sync_batchnorm: Whether batch normalisation uses the global batch.
    """

    data: str
    space: str
    out: str = "runs/train"
    loss: tuple[str, ...] = ("0.5*emd2+0.5*ce",)
    model: str = "auto"
    epochs: int = 90
    batch_size: int = 512
    optimizer: str = "sgd"
    lr: float | None = None
    lr_decay: float = 1e-5
    momentum: float = 0.9
    weight_decay: float = 1e-4
    target: str | None = None
    features: str | None = None
    labels: str | None = None
    standardize: bool = True
    per_class: int | None = None
    image_size: int | None = None
    crop: int | None = None
    seed: int = 0
    seeds: int = 1
    best: str = "top1"
    skip_bad: bool = False
    cache: str = "auto"
    workers: int | None = None
    save_every: int | None = None
    eval_every: int = 1
    sinkhorn_lam: float = 3.0
    sinkhorn_iter: int = 100
    accelerator: str = "auto"
    devices: str = "auto"
    num_nodes: int = 1
    strategy: str = "auto"
    precision: str = "32-true"
    sync_batchnorm: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "loss", _losses(self.loss))
        for name in _TEXT:
            value = getattr(self, name)
            if name in _TEXT_OR_NUMBER and type(value) is int:
                object.__setattr__(self, name, str(value))
            elif not isinstance(value, str):
                raise ValueError(f"{name}: expected text, got {value!r}")
        for name in _POSITIVE + _COUNTS:
            value, least = getattr(self, name), 0 if name in _COUNTS else 1
            if value is not None and (type(value) is not int or value < least):
                raise ValueError(f"{name}: expected a whole number ≥ {least}, got {value!r}")
        # NumPy's and Lightning's generators take no larger ones.
        if self.seed + self.seeds > 2**32:
            raise ValueError(f"seed: expected less than 2³² for all {self.seeds} seeds, got {self.seed}")
        for name in _NOT_NEGATIVE:
            value = getattr(self, name)
            if value is not None and not (type(value) in (int, float) and math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}: expected a number ≥ 0, got {value!r}")
        if self.eval_every > self.epochs:
            raise ValueError(f"eval_every: expected at most the number of epochs, {self.epochs}, got {self.eval_every}")
        _check_choice("optimizer", self.optimizer, tuple(LEARNING_RATES))
        if self.labels is not None:
            _check_choice("labels", self.labels, ("index", "name"))
        if self.lr is None:
            object.__setattr__(self, "lr", LEARNING_RATES[self.optimizer])
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}: expected true or false, got {getattr(self, name)!r}")
        _check_choice("cache", self.cache, ("auto", "memory", "disk"))
        _check_choice("best", self.best, REPORTED)
        names = [str(expression) for expression in self.expressions]
        if not names:
            raise ValueError("loss: expected at least one, got none")
        if len(set(names)) < len(names):
            raise ValueError(f"loss: expected each loss once, got {', '.join(names)}")

    @property
    def expressions(self) -> tuple[LossExpression, ...]:
        """The parsed losses."""
        from earthwork_lab.training.losses import parse_loss

        return tuple(parse_loss(text) for text in self.loss)

    @property
    def functions(self) -> tuple[str, ...]:
        """The functions that a run imports and calls, as ``package.module:function``."""
        losses = (name for expression in self.expressions for name in expression.functions)
        return tuple(dict.fromkeys([*([self.model] if ":" in self.model else []), *losses]))

    @property
    def sinkhorn(self) -> SinkhornOptions:
        """The options of the loss ``sd``."""
        from earthwork_lab.training.losses import SinkhornOptions

        return SinkhornOptions(self.sinkhorn_lam, self.sinkhorn_iter)

    def changed(self, **changes: Any) -> Settings:
        """A copy with some settings changed."""
        return dataclasses.replace(self, **changes)

    def to_yaml(self) -> str:
        """All options as YAML, in the format that ``--config`` reads."""
        values = {**dataclasses.asdict(self), "loss": list(self.loss)}
        text: str = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
        return text


def defaults() -> dict[str, Any]:
    """The default of each option that has one."""
    fields = dataclasses.fields(Settings)
    return {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}


def read_config(path: Path) -> dict[str, Any]:
    """The options in a YAML file; hyphens and underscores in their names are equivalent.

    Raises:
        ValueError: If the file cannot be read or has unknown options; the message names all of them.
    """
    try:
        values = read_yaml(path)
    except OSError as error:
        raise ValueError(f"config {path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"config {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"config {path}: expected lines such as 'epochs: 40', got {type(values).__name__}")
    options = {str(key).replace("-", "_"): value for key, value in values.items()}
    known = [field.name for field in dataclasses.fields(Settings)]
    unknown = [key for key in options if key not in known]
    if unknown:
        raise ValueError(f"config {path}: unknown options: {', '.join(unknown)}; expected some of {', '.join(known)}")
    return options


def _losses(loss: Any) -> tuple[str, ...]:
    if isinstance(loss, str):
        return (loss,)
    if not isinstance(loss, Sequence):
        raise ValueError(f"loss: expected text such as 'emd2+ce', or a list of such texts, got {loss!r}")
    return tuple(loss)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(choices)}, got {value!r}")
