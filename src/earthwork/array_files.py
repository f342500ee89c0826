"""NumPy's .npz and .npy files, read a piece at a time, with everything checked before memory is allocated for it."""

from __future__ import annotations

import lzma
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from earthwork.files import check_regular

__all__ = ["ArrayFile"]

# Class names are shorter, and NumPy stores every string of an array at the length of the longest.
_MAX_TEXT = 10_000

# Raised for damaged members; bz2 raises OSError, and `zipfile` a RuntimeError for encrypted members.
_DAMAGE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, RuntimeError, OSError)


class _Header(NamedTuple):
    shape: tuple[int, ...]
    by_column: bool
    dtype: np.dtype[Any]

    def __str__(self) -> str:
        return f"{' × '.join(map(str, self.shape))} values of {self.dtype}"


class ArrayFile:
    """An .npz or .npy file, which can be read a piece at a time. Python objects are never unpickled.

    Args:
        path: The file.

    Attributes:
        members: The names of the arrays; that of an .npy file is ``""``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: dict[str, zipfile.ZipInfo | None] = {"": None}  # what an archive says of each array
        check_regular(path)
        if path.stat().st_size == 0:
            raise ValueError(f"{path}: the file is empty")
        if path.suffix.lower() == ".npz":
            with self._readable(), zipfile.ZipFile(path) as archive:
                entries = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")]
                self._entries = {entry.filename.removesuffix(".npy"): entry for entry in entries}
        self.members = list(self._entries)

    def listed(self) -> str:
        """Return the names of the arrays, for a message."""
        return ", ".join(f"`{name}`" for name in self.members) or "none"

    def shape(self, member: str) -> tuple[int, ...]:
        """Return the shape of an array, from its header."""
        with self._opened(member) as (_, header):
            return header.shape

    def read(self, member: str = "") -> NDArray[Any]:
        """Return a whole array."""
        with self._opened(member) as (file, header):
            self._check_size(header, member, file.tell())
            self._check_memory(header, math.prod(header.shape))
            file.seek(0)
            try:
                return npy.read_array(file, allow_pickle=False)
            except ValueError as error:
                raise self._unreadable(error) from None

    def map(self, member: str = "") -> NDArray[Any]:
        """Return an array that is read from the file as it is used; it must not be compressed."""
        with self._opened(member) as (file, header):
            offset = file.tell()
        self._check_size(header, member, offset)
        if (entry := self._entries[member]) is not None:
            if entry.compress_type != zipfile.ZIP_STORED:
                what = "expected an array that is not compressed, as numpy.savez writes it"
                raise ValueError(f"{self.path}: `{member}`: {what}")
            with self.path.open("rb") as file:
                file.seek(entry.header_offset + 26)
                # The data follows the header of the member: 30 bytes, its name and extra fields.
                offset += entry.header_offset + 30 + sum(struct.unpack("<2H", file.read(4)))
        if 0 in header.shape:
            return np.empty(header.shape, header.dtype)
        return np.memmap(self.path, header.dtype, "r", offset, header.shape, "F" if header.by_column else "C")

    def stream(self, member: str, rows: int) -> Iterator[NDArray[Any]]:
        """Return the rows of a numeric array, at most ``rows`` at a time."""
        with self._opened(member) as (file, header):
            if header.dtype.kind not in "fiu":
                raise ValueError(f"{self.path}: expected numbers as predictions, got {header.dtype}")
            count, *rest = header.shape
            # In Fortran order no row is contiguous, so the array is read whole.
            whole = self.read(member) if header.by_column else None
            self._check_memory(header, min(rows, count) * math.prod(rest))
            for start in range(0, count, rows):
                if whole is not None:
                    yield whole[start : start + rows]
                    continue
                shape = min(rows, count - start), *rest
                size = math.prod(shape) * header.dtype.itemsize
                data = bytearray(file.read(size))
                if len(data) < size:
                    end = start + len(data) * shape[0] // size
                    raise ValueError(f"{self.path}: the file ends after {end} of {count} rows")
                yield np.ndarray(shape, header.dtype, data)

    @contextmanager
    def _opened(self, member: str) -> Iterator[tuple[IO[bytes], _Header]]:
        """Open an array, and read its header."""
        with self._readable():
            if self._entries[member] is not None:
                with zipfile.ZipFile(self.path) as archive, archive.open(f"{member}.npy") as part:
                    yield part, self._header(part, member)
            else:
                with self.path.open("rb") as file:
                    yield file, self._header(file, member)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except _DAMAGE as error:
            if isinstance(error, OSError) and error.filename is not None:
                raise
            raise self._unreadable(error) from None

    def _check_size(self, header: _Header, member: str, start: int) -> None:
        """Raise if the header announces more data than there is, before memory is allocated for it."""
        needed, entry = math.prod(header.shape) * header.dtype.itemsize, self._entries[member]
        found = (self.path.stat().st_size if entry is None else entry.file_size) - start
        if needed > found:
            raise self._unreadable(f"{header} are {needed} bytes, and there are {found}")

    def _check_memory(self, header: _Header, count: int) -> None:
        """Raise if ``count`` values would take most of the memory, as those of a small compressed file may."""
        needed, limit = count * header.dtype.itemsize, _memory() // 2
        if needed > limit:
            raise self._unreadable(f"{header} take {needed} bytes, and at most {limit}, half of the memory, are read")

    def _unreadable(self, error: Exception | str) -> ValueError:
        return ValueError(f"{self.path}: not a readable {self.path.suffix} file: {error}")

    def _header(self, file: IO[bytes], member: str) -> _Header:
        try:
            version = npy.read_magic(file)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            header = _Header(*read(file))
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError, TokenError) as error:
            raise self._unreadable(error) from None
        if header.dtype.hasobject:
            raise ValueError(
                f"{self.path}: `{member or 'the array'}` holds Python objects, which are not read because they could "
                f"run code; save it as numbers, or names with .astype(str)"
            )
        if header.dtype.kind in "US" and header.dtype.itemsize > 4 * _MAX_TEXT:
            raise self._unreadable(f"expected texts of at most {_MAX_TEXT} characters, got {header.dtype}")
        return header


def _memory() -> int:
    """Return the memory of this machine in bytes; 8 GiB if it is unknown."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 2**33
