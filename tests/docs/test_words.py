"""The list of phrases to avoid works, and the files of the workflows name what exists."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORDS = runpy.run_path(str(ROOT / "scripts" / "check_words.py"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ("masses are compared without a word", ["without a word"]),
        ("20 images a class, seconds a run", ["images a class", "seconds a run"]),
        ("It goes on where it stopped.", ["goes on where it stopped"]),
        ("the derivative of the loss by the logits", ["derivative of the loss by the logits"]),
        ("the gradient by ``p``, in the mean over", ["gradient by ``p", "in the mean over"]),
        ("its gradient in the logits; builds bring it along", ["gradient in the logits", "bring it along"]),
        ("the gradient in the same pass, the gradient in a table", []),
        ("Below so many bins, a walk round the tree", ["Below so many", "so many bins", "round the tree"]),
        ("an out-of-range label; drop-in replacement", []),
        ("the gradient by finite differences, so far", []),
        ("room temperature", []),
        ("“without a word” is quoted here  words: ok", []),
    ],
)
def test_phrases_to_avoid_are_found(text, phrases):
    assert [found.phrase for found in WORDS["findings"](text)] == phrases


def test_findings_name_the_line_and_a_better_phrase(tmp_path, capsys):
    page = ROOT / "docs" / "index.md"
    assert WORDS["main"]([str(page)]) == 0
    finding = next(WORDS["findings"]("first line\nseconds a run"))
    assert (finding.line, finding.better) == (2, "per class, per run")


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_the_stages_of_the_one_script(workflow):
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    stages = set(re.findall(r"[a-z]+", script.partition("usage: .ci/run [")[2].partition("]")[0]))
    text = workflow.read_text(encoding="utf-8")
    named = set(re.findall(r"\.ci/run (\w+)", text))
    named |= set(re.findall(r"\w+", text.partition("stage: [")[2].partition("]")[0]))
    assert named
    assert named <= stages


def test_python_versions_agree():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = settings["project"]
    classified = {text.rpartition(" ")[2] for text in project["classifiers"] if text.startswith("Programming Language")}
    matrix = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8").partition("python: [")[2]
    tested = re.findall(r'"([\d.]+)"', matrix.partition("]")[0])
    assert classified - {"3"} <= set(tested)
    assert project["requires-python"] == f">={tested[0]}"
    assert settings["tool"]["ruff"]["target-version"] == "py" + tested[0].replace(".", "")
