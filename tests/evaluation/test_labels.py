"""Labels are read right or not at all: every format × every kind of label, and the error where two readings differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import earthwork as ew
from earthwork.cli.app import run
from earthwork.evaluation import ClassIndex

pl = pytest.importorskip("polars")

FORMATS = ("csv", "tsv", "parquet", "npz", "npy", "npy and txt", "pandas", "polars", "array")
# Formats that do not tell text from numbers.
UNTYPED = ("csv", "tsv", "npy and txt")

RATINGS = tuple("3456789")
ONE_TO_FIVE = tuple("12345")
ANIMALS = ("cat", "dog", "emu", "fox", "gnu")


def chain(names: tuple[str, ...]) -> ew.Chain:
    return ew.Chain(len(names), names=names)


def predictions(count: int, truth: np.ndarray) -> np.ndarray:
    """Probabilities whose most probable class is the truth in nine rows of ten."""
    rng = np.random.default_rng(0)
    top = np.where(np.arange(len(truth)) % 10 == 0, (truth + 1) % count, truth)
    mass = rng.random((len(truth), count)) + 3 * np.eye(count)[top]
    return mass / mass.sum(-1, keepdims=True)


def source(kind: str, probs: np.ndarray, labels: Any, names: tuple[str, ...], folder: Path) -> tuple[Any, Any]:
    """What to pass to `evaluate` as predictions and labels."""
    table = pd.DataFrame(probs, columns=names).assign(label=labels)
    path = folder / f"a.{kind.split()[0]}"
    if kind in ("csv", "tsv"):
        table.to_csv(path, index=False, sep="\t" if kind == "tsv" else ",")
        return path, None
    if kind == "parquet":
        table.to_parquet(path)
        return path, None
    if kind == "npz":
        np.savez(path, probs=probs, labels=np.asarray(labels))
        return path, None
    if kind.startswith("npy"):
        np.save(path, probs)
        np.save(folder / "labels.npy", np.asarray(labels))
        (folder / "labels.txt").write_text("".join(f"{label}\n" for label in labels))
        return path, folder / ("labels.txt" if "txt" in kind else "labels.npy")
    if kind == "pandas":
        return table, None
    if kind == "polars":
        return pl.DataFrame(table.to_dict("list")), None
    return probs, np.asarray(labels)


# (names of the classes, truth as indices, how the labels are written, what comes of it in typed and untyped formats)
RIGHT, ERROR = "right", "two readings"
CASES: dict[str, tuple[tuple[str, ...], Any, Any, str, str]] = {
    "names": (ANIMALS, np.arange(50) % 5, lambda y: [ANIMALS[k] for k in y], RIGHT, RIGHT),
    "indices": (ANIMALS, np.arange(50) % 5, lambda y: y, RIGHT, RIGHT),
    "indices as floats": (ANIMALS, np.arange(50) % 5, lambda y: y.astype(float), RIGHT, RIGHT),
    # The three files that were read wrong: ratings 3 to 6 of 3 to 9, and zero-based indices under the names 1 to 5.
    "ratings as integers": (RATINGS, np.arange(50) % 4, lambda y: y + 3, ERROR, ERROR),
    "all ratings as integers": (RATINGS, np.arange(50) % 7, lambda y: y + 3, RIGHT, RIGHT),
    "ratings as text": (RATINGS, np.arange(50) % 4, lambda y: [str(k + 3) for k in y], RIGHT, ERROR),
    "ratings as floats": (RATINGS, np.arange(50) % 7, lambda y: (y + 3).astype(float), RIGHT, RIGHT),
    "some ratings as floats": (RATINGS, np.arange(50) % 4, lambda y: (y + 3).astype(float), ERROR, ERROR),
    "zero-based indices": (ONE_TO_FIVE, np.arange(50) % 5, lambda y: y, RIGHT, RIGHT),
    "zero-based indices without a zero": (ONE_TO_FIVE, 1 + np.arange(50) % 4, lambda y: y, ERROR, ERROR),
    "one-based names": (ONE_TO_FIVE, np.arange(50) % 5, lambda y: y + 1, RIGHT, RIGHT),
    "names that are the indices": (tuple("01234"), np.arange(50) % 5, lambda y: y, RIGHT, RIGHT),
}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", CASES)
def test_format_reads_kind_of_label(name: str, kind: str, tmp_path: Path) -> None:
    names, truth, write, typed, untyped = CASES[name]
    probs = predictions(len(names), truth)
    given, labels = source(kind, probs, write(truth), names, tmp_path)
    outcome = untyped if kind in UNTYPED else typed
    if outcome == ERROR:
        with pytest.raises(
            ValueError, match=r"can be the class called '\d' .* or the class with index \d .* label_kind="
        ):
            ew.evaluate(given, labels, chain(names), intervals=False)
        meant = "index" if "indices" in name else "name"
        result = ew.evaluate(given, labels, chain(names), intervals=False, label_kind=meant)  # type: ignore[arg-type]
    else:
        result = ew.evaluate(given, labels, chain(names), intervals=False)
    assert_allclose(result.report["accuracy"].value, 0.9)
    assert_array_equal(result.models[0].rows.labels, truth)


def test_both_readings_are_shown() -> None:
    with pytest.raises(ValueError, match="can be") as caught:
        ew.evaluate(np.eye(7), [3, 4, 5, 6, 3, 4, 5], chain(RATINGS), intervals=False)
    assert str(caught.value).startswith(
        "labels: 3 can be the class called '3' (index 0) or the class with index 3 ('6'); choose with label_kind="
    )


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["cat", "dgo"], r"1 not among the classes of the space: 'dgo' \(near: 'dog'\)"),
        ([0, 7], r"expected class indices from 0 to 4, got '7' in row 1"),
        ([0, -1], r"expected class indices from 0 to 4, got '-1' in row 1"),
        (["cat", ""], "expected a label in each row, got none in row 1"),
        (["cat", "3"], "1 not among the classes of the space: '3'"),
    ],
)
def test_labels_that_are_no_classes(kind: str, labels: list[Any], message: str, tmp_path: Path) -> None:
    given, apart = source(kind, np.eye(5)[:2], labels, ANIMALS, tmp_path)
    with pytest.raises(ValueError, match=message) as caught:
        ew.evaluate(given, apart, chain(ANIMALS), intervals=False)
    assert "\n" not in str(caught.value).strip()


def test_missing_labels_of_data_frames() -> None:
    table = pd.DataFrame(np.eye(5), columns=ANIMALS)
    for values in ([0, 1, None, 3, 4], ["cat", "dog", None, "fox", "gnu"]):
        with pytest.raises(ValueError, match="expected a label in each row, got none in row 2"):
            ew.evaluate(table.assign(label=values), None, chain(ANIMALS), intervals=False)
        with pytest.raises(ValueError, match="expected a label in each row, got none in row 2"):
            ew.evaluate(pl.DataFrame(table.to_dict("list")).with_columns(label=pl.Series(values)), None, chain(ANIMALS))


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "pandas", "polars"])
def test_label_column_another_name_row_numbers(kind: str, tmp_path: Path) -> None:
    table = pd.DataFrame(np.eye(5), columns=ANIMALS)
    table.insert(0, "id", np.arange(5) + 100)
    table["species"] = ANIMALS
    path = tmp_path / f"a.{kind}"
    if kind in ("csv", "tsv"):
        table.to_csv(path, sep="\t" if kind == "tsv" else ",")  # with the index as a column without a name
    elif kind == "parquet":
        table.set_index(np.array([3, 1, 4, 1, 5])).to_parquet(path)
    given: Any = {"pandas": table, "polars": pl.DataFrame(table.to_dict("list"))}.get(kind, path)
    with pytest.raises(ValueError, match=r"expected one column called label, labels or target, got 0; .*label_column"):
        ew.evaluate(given, None, chain(ANIMALS), intervals=False)
    result = ew.evaluate(given, None, chain(ANIMALS), label_column="species", intervals=False)
    assert result.report["accuracy"].value == 1
    with pytest.raises(ValueError, match="expected a column 'kind' with the labels, got"):
        ew.evaluate(given, None, chain(ANIMALS), label_column="kind")


def test_columns_that_can_be_read_in_two_ways() -> None:
    space = chain(("1", "0", "2"))
    table = pd.DataFrame(np.eye(3), columns=["0", "1", "2"]).assign(label=["1", "0", "2"])
    with pytest.raises(ValueError, match=r"columns: 0 can be the class called '0' .index 1. or the class with index 0"):
        ew.evaluate(table, None, space)
    # By name the rows are certain of 0, 1 and 2, by index of the classes called 1, 0 and 2; the labels are 1, 0 and 2.
    for kind, right in (("name", 1), ("index", 1)):
        result = ew.evaluate(table, None, space, label_kind=kind, intervals=False)  # type: ignore[arg-type]
        assert_allclose(result.report["accuracy"].value, right / 3)


def test_ids_of_tree_are_names_too() -> None:
    tree = ew.Tree([-1, 0, 0], names=["all", "cat", "dog"], node_data={"id": ["n0", "n1", "n2"]})
    assert_array_equal(ClassIndex(tree).labels("labels", np.array(["n2", "cat", "n1"])), [1, 0, 0])


def test_names_with_numbers_that_are_not_whole() -> None:
    space = ew.Chain(3, names=["0.5", "1.0", "2.5"])
    assert_array_equal(ClassIndex(space).labels("labels", np.array([2.5, 0.5, 1.0])), [2, 0, 1])
    assert_array_equal(ClassIndex(ew.Chain(9)).labels("labels", np.array(["8.0", "3"])), [8, 3])


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match='label_kind: expected "index", "name" or None, got \'id\''):
        ew.evaluate(np.eye(5), np.arange(5), chain(ANIMALS), label_kind="id")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"labels: expected one label for each row, .*, got shape \(5, 2\)"):
        ew.evaluate(np.eye(5), np.zeros((5, 2), dtype=int), chain(ANIMALS))
    with pytest.raises(ValueError, match="labels: expected class indices or names, got complex128"):
        ew.evaluate(np.eye(5), np.zeros(5, dtype=complex), chain(ANIMALS))
    with pytest.raises(ValueError, match="expected class indices from 0 to 4, got 'cat' in row 0"):
        ew.evaluate(np.eye(5), list(ANIMALS), chain(ANIMALS), label_kind="index")


@pytest.mark.parametrize("choice", [[], ["--labels", "name"], ["--labels", "index"], ["--labels", "labels.txt"]])
def test_command_asks(choice: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    truth = np.arange(40) % 4
    pd.DataFrame(predictions(7, truth), columns=RATINGS).assign(label=truth + 3).to_csv(tmp_path / "a.csv", index=False)
    out = tmp_path / "out"
    arguments = ["evaluate", str(tmp_path / "a.csv"), "--space", "chain:3,4,5,6,7,8,9", "--no-intervals", *choice]
    code = run([*arguments, "--out", str(out)])
    shown = capsys.readouterr()
    if choice[1:] in (["name"], ["index"]):
        assert code == 0
        assert ("0.9000" in shown.out) == (choice[1] == "name")
        return
    assert code == 2
    assert shown.err.count("\n") == 1
    assert not out.exists()
    expected = "--labels-file takes a file" if choice else "--labels index or --labels name"
    assert expected in shown.err


def test_indices_that_are_to_be_read_as_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pd.DataFrame(np.eye(5), columns=ANIMALS).assign(label=range(5)).to_csv(tmp_path / "idx.csv", index=False)
    ew.save(chain(ANIMALS), tmp_path / "named.json")
    command = ["evaluate", str(tmp_path / "idx.csv"), "--labels", "name", "--space"]
    assert run([*command, str(tmp_path / "named.json")]) == 2
    assert "labels: 5 not among the classes of the space: '0', '1', '2', '3', '4'" in capsys.readouterr().err
    (tmp_path / "idx.csv").write_text("label,0,1\n0,1,0\n")
    assert run([*command, "chain:2"]) == 2
    assert "expected indices, because the classes have no names, got --labels name" in capsys.readouterr().err


def test_ids_with_several_meanings() -> None:
    """An id of two classes, and one that is also the name of another class, once meant the last of them."""
    ids = ["", "n1", "n1", "dog"]
    tree = ew.Tree([-1, 0, 0, 0], names=["thing", "cat", "dog", "emu"], node_data={"id": ids})
    for label in ("n1", "dog"):
        with pytest.raises(ValueError, match=f"expected names that only one node or class has, got '{label}'"):
            ClassIndex(tree).labels("labels", np.array([label, "cat"]))
    same = ew.Tree([-1, 0, 0], names=["thing", "cat", "dog"], node_data={"id": ["", "cat", "n2"]})
    assert_array_equal(ClassIndex(same).labels("labels", np.array(["cat", "n2"])), [0, 1])


def test_booleans_are_names_or_indices() -> None:
    values = np.array([True, False, True])
    assert ClassIndex(ew.Chain(2)).labels("labels", values).tolist() == [1, 0, 1]
    assert ClassIndex(ew.Chain(2, names=["True", "False"])).labels("labels", values).tolist() == [0, 1, 0]
    assert ClassIndex(ew.Chain(2, names=["no", "yes"])).labels("labels", values).tolist() == [1, 0, 1]
