"""NumPy files, streamed: a compressed archive of any size is never unpacked as a whole. Nothing is ever unpickled."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray


class _Header(NamedTuple):
    shape: tuple[int, ...]
    by_column: bool
    dtype: np.dtype[Any]


class ArrayFile:
    """An .npz or .npy file.

    Args:
        path: The file.

    Attributes:
        members: The names of the arrays; that of an .npy file is ``""``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._archive = path.suffix.lower() == ".npz"
        self.members = [""]
        if path.stat().st_size == 0:
            raise ValueError(f"{path}: the file is empty")
        if self._archive:
            with self._readable(), zipfile.ZipFile(path) as archive:
                self.members = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]

    def listed(self) -> str:
        """The names of the arrays, for a message."""
        return ", ".join(f"`{name}`" for name in self.members) or "none"

    def shape(self, member: str) -> tuple[int, ...]:
        """The shape of an array, from its header."""
        with self._opened(member) as file:
            return self._header(file, member).shape

    def read(self, member: str) -> NDArray[Any]:
        """A whole array."""
        with self._opened(member) as file:
            self._header(file, member)
        with self._opened(member) as file:
            try:
                return npy.read_array(file, allow_pickle=False)
            except ValueError as error:
                raise self._unreadable(error) from None

    def stream(self, member: str, rows: int) -> Iterator[NDArray[Any]]:
        """The rows of an array, so many at a time."""
        with self._opened(member) as file:
            header = self._header(file, member)
            if header.dtype.kind not in "fiu":
                raise ValueError(f"{self.path}: expected numbers as predictions, got {header.dtype}")
            if not header.by_column:
                yield from self._rows(file, header, rows)
                return
        # Stored column by column: rows are only to be had from the whole.
        whole = self.read(member)
        for start in range(0, len(whole), rows):
            yield whole[start : start + rows]

    def _rows(self, file: IO[bytes], header: _Header, rows: int) -> Iterator[NDArray[Any]]:
        count, *rest = header.shape
        width = int(np.prod(rest)) * header.dtype.itemsize
        for start in range(0, count, rows):
            part = np.empty((min(rows, count - start), *rest), header.dtype)
            filled = _fill(file, part)
            if filled < part.nbytes:
                raise ValueError(f"{self.path}: the file ends after {start + filled // width} of {count} rows")
            yield part

    @contextmanager
    def _opened(self, member: str) -> Iterator[IO[bytes]]:
        with self._readable():
            if not self._archive:
                with self.path.open("rb") as file:
                    yield file
                return
            with zipfile.ZipFile(self.path) as archive, archive.open(f"{member}.npy") as part:
                yield part

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: Exception) -> ValueError:
        return ValueError(f"{self.path}: not a readable {self.path.suffix} file: {error}")

    def _header(self, file: IO[bytes], member: str) -> _Header:
        try:
            version = npy.read_magic(file)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            header = _Header(*read(file))
        except ValueError as error:
            raise self._unreadable(error) from None
        if header.dtype.hasobject:
            raise ValueError(
                f"{self.path}: `{member or 'the array'}` holds Python objects, which are not read because they could "
                f"run code; save it as numbers, or names with .astype(str)"
            )
        return header


def read_small(path: Path) -> NDArray[Any]:
    """The array of an .npy file."""
    return ArrayFile(path).read("")


def _fill(file: IO[bytes], array: NDArray[Any]) -> int:
    """Read as many bytes as fit; returns how many there were."""
    room = memoryview(array.reshape(-1).view(np.uint8).data)
    filled = 0
    while filled < len(room):
        count = file.readinto(room[filled:])  # type: ignore[attr-defined]
        if not count:
            break
        filled += count
    return filled
