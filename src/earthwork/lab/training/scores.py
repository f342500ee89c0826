"""The metrics of every run."""

from __future__ import annotations

from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from earthwork.metrics import MeanEMD, MistakeSeverity
from earthwork.spaces import Space


def validation_scores(space: Space) -> MetricCollection:
    """Top-1 and top-5 accuracy, the mean Earth Mover's Distance to the label, and how far off mistakes are."""
    classes = space.num_bins
    return MetricCollection(
        {
            "top1": MulticlassAccuracy(classes, average="micro"),
            "top5": MulticlassAccuracy(classes, average="micro", top_k=min(5, classes)),
            "emd": MeanEMD(space),
            "severity": MistakeSeverity(space),
        },
        compute_groups=False,
    )
