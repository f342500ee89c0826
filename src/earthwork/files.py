"""Reading and writing files: atomic writes, strict JSON, and NumPy arrays read a piece at a time."""

from __future__ import annotations

import json
import math
import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file so that a reader, also after a crash, finds either the old content or the new one.

    The content goes to a temporary file beside ``path``, is flushed to disk and renamed. Missing folders are created.

    Args:
        path: The file.
        content: What to write; text is encoded as UTF-8.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with draft.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    # The rename is durable once the folder's entry is on disk. Windows cannot open folders.
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def to_json(value: Any, *, indent: int | None = None, strict: bool = False) -> str:
    """``value`` as JSON text, which has no NaN and no infinity.

    Args:
        value: Nested mappings, sequences, text, numbers, booleans and ``None``.
        indent: Spaces for each level; by default everything is on one line.
        strict: Raise a ``ValueError`` for NaN and infinities; by default they become ``null``.

    Example:
        >>> from earthwork.files import to_json
        >>> to_json({"loss": float("inf"), "epochs": (1, 2)})
        '{"loss": null, "epochs": [1, 2]}'
    """
    return json.dumps(value if strict else finite(value), ensure_ascii=False, allow_nan=False, indent=indent)


def finite(value: Any) -> Any:
    """``value`` as JSON can hold it: NaN and infinities become ``None``, tuples lists, and keys text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(entry) for entry in value]
    return value


def parse_json(text: str) -> Any:
    """The value of a JSON text. NaN, infinities and repeated names are errors.

    Raises:
        ValueError: If it is not JSON; the message says where.
    """
    try:
        return json.loads(
            text, object_pairs_hook=_unique_names, parse_constant=_reject_constant, parse_float=_finite_float
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at {place(text, error.pos)}") from None
    except RecursionError:
        raise ValueError("not readable JSON: nested too deeply; save() writes deep trees without nesting") from None
    except _NotFiniteError as error:
        found = re.search(rf"(?<=[\[,:\s]){re.escape(error.token)}", f" {text}")
        where = place(text, found.start() - 1 if found else 0)
        raise ValueError(f"not readable JSON: expected finite numbers, got {error.token} at {where}") from None
    except ValueError as error:  # also a number with thousands of digits
        raise ValueError(f"not readable JSON: {error}") from None


def read_json(path: Path) -> Any:
    """The value of a JSON file; see `parse_json`.

    Raises:
        ValueError: If the file does not hold JSON; the message starts with the path.
    """
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def place(text: str, position: int) -> str:
    """Where in a text a position is, for an error message: ``line 3, column 7 (near 'abc')``."""
    line = text.count("\n", 0, position) + 1
    column = position - (text.rfind("\n", 0, position) + 1) + 1
    if position >= len(text):
        return f"line {line}, column {column} (the end)"
    return f"line {line}, column {column} (near {text[position : position + 20]!r})"


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for at, name in enumerate(names) if name in names[:at])
        raise ValueError(f"expected each name once in an object, got {repeated!r} twice")
    return result


class _NotFiniteError(Exception):
    def __init__(self, token: str) -> None:
        super().__init__(token)
        self.token = token


def _reject_constant(token: str) -> Any:
    raise _NotFiniteError(token)


def _finite_float(token: str) -> float:
    value = float(token)
    if not math.isfinite(value):
        raise _NotFiniteError(token)
    return value


class _Header(NamedTuple):
    shape: tuple[int, ...]
    by_column: bool
    dtype: np.dtype[Any]


class ArrayFile:
    """An .npz or .npy file, which can be read a piece at a time. Python objects are never unpickled.

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

    def read(self, member: str = "") -> NDArray[Any]:
        """A whole array."""
        with self._opened(member) as file:
            self._header(file, member)
        with self._opened(member) as file:
            try:
                return npy.read_array(file, allow_pickle=False)
            except ValueError as error:
                raise self._unreadable(error) from None

    def stream(self, member: str, rows: int) -> Iterator[NDArray[Any]]:
        """The rows of a numeric array, at most ``rows`` at a time."""
        with self._opened(member) as file:
            header = self._header(file, member)
            if header.dtype.kind not in "fiu":
                raise ValueError(f"{self.path}: expected numbers as predictions, got {header.dtype}")
            if not header.by_column:
                yield from self._rows(file, header, rows)
                return
        # In Fortran order no row is contiguous, so the array is read whole.
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


def _fill(file: IO[bytes], array: NDArray[Any]) -> int:
    """Fill the array from a file; returns the number of bytes read."""
    buffer = memoryview(array.reshape(-1).view(np.uint8).data)
    filled = 0
    while filled < len(buffer):
        count = file.readinto(buffer[filled:])  # type: ignore[attr-defined]
        if not count:
            break
        filled += count
    return filled
