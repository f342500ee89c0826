"""Pages say what the source says: the code they show, the public names, the commands."""

from __future__ import annotations

import importlib
import re
import runpy
from pathlib import Path
from types import ModuleType

import pytest

import earthwork as ew

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "scripts" / "docs_build"
PAGES = sorted((ROOT / "docs").rglob("*.md"))
API = "\n".join(path.read_text(encoding="utf-8") for path in PAGES if path.parent.name == "api")
# Public modules beside those that `earthwork` names itself.
FOR_PACKAGES = ("evaluation", "files", "array_files", "text", "cli.console")
LAB = ("training", "study", "reproduce", "report")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", runpy.run_path(str(BUILD / "examples.py"))["pages"](), ids=name_of)
def test_a_page_shows_the_script_that_it_names(page):
    text = page.read_text(encoding="utf-8")
    current = runpy.run_path(str(BUILD / "examples.py"))["with_current_code"](text)
    assert text == current, "run python scripts/docs_build/examples.py"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_can_be_read_in_the_repository(page):
    assert "--8<--" not in page.read_text(encoding="utf-8"), "an include is not shown outside the site"


def public_modules() -> list[ModuleType]:
    named = [getattr(ew, name) for name in ew.__all__]
    modules = [ew, *(module for module in named if isinstance(module, ModuleType))]
    others = [*(f"earthwork.{name}" for name in FOR_PACKAGES), *(f"earthwork_lab.{name}" for name in LAB)]
    return modules + [importlib.import_module(name) for name in others]


@pytest.mark.parametrize("module", public_modules(), ids=lambda module: module.__name__)
def test_every_public_name_is_on_an_api_page(module):
    documented = set(re.findall(r"^::: ([\w.]+)$", API, re.MULTILINE))
    names = [name for name in module.__all__ if not isinstance(getattr(module, name), ModuleType)]
    assert names
    # A metric is documented where its measure is declared.
    found = {(one.rpartition(".")[0].removesuffix(f".{part}"), one.rpartition(".")[2]) for one in documented
             for part in ("measures", "scores", "curves", "report", "selective", "sets", "torchmetric")}  # fmt: skip
    missing = {name for name in names if (module.__name__, name) not in found}
    assert sorted(missing - {one.removeprefix("earthwork.") for one in documented}) == []


def test_every_page_is_in_one_section_of_the_site():
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    sections = re.findall(r"^  - ([^:\n]+):", nav, re.MULTILINE)
    assert sections == ["Home", "Tutorial", "How-to guides", "Reference", "Explanation"]
    generated = {"changelog.md", "contributing.md", "security.md", "commands.md"}
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in PAGES} | generated
    assert sorted(re.findall(r"[\w/-]+\.md", nav)) == sorted(pages)


def test_the_reference_has_every_command_and_option():
    pytest.importorskip("typer")
    made = runpy.run_path(str(BUILD / "commands.py"))
    page, commands = made["command_reference"](), made["commands"]()
    assert {"earthwork train", "earthwork tree show"} <= commands.keys()
    for command, spelled in commands.items():
        section = page.partition(f"## {command}\n")[2].partition("\n## ")[0]
        spellings = [spelling for one in spelled for spelling in one.split(", ")]
        assert [spelling for spelling in spellings if f"`{spelling}`" not in section] == [], command
    train = page.partition("## earthwork train\n")[2].partition("\n## ")[0]
    assert "| `--epochs` | Passes over the training data. | `90` |" in train
    assert "| `--standardize` |" in train
    assert r"0.5\*emd2+0.5\*ce" in train
