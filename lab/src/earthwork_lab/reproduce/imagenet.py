"""Figure 6: the paper's four losses on images, with few of them and with all, beside losses of our own."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from earthwork import Space, Tree, decide, load
from earthwork.array_files import ArrayFile
from earthwork.files import read_json, read_yaml
from earthwork_lab.reproduce.experiment import Numbers, Plan, Request
from earthwork_lab.statistics import bands, calibration_error, mean_interval

if TYPE_CHECKING:
    from earthwork_lab.training import Settings as TrainingSettings
    from earthwork_lab.training.data import TrainingData

CURVES = ("top1", "emd")
FINAL = ("top1", "emd", "severity", "calibration", "distance", "distance_decided")
SHARES = {"few": "4 % of the training images", "all": "all training images"}
PERMUTED = "permuted "
_SIMULATED = "SIMULATED features, not images"
_ARCHIVES = ("*.tar.xz", "*.tar.gz", "*.tar", "*.zip")


@dataclass(frozen=True)
class Settings:
    """The paper's optimiser and losses; its network on ImageNet, a small one on Tiny ImageNet.

    Attributes:
        losses: In the language of ``earthwork train``: the paper's four (CE, EMD², 1:1 and 1:3 mixtures), then edge
            cross entropy, soft labels and hierarchical cross entropy (ours).
        controls: Losses that are also trained on a tree whose leaves are randomly permuted, with few images (ours). If
            the tree matters, this must be worse.
        model: The network.
        tree: The hierarchy.
        batch: The minibatch.
        rate: SGD's learning rate; decay, momentum and weight penalty are the defaults of ``earthwork train``, which are
            the paper's.
        per_class: The number of images per class that is 4 % of them.
        epochs: The number of epochs, with few images and with all.
        seeds: How many, from 0.
        precision: As Lightning names it: bfloat16 on a GPU. On processors float32 is faster, unless they have AMX.
        eval_every: Epochs between two validations with few images; with all images at most two.
    """

    losses: tuple[str, ...] = ("ce", "emd2", "0.5*emd2+0.5*ce", "0.25*sd+0.75*ce", "edge", "soft:10", "hxe:0.1")
    controls: tuple[str, ...] = ("0.5*emd2+0.5*ce",)
    model: str = "alexnet-bn"
    tree: str = "imagenet1k_paper"
    batch: int = 512
    rate: float = 0.05
    per_class: int = 50
    epochs: tuple[int, int] = (200, 100)
    seeds: int = 5
    precision: str = "bf16-mixed"
    eval_every: int = 5


TINY = Settings(model="alexnet-bn-small", tree="tiny_imagenet200_paper", batch=128, per_class=20, epochs=(100, 20))
SIMULATED = replace(TINY, model="mlp-wide", per_class=4, epochs=(30, 15), precision="32-true", eval_every=1)
QUICK = replace(SIMULATED, epochs=(3, 2), seeds=2)


class Imagenet:
    """Figure 6."""

    name = "imagenet"
    paper = "figure 6"
    title = "Losses on images, with few of them and with all"

    def plan(self, request: Request) -> Plan:
        """A part for each share of the data, seed and loss.

        Raises:
            ValueError: If there are neither images nor finished runs in the given folder, or no such share.
        """
        if request.share not in (None, *SHARES):
            raise ValueError(f"share: expected {' or '.join(SHARES)}, got {request.share!r}")
        if request.runs is not None:
            return _plan_of_runs(request.runs)
        images = None if request.data is None else find_images(request.data)
        settings = QUICK if request.quick else SIMULATED if images is None else _for(images)
        if request.seeds is not None:
            settings = replace(settings, seeds=request.seeds)
        parts = {
            _key(share, loss, seed): partial(_train, settings, images, share, loss, seed, request.out / "imagenet-runs")
            for share in ((request.share,) if request.share else SHARES)
            for losses in (settings.losses, [PERMUTED + loss for loss in settings.controls if share == "few"])
            for seed in range(settings.seeds)
            for loss in losses
        }
        return Plan(asdict(settings), parts, summarise, _data_name(str(images or "simulated")))


def find_images(folder: Path) -> Path:
    """The image folder (``train`` and ``val``) or its archive in a folder of data.

    Raises:
        ValueError: If there is none; the message says what was searched for.
    """
    places = [folder, *sorted(folder.glob("*imagenet*"))] if folder.is_dir() else [folder]
    for place in places:
        if place.is_file() or (place / "train").is_dir():
            return place
        archives = [archive for pattern in _ARCHIVES for archive in sorted(place.glob(pattern))]
        if archives:
            return archives[0]
    raise ValueError(
        f"data {folder}: looked for a folder with train/ and val/, or an archive of one "
        f"({', '.join(_ARCHIVES)}), here and in subfolders *imagenet*, and found neither"
    )


def _for(images: Path) -> Settings:
    settings = TINY if "tiny" in str(images).lower() else Settings()
    return settings if torch.cuda.is_available() else replace(settings, precision="32-true")


def permute_leaves(tree: Tree, seed: int) -> Tree:
    """The same tree with its classes at other leaves."""
    order = torch.randperm(tree.num_bins, generator=torch.Generator().manual_seed(seed))
    return Tree(tree.parents, tree.costs, bins=tree.bins[order])


def _train(settings: Settings, images: Path | None, share: str, loss: str, seed: int, out: Path) -> Numbers:
    """One run of the training harness, resumed from its last checkpoint, and its scores on the unchanged tree."""
    from earthwork_lab.training import Settings as TrainingSettings
    from earthwork_lab.training.recorder import StopRequestedError
    from earthwork_lab.training.run import train

    few = share == "few"
    expression = loss.removeprefix(PERMUTED)
    options = TrainingSettings(
        data=str(images or "simulated"),
        space=settings.tree,
        out=str(out / share / f"{loss.replace('*', '').replace(' ', '-')}-seed-{seed}"),
        loss=(expression,),
        model=settings.model,
        epochs=settings.epochs[0 if few else 1],
        batch_size=settings.batch,
        lr=settings.rate,
        per_class=settings.per_class if few else None,
        seed=seed,
        precision=settings.precision,
        eval_every=settings.eval_every if few else min(settings.eval_every, 2),
    )
    data = _load(settings, options, images, few)
    trained = data
    if loss != expression:
        trained = replace(data, space=permute_leaves(cast(Tree, data.space), seed))
    resume = (Path(options.out) / "config.yaml").is_file()
    try:
        (result,) = train(options, resume=resume, data_of=lambda _: trained)
    except StopRequestedError:
        raise KeyboardInterrupt from None
    return {**_numbers(asdict(result)), "loss": loss, "final": final_scores(options, data.space)}


_all_images: dict[tuple[Path, str, str], TrainingData] = {}


def _load(settings: Settings, options: TrainingSettings, images: Path | None, few: bool) -> TrainingData:
    from earthwork_lab.training import simulated_data
    from earthwork_lab.training.data import load_data

    tree = cast(Tree, load(settings.tree))
    if images is None:
        return simulated_data(tree, options.seed, per_class=settings.per_class * (1 if few else 5))
    if few:
        return load_data(options, tree, options.seed, print)
    # All images are the same for every loss and seed, and reading them takes half a minute or more.
    key = images, settings.tree, options.model
    if key not in _all_images:
        _all_images.clear()
        _all_images[key] = load_data(options, tree, options.seed, print)
    return _all_images[key]


def final_scores(options: TrainingSettings, space: Space) -> Numbers:
    """Scores of the predictions for the validation data after the last epoch, over the unpermuted tree.

    Besides top-1, EMD and severity: the calibration error (15 bins), and the mean distance of the answer from the
    label, for the most probable class and for the one that `decide` returns.
    """
    from earthwork_lab.training.run import run_folder

    (expression,) = options.expressions
    file = ArrayFile(run_folder(options, expression, options.seed) / "predictions.npz")
    p, labels = (torch.from_numpy(file.read(name)) for name in ("probs", "labels"))
    return scores_of(p.float(), labels.long(), space)


def scores_of(p: Tensor, labels: Tensor, space: Space) -> Numbers:
    """The final scores of probabilities ``[N, num_bins]`` and labels ``[N]``."""
    answers = p.argmax(-1)
    right = answers == labels
    distance = space.distance(answers, labels)
    return {
        "top1": 100 * right.double().mean().item(),
        "emd": (p * space.distances().to(p)[labels]).sum(-1).mean().item(),
        "severity": distance[~right].double().mean().item(),
        "calibration": 100 * calibration_error(p, labels),
        "distance": distance.double().mean().item(),
        "distance_decided": space.distance(decide(p, space, validate=False), labels).double().mean().item(),
    }


def _numbers(result: dict[str, Any]) -> Numbers:
    # Some epochs may not have been validated.
    rows = [row for row in result["rows"] if all(row.get(name) is not None for name in CURVES)]
    return {
        "loss": result["loss"],
        "seed": result["seed"],
        "seconds": result["seconds"],
        "epochs": [row["epoch"] for row in rows],
        **{name: [row[name] * (100 if name == "top1" else 1) for row in rows] for name in CURVES},
    }


def _plan_of_runs(folder: Path) -> Plan:
    """The finished runs below a folder of the training harness, whatever their settings."""
    parts, settings, data = {}, {}, set()
    for config in sorted(folder.rglob("config.yaml")):
        options = read_yaml(config)
        share = "all" if options.get("per_class") is None else "few"
        data.add(_data_name(str(options.get("data"))))
        dropped = ("data", "out", "loss", "seed", "seeds", "cache", "workers")
        settings[share] = {name: value for name, value in options.items() if name not in dropped}
        for path in sorted(config.parent.glob("*/seed-*/result.json")):
            numbers = _numbers(read_json(path))
            parts[_key(share, numbers["loss"], numbers["seed"])] = numbers
    if not parts:
        raise ValueError(f"runs {folder}: looked for <loss>/seed-<n>/result.json beside a config.yaml, and found none")
    order = sorted(parts, key=lambda name: list(SHARES).index(name.split(",")[0]))
    found: dict[str, Any] = {name: partial(dict, parts[name]) for name in order}
    return Plan({"runs": settings}, found, summarise, ", ".join(sorted(data)))


def _data_name(path: str) -> str:
    return _SIMULATED if path == "simulated" else Path(path).name.split(".")[0]


def summarise(parts: dict[str, Numbers]) -> Numbers:
    """For each share and loss: the curves and the last values over seeds."""
    summary: Numbers = {}
    for name, part in parts.items():
        summary.setdefault(name.split(",")[0], {}).setdefault(part["loss"], []).append(part)
    return {share: {loss: _over_seeds(runs) for loss, runs in losses.items()} for share, losses in summary.items()}


def _over_seeds(runs: list[Numbers]) -> Numbers:
    runs = sorted(runs, key=lambda run: int(run["seed"]))
    length = min(len(run["epochs"]) for run in runs)
    return {
        "epochs": runs[0]["epochs"][:length],
        "seeds": [run["seed"] for run in runs],
        **{name: bands([run[name][:length] for run in runs]) for name in CURVES},
        **{f"last_{name}": mean_interval([run[name][length - 1] for run in runs]) for name in CURVES},
        **{f"last_{name}_by_seed": [run[name][length - 1] for run in runs] for name in CURVES},
        "lowest_emd_by_seed": [min(run["emd"][:length]) for run in runs],
        "final": {
            name: mean_interval([run["final"][name] for run in runs])
            for name in FINAL
            if all("final" in r for r in runs)
        },
    }


def _key(share: str, loss: str, seed: int) -> str:
    return f"{share}, {loss}, seed {seed}"
