"""Training one network with plain PyTorch, with early stopping, and measuring its predictions."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from earthwork import CostMatrix, EMDLoss, Space, decide
from earthwork_lab.statistics import calibration_error
from earthwork_lab.studies.registry import Contender, Criterion, Fit, Split, Task
from earthwork_lab.training.losses import as_target

# Each criterion chooses hyper-parameters and the epoch for itself, so each loss is at its best for each question.
CRITERIA = ("top1", "distance", "decided", "proper", "log_loss")
METRICS = {
    "top1": "top1",
    "distance": "distance",
    "decided": "decided",
    "proper": "proper",
    "log_loss": "log_loss",
    "calibration": "log_loss",
}
TITLES = {
    "top1": "accuracy",
    "distance": "mean distance",
    "decided": "mean distance of least-risk decisions",
    "proper": "EMD² (proper)",
    "log_loss": "log loss",
    "calibration": "calibration error",
}
HIGHER_IS_BETTER = ("top1",)


@dataclass(frozen=True)
class Best:
    """The best model so far by one criterion; ``predict`` returns its log-probabilities on the test data."""

    score: float = math.inf
    predict: Callable[[], Tensor] | None = None
    value: Any = None
    rate: float = 0.0
    epoch: int = 0


class Search:
    """The best models by each criterion on the validation data, of all and for each value of the hyper-parameter."""

    def __init__(self, split: Split) -> None:
        self.split = split
        self.best = {name: Best() for name in CRITERIA}
        self.by_value: dict[str, dict[str, Best]] = {}

    def offer(
        self, val: Tensor, freeze: Callable[[], Callable[[], Tensor]], value: Any, rate: float, epoch: int
    ) -> dict[str, float]:
        """Keep a model where it is the best so far.

        Args:
            val: Its log-probabilities on the validation data.
            freeze: Returns a function that computes its log-probabilities on the test data, now or later.
            value: The value of the hyper-parameter.
            rate: The learning rate.
            epoch: How long it was trained.

        Returns:
            Its scores.
        """
        scores = selection_scores(val, self.split.val.y, self.split.space)
        own = self.by_value.setdefault(str(value), {name: Best() for name in CRITERIA})
        better = [name for name, score in scores.items() if score < own[name].score]
        predict = freeze() if better else None
        for name in better:
            own[name] = Best(scores[name], predict, value, rate, epoch)
            if scores[name] < self.best[name].score:
                self.best[name] = own[name]
        return scores

    def results(self) -> dict[str, Any]:
        """What was chosen by each criterion with its metrics on the test data; and by each value on its own."""
        tested: dict[int, dict[str, float]] = {}
        values = {value: self._chosen(best, tested) for value, best in self.by_value.items()}
        return {"chosen": self._chosen(self.best, tested), **({"by_value": values} if len(values) > 1 else {})}

    def _chosen(self, best: dict[str, Best], tested: dict[int, dict[str, float]]) -> dict[str, Any]:
        chosen = {}
        for name, found in best.items():
            if found.predict is None:
                continue
            if id(found.predict) not in tested:
                test = measure(found.predict(), self.split.test.y, self.split.space)
                tested[id(found.predict)] = {metric: float(f"{number:.6g}") for metric, number in test.items()}
            test = tested[id(found.predict)]
            chosen[name] = {"value": found.value, "rate": found.rate, "epoch": found.epoch, "test": test}
        return chosen


@dataclass(frozen=True)
class Budget:
    """How long to train, and with which learning rates.

    Attributes:
        rates: The learning rates to choose from.
        epoch_share: The share of a task's epochs.
        patience: Training stops after this many epochs without an improvement by any criterion.
        weight_decay: AdamW's.
    """

    rates: tuple[float, ...] = (1e-3, 4e-3, 1.6e-2)
    epoch_share: float = 1.0
    patience: int = 8
    weight_decay: float = 1e-4


def network(inputs: int, hidden: tuple[int, ...], outputs: int) -> nn.Module:
    """A linear model, or an MLP with ReLU."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


def run_cell(task: Task, contender: Contender, split: Split, seed: int, budget: Budget) -> dict[str, Any]:
    """Train with every value and learning rate, choose on the validation data, and test once for each criterion.

    Returns:
        Plain numbers, ready for JSON. They say what was tried, and for each criterion what was chosen and its metrics
        on the test data; the same for each value of the hyper-parameter.
    """
    search = Search(split)
    tried = []
    for value in contender.values:
        if contender.fit is not None:
            tried += _fit(contender.fit, search, value, seed, budget)
            continue
        criterion = contender.build(split.loss_space or split.space, value)
        for rate in (task.rate_scale * rate for rate in budget.rates):
            epochs = _train(task, contender, criterion, search, seed, budget, value, rate)
            tried.append({"value": value, "rate": rate, "epochs": epochs})
    return {
        "loss": contender.name,
        "seed": seed,
        "space": type(split.space).__name__,
        "examples": len(split.train.x),
        **search.results(),
        "tried": tried,
    }


def _fit(fit: Fit, search: Search, value: Any, seed: int, budget: Budget) -> list[dict[str, Any]]:
    lengths: dict[float, int] = {}
    models = fit(search.split, value, budget.epoch_share, seed)
    scores: dict[str, float] | None = None
    with suppress(StopIteration):
        while True:
            rate, length, val, predict = models.send(scores)  # type: ignore[arg-type]  # None starts it
            scores = search.offer(val, partial(_same, predict), value, rate, length)
            lengths[rate] = length
    return [{"value": value, "rate": rate, "epochs": length} for rate, length in lengths.items()]


def _same(predict: Callable[[], Tensor]) -> Callable[[], Tensor]:
    return predict


def _train(
    task: Task,
    contender: Contender,
    criterion: Criterion,
    search: Search,
    seed: int,
    budget: Budget,
    value: Any,
    rate: float,
) -> int:
    """Train one network, update the best ones, and return the number of epochs."""
    split = search.split
    torch.manual_seed(seed)
    model = network(split.train.x.shape[1], task.hidden, contender.outputs(split.loss_space or split.space))
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=budget.weight_decay)
    x, y = split.train
    waiting = 0
    own_best = dict.fromkeys(CRITERIA, math.inf)
    epochs = max(1, round(budget.epoch_share * task.epochs))

    def freeze() -> Callable[[], Tensor]:
        state = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
        return lambda: answers(functional_call(model, state, split.test.x))

    def answers(outputs: Tensor) -> Tensor:
        log_p = contender.log_probabilities(outputs)
        classes = split.space.num_bins
        # The loss may have additional classes, which are never answers.
        return log_p if log_p.shape[-1] == classes else log_p[:, :classes].log_softmax(-1)

    for epoch in range(1, epochs + 1):
        for rows in torch.randperm(len(x)).split(task.batch_size):
            optimizer.zero_grad(set_to_none=True)
            loss = criterion(model(x[rows]), as_target(y[rows]))
            loss.backward()
            optimizer.step()
        if not torch.isfinite(loss):
            return epoch
        with torch.no_grad():
            val = answers(model(split.val.x))
        scores = search.offer(val, freeze, value, rate, epoch)
        waiting += 1
        for name, score in scores.items():
            if score < own_best[name]:
                own_best[name], waiting = score, 0
        if waiting >= budget.patience:
            return epoch
    return epochs


def selection_scores(log_p: Tensor, labels: Tensor, space: Space) -> dict[str, float]:
    """The criteria, each better when it is lower."""
    p = log_p.exp()
    answers = p.argmax(-1)
    return {
        "top1": -(answers == labels).double().mean().item(),
        "distance": space.distance(answers, labels).double().mean().item(),
        "decided": space.distance(decide(p / p.sum(-1, keepdim=True), space), labels).double().mean().item(),
        "proper": _proper_score(p, labels, space),
        "log_loss": -log_p.gather(-1, labels[:, None]).double().mean().item(),
    }


def measure(log_p: Tensor, labels: Tensor, space: Space) -> dict[str, float]:
    """All metrics of predictions ``[N, C]``, as log-probabilities, against class indices ``[N]``."""
    scores = selection_scores(log_p.double(), labels, space)
    return {**scores, "top1": -scores["top1"], "calibration": calibration_error(log_p.double().exp(), labels)}


def _proper_score(p: Tensor, labels: Tensor, space: Space) -> float:
    """The mean EMD²; on a cost matrix, which has no edges, the Brier score."""
    if isinstance(space, CostMatrix):
        at_label = p.gather(-1, labels[:, None]).squeeze(-1)
        return (p.square().sum(-1) - 2 * at_label + 1).double().mean().item()
    loss = EMDLoss(space, rho=2.0, normalize="l1")
    return float(loss(p, labels))
