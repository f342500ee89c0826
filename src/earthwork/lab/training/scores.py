"""The validation metrics of a run, under the names that the field of each space uses."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from earthwork.metrics import MeanDistance, MeanEMD, MistakeSeverity
from earthwork.spaces import Chain, CostMatrix, Ring, Space

HIGHER_IS_BETTER = ("top1", "top5")
_MANY = 10  # top-5 accuracy is shown for more classes than this


def titles_of(space: Space) -> dict[str, str]:
    """The metrics of runs over a space: their names in files, and in tables and figures.

    The proper scores, EMD² (on a chain or a ring the ranked probability score) and the log loss, are best for the true
    probabilities. EMD rewards overconfident ones.

    Example:
        >>> import earthwork as ew
        >>> from earthwork.lab.training.scores import titles_of
        >>> list(titles_of(ew.Chain(5)).values())
        ['accuracy %', 'MAE', 'severity', 'EMD', 'RPS', 'log loss']
    """
    accuracy, distance, squared = _words(space)
    titles = {
        "top1": accuracy,
        "top5": "top-5 %",
        "distance": distance,
        "severity": "severity",
        "emd": "EMD",
        "emd2": squared,
        "log_loss": "log loss",
    }
    if space.num_bins <= _MANY:
        del titles["top5"]
    if isinstance(space, CostMatrix):
        del titles["emd2"]  # there are no edges whose flow could be squared
    return titles


def scale_of(title: str) -> float:
    """The factor of a metric in tables and figures: 100 for per cent."""
    return 100.0 if title.endswith("%") else 1.0


def score_text(title: str, value: float) -> str:
    """A metric in a line of progress.

    Example:
        >>> from earthwork.lab.training.scores import score_text
        >>> score_text("top-1 %", 0.5), score_text("EMD", 0.5)
        ('top-1 50.0 %', 'EMD 0.500')
    """
    name, percent, _ = title.partition(" %")
    return f"{name} {scale_of(title) * value:.{1 if percent else 3}f}{percent}"


def _words(space: Space) -> tuple[str, str, str]:
    """What accuracy, the mean distance and the mean EMD² are called."""
    if isinstance(space, Chain):
        return "accuracy %", "MAE", "RPS"
    if isinstance(space, Ring):
        return "accuracy %", "circular MAE", "circular RPS"
    if isinstance(space, CostMatrix):
        return "accuracy %", "mean cost", "EMD²"
    return "top-1 %", "distance", "EMD²"


def validation_metrics(space: Space) -> MetricCollection:
    """The metrics of `titles_of`, to be updated with probabilities and class indices."""
    classes = space.num_bins
    metrics: dict[str, Metric] = {
        "top1": MulticlassAccuracy(classes, average="micro"),
        "top5": MulticlassAccuracy(classes, average="micro", top_k=min(5, classes)),
        "distance": MeanDistance(space),
        "severity": MistakeSeverity(space),
        "emd": MeanEMD(space),
        "log_loss": LogLoss(),
    }
    if "emd2" in titles_of(space):
        metrics["emd2"] = MeanEMD(space, rho=2.0)
    return MetricCollection({key: metrics[key] for key in titles_of(space)}, compute_groups=False)


class LogLoss(Metric):
    """The mean of −log p of the true class.

    Example:
        >>> import torch
        >>> from earthwork.lab.training.scores import LogLoss
        >>> LogLoss()(torch.tensor([[0.5, 0.5]]), torch.tensor([1]))
        tensor(0.6931, dtype=torch.float64)
    """

    higher_is_better = False
    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch of probabilities ``[N, C]`` and class indices ``[N]``."""
        chosen = preds.double().gather(-1, target.unsqueeze(-1))
        self.total -= chosen.clamp_min(torch.finfo(preds.dtype).tiny).log().sum()
        self.count += len(target)

    def compute(self) -> Tensor:
        """The mean over all batches."""
        return self.total / self.count
