"""The claims about what networks learn."""

from __future__ import annotations

from typing import Any

from earthwork.lab.reproduce.figures import LOSS_TITLES
from earthwork.lab.reproduce.verdicts import NOT_MEASURABLE, Check, Finding, below, show, verdict
from earthwork.lab.statistics import mean_interval, paired_difference

MIX, SD_MIX = "0.5*emd2+0.5*ce", "0.25*sd+0.75*ce"


def _all_converge(summary: Any) -> Finding:
    losses = summary["heads"]["squares"]
    text = "Test EMD after the last epoch: " + "; ".join(f"{n} {show(e['last'])}" for n, e in losses.items()) + "."
    constant = summary["constant"]["mean"]
    good = all(e["last"]["mean"] is not None and e["last"]["mean"] < constant for e in losses.values())
    return f"{text} The training set's mean spectrum: {show(summary['constant'])}.", verdict(good)


def _fast(summary: Any) -> Finding:
    """Most of the way, from the start to the end of training, within the first epoch."""
    losses = summary["heads"]["squares"]
    shares = {name: _share_in_first_epoch(losses[name]) for name in ("EMD²", "SD", "MSE") if name in losses}
    early = {name: mean_interval(losses[name]["after_first_epoch"]) for name in shares}
    text = "Test EMD after one epoch: " + "; ".join(
        f"{name} {show(early[name])}, {show(shares[name], 0)} % of its way" for name in shares
    )
    faster = [_less(losses, name, "MSE", "after_first_epoch") for name in ("EMD²", "SD")]
    done = [shares[name]["mean"] is not None and (shares[name]["mean"] or 0) >= 90 for name in ("EMD²", "SD")]
    if all(faster) and not all(done):
        text += ". Both are ahead of MSE, but not converged within the first epoch"
    return text + ".", verdict(all(faster) and all(done))


def _share_in_first_epoch(entry: Any) -> Any:
    triples = zip(entry["start_by_fold"], entry["after_first_epoch"], entry["last_by_fold"], strict=True)
    return mean_interval([None if None in (a, b, c) or a == c else 100 * (a - b) / (a - c) for a, b, c in triples])


def _less(losses: Any, ours: str, theirs: str, kind: str = "last_by_fold") -> bool:
    return below(paired_difference(losses[ours][kind], losses[theirs][kind]))


def _ahead_of_mse(summary: Any) -> Finding:
    losses = summary["heads"]["squares"]
    differences = {
        n: paired_difference(losses[n]["last_by_fold"], losses["MSE"]["last_by_fold"]) for n in ("EMD²", "SD")
    }
    text = "; ".join(f"{name} − MSE: {show(difference)}" for name, difference in differences.items())
    return f"Test EMD after the last epoch, fold by fold, {text}.", verdict(all(map(below, differences.values())))


def _ahead_of_sd(name: str, words: str) -> Any:
    def judge(summary: Any) -> Finding:
        losses = summary["heads"]["squares"]
        theirs = losses[name]["last_by_fold"]
        if None in theirs:
            failed = sum(value is None for value in theirs)
            text = f"{words} is NaN in {failed} of {len(theirs)} folds, EMD² reaches {show(losses['EMD²']['last'])}."
            return text, verdict(failed == len(theirs))
        difference = paired_difference(losses["EMD²"]["last_by_fold"], theirs)
        text = (
            f"EMD² {show(losses['EMD²']['last'])}, {words} {show(losses[name]['last'])}; difference {show(difference)}."
        )
        if "EMD, ρ = 1" in losses:
            text += f" (EMD at ρ = 1: {show(losses['EMD, ρ = 1']['last'])}.)"
        return text, verdict(below(difference))

    return judge


def _compare(share: str, better: str, worse: str, kind: str = "top1") -> Any:
    """Whether one loss ends ahead of another, seed by seed, beyond the interval."""

    def judge(summary: Any) -> Finding:
        losses = summary.get(share, {})
        if better not in losses or worse not in losses:
            return "Not among the runs.", NOT_MEASURABLE
        one, other = (losses[name] for name in (better, worse))
        if one["seeds"] != other["seeds"] or len(one["seeds"]) < 2:
            return "Too few seeds in common.", NOT_MEASURABLE
        difference = paired_difference(one[f"last_{kind}_by_seed"], other[f"last_{kind}_by_seed"])
        unit = " %" if kind == "top1" else ""
        text = f"{show(one[f'last_{kind}'], 2, unit)} against {show(other[f'last_{kind}'], 2, unit)}; "
        ahead = difference["low"] is not None and difference["low"] > 0 if kind == "top1" else below(difference)
        return f"{text}difference {show(difference)}.", verdict(ahead)

    return judge


def _highest(share: str) -> Any:
    def judge(summary: Any) -> Finding:
        losses = summary.get(share, {})
        if MIX not in losses:
            return "Not among the runs.", NOT_MEASURABLE
        means = {name: entry["last_top1"] for name, entry in losses.items()}
        text = (
            "Top-1: "
            + "; ".join(f"{LOSS_TITLES.get(name, name)} {show(mean, 2, ' %')}" for name, mean in means.items())
            + "."
        )
        rivals = [_compare(share, MIX, name)(summary)[1] == "holds" for name in losses if name != MIX]
        if max(means, key=lambda name: means[name]["mean"] or 0) == MIX and not all(rivals):
            text += " Ahead, but not of each rival beyond the interval."
        return text, verdict(all(rivals))

    return judge


def _smallest_emd(summary: Any) -> Finding:
    losses = summary.get("few", {})
    if "emd2" not in losses:
        return "Not among the runs.", NOT_MEASURABLE
    text = (
        "EMD: "
        + "; ".join(f"{LOSS_TITLES.get(name, name)} {show(entry['last_emd'])}" for name, entry in losses.items())
        + "."
    )
    return text, verdict(
        all(_compare("few", "emd2", name, "emd")(summary)[1] == "holds" for name in losses if name != "emd2")
    )


def _grows_back(summary: Any) -> Finding:
    entry = summary.get("few", {}).get("ce")
    if entry is None:
        return "Not among the runs.", NOT_MEASURABLE
    first, last = entry["emd"]["mean"][0], entry["last_emd"]
    lowest = mean_interval(entry["lowest_emd_by_seed"])
    text = f"EMD with CE: {first:.2f} after epoch {entry['epochs'][0]}, {show(lowest)} at its lowest"
    text = f"{text}, {show(last)} at the end."
    regained = (last["mean"] - lowest["mean"]) / max(first - lowest["mean"], 1e-9)
    return f"{text} {regained:.0%} of the fall is undone.", verdict(regained >= 0.8)


def _fails(*names: str) -> Any:
    """Whether a loss fails at every learning rate: training EMD not below half of what it starts from."""

    def judge(summary: Any) -> Finding:
        found, verdicts = [], []
        for name in (*names, "EMD²"):
            if name not in summary:
                return f"{name} was not run.", NOT_MEASURABLE
            best = summary[name]["best"]
            converged = best is not None and best["train_emd"]["mean"] < 0.5 * best["start"]["mean"]
            verdicts.append(converged)
            score = "NaN at every rate" if best is None else f"{show(best['train_emd'])} at rate {best['rate']:g}"
            found.append(f"{name}: {score}")
        start = summary["EMD²"]["best"]["start"]
        text = (
            f"Least training EMD over learning rates, from {show(start)}: {'; '.join(found)}. "
            "Made-up features, not images."
        )
        return text, verdict(not any(verdicts[:-1])) if verdicts[-1] else NOT_MEASURABLE

    return judge


LEARNING: tuple[Check, ...] = (
    Check("section 5.2", "With Adam the breathing model converges with all criteria.", "breathing", _all_converge),
    Check("figure 5", "EMD² and SD outperform MSE.", "breathing", _ahead_of_mse),
    Check(
        "section 5.2", "EMD² and SD converge in a fraction of the first epoch, and faster than MSE.", "breathing", _fast
    ),
    Check(
        "figure 5",
        "Over a longer period EMD² is more accurate than SD (Algorithm 1 as printed, float32, M in bins).",
        "breathing",
        _ahead_of_sd("SD as printed", "SD as printed"),
    ),
    Check(
        "figure 5",
        "The same, with distances divided by the largest.",
        "breathing",
        _ahead_of_sd("SD as printed, M ≤ 1", "SD as printed with M ≤ 1"),
    ),
    Check("figure 5", "The same, against a stable SD (log domain).", "breathing", _ahead_of_sd("SD", "stable SD")),
    Check(
        "figure 6 a", "On the whole training set EMD² + CE has the best top-1 accuracy.", "imagenet", _highest("all")
    ),
    Check(
        "figure 6 a",
        "EMD² alone does not achieve high top-1 accuracy there: CE is ahead.",
        "imagenet",
        _compare("all", "ce", "emd2"),
    ),
    Check(
        "figure 6 b",
        "With 4 % of the images EMD² ends up with a higher top-1 accuracy than CE.",
        "imagenet",
        _compare("few", "emd2", "ce"),
    ),
    Check("figure 6 b", "There EMD² + CE has the highest top-1 accuracy.", "imagenet", _highest("few")),
    Check(
        "abstract",
        "With few images EMD² + CE achieves better top-1 accuracy than CE alone.",
        "imagenet",
        _compare("few", MIX, "ce"),
    ),
    Check("section 5.3", "SD + CE is ahead of CE, to a lesser extent.", "imagenet", _compare("few", SD_MIX, "ce")),
    Check("figure 6 c", "EMD² has the smallest holistic error, by a large gap.", "imagenet", _smallest_emd),
    Check(
        "section 5.3",
        "With CE the holistic error falls, then grows back to its original value.",
        "imagenet",
        _grows_back,
    ),
    Check(
        "section 5.3",
        "EMD alone does not converge with SGD, whatever the parameters; EMD² does.",
        "convergence",
        _fails("EMD, ρ = 1"),
    ),
    Check("section 5.3", "SD alone does not converge with SGD, whatever the parameters.", "convergence", _fails("SD")),
    Check("section 5.3", "SD + CE at 1:1 does not converge.", "convergence", _fails("½ SD + ½ CE")),
)
