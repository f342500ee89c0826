"""Figure 6: the paper's four losses on images, with few of them and with all."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from earthwork.extras import require
from earthwork.files import read_json, read_yaml
from earthwork.lab.reproduce.experiment import Numbers, Plan, Request
from earthwork.lab.statistics import bands, mean_interval

CURVES = ("top1", "emd")
SHARES = {"few": "4 % of the training images", "all": "all training images"}
_SIMULATED = "SIMULATED features, not images"
_ARCHIVES = ("*.tar.xz", "*.tar.gz", "*.tar", "*.zip")


@dataclass(frozen=True)
class Settings:
    """The paper's optimiser and losses; its network on ImageNet, a small one on Tiny ImageNet.

    Attributes:
        losses: In the language of ``earthwork train``: CE, EMD², 1:1 and 1:3 mixtures.
        model: The network.
        tree: The hierarchy.
        batch: The minibatch.
        rate: SGD's learning rate; its decay, momentum and weight penalty are the harness's, which are the paper's.
        per_class: Images of each class that make 4 % of them.
        epochs: How long, with few images and with all.
        seeds: How many, from 0.
    """

    losses: tuple[str, ...] = ("ce", "emd2", "0.5*emd2+0.5*ce", "0.25*sd+0.75*ce")
    model: str = "alexnet-bn"
    tree: str = "imagenet1k_paper"
    batch: int = 512
    rate: float = 0.05
    per_class: int = 50
    epochs: tuple[int, int] = (200, 100)
    seeds: int = 3


TINY = Settings(model="alexnet-bn-small", tree="tiny_imagenet200_paper", batch=128, per_class=20, epochs=(100, 20))
SIMULATED = replace(TINY, model="mlp-wide", per_class=4, epochs=(30, 15))
QUICK = replace(SIMULATED, epochs=(3, 2), seeds=2)


class Imagenet:
    """Figure 6."""

    name = "imagenet"
    paper = "figure 6"
    title = "Four losses on images, with few of them and with all"

    def plan(self, request: Request) -> Plan:
        """A part for each share of the data, seed and loss.

        Raises:
            ValueError: If there are neither images nor finished runs where they should be.
        """
        if request.runs is not None:
            return _plan_of_runs(request.runs)
        require("lightning.pytorch", "train", "reproduce imagenet")
        images = None if request.data is None else find_images(request.data)
        settings = QUICK if request.quick else SIMULATED if images is None else _for(images)
        if request.seeds is not None:
            settings = replace(settings, seeds=request.seeds)
        parts = {
            _key(share, loss, seed): partial(_train, settings, images, share, loss, seed, request.out / "imagenet-runs")
            for share in SHARES
            for seed in range(settings.seeds)
            for loss in settings.losses
        }
        return Plan(asdict(settings), parts, summarise, _data_name(str(images or "simulated")))


def find_images(folder: Path) -> Path:
    """The image folder (``train`` and ``val``) or its archive in a folder of data.

    Raises:
        ValueError: If there is none, with what was looked for.
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
    return TINY if "tiny" in str(images).lower() else Settings()


def _train(settings: Settings, images: Path | None, share: str, loss: str, seed: int, out: Path) -> Numbers:
    """One run of the training harness, going on from its last checkpoint."""
    from earthwork.lab.training import Settings as TrainingSettings
    from earthwork.lab.training import simulated_data
    from earthwork.lab.training.recorder import StopRequestedError
    from earthwork.lab.training.run import train
    from earthwork.storage import load_tree

    few = share == "few"
    options = TrainingSettings(
        data=str(images or "simulated"),
        space=settings.tree,
        out=str(out / share / f"{loss.replace('*', '')}-seed-{seed}"),
        loss=(loss,),
        model=settings.model,
        epochs=settings.epochs[0 if few else 1],
        batch_size=settings.batch,
        lr=settings.rate,
        per_class=settings.per_class if few else None,
        seed=seed,
    )
    per_class = settings.per_class * (1 if few else 5)
    tree = load_tree(settings.tree)
    data_of = None if images else lambda number: simulated_data(tree, number, per_class=per_class)
    try:
        (result,) = train(options, resume=(Path(options.out) / "config.yaml").is_file(), data_of=data_of)
    except StopRequestedError:
        raise KeyboardInterrupt from None
    return _numbers(asdict(result))


def _numbers(result: dict[str, Any]) -> Numbers:
    # Not every epoch need have been validated.
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
    }


def _key(share: str, loss: str, seed: int) -> str:
    return f"{share}, {loss}, seed {seed}"
