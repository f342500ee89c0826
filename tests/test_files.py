"""Atomic writes and strict JSON."""

from __future__ import annotations

import errno
import math
from pathlib import Path

import pytest

from earthwork.files import parse_json, read_json, to_json, write_atomically


@pytest.mark.parametrize("content", [b"\x00new", "new, and é"])
def test_a_file_is_replaced(tmp_path: Path, content: bytes | str) -> None:
    path = tmp_path / "folder" / "file"
    write_atomically(path, "old")
    write_atomically(path, content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert list(path.parent.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new and longer")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_content_reaches_the_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr("os.fsync", lambda descriptor: seen.append((tmp_path / "file").exists()))
    write_atomically(tmp_path / "file", "content")
    assert seen == [False, True], "first the draft, then the folder with its new name"


def test_numbers_that_json_lacks() -> None:
    value = {"a": math.nan, "b": [math.inf, (-math.inf, 1.5)], 3: None}
    assert parse_json(to_json(value)) == {"a": None, "b": [None, [None, 1.5]], "3": None}
    assert to_json([1], indent=1) == "[\n 1\n]"
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json(value, strict=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, NaN]", "not readable JSON: expected finite numbers, got NaN at line 1, column 5"),
        ("[-Infinity]", "not readable JSON: expected finite numbers, got -Infinity at line 1, column 2"),
        ("[1e999]", "not readable JSON: expected finite numbers, got 1e999"),
        ('{"a": 1, "a": 2}', "expected each name once in an object, got 'a' twice"),
        ("[1,\n 2", r"not JSON: .* at line 2, column 3 \(the end\)"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_not_json(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_json(text)
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=rf"a\.json: {message}" if message.startswith("not") else message):
        read_json(tmp_path / "a.json")
