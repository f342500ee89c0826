"""Image files: folders with one subfolder per class, archives of them, and decoding to bytes of one size."""

from __future__ import annotations

import hashlib
import lzma
import os
import shutil
import tarfile
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from earthwork.files import check_regular, read_lines, read_text
from earthwork.text import abbreviate
from earthwork_lab.environment import available_cores

ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2", ".zip")
_CHUNK = 256
_FEW = 4 * _CHUNK  # below this, starting worker processes takes longer than decoding

# A larger file is not an image to train with. Pillow bounds the number of pixels.
_MAX_BYTES = 2**30

# Pillow's names of the formats that are read, whatever a file is called. Others are not tried: EPS would start
# Ghostscript.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM")

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm"})


@dataclass(frozen=True)
class ImageList:
    """Image files and the label of each: an index, or a row of a boolean matrix (a set of classes)."""

    paths: list[Path]
    labels: NDArray[Any]

    def chosen(self, indices: NDArray[np.int64]) -> ImageList:
        """The images at the given indices."""
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
    """The folder that holds ``train`` and ``val``: ``root`` itself, or its only subfolder, as in many archives."""
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
    return read_text(listing).split() if listing.is_file() else []


def _annotated(annotations: Path) -> dict[str, list[Path]]:
    """Tiny ImageNet's validation images, by the class that the second column names."""
    found: dict[str, list[Path]] = {}
    for number, line in enumerate(read_lines(annotations), 1):
        fields = line.split("\t")
        if len(fields) < 2:
            raise ValueError(f"data {annotations}, line {number}: expected file and class with a tab between")
        if Path(fields[0]).name != fields[0]:
            raise ValueError(f"data {annotations}, line {number}: expected the name of a file, got {fields[0]!r:.60}")
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


def cache_folder() -> Path:
    """``$EARTHWORK_CACHE``, or ``earthwork`` in the user's cache folder."""
    explicit = os.environ.get("EARTHWORK_CACHE")
    if explicit:
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "earthwork"


def is_archive(path: Path) -> bool:
    """Whether a file's name is that of an archive."""
    return path.name.lower().endswith(ARCHIVE_SUFFIXES)


def unpacked(archive: Path, say: Callable[[str], None]) -> Path:
    """The folder with an archive's content, unpacked at the first call.

    Raises:
        ValueError: If the archive cannot be read, or a member would land outside the folder.
    """
    check_regular(archive)
    facts = archive.stat()
    key = hashlib.sha256(f"{archive.resolve()} {facts.st_size} {facts.st_mtime_ns}".encode()).hexdigest()[:16]
    folder = cache_folder() / f"{archive.name.split('.')[0]}-{key}"
    if not folder.exists():
        say(f"unpacking {archive.name} into {folder}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Unpacked elsewhere and renamed, so that a folder in the cache is always complete.
        draft = Path(tempfile.mkdtemp(prefix=".part-", dir=folder.parent))
        try:
            _extract(archive, draft)
            _rename(draft, folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return folder


# What damaged, encrypted or exotic members raise.
_DAMAGE = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError, ValueError,
)  # fmt: skip


def _extract(archive: Path, folder: Path) -> None:
    # A small archive can hold more than the disk.
    free = shutil.disk_usage(folder).free
    try:
        if archive.name.lower().endswith(".zip"):
            with zipfile.ZipFile(archive) as file:
                members = file.infolist()
                _check_free(sum(member.file_size for member in members), free)
                if not all(member.filename for member in members):
                    raise ValueError("one of its files has no name")
                file.extractall(folder)
        else:
            _extract_tar(archive, folder, free)
    except _DAMAGE as error:
        raise ValueError(f"data {archive}: cannot be unpacked: {error}") from error


def _extract_tar(archive: Path, folder: Path, free: int) -> None:
    needed = 0

    def bounded(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        nonlocal needed
        needed += member.size
        _check_free(needed, free)
        return tarfile.data_filter(member, path)

    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter=bounded)


def _check_free(needed: int, free: int) -> None:
    if needed > free:
        raise ValueError(f"its files take {needed} bytes or more, and {free} are free")


def _rename(draft: Path, folder: Path) -> None:
    try:
        draft.rename(folder)
    except OSError:
        if not folder.exists():  # otherwise another process has unpacked the same content first
            raise


class BadImageError(ValueError):
    """Images that cannot be read, named in the message."""


class Decoded(NamedTuple):
    """The readable images ``[N, size, size, 3]``, their indices, and one error message for each of the others."""

    images: Tensor
    good: NDArray[np.int64]
    bad: list[str]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """An image file, of which only the header has been read.

    Raises:
        BadImageError: If it, or what is done with it, cannot be read.
    """
    try:
        check_regular(path)
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise ValueError(f"{path}: expected a file of at most {_MAX_BYTES} bytes, got {size}")
        with warnings.catch_warnings():
            # Pillow only warns of images of up to twice the pixels that it allows.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=_FORMATS) as file:
                if any(tile[0] == "ppm_plain" for tile in getattr(file, "tile", ())):
                    # Pillow takes quadratic time for its comments.
                    raise ValueError("expected a binary PPM file, got one in plain text")
                yield file
    except Exception as error:  # Pillow's decoders raise errors of many kinds on damaged files
        raise BadImageError(str(error) if str(error).startswith(str(path)) else f"{path}: {error}") from error


def decode(path: Path, size: int) -> NDArray[np.uint8]:
    """An image with its shorter side scaled to ``size``, cropped to its centre, ``[size, size, 3]``.

    Raises:
        BadImageError: If it cannot be read.
    """
    with _opened(path) as file:
        file.draft("RGB", (size, size))  # JPEG can be decoded at 1/2, 1/4 or 1/8 of its size, which is faster
        image = file.convert("RGB")
        if image.size != (size, size):
            image = ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)
        return np.asarray(image)


def image_side(path: Path) -> int:
    """The shorter side of an image in pixels."""
    with _opened(path) as image:
        return int(min(image.size))


def decode_all(paths: Sequence[Path], size: int, workers: int, *, keep: bool = True) -> Decoded:
    """Decode all images once.

    Args:
        paths: The image files.
        size: Height and width of the decoded images.
        workers: Number of worker processes.
        keep: Whether to keep the decoded images, or only check which ones can be read.
    """
    chunks = _Chunks(paths, size, keep)
    workers = workers if len(paths) > _FEW else 0
    context = "spawn" if workers else None
    loader = DataLoader(chunks, batch_size=None, num_workers=workers, multiprocessing_context=context)
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
    """Raise a `BadImageError` that names the unreadable images, unless they may be skipped."""
    if bad and not skip_bad:
        raise BadImageError(
            f"data: {len(bad)} unreadable: {abbreviate(bad, 5)} (--skip-bad leaves out unreadable images)"
        )


def default_workers() -> int:
    """One worker process for each core available to this process, at most 8."""
    return min(available_cores(), 8)


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
