"""The validation metrics of runs, and the results of all runs: means and paired differences, and learning curves."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from earthwork import Chain, CostMatrix, Ring, Space
from earthwork.files import read_json, to_json, write_atomically
from earthwork.metrics import MeanDistance, MeanEMD, MistakeSeverity
from earthwork_lab.statistics import Mean, interval_text, mean_interval, paired_difference

HIGHER_IS_BETTER = ("top1", "top5")
_MANY = 10  # top-5 accuracy is shown for more classes than this


def titles_of(space: Space) -> dict[str, str]:
    """The metrics of runs over a space: their names in files, and in tables and figures.

    The proper scores, EMD² (on a chain or a ring the ranked probability score) and the log loss, are best for the true
    probabilities. EMD rewards overconfident ones.

    Example:
        >>> import earthwork as ew
        >>> from earthwork_lab.training.summary import titles_of
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
        >>> from earthwork_lab.training.summary import score_text
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
        >>> from earthwork_lab.training.summary import LogLoss
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
        chosen = preds.gather(-1, target.unsqueeze(-1)).double()
        self.total -= chosen.clamp_min(torch.finfo(preds.dtype).tiny).log().sum()
        self.count += len(target)

    def compute(self) -> Tensor:
        """The mean over all batches."""
        return self.total / self.count


@dataclass(frozen=True)
class RunResult:
    """One finished run.

    Attributes:
        loss: The loss.
        seed: The seed.
        titles: The metrics: their names in files, and in tables and figures.
        epochs: The number of epochs.
        last: The metrics after the last epoch.
        best: The metrics after the best epoch.
        seconds: The training time.
        rows: The metrics of every epoch.
    """

    loss: str
    seed: int
    titles: dict[str, str]
    epochs: int
    last: dict[str, float]
    best: dict[str, float]
    seconds: float
    rows: list[dict[str, float]]


def by_loss(results: list[RunResult]) -> dict[str, dict[str, Mean]]:
    """For each loss, in order, the mean and the interval of each metric after the last epoch."""
    return {
        loss: {name: mean_interval([run.last[name] for run in runs]) for name in results[0].titles}
        for loss, runs in _runs(results).items()
    }


def differences(results: list[RunResult]) -> dict[str, dict[str, Mean]]:
    """For each loss but the first, its mean difference to the first in each metric, paired by seed."""
    reference, *others = _runs(results).values()
    first = {run.seed: run.last for run in reference}
    found = {}
    for runs in others:
        pairs = [(run.last, first[run.seed]) for run in runs if run.seed in first]
        found[runs[0].loss] = {
            name: paired_difference([ours[name] for ours, _ in pairs], [theirs[name] for _, theirs in pairs])
            for name in results[0].titles
        }
    return found


def table(results: list[RunResult]) -> list[list[str]]:
    """A header and one row for each loss, as text."""
    titles = results[0].titles
    rows = [["loss", *titles.values(), "runs", "seconds per run"]]
    for (loss, values), runs in zip(by_loss(results).items(), _runs(results).values(), strict=True):
        texts = [interval_text(values[name], scale_of(title)) for name, title in titles.items()]
        rows.append([loss, *texts, str(len(runs)), f"{np.mean([run.seconds for run in runs]):.0f}"])
    return rows


def difference_table(results: list[RunResult]) -> list[list[str]]:
    """A header and one row for each loss but the first: how it differs from the first, paired by seed."""
    titles = results[0].titles
    rows = [[f"loss − {results[0].loss}", *titles.values()]]
    for loss, values in differences(results).items():
        rows.append([loss, *(interval_text(values[name], scale_of(title), sign="+") for name, title in titles.items())])
    return rows


def _runs(results: list[RunResult]) -> dict[str, list[RunResult]]:
    runs: dict[str, list[RunResult]] = {}
    for result in results:
        runs.setdefault(result.loss, []).append(result)
    return runs


def as_markdown(rows: list[list[str]]) -> str:
    """A table as Markdown."""
    escaped = [[cell.replace("*", "\\*") for cell in row] for row in rows]
    lines = ["| " + " | ".join(row) + " |" for row in escaped]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]) + "\n"


def write_summary(folder: Path, results: list[RunResult], facts: dict[str, Any]) -> None:
    """Write ``summary.json``, ``summary.csv`` (a row for each run) and ``summary.md``."""
    runs = [{name: value for name, value in asdict(result).items() if name != "rows"} for result in results]
    content = {
        **facts,
        "interval": "95 %, Student's t over seeds",
        "losses": by_loss(results),
        "reference": results[0].loss,
        "differences": differences(results),
        "runs": runs,
    }
    write_atomically(folder / "summary.json", to_json(content, indent=1))
    parts = [as_markdown(table(results))]
    if has_differences(results):
        parts += [f"\nDifferences to {results[0].loss}, paired by seed:\n\n".replace("*", "\\*")]
        parts += [as_markdown(difference_table(results))]
    write_atomically(folder / "summary.md", "".join(parts))
    write_atomically(folder / "summary.csv", _as_csv(results))


def has_differences(results: list[RunResult]) -> bool:
    """Whether there are several losses, with several seeds to compare them by."""
    runs = _runs(results)
    return len(runs) > 1 and min(map(len, runs.values())) > 1


def _as_csv(results: list[RunResult]) -> str:
    metrics = list(results[0].titles)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["loss", "seed", "epochs", *metrics, *(f"best_{name}" for name in metrics), "seconds"])
    for result in results:
        scores = [scores[name] for scores in (result.last, result.best) for name in metrics]
        writer.writerow([result.loss, result.seed, result.epochs, *scores, result.seconds])
    return text.getvalue()


def write_result(folder: Path, result: RunResult) -> None:
    """Mark a run as finished."""
    write_atomically(folder / "result.json", to_json(asdict(result)))


def read_result(folder: Path, epochs: int) -> RunResult | None:
    """The result of a finished run, or ``None`` if it is missing or has fewer epochs.

    Raises:
        ValueError: If the file holds something else.
    """
    path = folder / "result.json"
    if not path.is_file():
        return None
    result = _result(path, _with_nan(read_json(path)))
    return result if result.epochs >= epochs else None


def _result(path: Path, content: Any) -> RunResult:
    names = list(RunResult.__dataclass_fields__)
    if not isinstance(content, dict) or sorted(content) != sorted(names):
        found = ", ".join(content) if isinstance(content, dict) else type(content).__name__
        raise ValueError(f"{path}: expected the result of a run with {', '.join(names)}, got {found:.200}")
    result = RunResult(**content)
    valid = {
        "loss": isinstance(result.loss, str),
        "seed": isinstance(result.seed, int),
        "titles": isinstance(result.titles, dict) and all(isinstance(x, str) for x in result.titles.values()),
        "epochs": isinstance(result.epochs, int),
        "last": _are_numbers(result.last),
        "best": _are_numbers(result.best),
        "seconds": isinstance(result.seconds, (int, float)),
        "rows": isinstance(result.rows, list) and all(map(_are_numbers, result.rows)),
    }
    wrong = [name for name, right in valid.items() if not right]
    if not wrong and not set(result.titles) <= set(result.last):
        wrong = ["last"]
    if wrong:
        raise ValueError(f"{path}: expected the result of a run, got a {wrong[0]!r} of another form")
    return result


def _are_numbers(values: Any) -> bool:
    return isinstance(values, dict) and all(isinstance(value, (int, float)) for value in values.values())


def _with_nan(content: Any) -> Any:
    """The inverse of `to_json` for numbers: ``null`` stands for NaN."""
    if isinstance(content, dict):
        return {name: _with_nan(value) for name, value in content.items()}
    if isinstance(content, list):
        return [_with_nan(value) for value in content]
    return math.nan if content is None else content


# Okabe and Ito's colours, which are distinguishable with every type of colour vision.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_PANELS = ("top1", "distance", "emd", "log_loss")


def draw_curves(results: Sequence[RunResult], path: Path, title: str = "") -> None:
    """Draw metrics over the epochs: for each loss the mean over seeds, and a band from the lowest to the highest seed.

    Args:
        results: Finished runs.
        path: The picture to write.
        title: A title over all panels.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 4.0), layout="constrained")
    titles = results[0].titles
    losses = list(dict.fromkeys(result.loss for result in results))
    for axes, metric in zip(figure.subplots(1, len(_PANELS)), _PANELS, strict=True):
        scale = 100.0 if titles[metric].endswith("%") else 1.0
        for place, loss in enumerate(losses):
            colour = _COLOURS[place % len(_COLOURS)]
            epochs, values = _curves([result for result in results if result.loss == loss], metric)
            marker = "o" if len(epochs) == 1 else None
            axes.plot(epochs, scale * values.mean(0), color=colour, label=loss, marker=marker)
            if len(values) > 1:
                axes.fill_between(epochs, scale * values.min(0), scale * values.max(0), color=colour, alpha=0.2, lw=0)
        axes.set_xlabel("epoch")
        axes.set_ylabel(titles[metric])
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    handles, names = figure.axes[0].get_legend_handles_labels()
    seeds = len({result.seed for result in results})
    note = f"lines: mean over {seeds} seeds; bands: lowest to highest seed" if seeds > 1 else "one seed"
    figure.legend(handles, names, loc="outside lower center", ncols=min(len(names), 6), frameon=False, title=note)
    if title:
        figure.suptitle(title, fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _curves(results: Sequence[RunResult], metric: str) -> tuple[list[float], np.ndarray]:
    """The epochs that have the metric, and its values, ``[runs, epochs]``."""
    epochs = [row["epoch"] for row in results[0].rows if metric in row]
    return epochs, np.array([[row[metric] for row in result.rows if metric in row] for result in results])
