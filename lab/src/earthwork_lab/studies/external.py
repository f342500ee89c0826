"""Tasks on data that is not shipped: articles, images and breathing, from the folder of external data."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from earthwork import Chain, Tree
from earthwork.array_files import ArrayFile
from earthwork.files import write_atomically
from earthwork.trees import SHIPPED, from_paths, restrict
from earthwork_lab.extras import require
from earthwork_lab.reproduce.breathing_data import load_recordings, spectrum
from earthwork_lab.studies.registry import Part, Split, Task, register_task, standardized
from earthwork_lab.training.data import subset
from earthwork_lab.training.images import ImageList, cache_folder, decode_all, default_workers, read_folder, unpacked

_FREQUENCIES = 40
_FILTERS, _PATCH, _COMPONENTS = 256, 6, 256


@lru_cache(maxsize=2)
def articles(folder: Path, levels: int = 3, fewest: int = 10) -> tuple[list[str], NDArray[np.int64], Tree]:
    """The texts, their classes (the first levels of the path, with at least so many articles) and the tree."""
    found = []
    for name in ("hwv_val.json.xz", "hwv_test.json.xz"):
        with lzma.open(folder / name, "rt", encoding="utf-8") as file:
            found += [json.loads(line) for line in file]
    paths = [tuple(article["label"][:levels]) for article in found]
    counts = Counter(paths)
    classes = sorted(path for path, count in counts.items() if count >= fewest)
    index = {path: place for place, path in enumerate(classes)}
    kept = [at for at, path in enumerate(paths) if path in index]
    texts = [" ".join(found[at]["token"]) for at in kept]
    tree = from_paths(classes, separator=" > ", full_names=True)
    return texts, np.array([index[paths[at]] for at in kept]), tree


def wikivitals(seed: int, data: Path | None = None) -> Split:
    """The category of a Wikipedia article from its introduction (tf-idf, reduced): a tree of three levels."""
    assert data is not None
    texts, y, tree = articles(data)
    order = np.random.default_rng([seed, 16]).permutation(len(y))
    rows = np.split(order, [int(0.6 * len(y)), int(0.8 * len(y))])
    features = _cached(f"wikivitals-{seed}", "\n".join(texts), lambda: _text_features(texts, rows, seed))
    return Split(tree, *(Part(x, torch.from_numpy(y[at])) for x, at in zip(features, rows, strict=True)))


def _text_features(texts: list[str], parts: list[NDArray[np.int64]], seed: int) -> list[Tensor]:
    """The leading components of the tf-idf matrix, fitted on the training texts."""
    text = require("sklearn.feature_extraction.text", "the task wikivitals")
    reduction = require("sklearn.decomposition", "the task wikivitals")
    tfidf = text.TfidfVectorizer(max_features=10_000, sublinear_tf=True, stop_words="english")
    svd = reduction.TruncatedSVD(_COMPONENTS, random_state=seed)
    svd.fit(tfidf.fit_transform([texts[at] for at in parts[0]]))
    features = [svd.transform(tfidf.transform([texts[at] for at in rows])).astype(np.float32) for rows in parts]
    # Rows have a norm of at most 1; scaled up, they suit the learning rates of the other tasks.
    return [torch.from_numpy(16 * part) for part in features]


def tiny_imagenet(seed: int, data: Path | None = None, per_class: int = 20) -> Split:
    """Tiny ImageNet with few images of each class: a tree of 200 leaves over features of random convolutions."""
    assert data is not None
    archive = next(iter(sorted(data.glob("*.tar.*"))), data)
    folder = read_folder(unpacked(archive, lambda line: None) if archive.is_file() else archive)
    tree = restrict(SHIPPED["tiny_imagenet200"](), folder.classes)
    chosen = subset(folder.train.labels, per_class + 10, seed)
    ranks = np.concatenate([np.arange(count) for count in np.bincount(folder.train.labels[chosen])])
    by_class = np.random.default_rng([seed, 17]).permuted(ranks.reshape(tree.num_bins, -1), axis=1).reshape(-1)
    lists = [folder.train.chosen(chosen[by_class < per_class]), folder.train.chosen(chosen[by_class >= per_class])]
    parts = [*lists, folder.val]
    source = "\n".join(str(path) for part in parts for path in part.paths)
    features = _cached(f"tiny-imagenet-{per_class}-{seed}", source, lambda: _image_features(parts, seed))
    labels = [torch.from_numpy(images.labels) for images in parts]
    return Split(tree, *(Part(x, y) for x, y in zip(standardized(*features), labels, strict=True)))


def _image_features(parts: list[ImageList], seed: int) -> list[Tensor]:
    return convolutional_features([decode_all(part.paths, 32, default_workers()).images for part in parts], seed)


def _cached(name: str, source: str, compute: Callable[[], list[Tensor]]) -> list[Tensor]:
    """Features of the training, validation and test data, kept in the cache folder by their name and source."""
    path = cache_folder() / f"{name}-{hashlib.sha256(source.encode()).hexdigest()[:16]}.npz"
    if not path.is_file():
        features = compute()
        buffer = io.BytesIO()
        np.savez(buffer, train=features[0], val=features[1], test=features[2])
        write_atomically(path, buffer.getvalue())
    file = ArrayFile(path)
    return [torch.from_numpy(file.read(part)) for part in ("train", "val", "test")]


def convolutional_features(parts: list[Tensor], seed: int) -> list[Tensor]:
    """Responses to whitened random patches of the training images, pooled, and their principal components.

    After Coates, Lee and Ng, "An Analysis of Single-Layer Networks in Unsupervised Feature Learning" (2011).

    Args:
        parts: Images ``[N, H, W, 3]`` of bytes; those of the first part are the training images.
        seed: Selects the patches.
    """
    random = torch.Generator().manual_seed(seed)
    train = _as_images(parts[0])
    index = torch.randint(len(train), (20_000,), generator=random)
    rows, columns = torch.randint(train.shape[-1] - _PATCH, (2, len(index)), generator=random)
    patches = torch.stack(
        [
            train[i, :, r : r + _PATCH, c : c + _PATCH].reshape(-1)
            for i, r, c in zip(index.tolist(), rows.tolist(), columns.tolist(), strict=True)
        ]
    )
    mean = patches.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov((patches - mean).T))
    whitening = vectors @ torch.diag((values + 0.01).rsqrt()) @ vectors.T
    filters = functional.normalize((patches[:_FILTERS] - mean) @ whitening, dim=1) @ whitening
    pooled = [_responses(part, filters, filters @ mean) for part in parts]
    center = pooled[0].mean(0)
    components = torch.pca_lowrank(pooled[0] - center, _COMPONENTS, center=False)[2]
    return [(part - center) @ components for part in pooled]


def _responses(images: Tensor, filters: Tensor, bias: Tensor) -> Tensor:
    kernels = filters.reshape(len(filters), 3, _PATCH, _PATCH)
    found = []
    for batch in images.split(250):
        response = functional.conv2d(_as_images(batch), kernels, -bias)
        both = torch.cat([response.relu(), (-response).relu()], 1)
        found.append(functional.adaptive_avg_pool2d(both, 3).flatten(1))
    return torch.cat(found)


def _as_images(images: Tensor) -> Tensor:
    return images.permute(0, 3, 1, 2).float() / 255


@lru_cache(maxsize=1)
def _minutes(folder: Path) -> tuple[Tensor, Tensor, NDArray[np.str_]]:
    """For overlapping minutes of each recording: log spectrum of the chest, bin of the nasal peak, and person."""
    x, y, persons = [], [], []
    for recording in load_recordings(folder):
        length = round(60 * recording.rate)
        starts = np.linspace(0, len(recording.chest) - length, 60).round().astype(int)
        chest, nasal = (
            np.stack([signal[start : start + length] for start in starts])
            for signal in (recording.chest, recording.nasal)
        )
        power, airflow = (spectrum(clips, recording.rate, _FREQUENCIES) for clips in (chest, nasal))
        good = (airflow.sum(-1) > 0) & (power.sum(-1) > 0)
        x.append(np.log(power[good] / power[good].sum(-1, keepdims=True) + 1e-6))
        y.append(airflow[good].argmax(-1))
        persons += [recording.person] * int(good.sum())
    return torch.from_numpy(np.concatenate(x)).float(), torch.from_numpy(np.concatenate(y)), np.array(persons)


def breathing(seed: int, data: Path | None = None) -> Split:
    """The rate of breathing at the nose, of 40 bins, from the spectrum of a minute of chest movement (MARSH)."""
    assert data is not None
    x, y, persons = _minutes(data)
    people = np.random.default_rng([seed, 16]).permutation(np.unique(persons))
    parts = np.split(people, [int(0.6 * len(people)), int(0.8 * len(people))])
    rows = [torch.from_numpy(np.flatnonzero(np.isin(persons, part))) for part in parts]
    features = standardized(*(x[at] for at in rows))
    return Split(Chain(_FREQUENCIES), *(Part(part, y[at]) for part, at in zip(features, rows, strict=True)))


WIKIVITALS = Task(
    "wikivitals",
    "categories of articles (tree of 104 leaves)",
    wikivitals,
    "wikivitals",
    hidden=(),
    batch_size=256,
    epochs=80,
    rate_scale=4,
)
TINY_IMAGENET = Task(
    "tiny-imagenet",
    "Tiny ImageNet, 20 images per class (tree of 200 leaves)",
    tiny_imagenet,
    "tiny-imagenet-200-32px",
    hidden=(),
    seeds=3,
    batch_size=512,
)
for _task in (WIKIVITALS, TINY_IMAGENET, Task("breathing", "rate of breathing (chain of 40)", breathing, "marsh")):
    register_task(_task)
