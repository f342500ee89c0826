"""Tables as training data: CSV and Parquet with a column of labels."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import earthwork as ew
from earthwork_lab.study.own import task_of_file
from earthwork_lab.training.arrays import read_arrays
from earthwork_lab.training.data import load_data
from earthwork_lab.training.settings import Settings


def frame(rows: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    grade = rng.integers(0, 3, rows)
    names = np.array(["low", "middle", "high"])[grade]
    colours, size = rng.choice(["red", "blue"], rows), grade + rng.normal(0, 0.1, rows)
    return pd.DataFrame({"size": size, "colour": colours, "grade": names, "extra": rng.normal(size=rows)})


def write(folder: Path, ending: str) -> Path:
    path = folder / f"table.{ending}"
    table = frame()
    if ending == "parquet":
        table.to_parquet(path)
    else:
        table.to_csv(path, index=False, sep="\t" if ending == "tsv" else ",")
    return path


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_a_table_is_read_as_the_same_arrays(ending: str, tmp_path: Path) -> None:
    path, table = write(tmp_path, ending), frame()
    x = np.stack([table["size"], table["colour"] == "blue", table["colour"] == "red"], 1).astype(np.float32)
    np.savez(tmp_path / "same.npz", x=x, y=table["grade"].to_numpy().astype(str))
    found, same = read_arrays(path, 3, "grade", "size, colour"), read_arrays(tmp_path / "same.npz", 3)
    for name in ("x", "y", "x_val", "y_val"):
        np.testing.assert_array_equal(getattr(found, name), getattr(same, name))
    assert found.classes == same.classes
    space = ew.Chain(3, names=["low", "middle", "high"])
    settings = Settings(data=str(path), space="chain:low,middle,high", target="grade")
    data = load_data(settings, space, 0, lambda _: None)
    assert data.shape == (4,)
    assert len(data.train) + len(data.val) == 60
    table = task_of_file(path, space, target="grade").table()
    assert (table.space, table.x.shape) == (space, (60, 4))


@pytest.mark.parametrize(
    ("labels", "space", "message"),
    [
        (np.arange(100), ew.Chain(5), r"from 0 to 4, .* got '5'; the space is Chain\(5 bins, cost 1\)$"),
        (np.array([0, 1, 2, 7] * 25), ew.Chain(5), r"from 0 to 4, .* got '7'; the space is Chain\(5 bins, cost 1\)$"),
        (np.arange(100).astype(str), ew.Chain(5), r"labels are names such as '0', .*; the space is Chain\(5 bins"),
        (
            np.arange(100).astype(str),
            ew.Chain(99, names=[*map(str, range(99))]),
            r"1 labels are not in the space: '99' .*Chain\(99",
        ),
    ],
)
def test_a_label_that_is_not_in_the_space(labels: np.ndarray, space: ew.Space, message: str, tmp_path: Path) -> None:
    """Also where most labels are too rare to hold some out, and no row that is counted after some have been."""
    np.savez(tmp_path / "a.npz", x=np.arange(200.0).reshape(100, 2), y=labels)
    with pytest.raises(ValueError, match=message):
        task_of_file(tmp_path / "a.npz", space)


def test_rare_classes_have_their_place_in_a_study(tmp_path: Path) -> None:
    """A study splits the rows itself, so that no class needs the five rows of which training holds one out."""
    np.savez(tmp_path / "a.npz", x=np.arange(240.0).reshape(120, 2), y=np.arange(120) % 40)
    assert len(task_of_file(tmp_path / "a.npz", ew.Chain(40)).table().y) == 120


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((None, None), "expected one column called label, labels, target, y, with the labels, got size, colour, grade"),
        (
            ("rank", None),
            "expected one column 'rank', with the labels, got size, colour, grade, extra; --target names it",
        ),
        (("grade", "size,weight"), "expected features among the columns size, .* got size, weight"),
        (("grade", "grade"), "expected features among the columns size, .* got grade"),
    ],
)
def test_messages(options: tuple[str | None, str | None], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        read_arrays(write(tmp_path, "csv"), 0, *options)


def test_cells_that_are_empty(tmp_path: Path) -> None:
    path = tmp_path / "holes.csv"
    path.write_text("label,a\n0,1.5\n1,\n")
    with pytest.raises(ValueError, match=re.escape("expected a value in each cell, got none in row 1, column 'a'")):
        read_arrays(path, 0)
    path.write_text("label,a,a\n0,1.5,2\n")
    with pytest.raises(ValueError, match="expected each column once, got 'a' again"):
        read_arrays(path, 0)
    np.savez(tmp_path / "arrays.npz", x=np.zeros((4, 2)), y=np.zeros(4, int))
    with pytest.raises(ValueError, match="target, features, test: expected only for a table"):
        read_arrays(tmp_path / "arrays.npz", 0, "y")
