"""Image folders: one folder for each class, or the layout of Tiny ImageNet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from earthwork.trees.classes import abbreviate

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm"})


@dataclass(frozen=True)
class ImageList:
    """Image files and the class index of each."""

    paths: list[Path]
    labels: NDArray[np.int64]

    def chosen(self, indices: NDArray[np.int64]) -> ImageList:
        """Some of them."""
        return ImageList([self.paths[i] for i in indices], self.labels[indices])


@dataclass(frozen=True)
class ImageFolder:
    """The classes of an image folder in alphabetical order, its training and its validation images."""

    classes: tuple[str, ...]
    train: ImageList
    val: ImageList


def read_folder(root: Path) -> ImageFolder:
    """List the images of ``train/<class>/…`` with ``val/<class>/…`` or Tiny ImageNet's ``val/val_annotations.txt``.

    Raises:
        ValueError: If a folder is missing, there are no images, or a class has none.
    """
    root = _data_root(root)
    train = _by_class(root / "train")
    classes = tuple(sorted({*train, *_listed_classes(root)}))
    _check_classes(classes, train, root)
    annotations = root / "val" / "val_annotations.txt"
    val = _annotated(annotations) if annotations.is_file() else _by_class(root / "val")
    strange = sorted(set(val) - set(classes))
    if strange:
        raise ValueError(f"data {root / 'val'}: classes without training images: {abbreviate(strange)}")
    if not any(val.values()):
        raise ValueError(f"data {root / 'val'}: no images")
    return ImageFolder(classes, _flat(train, classes), _flat(val, classes))


def _data_root(root: Path) -> Path:
    """The folder that holds ``train`` and ``val``: this one, or the only one in it, as archives often have it."""
    if not root.is_dir():
        raise ValueError(f"data: no such folder: {root}")
    inner = [folder for folder in root.iterdir() if folder.is_dir() and not folder.name.startswith(".")]
    if not (root / "train").is_dir() and len(inner) == 1:
        root = inner[0]
    missing = [name for name in ("train", "val") if not (root / name).is_dir()]
    if missing:
        raise ValueError(
            f"data {root}: expected the folders train and val, each with a folder for every class; "
            f"missing: {', '.join(missing)}"
        )
    return root


def _by_class(folder: Path) -> dict[str, list[Path]]:
    classes = [entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    return {entry.name: _images(entry) for entry in classes}


def _images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)


def _listed_classes(root: Path) -> list[str]:
    listing = root / "wnids.txt"
    return listing.read_text(encoding="utf-8").split() if listing.is_file() else []


def _annotated(annotations: Path) -> dict[str, list[Path]]:
    """Tiny ImageNet's validation images, by the class that the second column names."""
    found: dict[str, list[Path]] = {}
    for number, line in enumerate(annotations.read_text(encoding="utf-8").splitlines(), 1):
        fields = line.split("\t")
        if len(fields) < 2:
            raise ValueError(f"data {annotations}, line {number}: expected file and class with a tab between")
        found.setdefault(fields[1], []).append(annotations.parent / "images" / fields[0])
    return found


def _check_classes(classes: tuple[str, ...], train: dict[str, list[Path]], root: Path) -> None:
    if not any(train.values()):
        raise ValueError(f"data {root / 'train'}: no images")
    empty = [name for name in classes if not train.get(name)]
    if empty:
        raise ValueError(f"data {root / 'train'}: classes without images: {abbreviate(empty)}")


def _flat(by_class: dict[str, list[Path]], classes: tuple[str, ...]) -> ImageList:
    counts = [len(by_class.get(name, [])) for name in classes]
    paths = [path for name in classes for path in by_class.get(name, [])]
    return ImageList(paths, np.repeat(np.arange(len(classes)), counts))
