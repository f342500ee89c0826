"""The files of the workflows name what exists."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_stages_of_one_script(workflow):
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
