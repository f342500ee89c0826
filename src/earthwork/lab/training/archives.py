"""Archives of image folders, unpacked once into a cache folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2", ".zip")


def cache_folder() -> Path:
    """``$EARTHWORK_CACHE``, or ``earthwork`` in the user's cache folder."""
    explicit = os.environ.get("EARTHWORK_CACHE")
    if explicit:
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "earthwork"


def is_archive(path: Path) -> bool:
    """Whether a file's name is that of an archive."""
    return path.name.lower().endswith(SUFFIXES)


def unpacked(archive: Path, say: Callable[[str], None]) -> Path:
    """The folder with an archive's content, unpacked at the first call.

    Raises:
        ValueError: If the archive cannot be read, or a member would land outside the folder.
    """
    facts = archive.stat()
    key = hashlib.sha256(f"{archive.resolve()} {facts.st_size} {facts.st_mtime_ns}".encode()).hexdigest()[:16]
    folder = cache_folder() / f"{archive.name.split('.')[0]}-{key}"
    if not folder.exists():
        say(f"unpacking {archive.name} into {folder}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Unpacked aside and renamed, so that a folder in the cache is always complete.
        draft = Path(tempfile.mkdtemp(prefix=".part-", dir=folder.parent))
        try:
            _extract(archive, draft)
            _rename(draft, folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return folder


def _extract(archive: Path, folder: Path) -> None:
    try:
        if archive.name.lower().endswith(".zip"):
            with zipfile.ZipFile(archive) as file:
                file.extractall(folder)
        else:
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise ValueError(f"data {archive}: cannot be unpacked: {error}") from error


def _rename(draft: Path, folder: Path) -> None:
    try:
        draft.rename(folder)
    except OSError:
        if not folder.exists():  # otherwise another process was faster, with the same content
            raise
