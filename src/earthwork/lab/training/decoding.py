"""Image files to bytes of one size: in worker processes, with every bad file named."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from earthwork.extras import require
from earthwork.trees.classes import abbreviate

if TYPE_CHECKING:
    from PIL.Image import Image

_CHUNK = 256
_FEW = 4 * _CHUNK  # so few images are decoded sooner than workers start


class BadImageError(ValueError):
    """Images that cannot be read; the message names them."""


class Decoded(NamedTuple):
    """The images ``[N, size, size, 3]`` that could be read, which they are, and what is wrong with the others."""

    images: Tensor
    good: NDArray[np.int64]
    bad: list[str]


def decode(path: Path, size: int) -> NDArray[np.uint8]:
    """An image scaled to ``size`` on its shorter side and cut to its centre, ``[size, size, 3]``.

    Raises:
        BadImageError: If it cannot be read.
    """
    pil = require("PIL.Image", "train", "reading images")
    ops = require("PIL.ImageOps", "train", "reading images")
    try:
        with pil.open(path) as file:
            file.draft("RGB", (size, size))  # lets JPEG decode at a half, a quarter … of its size where that is enough
            image: Image = file.convert("RGB")
            if image.size != (size, size):
                image = ops.fit(image, (size, size), pil.Resampling.BILINEAR)
            return np.asarray(image)
    except (OSError, SyntaxError, ValueError, pil.DecompressionBombError) as error:
        raise BadImageError(f"{path}: {error}") from error


def image_side(path: Path) -> int:
    """The shorter side of an image in pixels."""
    pil = require("PIL.Image", "train", "reading images")
    try:
        with pil.open(path) as image:
            return int(min(image.size))
    except (OSError, SyntaxError, ValueError, pil.DecompressionBombError) as error:
        raise BadImageError(f"{path}: {error}") from error


def decode_all(paths: Sequence[Path], size: int, workers: int, *, keep: bool = True) -> Decoded:
    """Decode all images once.

    Args:
        paths: The image files.
        size: Their height and width, as bytes.
        workers: Processes to do it in.
        keep: Whether to keep the images, or only see which are good.
    """
    chunks = _Chunks(paths, size, keep)
    loader = DataLoader(chunks, batch_size=None, num_workers=workers if len(paths) > _FEW else 0)
    images = torch.empty(len(paths) if keep else 0, size, size, 3, dtype=torch.uint8)
    good: list[int] = []
    bad: list[str] = []
    for part, good_part, bad_part in loader:
        if keep and good_part:
            images[len(good) : len(good) + len(good_part)] = part
        good += good_part
        bad += bad_part
    return Decoded(images[: len(good)] if keep else images, np.array(good, dtype=np.int64), bad)


def check_bad(bad: Sequence[str], skip_bad: bool) -> None:
    """Raise a `BadImageError` that names the bad images, unless they are to be left out."""
    if bad and not skip_bad:
        raise BadImageError(
            f"data: {len(bad)} unreadable: {abbreviate(bad, 5)} (--skip-bad leaves out what cannot be read)"
        )


def default_workers() -> int:
    """One process for each core that this process may use, at most 8."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 8)


class _Chunks(Dataset[tuple[Tensor, list[int], list[str]]]):
    def __init__(self, paths: Sequence[Path], size: int, keep: bool) -> None:
        self.paths, self.size, self.keep = paths, size, keep

    def __len__(self) -> int:
        return -(-len(self.paths) // _CHUNK)

    def __getitem__(self, chunk: int) -> tuple[Tensor, list[int], list[str]]:
        images: list[NDArray[np.uint8]] = []
        good: list[int] = []
        bad: list[str] = []
        for index in range(chunk * _CHUNK, min((chunk + 1) * _CHUNK, len(self.paths))):
            try:
                image = decode(self.paths[index], self.size)
            except BadImageError as error:
                bad.append(str(error))
                continue
            good.append(index)
            if self.keep:
                images.append(image)
        return torch.from_numpy(np.stack(images)) if images else torch.empty(0), good, bad
