"""Many small networks trained at once: all configurations and all splits of a task, in batched matrix products."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

# The sum over rows of a loss of outputs [R, K] and class indices [R].
Criterion: TypeAlias = Callable[[Tensor, Tensor], Tensor]


class Part(NamedTuple):
    """Features ``[S, N, D]`` and class indices ``[S, N]`` of S splits of equal size."""

    x: Tensor
    y: Tensor


class Splits(NamedTuple):
    """What networks are trained on, chosen on and tested on, once."""

    train: Part
    val: Part
    test: Part


class Configuration(NamedTuple):
    """A learning rate, a weight decay, and a value of the loss's own hyper-parameter."""

    rate: float
    decay: float
    value: Any = None


@dataclass(frozen=True)
class Head:
    """What the outputs of a network mean.

    Attributes:
        outputs: The number of outputs.
        log_p: Turns outputs ``[..., K]`` into log-probabilities ``[..., C]``.
        shared: Whether only the first output depends on the features and the others are learned constants, as in
            models with one score and several thresholds.
    """

    outputs: int
    log_p: Callable[[Tensor], Tensor]
    shared: bool = False


@dataclass(frozen=True)
class Schedule:
    """How long networks are trained.

    Attributes:
        hidden: The widths of hidden layers; none for a linear model.
        epochs: The largest number of passes over the training data.
        every: The number of epochs from one validation to the next.
        patience: A network is finished after this many validations without an improvement.
        steps: The number of minibatches of an epoch, unless they would be smaller than 16 or larger than 256 rows.
    """

    hidden: tuple[int, ...] = (64,)
    epochs: int = 80
    every: int = 2
    patience: int = 6
    steps: int = 8

    def batch_size(self, rows: int) -> int:
        """The size of a minibatch of so many training rows."""
        return min(max(math.ceil(rows / self.steps), 16), 256)


class Chosen(NamedTuple):
    """For each split, the network with the lowest log loss on the validation data.

    Attributes:
        configuration: The index of its configuration ``[S]``.
        epoch: The number of epochs it was trained for ``[S]``.
        scale: The inverse of its temperature ``[S]``.
        val_loss: Its log loss on the validation data ``[S]``, after temperature scaling.
        log_p: Its log-probabilities on the test data ``[S, T, C]``, after temperature scaling.
    """

    configuration: Tensor
    epoch: Tensor
    scale: Tensor
    val_loss: Tensor
    log_p: Tensor


class Networks:
    """Networks of the same shape: G for each of S splits, with their optimizer.

    Activations are ``[S, G, width, B]``, so that the first layer of all G networks of a split is one matrix product.
    The networks of a split start with the same weights, those of `torch.nn.Linear`, whatever the loss.
    """

    def __init__(self, widths: Sequence[int], splits: int, rates: Tensor, decays: Tensor, *, shared: bool) -> None:
        self.widths = tuple(widths)
        self.rates, self.decays = rates, decays
        self.mask = torch.ones(widths[-1], 1)
        if shared:
            self.mask[1:] = 0
        self.parameters: list[Tensor] = []
        generators = [torch.Generator().manual_seed(1000 + split) for split in range(splits)]
        for inputs, outputs in pairwise(widths):
            for columns in (inputs, 1):
                drawn = [torch.rand(outputs, columns, generator=generator) for generator in generators]
                start = (2 * torch.stack(drawn) - 1) / math.sqrt(inputs)
                self.parameters.append(start[:, None].repeat(1, len(rates), 1, 1))
        self.moments = [(torch.zeros_like(entry), torch.zeros_like(entry)) for entry in self.parameters]
        self.count = 0

    def outputs(self, x: Tensor, parameters: Sequence[Tensor] | None = None) -> Tensor:
        """The outputs ``[S, G, B, K]`` for features ``[S, B, D]``."""
        layers = list(parameters or self.parameters)
        hidden = x.mT
        for number in range(0, len(layers), 2):
            weight, bias = layers[number], layers[number + 1]
            if number == len(layers) - 2:
                weight = weight * self.mask
            if number == 0:
                hidden = (weight.flatten(1, 2) @ hidden).unflatten(1, weight.shape[1:3]) + bias
            else:
                hidden = weight @ hidden.relu() + bias
        return hidden.mT.contiguous()

    def step(self, loss: Callable[[Tensor], Tensor], x: Tensor) -> None:
        """One step of AdamW, with the decay only on weights, down a loss of the outputs.

        Each network's loss must be the mean over its rows; the loss of all networks is their sum.
        """
        for entry in self.parameters:
            entry.requires_grad_(True)
        gradients = torch.autograd.grad(loss(self.outputs(x)), self.parameters)
        self.count += 1
        bias1, bias2 = 1 - 0.9**self.count, 1 - 0.999**self.count
        rates = self.rates[:, None, None]
        for number, (entry, gradient) in enumerate(zip(self.parameters, gradients, strict=True)):
            entry.requires_grad_(False)
            first, second = self.moments[number]
            first.lerp_(gradient, 0.1)
            second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            if number % 2 == 0:
                entry.mul_(1 - rates * self.decays[:, None, None])
            entry.sub_(rates / bias1 * first / ((second / bias2).sqrt_().add_(1e-8)))

    def keep(self, networks: Tensor) -> None:
        """Drop all configurations but those of these indices."""
        self.parameters = [entry[:, networks] for entry in self.parameters]
        self.moments = [(first[:, networks], second[:, networks]) for first, second in self.moments]
        self.rates, self.decays = self.rates[networks], self.decays[networks]


def fitted_scale(log_p: Tensor, labels: Tensor, start: Tensor, steps: int = 4) -> tuple[Tensor, Tensor]:
    """The inverse temperature with the lowest log loss, by Newton's method, and that log loss.

    The log loss of softmax(β·log p) is convex in β. β stays in [1/20, 20], so that a few validation rows that are all
    classified correctly do not make it infinite.

    Args:
        log_p: Log-probabilities ``[..., N, C]``.
        labels: Class indices ``[..., N]``.
        start: β to start from ``[...]``.
        steps: The number of Newton steps.
    """
    at_label = log_p.gather(-1, labels[..., None]).squeeze(-1)
    scale = start
    for _ in range(steps):
        p = (scale[..., None, None] * log_p).softmax(-1)
        weighted = p * log_p
        mean = weighted.sum(-1)
        slope = (mean - at_label).mean(-1)
        curvature = ((weighted * log_p).sum(-1) - mean.square()).mean(-1)
        step = slope / curvature.clamp(min=1e-12)
        scale = torch.minimum(torch.maximum(scale - step, scale / 2), scale * 2).clamp(0.05, 20.0)
    return scale, scaled_loss(log_p, labels, scale)


def scaled_loss(log_p: Tensor, labels: Tensor, scale: Tensor) -> Tensor:
    """The log loss ``[...]`` of softmax(β·log p)."""
    scaled = (scale[..., None, None] * log_p).log_softmax(-1)
    return -scaled.gather(-1, labels[..., None]).squeeze(-1).mean(-1)


def train(
    splits: Splits,
    head: Head,
    criterion: Callable[[Any], Criterion],
    configurations: Sequence[Configuration],
    schedule: Schedule,
) -> Chosen:
    """Train a network for each split and configuration; choose by the log loss on the validation data.

    Args:
        splits: The data.
        head: What the outputs of the networks mean.
        criterion: Returns the loss for a value of its hyper-parameter.
        configurations: What to choose from; those with equal values must be neighbours.
        schedule: How long to train.
    """
    train_part, val, test = splits
    count, rows, inputs = train_part.x.shape
    criteria = {value: criterion(value) for value in dict.fromkeys(entry.value for entry in configurations)}
    rates = torch.tensor([entry.rate for entry in configurations])
    decays = torch.tensor([entry.decay for entry in configurations])
    networks = Networks((inputs, *schedule.hidden, head.outputs), count, rates, decays, shared=head.shared)
    alive = torch.arange(len(configurations))
    best = torch.full((count, len(configurations)), torch.inf)
    epochs, waiting = torch.zeros_like(best, dtype=torch.long), torch.zeros_like(best, dtype=torch.long)
    scales = torch.ones_like(best)
    kept = [entry.clone() for entry in networks.parameters]
    shuffles = [torch.Generator().manual_seed(2000 + split) for split in range(count)]
    size = schedule.batch_size(rows)
    for epoch in range(1, schedule.epochs + 1):
        order = torch.stack([torch.randperm(rows, generator=generator) for generator in shuffles])
        for batch in order.split(size, dim=1):
            x = train_part.x.gather(1, batch[:, :, None].expand(-1, -1, inputs))
            y = train_part.y.gather(1, batch)
            networks.step(partial(_total, labels=y, configurations=configurations, alive=alive, criteria=criteria), x)
        if epoch % schedule.every and epoch != schedule.epochs:
            continue
        log_p = head.log_p(networks.outputs(val.x)).clamp(min=-60.0)
        labels = val.y[:, None].expand(-1, len(alive), -1)
        scale, loss = fitted_scale(log_p, labels, scales[:, alive])
        # A network that has been finished for another split may go on, but is no longer looked at.
        better = (loss < best[:, alive]) & (waiting[:, alive] < schedule.patience)
        waiting[:, alive] = torch.where(better, 0, waiting[:, alive] + 1)
        best[:, alive] = torch.where(better, loss, best[:, alive])
        epochs[:, alive] = torch.where(better, epoch, epochs[:, alive])
        scales[:, alive] = torch.where(better, scale, scales[:, alive])
        for entry, now in zip(kept, networks.parameters, strict=True):
            entry[:, alive] = torch.where(better[:, :, None, None], now, entry[:, alive])
        going = (waiting[:, alive] < schedule.patience).any(0).nonzero().squeeze(-1)
        if not len(going):
            break
        if len(going) < len(alive):
            networks.keep(going)
            alive = alive[going]
    chosen = best.argmin(1)
    split = torch.arange(count)
    parameters = [entry[split, chosen][:, None] for entry in kept]
    log_p = head.log_p(networks.outputs(test.x, parameters)).clamp(min=-60.0).squeeze(1)
    scale = scales[split, chosen]
    return Chosen(
        chosen, epochs[split, chosen], scale, best[split, chosen], (scale[:, None, None] * log_p).log_softmax(-1)
    )


def _total(
    outputs: Tensor,
    labels: Tensor,
    configurations: Sequence[Configuration],
    alive: Tensor,
    criteria: dict[Any, Criterion],
) -> Tensor:
    """The sum over networks of the mean loss of their rows; one call for each value of the hyper-parameter."""
    total = outputs.new_zeros(())
    start = 0
    for value, group in groupby(alive.tolist(), key=lambda index: configurations[index].value):
        end = start + sum(1 for _ in group)
        rows = outputs[:, start:end].flatten(0, 2)
        total = total + criteria[value](rows, labels[:, None].expand(-1, end - start, -1).reshape(-1))
        start = end
    return total / labels.shape[1]


def standardized(parts: Splits) -> Splits:
    """Features shifted and scaled to mean 0 and standard deviation 1 on each split's training data."""
    std, mean = torch.std_mean(parts.train.x, 1, correction=0, keepdim=True)
    std = torch.where(std > 1e-6, std, 1.0)
    # Rare values of a few training rows must not dominate.
    return Splits(*(Part(((part.x - mean) / std).clamp(-8, 8), part.y) for part in parts))


def log_softmax(outputs: Tensor) -> Tensor:
    """Logits to log-probabilities."""
    return functional.log_softmax(outputs, -1)
