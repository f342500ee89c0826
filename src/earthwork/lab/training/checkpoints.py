"""Checkpoints that are either whole or not there, and finding the last good one."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from earthwork.files import write_atomically

_MARK = b"\nearthwork-sha256:"
_TRAILER = len(_MARK) + 64


class BadCheckpointError(ValueError):
    """A checkpoint that was cut short or changed."""


def save_checked(content: Any, path: Path) -> None:
    """``torch.save``, atomically, with a checksum behind it (which ``torch.load`` ignores)."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    data = buffer.getvalue()
    write_atomically(path, data + _MARK + hashlib.sha256(data).hexdigest().encode())


def load_checked(path: Path, map_location: Any = "cpu") -> Any:
    """What `save_checked` wrote. Nothing is unpickled but tensors and plain values.

    Raises:
        BadCheckpointError: If the file is not whole.
    """
    data = path.read_bytes()
    content, trailer = data[:-_TRAILER], data[-_TRAILER:]
    if not trailer.startswith(_MARK):
        raise BadCheckpointError(f"{path}: cut short (no checksum at its end)")
    if hashlib.sha256(content).hexdigest().encode() != trailer[len(_MARK) :]:
        raise BadCheckpointError(f"{path}: damaged (its checksum does not match)")
    return torch.load(io.BytesIO(content), map_location=map_location, weights_only=True)


def checkpoint_name(epoch: int, step: int) -> str:
    """The name of the checkpoint after so many epochs and steps; names sort as time does."""
    return f"step-{step:010d}-epoch-{epoch:05d}.ckpt"


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints in a folder, the newest first."""
    return sorted(folder.glob("step-*.ckpt"), reverse=True)


def last_good(folder: Path, say: Callable[[str], None]) -> Path | None:
    """The newest checkpoint that is whole, or ``None``. Each bad one on the way is reported with ``say``."""
    for path in checkpoints_in(folder):
        try:
            load_checked(path)
        except (BadCheckpointError, OSError) as error:
            say(f"not used: {error}")
            continue
        return path
    return None
