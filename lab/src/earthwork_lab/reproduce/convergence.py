"""The claims in the text: do EMD at ρ = 1 and SD alone fail to converge under SGD, over learning rates?"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor, nn

from earthwork import EMDLoss, MixedLoss, SinkhornLoss, Tree, emd
from earthwork_lab.reproduce.experiment import Numbers, Plan, Request
from earthwork_lab.statistics import mean_interval

LOSSES = ("CE", "EMD²", "½ EMD² + ½ CE", "EMD, ρ = 1", "SD", "SD as printed", "½ SD + ½ CE", "¼ SD + ¾ CE")


@dataclass(frozen=True)
class Settings:
    """A classifier of synthetic features that follow the tree of Tiny ImageNet's 200 classes; SGD as in the paper.

    Attributes:
        losses: What is trained with.
        rates: The learning rates.
        momentum: As in the paper.
        weight_decay: As in the paper.
        batch: As in the paper.
        epochs: The number of epochs.
        score_every: Epochs between two scores.
        features: The size of a feature vector: a random walk down the tree, plus noise.
        per_class: Training examples of each class; as many again are for testing.
        noise: The noise's standard deviation, against 1 for each edge's step.
        hidden: The width of the only hidden layer.
        lam: The Sinkhorn distance's regularisation, as in the paper.
        max_iter: Its iteration limit. For a one-hot target Algorithm 1 has the answer after a single iteration, and
            later ones only round it.
        seeds: How many, from 0.
    """

    losses: tuple[str, ...] = LOSSES
    rates: tuple[float, ...] = (0.001, 0.01, 0.1, 1.0, 10.0)
    momentum: float = 0.9
    weight_decay: float = 1e-4
    batch: int = 512
    epochs: int = 80
    score_every: int = 10
    features: int = 64
    per_class: int = 20
    noise: float = 2.0
    hidden: int = 256
    lam: float = 3.0
    max_iter: int = 2
    seeds: int = 3


QUICK = Settings(losses=("CE", "EMD²", "EMD, ρ = 1", "SD"), rates=(0.1, 1.0), epochs=5, per_class=5, hidden=64, seeds=2)


def paper_tree() -> Tree:
    """The tree of Tiny ImageNet's classes, built by the paper's rule."""
    from earthwork import trees

    return trees.tiny_imagenet200(rule="paper")


def build(name: str, tree: Tree, settings: Settings) -> nn.Module:
    """A loss by its name."""
    sd = SinkhornLoss(tree, lam=settings.lam, max_iter=settings.max_iter)
    losses: dict[str, nn.Module] = {
        "CE": nn.CrossEntropyLoss(),
        "EMD²": EMDLoss(tree),
        "EMD, ρ = 1": EMDLoss(tree, rho=1),
        "SD": sd,
        "SD as printed": SinkhornLoss(tree, lam=settings.lam, max_iter=settings.max_iter, method="paper"),
        "½ EMD² + ½ CE": MixedLoss((0.5, EMDLoss(tree)), (0.5, nn.CrossEntropyLoss())),
        "½ SD + ½ CE": MixedLoss((0.5, sd), (0.5, nn.CrossEntropyLoss())),
        "¼ SD + ¾ CE": MixedLoss((0.25, sd), (0.75, nn.CrossEntropyLoss())),
    }
    return losses[name]


def make_data(tree: Tree, settings: Settings, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Training features, test features and labels: the sum of a random step for each edge above a class, plus noise."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randn(settings.features, tree.num_edges, generator=generator)
    centres = tree.potential(steps).T
    labels = torch.arange(tree.num_bins).repeat_interleave(settings.per_class)
    train, test = (
        centres[labels] + settings.noise * torch.randn(len(labels), settings.features, generator=generator)
        for _ in range(2)
    )
    scale = train.std()
    return train / scale, test / scale, labels


def measure(settings: Settings, name: str, rate: float, seed: int) -> Numbers:
    """Train once; EMD and accuracy on the training and test set by epoch."""
    tree = paper_tree()
    train, test, labels = make_data(tree, settings, seed)
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(settings.features, settings.hidden), nn.ReLU(), nn.Linear(settings.hidden, tree.num_bins)
    )
    loss = build(name, tree, settings)
    optimiser = torch.optim.SGD(
        model.parameters(), lr=rate, momentum=settings.momentum, weight_decay=settings.weight_decay
    )
    curve = {kind: [value] for kind, value in _score(model, train, test, labels, tree).items()}
    for epoch in range(1, settings.epochs + 1):
        for index in torch.randperm(len(labels)).split(settings.batch):
            optimiser.zero_grad()
            loss(model(train[index]), labels[index]).backward()
            optimiser.step()
        if epoch % settings.score_every == 0 or epoch == settings.epochs:
            for kind, value in _score(model, train, test, labels, tree).items():
                curve[kind].append(value)
            if math.isnan(curve["train_emd"][-1]):
                break
    return curve


@torch.no_grad()
def _score(model: nn.Module, train: Tensor, test: Tensor, labels: Tensor, tree: Tree) -> dict[str, float]:
    found = {}
    for name, features in (("train", train), ("test", test)):
        logits = model(features)
        if not logits.isfinite().all():
            return dict.fromkeys(("train_emd", "train_top1", "test_emd", "test_top1"), float("nan"))
        q = nn.functional.one_hot(labels, tree.num_bins).to(logits)
        found[f"{name}_emd"] = emd(logits.softmax(-1), q, tree).mean().item()
        found[f"{name}_top1"] = (logits.argmax(-1) == labels).double().mean().item() * 100
    return found


def summarise(settings: Settings, parts: dict[str, Numbers]) -> Numbers:
    """The last epoch's scores for each loss and rate, over seeds, and each loss's best rate by training EMD."""
    table: Numbers = {}
    for name in settings.losses:
        entries: list[Numbers] = []
        for rate in settings.rates:
            runs = [parts[_key(name, rate, seed)] for seed in range(settings.seeds)]
            scores = {kind: mean_interval([run[kind][-1] for run in runs]) for kind in runs[0]}
            start = mean_interval([run["train_emd"][0] for run in runs])
            entries.append(
                {
                    "rate": rate,
                    "start": start,
                    **scores,
                    "start_by_seed": [run["train_emd"][0] for run in runs],
                    "train_emd_by_seed": [run["train_emd"][-1] for run in runs],
                    "test_top1_by_seed": [run["test_top1"][-1] for run in runs],
                }
            )
        finite = [entry for entry in entries if entry["train_emd"]["mean"] is not None]
        best = min(finite, key=lambda entry: entry["train_emd"]["mean"], default=None)
        table[name] = {"rates": entries, "best": best}
    return table


def _key(name: str, rate: float, seed: int) -> str:
    return f"{name}, rate {rate:g}, seed {seed}"


class Convergence:
    """The claims about SGD in section 5.3."""

    name = "convergence"
    paper = "section 5.3"
    title = "Which losses converge under SGD, over learning rates"

    def plan(self, request: Request) -> Plan:
        """A part for each loss, rate and seed."""
        settings = QUICK if request.quick else Settings()
        if request.seeds is not None:
            settings = Settings(**{**asdict(settings), "seeds": request.seeds})
        parts = {
            _key(name, rate, seed): partial(measure, settings, name, rate, seed)
            for seed in range(settings.seeds)
            for name in settings.losses
            for rate in settings.rates
        }
        return Plan(
            asdict(settings),
            parts,
            partial(summarise, settings),
            "synthetic features on the shipped tree tiny_imagenet200_paper",
        )
