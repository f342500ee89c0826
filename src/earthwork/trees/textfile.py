"""Reading and writing text files, and saying where in a text something is wrong."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

PathLike: TypeAlias = "str | os.PathLike[str]"


def read_text(path: PathLike) -> str:
    """The text of a UTF-8 file, with line ends as they are.

    Raises:
        ValueError: If it is empty, or not UTF-8: at which byte.
        OSError: If it cannot be read.
    """
    data = Path(path).read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}: expected UTF-8 text, got byte 0x{data[error.start]:02x} at byte {error.start} (line {line}); "
            "save the file as UTF-8"
        ) from None
    if not text.strip():
        raise ValueError(f"{path}: expected a tree, got an empty file")
    return text


def write_text(path: PathLike, text: str) -> None:
    """Write a UTF-8 file with the line ends of ``text``, the same bytes on every system."""
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"names: cannot write {text[error.start]!r} as UTF-8") from None
    Path(path).write_bytes(data)
