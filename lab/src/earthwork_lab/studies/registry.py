"""Tasks and losses of a study, and how to add your own."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from earthwork import Space, Tree
from earthwork_lab.training.losses import parse_loss

Criterion: TypeAlias = Callable[[Tensor, Any], Tensor]


class Part(NamedTuple):
    """Features ``[N, D]`` and class indices ``[N]``; for training also distributions or sets ``[N, C]``."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Split:
    """The data of a task for one seed.

    Attributes:
        space: The space that predictions are measured in.
        train: What the networks are trained on.
        val: What hyper-parameters and the epoch are chosen on.
        test: What the chosen networks are measured on, once.
        loss_space: The space that losses are given, if it is another one. Its first bins are those of ``space``; there
            may be more.
    """

    space: Space
    train: Part
    val: Part
    test: Part
    loss_space: Space | None = field(default=None, kw_only=True)

    @property
    def tree(self) -> Tree:
        """The space of a task that needs a tree."""
        if not isinstance(self.space, Tree):
            raise TypeError(f"space: expected a Tree, got {self.space}")
        return self.space


@dataclass(frozen=True)
class Task:
    """A classification problem on real data.

    Attributes:
        name: Its name on the command line and in files.
        title: What it is, for tables.
        load: Returns the data for a seed, given the folder of external data (``None`` if the task needs none).
        folder: The subfolder of the external data that the task needs.
        hidden: The widths of the network's hidden layers; none for a linear model.
        seeds: The number of seeds in a full study.
        batch_size: The size of a minibatch.
        epochs: The maximum number of passes over the training data.
        rate_scale: A factor of the study's learning rates.
        losses: The names of the losses that are compared; by default all that are defined on the space.
        base: The task that this one is a variant of, to answer a question; ``None`` for a task of its own.
        question: The question that a variant is for.
        study: The study that the task belongs to.
        overlap: The ratio of test to training examples if the seeds are folds of a repeated cross-validation. Its
            training sets overlap, so intervals are widened; see `mean_interval`.
    """

    name: str
    title: str
    load: Callable[[int, Path | None], Split]
    folder: str | None = None
    hidden: tuple[int, ...] = (64, 64)
    seeds: int = 5
    batch_size: int = 128
    epochs: int = 60
    rate_scale: float = 1.0
    losses: tuple[str, ...] = ()
    base: str | None = None
    question: str | None = None
    study: str = "losses"
    overlap: float = 0.0


# A model to choose from: its learning rate, its length of training, its log-probabilities on the validation data, and
# a function that returns those on the test data.
Fitted: TypeAlias = tuple[float, int, Tensor, Callable[[], Tensor]]
# Given the data, a value of the hyper-parameter, the share of the usual length of training, and a seed, yields models.
# It is sent the scores of each on the validation data, all better when lower, and may stop early.
Fit: TypeAlias = Callable[[Split, Any, float, int], Generator[Fitted, dict[str, float], None]]


def _always() -> bool:
    return True


def log_softmax(outputs: Tensor) -> Tensor:
    """Logits to log-probabilities."""
    return functional.log_softmax(outputs, -1)


def one_output_per_class(space: Space) -> int:
    """The number of outputs of an ordinary classifier."""
    return space.num_bins


@dataclass(frozen=True)
class Contender:
    """A loss in a study, with a hyper-parameter of its own.

    Attributes:
        name: Its name on the command line and in files.
        build: Returns the loss (a function of outputs and labels) for a space and a value of the hyper-parameter.
        values: The values to choose from; ``(None,)`` if there is no hyper-parameter.
        spaces: The kinds of spaces it is defined on.
        available: Whether it can be used; a loss of another package may not be installed.
        outputs: The number of outputs that a network needs.
        log_probabilities: Turns outputs into log-probabilities ``[N, C]``.
        tasks: The names of the tasks that it is compared on; by default all.
        reference: The name of the loss that it is compared to.
        fit: Trains a model other than the study's network; see `Fit`.
    """

    name: str
    build: Callable[[Space, Any], Criterion]
    values: tuple[Any, ...] = (None,)
    spaces: tuple[type[Space], ...] = (Space,)
    available: Callable[[], bool] = _always
    outputs: Callable[[Space], int] = one_output_per_class
    log_probabilities: Callable[[Tensor], Tensor] = field(default=log_softmax)
    tasks: tuple[str, ...] = ()
    reference: str = "ce"
    fit: Fit | None = None

    def suits(self, space: Space) -> bool:
        """Whether the loss is installed and defined on a space."""
        return self.available() and isinstance(space, self.spaces)

    def wanted(self, task: Task) -> bool:
        """Whether a task compares the loss by default."""
        return self.name in task.losses if task.losses else not self.tasks or task.name in self.tasks


TASKS: dict[str, Task] = {}
CONTENDERS: dict[str, Contender] = {}


def register_task(task: Task) -> Task:
    """Add a task to every study.

    Raises:
        ValueError: If there is another task of this name.
    """
    if task.name in TASKS:
        raise ValueError(f"task: {task.name!r} is already registered")
    TASKS[task.name] = task
    return task


def register_loss(contender: Contender) -> Contender:
    """Add a loss to every study.

    Raises:
        ValueError: If there is another loss of this name.
    """
    if contender.name in CONTENDERS:
        raise ValueError(f"loss: {contender.name!r} is already registered")
    CONTENDERS[contender.name] = contender
    return contender


def named(
    name: str,
    text: str | None = None,
    values: Sequence[Any] = (None,),
    spaces: tuple[type[Space], ...] = (Space,),
    available: Callable[[], bool] = _always,
    tasks: tuple[str, ...] = (),
) -> Contender:
    """A loss by its name in ``earthwork train``.

    Args:
        name: The name in the study.
        text: The loss as `parse_loss` reads it; ``{0}`` stands for the value, ``{1}`` for 1 minus the value.
        values: The values to choose from.
        spaces: The kinds of spaces it is defined on.
        available: Whether it can be used.
        tasks: The names of the tasks that it is compared on; by default all.

    Example:
        >>> import earthwork as ew
        >>> from earthwork_lab.studies.registry import named
        >>> named("mixture", "{0}*emd2+{1}*ce", (0.25, 0.5)).build(ew.Chain(3), 0.25)
        MixedLoss(
          0.25 × EMDLoss, 0.75 × CrossEntropyLoss
          ...
    """

    def build(space: Space, value: Any) -> Criterion:
        filled = (text or name).format(value, None if value is None else f"{1 - float(value):g}")
        return parse_loss(filled).build(space)

    return Contender(name, build, tuple(values), spaces, available, tasks=tasks)


def standardized(train: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """Features shifted and scaled to mean 0 and standard deviation 1 on the training data."""
    std, mean = torch.std_mean(train, 0, correction=0)
    std = torch.where(std > 0, std, 1)
    return tuple((part - mean) / std for part in (train, *others))
