"""The batched trainer against networks that are trained one by one with plain PyTorch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

import earthwork as ew
from earthwork_lab.study.tasks import Table, Task, sizes, split
from earthwork_lab.study.trainer import (
    Configuration,
    Head,
    Networks,
    Part,
    Schedule,
    Splits,
    fitted_scale,
    log_softmax,
    train,
)

GRID = [Configuration(rate, decay, value) for value in (0.0, 0.2) for rate in (0.01, 0.05) for decay in (0.0, 1.0)]


def some_splits(count: int = 3, classes: int = 4) -> Splits:
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(5, classes, generator=generator)

    def part(rows: int) -> Part:
        x = torch.randn(count, rows, 5, generator=generator)
        noise = torch.randn(count, rows, classes, generator=generator)
        return Part(x, (x @ weights + noise).argmax(-1))

    return Splits(part(60), part(30), part(40))


def cross_entropy(smoothing: float) -> Any:
    return nn.CrossEntropyLoss(reduction="sum", label_smoothing=smoothing)


def one_by_one(splits: Splits, index: int, entry: Configuration, schedule: Schedule) -> tuple[float, Tensor]:
    """Train one network as users do: the lowest validation loss with the best temperature, and its test predictions."""
    start = Networks(
        (5, *schedule.hidden, 4), len(splits.train.x), torch.ones(1), torch.ones(1), shared=False
    ).parameters
    layers: list[nn.Module] = []
    for number in range(0, len(start), 2):
        linear = nn.Linear(start[number].shape[-1], start[number].shape[-2])
        linear.weight.data, linear.bias.data = (
            start[number][index, 0].clone(),
            start[number + 1][index, 0, :, 0].clone(),
        )
        layers += [linear, nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    weights = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    biases = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": weights, "weight_decay": entry.decay}, {"params": biases, "weight_decay": 0.0}], lr=entry.rate
    )
    shuffle = torch.Generator().manual_seed(2000 + index)
    best, waiting, answer = math.inf, 0, torch.empty(0)
    rows = splits.train.x.shape[1]
    for epoch in range(1, schedule.epochs + 1):
        for batch in torch.randperm(rows, generator=shuffle).split(schedule.batch_size(rows)):
            optimizer.zero_grad()
            outputs = model(splits.train.x[index, batch])
            nn.functional.cross_entropy(outputs, splits.train.y[index, batch], label_smoothing=entry.value).backward()
            optimizer.step()
        if epoch % schedule.every == 0 or epoch == schedule.epochs:
            with torch.no_grad():
                val, test = (model(part.x[index]).log_softmax(-1) for part in (splits.val, splits.test))
            scale, loss = best_scale(val, splits.val.y[index])
            waiting += 1
            if loss < best:
                best, waiting, answer = loss, 0, (scale * test).log_softmax(-1)
            if waiting >= schedule.patience:
                break
    return best, answer


def best_scale(log_p: Tensor, labels: Tensor) -> tuple[float, float]:
    def loss(scale: float) -> float:
        return float(nn.functional.cross_entropy(scale * log_p.double(), labels))

    found = minimize_scalar(loss, bounds=(0.05, 20), method="bounded", options={"xatol": 1e-8})
    return float(found.x), float(found.fun)


@pytest.mark.parametrize("hidden", [(), (7,), (6, 5)])
def test_batched_training_equals_training_one_by_one(hidden: tuple[int, ...]) -> None:
    splits = some_splits()
    schedule = Schedule(hidden, epochs=24, every=2, patience=3)
    chosen = train(splits, Head(4, log_softmax), cross_entropy, GRID, schedule)
    for index in range(3):
        found = [one_by_one(splits, index, entry, schedule) for entry in GRID]
        losses = [loss for loss, _ in found]
        assert chosen.val_loss[index].item() == pytest.approx(min(losses), rel=1e-4)
        place = int(chosen.configuration[index])
        assert losses[place] == pytest.approx(min(losses), rel=1e-4)
        assert torch.allclose(chosen.log_p[index], found[place][1], atol=2e-3)


def test_configurations_do_not_influence_each_other() -> None:
    splits = some_splits()
    schedule = Schedule((6,), epochs=10)
    alone = train(splits, Head(4, log_softmax), cross_entropy, GRID[5:6], schedule)
    # A network that diverges at once must not disturb the others.
    among = train(splits, Head(4, log_softmax), cross_entropy, [Configuration(1e30, 0.0, 0.0), GRID[5]], schedule)
    assert among.configuration.tolist() == [1, 1, 1]
    assert torch.allclose(alone.log_p, among.log_p, atol=1e-5)


def test_the_temperature_is_the_best_one() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = 3 * torch.randn(4, 50, 6, generator=generator)
    labels = (logits / 2 + torch.randn(4, 50, 6, generator=generator)).argmax(-1)
    scale, loss = fitted_scale(logits.log_softmax(-1), labels, torch.ones(4), steps=30)
    for index in range(4):
        expected = best_scale(logits[index].log_softmax(-1), labels[index])
        assert scale[index].item() == pytest.approx(expected[0], rel=1e-3)
        assert loss[index].item() == pytest.approx(expected[1], rel=1e-6)


def test_the_temperature_stays_finite_if_all_answers_are_right() -> None:
    log_p = torch.tensor([[[0.9, 0.1], [0.2, 0.8]]]).log()
    scale, _ = fitted_scale(log_p, torch.tensor([[0, 1]]), torch.ones(1), steps=20)
    assert 5 < scale.item() <= 20


def table(rows: int) -> Table:
    x = np.arange(rows, dtype=float)[:, None]
    return Table(ew.Chain(3), x, np.arange(rows) % 3)


def test_parts_of_a_split() -> None:
    def rows(part: Part, seed: int) -> set[float]:
        # Back from standardised features to row numbers is not needed: each row has its own value.
        return {round(value, 5) for value in part.x[seed, :, 0].tolist()}

    found = table(600)
    many, few = split(found, "many"), split(found, "few")
    assert many is not None
    assert few is not None
    assert few[1][:3] == (50, 25, 180)
    assert many[1].test == 180
    for seed in range(5):
        parts = [rows(part, seed) for part in many[0]]
        assert len(parts[0] | parts[1] | parts[2]) == sum(map(len, parts)) == 600
        assert torch.equal(few[0].test.y, many[0].test.y)
        assert torch.equal(few[0].train.y[seed], many[0].train.y[seed, :50])
        assert torch.equal(few[0].val.y[seed], many[0].val.y[seed, :25])
    assert not torch.equal(many[0].test.y[0], many[0].test.y[1])


def test_features_are_standardised_by_the_training_rows() -> None:
    found = split(table(600), "many")
    assert found is not None
    x = found[0].train.x
    assert torch.allclose(x.mean(1), torch.zeros(5, 1), atol=1e-5)
    assert torch.allclose(x.std(1, correction=0), torch.ones(5, 1), atol=1e-5)


def test_small_tables_have_no_few_labels() -> None:
    assert sizes(200, 3, "few") is None
    assert sizes(10_000, 5, "many") == (2000, 800, 3000, 5, 0.3)


def test_duplicates_are_removed_unless_they_are_different_things() -> None:
    def load(data: object) -> Table:
        return Table(ew.Chain(2), np.array([[1.0], [1.0], [1.0], [2.0]]), np.array([0, 0, 1, 0]))

    assert len(Task("twice", "rows", load).table().y) == 3
    assert len(Task("people", "rows", load, repeats=True).table().y) == 4
