from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import earthwork as ew
from earthwork_lab.report import _json_for_script, costliest_confusions, read_results, write_report
from earthwork_lab.reproduce import EXPERIMENTS, ResultsError


@pytest.fixture(scope="module")
def page(tiny_results: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(read_results(tiny_results), tmp_path_factory.mktemp("page")).read_text(encoding="utf-8")


def test_every_experiment_has_its_section(page: str) -> None:
    for name in (*EXPERIMENTS, "claims", "space"):
        assert page.count(f'<section id="{name}">') == 1


def test_page_needs_no_network(page: str) -> None:
    addresses = re.findall(r"""(?:src|href)=["']([^"']+)""", page)
    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert not re.search(r"@import|url\(\s*['\"]?http|fetch\(|XMLHttpRequest", page)


def test_page_is_small(page: str) -> None:
    assert len(page.encode()) < 400_000


def test_quick_runs_simulated_data_announced(page: str) -> None:
    assert "Quick runs, which only show that everything runs" in page
    assert "Simulated data, not real data: breathing" in page


def test_names_cannot_break_out_of_script() -> None:
    text = _json_for_script({"name": "</script><b>"})
    assert "<" not in text
    assert json.loads(text) == {"name": "</script><b>"}


def test_folder_without_results_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"looked for ellyvan\.json.*found none of them"):
        read_results(tmp_path)


def test_summary_of_another_version_is_named(tiny_results: Path, tmp_path: Path) -> None:
    results = read_results(tiny_results)
    del results["timing"].summary["printed"]
    with pytest.raises(ResultsError, match=r"a summary has no 'printed', so another version wrote it"):
        write_report(results, tmp_path)


@pytest.mark.parametrize("odd", [3, None, [], "text"])
def test_summary_of_odd_shape_is_named(tiny_results: Path, tmp_path: Path, odd: object) -> None:
    results = read_results(tiny_results)
    results["timing"].summary["printed"] = odd
    with pytest.raises(
        ResultsError, match=r"results: a summary (has no .*|is of another form \(.*\)), so another version"
    ):
        write_report(results, tmp_path)


def test_confusions_ordered_by_what_they_cost(tmp_path: Path) -> None:
    tree = ew.trees.cifar10()
    labels = np.array([3, 3, 3, 3, 5])
    taken = np.array([5, 5, 8, 3, 5])
    np.savez(tmp_path / "run.npz", probs=np.eye(10)[taken], labels=labels)
    found = costliest_confusions(tmp_path / "run.npz", tree)
    near, far = float(tree.distance(3, 5)), float(tree.distance(3, 8))
    expected = sorted([(5, 2, 2 * near), (8, 1, far)], key=lambda entry: -entry[2])
    assert found["classes"][3] == expected
    assert found["classes"][5] == []
    names = np.array([*(tree.bin_names[label] for label in labels[:4]), "animal"])
    np.savez(tmp_path / "run.npz", probs=np.eye(10)[np.array([5, 5, 8, 3, 8])], labels=names)
    assert costliest_confusions(tmp_path / "run.npz", tree)["classes"] == found["classes"]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"labels": np.zeros(2, int)}, "expected an array `probs`, `logits` or `answers`, got `labels`"),
        (
            {"probs": np.eye(3), "labels": np.zeros(3, int)},
            r"expected predictions of shape \(rows, 10\), .*got \(3, 3\)",
        ),
        ({"probs": np.eye(10), "labels": np.full(10, 0.7)}, "1 not among the classes of the space: '0.7'"),
        ({"probs": np.eye(10), "labels": np.array([3, -1] * 5)}, "class indices from 0 to 9, got '-1' in row 1"),
        (
            {"probs": np.full((1, 10), np.nan), "labels": np.zeros(1, int)},
            "expected probabilities, .* got nan in bin 0",
        ),
    ],
)
def test_predictions_that_do_not_fit_are_named(tmp_path: Path, arrays: dict[str, object], message: str) -> None:
    np.savez(tmp_path / "run.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        costliest_confusions(tmp_path / "run.npz", ew.trees.cifar10())


def test_predictions_that_cannot_be_read_named(tmp_path: Path) -> None:
    (tmp_path / "run.npz").write_text("not an archive")
    with pytest.raises(ValueError, match=r"predictions .*run\.npz: not a readable \.npz file"):
        costliest_confusions(tmp_path / "run.npz", ew.trees.cifar10())
