"""The claims about what networks learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from earthwork_lab.reproduce.experiment import Results
from earthwork_lab.reproduce.figures import LOSS_TITLES
from earthwork_lab.reproduce.imagenet import PERMUTED
from earthwork_lab.reproduce.verdicts import (
    LEAST_MEASUREMENTS,
    Check,
    Evidence,
    Finding,
    Relation,
    difference,
    exact,
    shown,
)

Judge = Callable[[Results], Finding]

MIX, SD_MIX = "0.5*emd2+0.5*ce", "0.25*sd+0.75*ce"
PERMUTED_MIX = f"{PERMUTED}{MIX}"
OURS = "ours"
LEAST_EPOCHS = 10  # an imagenet run with fewer is judged too early
_FULL_FEW_EPOCHS = 100  # the claim that the error grows back is about the end of a long training
_NOT_RUN = Finding(remark="Not among the runs.")


# Figure 5. A criterion converges if it ends better than the training set's mean spectrum.


def _losses(results: Results, head: str) -> Any:
    return results.summary["heads"].get(head, {})


def _converge(*names: str) -> Judge:
    def judge(results: Results) -> Finding:
        losses, constant = _losses(results, "squares"), results.summary["constant_by_fold"]
        if not set(names) <= set(losses):
            return _NOT_RUN
        quantity = "Final test EMD, {} minus the mean spectrum"
        tests = tuple(difference(quantity.format(name), losses[name]["last_by_fold"], constant, "<") for name in names)
        return Finding(tests, (shown("mean spectrum", constant),))

    return judge


def _ahead(head: str, rivals: tuple[str, ...], ours: tuple[str, ...], kind: str = "last_by_fold") -> Judge:
    """Whether each of ``ours`` has a smaller test EMD than each of ``rivals``, fold by fold."""
    what = "Final test EMD" if kind == "last_by_fold" else "Test EMD after one epoch"

    def judge(results: Results) -> Finding:
        losses = _losses(results, head)
        if not {*ours, *rivals} <= set(losses):
            return _NOT_RUN
        tests, broken = [], []
        for rival in rivals:
            theirs = losses[rival][kind]
            failed = sum(value is None for value in theirs)
            if failed:
                count = exact(f"Folds in which {rival} is NaN", failed, ">", 0)
                tests.append(count)
                broken.append(count)
                continue
            tests += [difference(f"{what}, {name} minus {rival}", losses[name][kind], theirs, "<") for name in ours]
            if kind == "last_by_fold":
                constant = results.summary["constant_by_fold"]
                broken.append(difference(f"{rival} minus the mean spectrum", theirs, constant, ">"))
        names = dict.fromkeys((*ours, *rivals))
        return Finding(
            tuple(tests),
            tuple(shown(name, losses[name][kind]) for name in names if None not in losses[name][kind]),
            tuple(broken),
        )

    return judge


def _within_first_epoch(results: Results) -> Finding:
    losses = _losses(results, "squares")
    share = "Share of the way made in the first epoch"
    tests = [
        Evidence(f"{share}, {name}", _shares(losses[name]), ">", 90.0, digits=0, unit=" %") for name in ("EMD²", "SD")
    ]
    tests += [
        difference(
            f"Test EMD after one epoch, {name} minus MSE",
            losses[name]["after_first_epoch"],
            losses["MSE"]["after_first_epoch"],
            "<",
        )
        for name in ("EMD²", "SD")
    ]
    return Finding(tuple(tests))


def _shares(entry: Any) -> tuple[float | None, ...]:
    triples = zip(entry["start_by_fold"], entry["after_first_epoch"], entry["last_by_fold"], strict=True)
    return tuple(None if None in (a, b, c) or a == c else 100 * (a - b) / (a - c) for a, b, c in triples)


# Figure 6.


def _runs(results: Results, share: str, loss: str, scored: bool) -> dict[int, Any]:
    found = [part for name, part in results.parts.items() if name.split(", ")[:2] == [share, loss]]
    if scored:
        found = [part for part in found if "final" in part]
    return {int(part["seed"]): part for part in sorted(found, key=lambda part: int(part["seed"]))}


def _shared(
    results: Results, share: str, *losses: str, scored: bool = False
) -> tuple[list[dict[int, Any]], list[int], int]:
    """The runs of each loss, possibly scored ones only, the seeds that all have, and the epochs that all have."""
    runs = [_runs(results, share, loss, scored) for loss in losses]
    seeds = sorted(set(runs[0]).intersection(*runs[1:]))
    epochs = min((run[seed]["epochs"][-1] for run in runs for seed in seeds), default=0)
    return runs, seeds, epochs


def _early(seeds: int, epochs: int, least: int = LEAST_EPOCHS) -> tuple[Evidence, ...]:
    return (exact("epochs", epochs, "<", least), exact("seeds", seeds, "<", LEAST_MEASUREMENTS))


def _last(run: Any, kind: str, epochs: int) -> float:
    return float(max((at, value) for at, value in zip(run["epochs"], run[kind], strict=True) if at <= epochs)[1])


def _early_mean(run: Any, kind: str, epochs: int) -> float:
    """The mean over the first quarter of the epochs."""
    values = [value for at, value in zip(run["epochs"], run[kind], strict=True) if at <= max(epochs / 4, 1)]
    return float(sum(values) / len(values)) if values else float(run[kind][0])


def _final(run: Any, kind: str, epochs: int) -> float:
    """The score of the predictions after the last epoch, on the unpermuted tree."""
    return float(run["final"][kind])


def _best_epoch(run: Any, kind: str, epochs: int) -> float:
    """The best value of any epoch, chosen on the images that it is measured on."""
    return float((max if kind == "top1" else min)(run[kind]))


def _title(loss: str) -> str:
    return LOSS_TITLES.get(loss, loss)


def _compare(
    share: str,
    pairs: tuple[tuple[str, str], ...],
    kind: str = "top1",
    relation: Relation = ">",
    at: Callable[[Any, str, int], float] = _last,
) -> Judge:
    """Whether the first loss of each pair ends above (or below) the second, seed by seed."""
    names = {"top1": "Top-1 in %", "emd": "EMD in edges", "distance": "Distance in edges"}
    when = " (first quarter of the epochs)" if at is _early_mean else " (best epoch)" if at is _best_epoch else ""

    def judge(results: Results) -> Finding:
        tests, values, least = [], {}, []
        for one, other in pairs:
            (ours, theirs), seeds, epochs = _shared(results, share, one, other, scored=at is _final)
            if not seeds:
                return _NOT_RUN
            for loss, runs in ((one, ours), (other, theirs)):
                values[loss] = [at(run, kind, epochs) for run in runs.values()]
            tests.append(
                difference(
                    f"{names[kind]}{when}, {_title(one)} minus {_title(other)}",
                    [at(ours[seed], kind, epochs) for seed in seeds],
                    [at(theirs[seed], kind, epochs) for seed in seeds],
                    relation,
                )
            )
            least.append((len(seeds), epochs))
        count, length = (min(numbers) for numbers in zip(*least, strict=True))
        return Finding(
            tuple(tests),
            tuple(shown(_title(loss), found) for loss, found in values.items()),
            early=_early(count, length),
        )

    return judge


def _best(share: str, loss: str, kind: str, relation: Relation, at: Callable[[Any, str, int], float] = _last) -> Judge:
    """Whether a loss is ahead of each of the paper's others."""
    rivals = tuple(other for other in ("ce", "emd2", MIX, SD_MIX) if other != loss)
    return _compare(share, tuple((loss, other) for other in rivals), kind, relation, at)


def _grows_back(results: Results) -> Finding:
    (runs,), seeds, epochs = _shared(results, "few", "ce")
    if not seeds:
        return _NOT_RUN
    first, lowest, last = (
        [measure(runs[seed]["emd"]) for seed in seeds] for measure in (lambda c: c[0], min, lambda c: c[-1])
    )
    regained = tuple(100 * (c - b) / max(a - b, 1e-9) for a, b, c in zip(first, lowest, last, strict=True))
    return Finding(
        (Evidence("Share of the fall that is undone at the end, CE", regained, ">", 80.0, digits=0, unit=" %"),),
        (shown("EMD at the first validation", first), shown("at its lowest", lowest), shown("at the end", last)),
        early=_early(len(seeds), epochs, _FULL_FEW_EPOCHS),
    )


# Section 5.3, SGD over learning rates. A run converges if it at least halves the training EMD.


def _fails(name: str, *, control: bool = True) -> Judge:
    """Whether a loss does not halve the training EMD at its best learning rate, while EMD² does."""

    def judge(results: Results) -> Finding:
        if name not in results.summary:
            return _NOT_RUN
        tests = [_remaining(results.summary[name]["best"], name, ">")]
        if control:
            tests.append(_remaining(results.summary["EMD²"]["best"], "EMD²", "<"))
        return Finding(tuple(tests), remark="Synthetic features, not images.")

    return judge


def _remaining(best: Any, name: str, relation: Relation) -> Evidence:
    if best is None:
        return exact(f"{name} is NaN at every learning rate", 1, "=", 1)
    values = tuple(100 * a / b for a, b in zip(best["train_emd_by_seed"], best["start_by_seed"], strict=True))
    return Evidence(
        f"Training EMD left at the best rate ({best['rate']:g}), {name}", values, relation, 50.0, digits=1, unit=" %"
    )


_BREATHING = (
    Check("section 5.2", "With Adam the breathing model converges with all criteria (SD in the log domain).",
          "breathing", _converge("MSE", "EMD²", "SD")),
    Check("section 5.2", "The same with Algorithm 1 as printed (float32, M in bins).", "breathing",
          _converge("MSE", "EMD²", "SD as printed")),
    Check("figure 5", "EMD² and SD outperform MSE.", "breathing", _ahead("squares", ("MSE",), ("EMD²", "SD"))),
    Check(OURS, "EMD² and SD outperform MSE, with a softmax head.", "breathing",
          _ahead("softmax", ("MSE",), ("EMD²", "SD"))),
    Check(OURS, "EMD² and SD outperform cross entropy (the paper's head).", "breathing",
          _ahead("squares", ("CE",), ("EMD²", "SD"))),
    Check(OURS, "EMD² and SD outperform cross entropy, with a softmax head.", "breathing",
          _ahead("softmax", ("CE",), ("EMD²", "SD"))),
    Check("section 5.2", "EMD² and SD converge in a fraction of the first epoch, and faster than MSE.", "breathing",
          _within_first_epoch),
    Check("figure 5",
          "Over a longer period EMD² is more accurate than SD (Algorithm 1 as printed, float32, M in bins).",
          "breathing", _ahead("squares", ("SD as printed",), ("EMD²",))),
    Check("figure 5", "The same, with distances divided by the largest.", "breathing",
          _ahead("squares", ("SD as printed, M ≤ 1",), ("EMD²",))),
    Check("figure 5", "The same, against a stable SD (log domain).", "breathing",
          _ahead("squares", ("SD",), ("EMD²",))),
    Check("section 3.2", "The relaxed EMD² is more accurate than EMD at ρ = 1.", "breathing",
          _ahead("squares", ("EMD, ρ = 1",), ("EMD²",))),
    Check(OURS, "EMD² is more accurate than EMD at ρ = 1, with a softmax head.", "breathing",
          _ahead("softmax", ("EMD, ρ = 1",), ("EMD²",))),
    Check("abstract", "The relaxed EMD² converges faster than EMD at ρ = 1, on figure 5's task.", "breathing",
          _ahead("squares", ("EMD, ρ = 1",), ("EMD²",), "after_first_epoch")),
    Check(OURS, "EMD at ρ = 1.5 and 1.25 is more accurate than EMD².", "breathing",
          _ahead("squares", ("EMD²",), ("EMD, ρ = 1.5", "EMD, ρ = 1.25"))),
)  # fmt: skip

_IMAGENET = (
    Check("figure 6 a", "On the whole training set EMD² + CE has the best top-1 accuracy.", "imagenet",
          _best("all", MIX, "top1", ">")),
    Check("figure 6 a", "EMD² alone does not achieve high top-1 accuracy there: CE is ahead.", "imagenet",
          _compare("all", (("ce", "emd2"),))),
    Check("figure 6 b", "With 4 % of the images EMD² ends up with a higher top-1 accuracy than CE.", "imagenet",
          _compare("few", (("emd2", "ce"),))),
    Check("figure 6 b", "There EMD² + CE has the highest top-1 accuracy.", "imagenet", _best("few", MIX, "top1", ">")),
    Check("abstract", "With few images EMD² + CE achieves better top-1 accuracy than CE alone.", "imagenet",
          _compare("few", ((MIX, "ce"),))),
    Check("section 5.3", "SD + CE is ahead of CE, but less than EMD² + CE is.", "imagenet",
          _compare("few", ((SD_MIX, "ce"), (MIX, SD_MIX)))),
    Check("section 5.3", "CE converges fastest in top-1 accuracy (4 % of the images).", "imagenet",
          _best("few", "ce", "top1", ">", _early_mean)),
    Check("figure 6 c", "EMD² has the smallest holistic error, by a large gap.", "imagenet",
          _best("few", "emd2", "emd", "<")),
    Check("section 5.3", "With CE the holistic error falls, then grows back to its original value.", "imagenet",
          _grows_back),
    *(
        Check(OURS, f"With few images and early stopping EMD² + CE has a better top-1 accuracy than {name}.",
              "imagenet", _compare("few", ((MIX, rival),), at=_best_epoch))
        for rival, name in (("ce", "CE"), ("emd2", "EMD²"))
    ),
    Check(OURS, "With few images and early stopping EMD² has the smallest holistic error.", "imagenet",
          _best("few", "emd2", "emd", "<", _best_epoch)),
    Check(OURS, "EMD² + CE makes smaller errors with the tree than with its leaves permuted (4 % of the images).",
          "imagenet", _compare("few", ((MIX, PERMUTED_MIX),), "distance", "<", _final)),
    *(
        Check(
            OURS,
            f"Edge cross entropy, soft labels and hierarchical cross entropy make smaller errors than CE ({words}).",
            "imagenet",
            _compare(share, (("edge", "ce"), ("soft:10", "ce"), ("hxe:0.1", "ce")), "distance", "<", _final),
        )
        for share, words in (("few", "4 % of the images"), ("all", "all images"))
    ),
)  # fmt: skip

_CONVERGENCE = (
    Check("section 5.3", "EMD alone does not converge with SGD, whatever the parameters; EMD² does.", "convergence",
          _fails("EMD, ρ = 1")),
    Check("section 5.3", "SD alone does not converge with SGD, whatever the parameters.", "convergence", _fails("SD")),
    Check("section 5.3", "SD + CE at 1:1 does not converge.", "convergence", _fails("½ SD + ½ CE")),
)  # fmt: skip

LEARNING: tuple[Check, ...] = (*_BREATHING, *_IMAGENET, *_CONVERGENCE)
