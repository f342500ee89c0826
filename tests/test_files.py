"""Atomic writes, strict JSON and YAML."""

from __future__ import annotations

import errno
import math
from datetime import date
from pathlib import Path

import pytest

from earthwork.files import (
    parse_json,
    parse_number,
    parse_yaml,
    read_json,
    read_text,
    read_yaml,
    to_json,
    write_atomically,
)


@pytest.mark.parametrize("content", [b"\x00new", "new, and é"])
def test_file_is_replaced(tmp_path: Path, content: bytes | str) -> None:
    path = tmp_path / "folder" / "file"
    write_atomically(path, "old")
    write_atomically(path, content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert list(path.parent.iterdir()) == [path]


def test_full_disk_leaves_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
        write_atomically(path, b"new and longer")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_content_reaches_disk_before_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        ("[1, NaN]", "not readable JSON: expected finite numbers, got NaN"),
        ("[-Infinity]", "not readable JSON: expected finite numbers, got -Infinity"),
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


def test_repeated_names_found_in_linear_time() -> None:
    # 1 MB; comparing each name with those before it would take minutes.
    text = "{" + ", ".join(f'"{i}": 0' for i in range(100_000)) + ', "99999": 0}'
    with pytest.raises(ValueError, match="got '99999' twice"):
        parse_json(text)


def test_text_files(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(b"\xef\xbb\xbfa\r\n")
    assert read_text(path) == "a\r\n"
    path.write_bytes(b"a\nb\xe9")
    with pytest.raises(ValueError, match=r"t\.txt: expected UTF-8 text, got byte 0xe9 at byte 3 \(line 2\)"):
        read_text(path)
    path.write_text(" \n")
    with pytest.raises(ValueError, match=r"t\.txt: the file is empty"):
        read_text(path)
    with pytest.raises(ValueError, match="expected a regular file"):
        read_text(Path("/dev/zero"))


def test_yaml(tmp_path: Path) -> None:
    text = "a: &x 3\nb: *x\nc: [1.5, true, 'no', 2001-02-03, ]\nd: {}\n"
    value = {"a": 3, "b": 3, "c": [1.5, True, "no", date(2001, 2, 3)], "d": {}}
    assert parse_yaml(text) == value
    (tmp_path / "c.yaml").write_text(text)
    assert read_yaml(tmp_path / "c.yaml") == value
    (tmp_path / "c.yaml").write_text("a: [")
    with pytest.raises(ValueError, match=r"c\.yaml: not YAML: expected the node content, .* at line 1, column 5"):
        read_yaml(tmp_path / "c.yaml")


NESTED_ALIASES = "\n".join(["a0: &a0 [x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 60))])
NESTED_MERGES = "\n".join(["a0: &a0 {x: 1}", *(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}" for i in range(1, 60))])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (NESTED_ALIASES, "expected no alias of this list or mapping at line 1, "),
        (NESTED_MERGES, "expected no alias of this list or mapping at line 1, "),
        ("&a [*a]", "expected no alias of this list or mapping at line 1, column 1"),
        ("a: 1\nb: 2\na: 3", "expected each key once in a mapping, got 'a' twice at line 3, column 1"),
        ("!!int ''", "cannot read '' as int: .* at line 1, column 1"),
        ("a: !!float ''", "cannot read '' as float: .* at line 1, column 4"),
        ("!!bool x", "cannot read 'x' as bool: 'x' at line 1"),
        ("!!timestamp x", "cannot read 'x' as timestamp: .* at line 1"),
        ("!!int 0b2", "cannot read '0b2' as int: invalid literal"),
        ("2001-13-01", "cannot read '2001-13-01' as timestamp: month must be in 1..12.* at line 1"),
        ("9" * 5000, "expected a number or a date, got 5000 characters at line 1"),
        ("1:" * 10_000 + "1", "expected a number or a date, got 20001 characters"),
        ('"\\UFFFFFFFF"', "not YAML: .*(chr|too large)"),
        ('a: "\\U00110000"', "not YAML: .*(chr|too large)"),
        ("%YAML " + "1" * 5000 + ".1\n--- a", "Exceeds the limit"),
        ("[" * 100_000, "nested too deeply"),
        ("{a: " * 1000, "nested too deeply"),
        ("- " * 10_000, "nested too deeply"),
        ("? " * 10_000, "nested too deeply"),
        ("!!python/object/apply:os.getcwd []", "could not determine a constructor for the tag"),
        ("--- a\n--- b", "found another document at line 2"),
        ("a\x00", "special characters are not allowed at character 1"),
        ("? [a]\n: b", "found unhashable key"),
    ],
)
def test_what_is_not_yaml(text: str, message: str) -> None:
    with pytest.raises(
        ValueError, match=f"not YAML: .*{message}" if not message.startswith("not") else message
    ) as found:
        parse_yaml(text)
    assert "\n" not in str(found.value)


def test_errors_name_file_and_not_draft(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=f"'{tmp_path / 'folder'}'"):
        write_atomically(tmp_path / "folder", b"content")
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]


@pytest.mark.parametrize(("text", "number"), [("1e3", 1000.0), (" .5 ", 0.5), ("1_0", None), ("", None), ("x", None)])
def test_numbers(text: str, number: float | None) -> None:
    assert parse_number(text) == number
