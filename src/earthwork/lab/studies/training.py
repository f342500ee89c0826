"""Training one network with plain PyTorch, with early stopping, and measuring its predictions."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from earthwork.decisions import decide
from earthwork.lab.statistics import calibration_error
from earthwork.lab.studies.registry import Contender, Criterion, Split, Task
from earthwork.losses import EMDLoss
from earthwork.spaces import CostMatrix, Space

# Each of them chooses hyper-parameters and the epoch on its own: a loss is at its best for each question.
CRITERIA = ("top1", "distance", "proper", "log_loss")
METRICS = {
    "top1": "top1",
    "distance": "distance",
    "proper": "proper",
    "log_loss": "log_loss",
    "calibration": "log_loss",
    "decided": "proper",
}
TITLES = {
    "top1": "accuracy",
    "distance": "mean distance",
    "proper": "EMD² (proper)",
    "log_loss": "log loss",
    "calibration": "calibration error",
    "decided": "mean distance of least-risk decisions",
}
HIGHER_IS_BETTER = ("top1",)


@dataclass
class Best:
    """The best network so far by one criterion."""

    score: float = math.inf
    state: dict[str, Tensor] = field(default_factory=dict)
    value: Any = None
    rate: float = 0.0
    epoch: int = 0


@dataclass(frozen=True)
class Budget:
    """How long to train, and with which learning rates.

    Attributes:
        rates: The learning rates to choose from.
        epoch_share: The share of a task's epochs.
        patience: Training stops after so many epochs without an improvement by any criterion.
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
        Plain numbers: what was tried, and for each criterion what was chosen and its metrics on the test data.
    """
    best = {name: Best() for name in CRITERIA}
    tried = []
    for value in contender.values:
        criterion = contender.build(split.loss_space or split.space, value)
        for rate in budget.rates:
            epochs = _train(task, contender, criterion, split, seed, budget, best, value, rate)
            tried.append({"value": value, "rate": rate, "epochs": epochs})
    model = _fresh(task, contender, split, seed)
    chosen = {}
    for name, found in best.items():
        if not found.state:
            continue
        model.load_state_dict(found.state)
        model.eval()
        with torch.no_grad():
            log_p = contender.log_probabilities(model(split.test.x))
        test = measure(log_p, split.test.y, split.space)
        chosen[name] = {"value": found.value, "rate": found.rate, "epoch": found.epoch, "test": test}
    return {"loss": contender.name, "seed": seed, "chosen": chosen, "tried": tried}


def _fresh(task: Task, contender: Contender, split: Split, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return network(split.train.x.shape[1], task.hidden, contender.outputs(split.space))


def _train(
    task: Task,
    contender: Contender,
    criterion: Criterion,
    split: Split,
    seed: int,
    budget: Budget,
    best: dict[str, Best],
    value: Any,
    rate: float,
) -> int:
    """Train one network, update the best ones, and return the number of epochs."""
    model = _fresh(task, contender, split, seed)
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=budget.weight_decay)
    x, y = split.train
    waiting = 0
    own_best = dict.fromkeys(CRITERIA, math.inf)
    epochs = max(1, round(budget.epoch_share * task.epochs))
    for epoch in range(1, epochs + 1):
        model.train()
        for rows in torch.randperm(len(x)).split(task.batch_size):
            optimizer.zero_grad(set_to_none=True)
            loss = criterion(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
        if not torch.isfinite(loss):
            return epoch
        model.eval()
        with torch.no_grad():
            scores = selection_scores(contender.log_probabilities(model(split.val.x)), split.val.y, split.space)
        waiting += 1
        for name, score in scores.items():
            if score < own_best[name]:
                own_best[name], waiting = score, 0
            if score < best[name].score:
                state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
                best[name] = Best(score, state, value, rate, epoch)
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
        "proper": _proper_score(p, labels, space),
        "log_loss": -log_p.gather(-1, labels[:, None]).double().mean().item(),
    }


def measure(log_p: Tensor, labels: Tensor, space: Space) -> dict[str, float]:
    """All metrics of predictions ``[N, C]``, as log-probabilities, against class indices ``[N]``."""
    scores = selection_scores(log_p, labels, space)
    p = log_p.double().exp()
    p = p / p.sum(-1, keepdim=True)
    decided = decide(p, space)
    return {
        **scores,
        "top1": -scores["top1"],
        "calibration": calibration_error(p, labels),
        "decided": space.distance(decided, labels).double().mean().item(),
    }


def _proper_score(p: Tensor, labels: Tensor, space: Space) -> float:
    """The mean EMD²; on a cost matrix, which has no edges, the Brier score."""
    if isinstance(space, CostMatrix):
        at_label = p.gather(-1, labels[:, None]).squeeze(-1)
        return (p.square().sum(-1) - 2 * at_label + 1).double().mean().item()
    loss = EMDLoss(space, rho=2.0, normalize="l1")
    return float(loss(p, labels))
