"""Reading and writing files: atomic writes, strict CSV, JSON and YAML."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from earthwork.extras import require

__all__ = [
    "check_regular",
    "parse_csv",
    "read_json",
    "read_lines",
    "read_text",
    "read_yaml",
    "to_json",
    "write_atomically",
]


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file so that a reader, also after a crash, finds either the old content or the new one.

    The content goes to a temporary file beside ``path``, is flushed to disk and renamed. Missing folders are created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with draft.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        if isinstance(error, OSError):  # the user knows the file, not the draft
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    # The rename is durable once the folder's entry is on disk. Windows cannot open folders.
    if os.name == "posix":
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def to_json(value: Any, *, indent: int | None = None, strict: bool = False) -> str:
    """Return ``value`` as JSON text, in which NaN and infinities are ``null``, or a ``ValueError`` if it is strict.

    Example:
        >>> from earthwork.files import to_json
        >>> to_json({"loss": float("inf"), "epochs": (1, 2)})
        '{"loss": null, "epochs": [1, 2]}'
    """
    return json.dumps(value if strict else finite(value), ensure_ascii=False, allow_nan=False, indent=indent)


def finite(value: Any) -> Any:
    """Return ``value`` as JSON can hold it: NaN and infinities become ``None``, tuples lists, and keys text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(entry) for entry in value]
    return value


def check_regular(path: Path) -> None:
    """Raise a ``ValueError`` unless ``path`` is a regular file: a pipe may never end, and a device never does."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path}: expected a regular file")


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file, without a byte order mark and with its line ends as they are.

    If it is empty, not a regular file, or not UTF-8, the ``ValueError`` starts with the path.
    """
    check_regular(path)
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}: expected UTF-8 text, got byte 0x{data[error.start]:02x} at byte {error.start} (line {line}); "
            "save the file as UTF-8"
        ) from None
    if not text.strip():
        raise ValueError(f"{path}: the file is empty")
    return text


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file, which end with a line feed, a carriage return or both, and nothing else."""
    lines = re.split("\r\n|\r|\n", read_text(path))
    return lines if lines[-1] else lines[:-1]


def parse_csv(text: str, name: str, delimiter: str = ",") -> list[tuple[int, list[str]]]:
    """Return the lines of a CSV text that are not empty, all with as many cells: (number of the line, its cells)."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    lines: list[tuple[int, list[str]]] = []
    start = 1
    try:
        for cells in reader:
            if cells:
                lines.append((start, cells))
                width = len(lines[0][1])
                if len(cells) != width:
                    got = f"expected {width} cells as in the first line, got {len(cells)}"
                    raise ValueError(f"{name}, line {start}: {got}")
            start = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{name}, line {max(start, reader.line_num)}: {error}") from None
    return lines


def parse_number(text: str) -> float | None:
    """Return the number that a text holds, or ``None``. Unlike in Python, digits are not grouped with underscores."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def is_missing(value: Any) -> bool:
    """Return whether a cell of a table holds nothing: ``None``, NaN, or what pandas has in their place."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or bool(value != value)


def parse_json(text: str) -> Any:
    """Return the value of a JSON text. NaN, infinities and repeated names are errors, which say where they are."""
    try:
        return json.loads(text, object_pairs_hook=_unique_names, parse_constant=_finite, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at {place(text, error.pos)}") from None
    except RecursionError:
        raise ValueError("not readable JSON: nested too deeply") from None
    except ValueError as error:  # also a number with thousands of digits
        raise ValueError(f"not readable JSON: {error}") from None


@contextmanager
def errors_naming(path: Path) -> Iterator[None]:
    """Put the path in front of the message of a ``ValueError`` or ``TypeError`` that does not mention it."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if str(path) in str(error):
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{path}: {error}") from None


def read_json(path: Path) -> Any:
    """Return the value of a JSON file; a ``ValueError`` starts with the path."""
    with errors_naming(path):
        return parse_json(read_text(path))


def place(text: str, position: int) -> str:
    """Return where in a text a position is, for an error message: ``line 3, column 7 (near 'abc')``."""
    line = text.count("\n", 0, position) + 1
    column = position - (text.rfind("\n", 0, position) + 1) + 1
    if position >= len(text):
        return f"line {line}, column {column} (the end)"
    return f"line {line}, column {column} (near {text[position : position + 20]!r})"


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise ValueError(f"expected each name once in an object, got {twice!r:.60} twice")
    return result


def _finite(token: str) -> float:
    value = float(token)
    if not math.isfinite(value):
        raise ValueError(f"expected finite numbers, got {token}")
    return value


# Some longer ones take quadratic time to read.
_MAX_NUMBER = 400
# What PyYAML raises besides its own errors, such as for the date 2001-13-01 and for the character "\\UFFFFFFFF".
_YAML_ERRORS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML text: dicts, lists, text, numbers, booleans, dates and ``None``.

    Repeated keys, and aliases of anything but scalars, are errors: nested aliases can stand for more data than fits
    into memory.
    """
    yaml: Any = require("yaml", "trees", "reading YAML")
    try:
        # The loader of `yaml.safe_load`, in pure Python because the one in C can overflow the stack.
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        for problem, node in _yaml_problems(loader, root):
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return None if root is None else loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ValueError(f"not YAML: {error.problem or error.context}{where}") from None
    except yaml.reader.ReaderError as error:
        raise ValueError(f"not YAML: {error.reason} at character {error.position}") from None
    except (RecursionError, *_YAML_ERRORS) as error:
        raise ValueError(f"not YAML: {'nested too deeply' if isinstance(error, RecursionError) else error}") from None


def _yaml_problems(loader: Any, root: Any) -> Iterator[tuple[str, Any]]:
    """Find what PyYAML reads and a file should not hold: what is wrong, and the node."""
    seen, todo = set(), [] if root is None else [root]
    while todo:
        node = todo.pop()
        if node.id == "scalar":
            if re.fullmatch(rf"[-+0-9._:eE]{{{_MAX_NUMBER},}}", node.value):
                yield f"expected a number or a date, got {len(node.value)} characters", node
            try:
                loader.construct_object(node)
            except _YAML_ERRORS as error:
                yield f"cannot read {node.value!r:.60} as {node.tag.rpartition(':')[2]}: {error}", node
            continue
        if id(node) in seen:
            yield "expected no alias of this list or mapping", node
        seen.add(id(node))
        pairs = node.value if node.id == "mapping" else []
        keys = set()
        for key in (key for key, _ in pairs if key.id == "scalar"):
            if key.value in keys:
                yield f"expected each key once in a mapping, got {key.value!r:.60} twice", key
            keys.add(key.value)
        todo += [entry for pair in pairs for entry in pair] if pairs else node.value


def read_yaml(path: Path) -> Any:
    """Return the value of a YAML file; a ``ValueError`` starts with the path."""
    with errors_naming(path):
        return parse_yaml(read_text(path))
