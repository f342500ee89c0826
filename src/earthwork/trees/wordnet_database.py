"""The noun file of a WordNet ``dict`` folder. The id of a synset is its byte offset in the file."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

PathLike: TypeAlias = "str | os.PathLike[str]"

_FOLDERS = (
    "/usr/share/wordnet",
    "/usr/local/WordNet-3.0/dict",
    "/usr/share/nltk_data/corpora/wordnet",
    "~/nltk_data/corpora/wordnet",
)
_HYPERNYMS = ("@", "@i")  # a kind of; an instance of


class Synset(NamedTuple):
    """One line of ``data.noun``: the words of a synset and the offsets of its hypernyms, in their order."""

    offset: int
    words: tuple[str, ...]
    hypernyms: tuple[int, ...]


class Database:
    """The nouns of a WordNet ``dict`` folder, version 3.0 or 3.1.

    Args:
        folder: The folder that holds ``data.noun``. Default: ``$WNSEARCHDIR``, ``$WNHOME/dict``, or where Debian and
            NLTK put it.

    Raises:
        FileNotFoundError: If there is no database: how to get one.
    """

    def __init__(self, folder: PathLike | None = None) -> None:
        self.path = _find(folder)
        self._data = self.path.read_bytes()
        header = re.search(rb"WordNet (\d+\.\d+) Copyright", self._data[:4000])
        self.version = header[1].decode() if header else "unknown"

    def __contains__(self, offset: int) -> bool:
        """Whether a synset begins at an offset."""
        starts_a_line = offset == 0 or self._data[offset - 1 : offset] == b"\n"
        return starts_a_line and self._data.startswith(f"{offset:08d} ".encode(), offset)

    def check(self, what: str, offsets: Sequence[int]) -> None:
        """Raise a ``ValueError`` that names every offset at which there is no synset."""
        missing = [f"n{offset:08d}" for offset in offsets if offset not in self]
        if missing:
            raise ValueError(
                f"{what}: {', '.join(missing)} not in WordNet {self.version} ({self.path}); offsets differ between "
                "versions, and those of ImageNet are of WordNet 3.0"
            )

    def synset(self, offset: int) -> Synset:
        """The synset at an offset, which must be there."""
        end = self._data.find(b"\n", offset)
        line = self._data[offset : end if end >= 0 else len(self._data)]
        try:
            return parse_line(line)
        except ValueError as error:
            raise ValueError(f"{self.path}, byte {offset}: {error}") from None


def _find(folder: PathLike | None) -> Path:
    if folder is not None:
        path = Path(folder)
        path = path if path.is_file() else path / "data.noun"
        if not path.is_file():
            raise FileNotFoundError(f"database: expected a WordNet dict folder with data.noun, got {folder}")
        return path
    home = os.environ.get("WNHOME")
    places = [os.environ.get("WNSEARCHDIR"), home and f"{home}/dict", *_FOLDERS]
    for place in filter(None, places):
        path = Path(place).expanduser() / "data.noun"
        if path.is_file():
            return path
    raise FileNotFoundError(
        "database: found no WordNet. Install it with `apt-get install wordnet-base`, or give the folder that holds "
        "data.noun (https://wordnet.princeton.edu/download/current-version)"
    )


def parse_line(line: bytes) -> Synset:
    """Read one line of ``data.noun``: offset, lexicographer file, type, words, pointers, gloss.

    Raises:
        ValueError: If the line is not of that form: at which field.
    """
    fields = line.split(b"|", 1)[0].split()

    def number(at: int, base: int, what: str, digits: int) -> int:
        text = fields[at] if at < len(fields) else b""
        pattern = rb"[0-9a-fA-F]+" if base == 16 else rb"[0-9]+"
        if len(text) != digits or not re.fullmatch(pattern, text):
            raise ValueError(f"field {at}: expected {what} ({digits} digits), got {text[:20]!r}")
        return int(text, base)

    offset = number(0, 10, "an offset", 8)
    if fields[2:3] != [b"n"]:
        raise ValueError(f"field 2: expected the type n (noun), got {b''.join(fields[2:3])[:20]!r}")
    word_count = number(3, 16, "the number of words", 2)
    pointers = 4 + 2 * word_count
    if word_count == 0:
        raise ValueError("field 3: expected at least one word, got 0")
    words = tuple(_word(fields, 4 + 2 * i) for i in range(word_count))
    hypernyms = []
    for at in range(pointers + 1, pointers + 1 + 4 * number(pointers, 10, "the number of pointers", 3), 4):
        target = number(at + 1, 10, "a pointer's offset", 8)
        if fields[at].decode("latin-1") in _HYPERNYMS and fields[at + 2 : at + 3] == [b"n"]:
            hypernyms.append(target)
    return Synset(offset, words, tuple(hypernyms))


def _word(fields: list[bytes], at: int) -> str:
    try:
        return fields[at].decode("utf-8")
    except IndexError:
        raise ValueError(f"field {at}: expected a word, got the end of the line") from None
    except UnicodeDecodeError:
        raise ValueError(f"field {at}: expected a word in UTF-8, got {fields[at][:20]!r}") from None
