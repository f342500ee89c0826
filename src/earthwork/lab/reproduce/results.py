"""Results on disk: one JSON file for each experiment, written part by part so that a run can go on where it stopped."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from earthwork.files import finite, read_json, to_json, write_atomically
from earthwork.lab.environment import environment

Numbers: TypeAlias = dict[str, Any]

FORMAT = 1


class ResultsError(ValueError):
    """A results file that cannot be used."""


@dataclass
class Results:
    """What one experiment measured.

    Attributes:
        experiment: Its name.
        settings: Everything that decides the numbers, seeds included.
        data: What it was measured on, in words.
        quick: Whether it is a small version that only shows that everything runs.
        parts: The raw numbers of each finished part, by its name.
        summary: What the tables, figures and claims are made from; empty until all parts are there.
        environment: Versions and machine.
    """

    experiment: str
    settings: Numbers
    data: str = ""
    quick: bool = False
    parts: dict[str, Numbers] = field(default_factory=dict)
    summary: Numbers = field(default_factory=dict)
    environment: Numbers = field(default_factory=environment)

    @property
    def complete(self) -> bool:
        """Whether every part was run."""
        return bool(self.summary)

    def save(self, path: Path) -> None:
        """Write the file whole or not at all."""
        content = {"format": FORMAT, **{name: getattr(self, name) for name in self.__dataclass_fields__}}
        write_atomically(path, to_json(content, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read a results file.

        Raises:
            ResultsError: If it is not one, or comes from another version.
        """
        try:
            content = read_json(path)
        except (OSError, ValueError) as error:
            raise ResultsError(f"{path}: expected a results file (JSON), but it cannot be read: {error}") from error
        if not isinstance(content, dict) or "experiment" not in content:
            raise ResultsError(f"{path}: expected a results file of `earthwork reproduce`, got other JSON")
        if content.get("format") != FORMAT:
            raise ResultsError(
                f"{path}: expected results of format {FORMAT}, got format {content.get('format')!r} from earthwork "
                f"{content.get('environment', {}).get('earthwork', '?')}; run it again into another folder"
            )
        missing = [name for name in cls.__dataclass_fields__ if name not in content]
        if missing:
            raise ResultsError(f"{path}: expected the field {missing[0]!r}, which is missing")
        return cls(**{name: content[name] for name in cls.__dataclass_fields__})


def resume(path: Path, fresh: Results) -> Results:
    """The results at ``path`` if they can be gone on with, ``fresh`` if there are none.

    Raises:
        ResultsError: If those at ``path`` were measured with other settings or data, or by another version.
    """
    if not path.exists():
        return fresh
    old = Results.load(path)
    wanted = finite({"settings": fresh.settings, "data": fresh.data, "quick": fresh.quick})
    for name, value in wanted.items():
        if getattr(old, name) != value:
            raise ResultsError(
                f"{path}: holds results with other {name} ({_difference(getattr(old, name), value)}); {_REMEDY}"
            )
    versions = [x.environment.get("earthwork") for x in (old, fresh)]
    if versions[0] != versions[1]:
        raise ResultsError(f"{path}: holds results of earthwork {versions[0]}, this is {versions[1]}; {_REMEDY}")
    return old


_REMEDY = "choose another --out, or remove the file to start again"


def _difference(old: Any, new: Any) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            if old.get(key) != new.get(key):
                return f"{key} = {_short(old.get(key))}, now {_short(new.get(key))}"
    return f"{_short(old)}, now {_short(new)}"


def _short(value: Any) -> str:
    text = to_json(value)
    return text if len(text) <= 60 else text[:57] + "…"
