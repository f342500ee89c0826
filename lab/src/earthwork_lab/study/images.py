"""A task on images, with features of a network that was trained on other images of the same classes."""

from __future__ import annotations

import hashlib
import io
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import numpy as np
import torch
from torch import nn

from earthwork import load
from earthwork.array_files import ArrayFile
from earthwork.files import write_atomically
from earthwork_lab.reproduce.imagenet import TINY, find_images
from earthwork_lab.study.tasks import Table, Task, register
from earthwork_lab.study.texts import components
from earthwork_lab.training.classes import match_classes
from earthwork_lab.training.data import Examples, InMemory, TrainingData, load_data, subset
from earthwork_lab.training.images import cache_folder
from earthwork_lab.training.models import load_model
from earthwork_lab.training.settings import Settings

_BATCH = 1000


def images(folder: Path | None, per_class: int = 250, epochs: int = 20) -> Table:
    """Tiny ImageNet by the last hidden layer of figure 6's network, trained with cross entropy on other images.

    The features are computed once and kept in the cache folder.

    Args:
        folder: The folder of the data.
        per_class: The number of training images of each class that the network is trained on. All other training
            images and the validation images are the rows of the table.
        epochs: The number of epochs.
    """
    assert folder is not None
    place = find_images(folder)
    facts = place.stat()
    key = f"{place.resolve()} {facts.st_size} {facts.st_mtime_ns} {per_class} {epochs}"
    path = cache_folder() / f"images-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"
    if not path.is_file():
        write_atomically(path, _features(place, per_class, epochs))
    file = ArrayFile(path)
    space = match_classes(load(TINY.tree), tuple(file.read("classes").tolist())).space
    return Table(space, components(file.read("x")), file.read("y"))


def _features(place: Path, per_class: int, epochs: int) -> bytes:
    from earthwork_lab.training.run import run_folder, train

    with TemporaryDirectory() as out:
        options = Settings(
            data=str(place), space=TINY.tree, out=str(Path(out) / "run"), loss=("ce",), model=TINY.model,
            epochs=epochs, batch_size=TINY.batch, lr=TINY.rate, eval_every=epochs, cache="memory",
        )  # fmt: skip
        data = load_data(options, load(TINY.tree), options.seed, print)
        learned, others = halves(data, per_class)
        train(options, data_of=lambda _: replace(data, train=learned))
        model = load_model(run_folder(options, options.expressions[0], options.seed) / "weights-last.pt")
    body = cast(nn.Sequential, model.network)[:-1]
    rows = torch.arange(len(others)).split(_BATCH)
    with torch.inference_mode():
        x = torch.cat([body(model.normalized(others.source.take(batch))) for batch in rows])
    buffer = io.BytesIO()
    np.savez(buffer, x=x.numpy(), y=others.labels.numpy(), classes=np.array(data.classes))
    return buffer.getvalue()


def halves(data: TrainingData, per_class: int) -> tuple[Examples, Examples]:
    """So many training examples of each class, and all other examples, with those for validation."""
    learned = torch.from_numpy(subset(data.train.labels.numpy(), per_class, seed=0))
    others = torch.ones(len(data.train), dtype=torch.bool)
    others[learned] = False
    rest, val = others.nonzero()[:, 0], torch.arange(len(data.val))
    inputs = torch.cat([data.train.source.take(rest), data.val.source.take(val)])
    return (
        Examples(InMemory(data.train.source.take(learned)), data.train.labels[learned]),
        Examples(InMemory(inputs), torch.cat([data.train.labels[rest], data.val.labels])),
    )


register(
    Task(
        "images",
        "images: Tiny ImageNet, features of a network trained on other images",
        images,
        "tiny-imagenet-200-32px",
        hidden=(),
        held_out=True,
    )
)
