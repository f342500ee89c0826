"""The package as a whole: what importing it costs, its names, its version, and what is published."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import earthwork as ew

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = None

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = (
    "torchmetrics",
    "numba",
    "matplotlib",
    "scipy",
    "pandas",
    "networkx",
    "yaml",
    "ot",
    "typer",
    "rich",
    "lightning",
    "lightgbm",
    "sklearn",
    "xgboost",
)
LIBRARY_EXTRAS = ("fast", "exact", "cli", "trees", "plot", "metrics", "train", "evaluate")


def test_importing_needs_only_torch_and_numpy():
    code = f"import sys, earthwork; print([name for name in {HEAVY!r} if name in sys.modules])"
    plain = subprocess.run(
        [sys.executable, "-c", "import sys, torch; print([n for n in " + repr(HEAVY) + " if n in sys.modules])"],
        capture_output=True,
        text=True,
        check=True,
    )
    ours = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert ours.returncode == 0, ours.stderr
    assert ours.stderr == ""
    assert ours.stdout == plain.stdout


def test_functional_metrics_do_not_import_torchmetrics():
    code = "import sys, earthwork as ew; ew.metrics.functional.mean_emd; print('torchmetrics' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "False\n"


def test_every_public_name_is_available():
    for name in ew.__all__:
        if name == "sklearn" and find_spec("sklearn") is None:
            continue
        assert getattr(ew, name) is not None
    with pytest.raises(AttributeError, match="module 'earthwork' has no attribute 'nothing'"):
        _ = ew.nothing


def test_the_package_is_typed():
    assert files("earthwork").joinpath("py.typed").is_file()


def test_the_version_is_written_in_one_file():
    stated = re.compile(rf"""(?<![\w.=<>~]){re.escape(ew.__version__)}(?![\w.])""")
    names = ["pyproject.toml", "CITATION.cff", "mkdocs.yml", "README.md"]
    files = [*(ROOT / name for name in names), *(ROOT / "src").rglob("*.py")]
    assert [path.name for path in files if stated.search(path.read_text(encoding="utf-8"))] == ["__init__.py"]


def test_the_changelog_has_the_version():
    assert f"\n## [{ew.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.skipif(tomllib is None, reason="tomllib is new in Python 3.11")
def test_the_lowest_versions_are_those_that_are_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lists = [project["dependencies"], *(extras[name] for name in LIBRARY_EXTRAS)]
    wanted = {re.fullmatch(r"([\w-]+)>=([\d.]+)", text) for texts in lists for text in texts if "[" not in text}
    lowest = dict(match.groups() for match in wanted)
    pinned = dict(re.findall(r"^([\w-]+)==(.+)$", (ROOT / "constraints-lowest.txt").read_text(), re.MULTILINE))
    assert pinned.keys() == lowest.keys()
    for name, version in lowest.items():
        assert f"{pinned[name]}.".startswith(f"{version}."), name


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """The sdist and the wheel, as they would be published."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


def in_repository():
    """The tracked files, and new ones that are not ignored."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs the repository")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return {name for name in listed if (ROOT / name).is_file()}


def test_the_sdist_is_the_repository(packages):
    with tarfile.open(packages[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names - {"PKG-INFO"} <= in_repository()
    assert {name for name in in_repository() if name.partition("/")[0] in ("src", "tests", "docs")} <= names


def test_the_packages_are_named_after_the_version(packages):
    assert [path.name for path in packages] == [
        f"earthwork-{ew.__version__}.tar.gz",
        f"earthwork-{ew.__version__}-py3-none-any.whl",
    ]


def test_the_wheel_is_the_library(packages):
    with zipfile.ZipFile(packages[1]) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == {name.removeprefix("src/") for name in in_repository() if name.startswith("src/")}
