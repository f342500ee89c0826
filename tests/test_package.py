"""The package as a whole: what importing it costs, its names, its version, and what is published."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import pytest

import earthwork as ew
from tests.declared import imported_modules, undeclared

ROOT = Path(__file__).parents[1]
HEAVY = (
    "torchmetrics",
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
EXTRAS = ("exact", "cli", "trees", "plot", "metrics", "sklearn", "boosting")
# What `make test-lowest` installs of them.
LOWEST_EXTRAS = ("exact", "cli", "trees", "plot", "metrics")


def loaded_by(code: str) -> str:
    """Which heavy packages are loaded after each line of the code."""
    show = f"print([name for name in {HEAVY!r} if name in sys.modules])"
    code = "\n".join(["import sys", *(f"{line}; {show}" for line in code.splitlines())])
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_importing_needs_only_torch_and_numpy():
    torch, ours, functional = loaded_by(
        "import torch\nimport earthwork\nearthwork.metrics.functional.mean_emd"
    ).splitlines()
    assert ours == functional == torch


def test_every_imported_package_is_declared():
    # torch's builds for GPUs bring Triton.
    assert undeclared(ROOT / "src" / "earthwork", ROOT / "pyproject.toml", EXTRAS).keys() <= {"triton"}


def test_imports_are_found():
    text = "import a.b, c\nfrom d.e import f\nfrom . import g\nrequire('h.i', 'x')\nimport_module(j)\n"
    assert list(imported_modules(text)) == ["a.b", "c", "d.e", "h.i"]


def test_an_undeclared_package_is_found(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "one.py").write_text("import os, typing_extensions, numpy, package.two")
    (tmp_path / "pyproject.toml").write_text("[project]\ndependencies = ['NumPy>=1']\noptional-dependencies = {}\n")
    assert undeclared(tmp_path / "package", tmp_path / "pyproject.toml", ()) == {"typing_extensions": "one.py"}


def test_all_is_every_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert extras["all"] == [f"earthwork[{','.join(EXTRAS)}]"]


def test_every_public_name_is_available():
    for name in ew.__all__:
        if name == "sklearn" and find_spec("sklearn") is None:
            continue
        assert getattr(ew, name) is not None
    with pytest.raises(AttributeError, match="module 'earthwork' has no attribute 'nothing'"):
        _ = ew.nothing


# What is promised: the parameters in this order, those after * by keyword only, with these defaults.
OPTIONS = "weight=None, ignore_index=-100, reduction='mean', label_smoothing=0.0, normalize='softmax', class_dim=None"
SIGNATURES = {
    "Chain": "(n, costs=1.0, names=None)",
    "Chain.from_values": "(values, names=None)",
    "Ring": "(n, costs=1.0, names=None)",
    "Tree": "(parents, costs=1.0, bins=None, names=None, *, node_data=None, info=None)",
    "CostMatrix": "(matrix, names=None, *, symmetric=False, triangle=False)",
    "load": "(what, **options)",
    "save": "(space, path)",
    "emd": "(p, q, space, rho=1.0, *, costs=None, normalize=None, validate=True)",
    "emd_gradient": "(p, q, space, rho=1.0, *, normalize=None, validate=True)",
    "emd_hessian": "(p, q, space, rho=2.0)",
    "sinkhorn": "(p, q, space, lam=3.0, max_iter=100, tol=None, method='log', *, chunk_size=None)",
    "expected_distance": "(p, space, *, normalize=None, validate=True)",
    "decide": "(p, space, allow_inner=False, vagueness=0.0, *, normalize=None, validate=True)",
    "EMDLoss": f"(space, rho=None, *, costs=None, {OPTIONS}, root=False, empty='nan')",
    "SinkhornLoss": "(space, lam=3.0, max_iter=100, *, tol=None, method='log', value='cost', **options)",
    "EdgeCrossEntropyLoss": f"(space, *, {OPTIONS}, empty='nan')",
    "HierarchicalCrossEntropyLoss": "(tree, alpha=0.1, **options)",
    "SoftLabelLoss": "(space, beta=10.0, **options)",
    "MixedLoss": "(*terms, class_dim=None, empty='nan')",
    "TokenEMDLoss": "(token_ids, values, rho=2.0, *, diameter=9.0, outside=None, shift=False, ignore_index=-100, "
    "reduction='mean')",
    "Head": "(hidden, space, loss=None, *, bias=True, device=None, dtype=None)",
    "EMDLoss.from_hidden": "(self, hidden, weight, labels, bias=None, *, mask=None, chunk_rows=None)",
    "targets.gaussian": "(values, edges, sigma)",
    "targets.two_hot": "(values, centers)",
    "targets.any_of": "(mask)",
    "targets.interval": "(low, high, n)",
    "targets.coarse": "(nodes, tree)",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    found = ew
    for part in name.split("."):
        found = getattr(found, part)
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in inspect.signature(found).parameters.values()]
    assert str(inspect.Signature(plain)) == SIGNATURES[name]


@pytest.mark.parametrize(
    "space", [ew.Chain(3), ew.Ring(3), ew.Tree([-1, 0, 0]), ew.CostMatrix([[0, 1], [1, 0]])], ids=repr
)
def test_what_spaces_have(space):
    assert all(
        hasattr(space, name) for name in ("num_bins", "bin_names", "distance", "distances", "diameter", "normalized")
    )
    of_edges = [hasattr(space, name) for name in ("num_edges", "costs", "flow", "potential")]
    assert of_edges == [isinstance(space, ew.EdgeSpace)] * 4


def test_modules_show_what_they_have():
    assert set(dir(ew)) == {*ew.__all__, "__version__"}
    assert set(dir(ew.metrics)) == {*ew.metrics.__all__, "functional"}
    assert not {"exact_emd", "Metric"} & set(dir(ew))


def test_the_package_is_typed():
    assert files("earthwork").joinpath("py.typed").is_file()


def test_the_version_is_written_in_one_file():
    stated = re.compile(rf"""(?<![\w.=<>~]){re.escape(ew.__version__)}(?![\w.])""")
    names = ["pyproject.toml", "CITATION.cff", "mkdocs.yml", "README.md"]
    files = [*(ROOT / name for name in names), *(ROOT / "src").rglob("*.py")]
    assert [path.name for path in files if stated.search(path.read_text(encoding="utf-8"))] == ["__init__.py"]


def test_the_changelog_has_the_version():
    assert f"\n## [{ew.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_lowest_versions_are_those_that_are_tested():
    library, lab = (tomllib.loads((ROOT / name).read_text(encoding="utf-8"))["project"]
                    for name in ("pyproject.toml", "lab/pyproject.toml"))  # fmt: skip
    extras = library["optional-dependencies"]
    lists = [library["dependencies"], *(extras[name] for name in LOWEST_EXTRAS), lab["dependencies"]]
    lists.append(lab["optional-dependencies"]["train"])
    wanted = {re.fullmatch(r"([\w-]+)>=([\d.]+)", text) for texts in lists for text in texts if "[" not in text}
    lowest = dict(match.groups() for match in wanted)
    pinned = dict(re.findall(r"^([\w-]+)==(.+)$", (ROOT / "constraints-lowest.txt").read_text(), re.MULTILINE))
    assert pinned.keys() == lowest.keys()
    for name, version in lowest.items():
        assert f"{pinned[name]}.".startswith(f"{version}."), name


def build_without_compiler(folder: Path, what: str, **environment: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("scikit_build_core")
    code = f"from scikit_build_core import build; build.build_{what}({str(folder)!r}, {{}})"
    environment |= {"CXX": str(folder / "none"), "SKBUILD_BUILD_DIR": str(folder / "build")}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """The sdist as it would be published, and the wheel that is built where there is no compiler."""
    folder = tmp_path_factory.mktemp("dist")
    for what in ("sdist", "wheel"):
        done = build_without_compiler(folder, what)
        assert done.returncode == 0, done.stderr
    assert "earthwork: the compiled kernels could not be built" in done.stdout + done.stderr
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


def test_a_missing_compiler_can_be_an_error(tmp_path):
    assert build_without_compiler(tmp_path, "wheel", EARTHWORK_REQUIRE_CORE="1").returncode != 0
    assert not list(tmp_path.glob("*.whl"))


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
    wanted = {name for name in in_repository() if name.partition("/")[0] in ("csrc", "src", "tests", "docs")}
    assert {name for name in wanted - names if not re.fullmatch(r"docs/results/.+\.json", name)} == set()
    assert not [name for name in names if name.startswith("lab/") or re.fullmatch(r"docs/results/.+\.json", name)]


def test_the_packages_are_named_after_the_version(packages):
    assert [path.name for path in packages] == [
        f"earthwork-{ew.__version__}.tar.gz",
        f"earthwork-{ew.__version__}-py3-none-any.whl",
    ]


def test_the_wheel_is_the_library(packages):
    with zipfile.ZipFile(packages[1]) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA"))
        licences = [name for name in archive.namelist() if ".dist-info/licenses/" in name]
    assert names == {name.removeprefix("src/") for name in in_repository() if name.startswith("src/")}
    assert {Path(name).name for name in licences} == {"LICENSE", "WORDNET-LICENSE.txt"}
    # PyPI shows the README without the files beside it.
    pattern = re.compile(r'(?:src="|href="|\]\()([^")\s]+)')
    links = pattern.findall(metadata)
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    assert len(links) == len(pattern.findall((ROOT / "README.md").read_text(encoding="utf-8")))
