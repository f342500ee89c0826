"""Every format gives the same predictions; every broken file its message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from pyarrow import parquet

import earthwork as ew
from earthwork.evaluation import ClassIndex, open_predictions, sources

pl = pytest.importorskip("polars")


def read(path: Any, tree: ew.Space, labels: Any = None) -> tuple[Any, np.ndarray, np.ndarray]:
    opened = open_predictions(path, ClassIndex(tree), labels)
    values, truth = zip(*opened, strict=True)
    return opened.kind, np.concatenate(values), np.concatenate(truth)


def frame(case: dict[str, Any], names: list[str], key: str = "probs") -> pd.DataFrame:
    table = pd.DataFrame(case[key], columns=names)
    table.insert(2, "label", case["labels"])
    return table


@pytest.fixture(params=[1, 7, 10_000], autouse=True)
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tree: ew.Tree) -> None:
    monkeypatch.setattr(sources, "_PIECE", request.param * tree.num_bins)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("key", ["probs", "logits"])
def test_npz(save: Callable[..., None], key: str, tree: ew.Tree, case: dict[str, Any], tmp_path: Path) -> None:
    save(tmp_path / "a.npz", **{key: case[key], "labels": case["labels"]})
    kind, values, labels = read(tmp_path / "a.npz", tree)
    assert kind == key
    assert_array_equal(values, case[key])
    assert_array_equal(labels, case["labels"])


def test_npz_with_names(tree: ew.Tree, case: dict[str, Any], tmp_path: Path, rng: np.random.Generator) -> None:
    names = np.array(tree.bin_names)
    order = rng.permutation(tree.num_bins)
    np.savez(tmp_path / "a.npz", probs=case["probs"][:, order], labels=names[case["labels"]], classes=names[order])
    _, values, labels = read(tmp_path / "a.npz", tree)
    assert_array_equal(values, case["probs"])
    assert_array_equal(labels, case["labels"])


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_columns_first_and_other_types(dtype: Any, tree: ew.Tree, case: dict[str, Any], tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", probs=np.asfortranarray(case["probs"].astype(dtype)), labels=case["labels"])
    assert_array_equal(read(tmp_path / "a.npz", tree)[1], case["probs"].astype(dtype))


@pytest.mark.parametrize("ending", ["npy", "txt"])
@pytest.mark.parametrize("named", [False, True])
def test_npy_with_labels(ending: str, named: bool, tree: ew.Tree, case: dict[str, Any], tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", case["probs"])
    labels = np.array(tree.bin_names)[case["labels"]] if named else case["labels"]
    path = tmp_path / f"labels.{ending}"
    np.save(path, labels) if ending == "npy" else path.write_text("\n".join(map(str, labels)))
    _, values, found = read(tmp_path / "a.npy", tree, path)
    assert_array_equal(values, case["probs"])
    assert_array_equal(found, case["labels"])


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
@pytest.mark.parametrize("columns", ["names", "shuffled", "0", "prob_0", "logit_0"])
def test_tables(ending: str, columns: str, tree: ew.Tree, case: dict[str, Any], tmp_path: Path) -> None:
    key = "logits" if columns == "logit_0" else "probs"
    names = list(tree.bin_names or ())
    if columns not in ("names", "shuffled"):
        names = [columns.replace("0", str(k)) for k in range(tree.num_bins)]
    table = frame(case, names, key)
    if columns == "shuffled":
        table = table[list(reversed(table.columns))]
    path = tmp_path / f"a.{ending}"
    if ending == "parquet":
        table.to_parquet(path)
    else:
        table.to_csv(path, index=False, sep="\t" if ending == "tsv" else ",")
    kind, values, labels = read(path, tree)
    assert kind == {"logit_0": "logits", "prob_0": "probs"}.get(columns)
    assert_allclose(values, case[key], rtol=1e-6)
    assert_array_equal(labels, case["labels"])


def test_parquet_of_lists(tree: ew.Tree, case: dict[str, Any], tmp_path: Path) -> None:
    table = pd.DataFrame({"logits": list(case["logits"]), "labels": np.array(tree.bin_names)[case["labels"]]})
    table.to_parquet(tmp_path / "a.parquet")
    kind, values, labels = read(tmp_path / "a.parquet", tree)
    assert kind == "logits"
    assert_array_equal(values, case["logits"])
    assert_array_equal(labels, case["labels"])


def broken(tmp_path: Path, tree: ew.Tree, case: dict[str, Any]) -> dict[str, tuple[Callable[[Path], Any], str]]:
    """For each file name how it is written, and what is said about it."""
    probs, labels = case["probs"], case["labels"]
    names = list(tree.bin_names or ())

    def cut(path: Path) -> None:
        np.save(path.with_suffix(".npy"), probs)
        path.write_bytes(path.with_suffix(".npy").read_bytes()[:-50])

    def zipped_nonsense(path: Path) -> None:
        import zipfile

        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("probs.npy", b"nonsense")
            archive.writestr("labels.npy", b"nonsense")

    return {
        "a.txt": (lambda f: f.write_text(""), r"a\.txt: expected a file ending in \.npz, \.npy, \.csv, \.tsv, \.parq"),
        "b.npz": (lambda f: f.write_bytes(b""), "the file is empty"),
        "c.npz": (lambda f: f.write_text("hello"), r"not a readable \.npz file"),
        "d.npz": (lambda f: np.savez(f, x=probs), "expected an array `probs`, `logits` or `answers`, got `x`"),
        "e.npz": (lambda f: np.savez(f, probs=probs), "expected an array `labels`, got `probs`; pass labels"),
        "f.npz": (
            lambda f: np.savez(f, probs=probs[:, 1:], labels=labels),
            r"expected predictions of shape \(rows, 5\), a column for each class of the space, got \(60, 4\)",
        ),
        "g.npz": (
            lambda f: np.savez(f, probs=probs, labels=labels[1:]),
            "as many labels as predictions, got 59 labels and 60 rows",
        ),
        "h.npz": (
            lambda f: np.savez(f, probs=probs, labels=labels + 1),
            r"labels: expected class indices from 0 to 4, got '5' in row \d+",
        ),
        "i.npz": (
            lambda f: np.savez(f, probs=probs, labels=np.array(["kat", "dog", "trukc"] * 20)),
            r"labels: 2 not among the classes of the space: 'kat' \(near: 'cat'\), 'trukc' \(near: 'truck'\)",
        ),
        "j.npz": (
            lambda f: np.savez(f, probs=probs, labels=labels.astype(object)),
            r"`labels` holds Python objects, which are not read because they could run code",
        ),
        "k.npz": (
            lambda f: np.savez(f, probs=probs, labels=labels, classes=[*names[:-1], "boat"]),
            "classes: 1 not among the classes of the space: 'boat'",
        ),
        "l.npz": (
            lambda f: np.savez(f, probs=probs, labels=labels, classes=names[1:]),
            "expected 5 names in `classes`, got 4",
        ),
        "m.npz": (
            lambda f: np.savez(f, probs=probs, labels=labels, classes=[*names[:-1], names[0]]),
            "expected each class once, got 'cat', 'cat'",
        ),
        "n.npz": (
            lambda f: np.savez(f, probs=probs, labels=labels + 0.5),
            r"labels: \d not among the classes of the space: '\d\.5'",
        ),
        "o.npz": (
            lambda f: np.savez(f, probs=probs.astype(str), labels=labels),
            "expected numbers as predictions, got",
        ),
        "p.npz": (zipped_nonsense, r"not a readable \.npz file"),
        "q.npy": (
            lambda f: np.save(f, probs),
            r"an \.npy file holds predictions only; pass labels",
        ),
        "r.csv": (lambda f: f.write_text(""), "not a readable table"),
        "s.csv": (
            lambda f: f.write_text("cat,dog\n1,0\n"),
            "expected one column called label, labels or target, got 0",
        ),
        "t.csv": (
            lambda f: frame(case, [*names[:-1], "caar"]).to_csv(f, index=False),
            r"columns: 1 not among the classes of the space: 'caar' \(near: 'car'.*\)",
        ),
        "u.csv": (
            lambda f: frame(case, names).drop(columns="dog").to_csv(f, index=False),
            "columns: 1 classes of the space are missing: dog",
        ),
        "v.csv": (
            lambda f: frame(case, names).astype(str).replace(str(labels[0]), "x").to_csv(f, index=False),
            r"labels: 1 not among the classes of the space: 'x'",
        ),
        "w.csv": (
            lambda f: f.write_text(",".join(["label", *names]) + "\n0,1,0,zero,0,0\n"),
            r"w\.csv: .*zero",
        ),
        "x.parquet": (lambda f: f.write_text("hello"), "not a readable Parquet file"),
        "y.parquet": (
            lambda f: pd.DataFrame({"probs": [[0.5, 0.5]], "label": [0]}).to_parquet(f),
            "expected 5 numbers in each row of column 'probs', one for each class of the space, got 2 of them in row 0",
        ),
        "z.parquet": (
            lambda f: frame(case, names).astype({"dog": str}).to_parquet(f),
            "expected numbers in column 'dog', got",
        ),
        "bytes.npz": (
            lambda f: np.savez(f, probs=probs, labels=np.array([b"\xff"] * 60)),
            r"bytes\.npz: labels: expected names in UTF-8, got b'\\xff'",
        ),
        "cut.npz": (lambda f: cut(f), r"not a readable \.npz file"),
    }


@pytest.mark.parametrize("name", [*(f"{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"), "bytes", "cut"])
def test_broken_files(name: str, tree: ew.Tree, case: dict[str, Any], tmp_path: Path) -> None:
    cases = broken(tmp_path, tree, case)
    file = next(file for file in cases if file.split(".")[0] == name)
    write, message = cases[file]
    write(tmp_path / file)
    with pytest.raises(ValueError, match=message) as caught:
        read(tmp_path / file, tree)
    assert "\n" not in str(caught.value).strip()


def test_file_that_ends_early(tree: ew.Tree, case: dict[str, Any], tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", case["probs"])
    np.save(tmp_path / "labels.npy", case["labels"])
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-50])
    with pytest.raises(ValueError, match="the file ends after 57 of 60 rows"):
        read(tmp_path / "a.npy", tree, tmp_path / "labels.npy")


def test_no_such_file(tree: ew.Tree, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        open_predictions(tmp_path / "a.npz", ClassIndex(tree))


def test_labels_went_through_table_of_floats(tree: ew.Tree, case: dict[str, Any], tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", probs=case["probs"], labels=case["labels"].astype(float))
    assert_array_equal(read(tmp_path / "a.npz", tree)[2], case["labels"])


def test_labels_without_names(case: dict[str, Any], tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", probs=case["probs"], labels=np.array(["cat"] * 60))
    with pytest.raises(
        ValueError, match="expected class indices from 0 to 4, because the classes have no names, got 'cat' in row 0"
    ):
        open_predictions(tmp_path / "a.npz", ClassIndex(ew.Tree([-1, 0, 0, 0, 0, 0])))


def test_bad_label_files(tree: ew.Tree, case: dict[str, Any], tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", case["probs"])
    (tmp_path / "none.txt").write_text("")
    with pytest.raises(ValueError, match=r"none\.txt: the file is empty"):
        open_predictions(tmp_path / "a.npy", ClassIndex(tree), tmp_path / "none.txt")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"binary\.txt: expected UTF-8 text, got byte 0xff at byte 0"):
        open_predictions(tmp_path / "a.npy", ClassIndex(tree), tmp_path / "binary.txt")
    frame(case, list(tree.bin_names or ())).to_csv(tmp_path / "a.csv", index=False)
    (tmp_path / "few.txt").write_text("0\n1\n")
    with pytest.raises(ValueError, match="expected as many labels as predictions, got 2"):
        read(tmp_path / "a.csv", tree, tmp_path / "few.txt")


NAMES = ("cat", "dog", "truck", "bus", "car")
HEADER = ",".join(["label", *NAMES])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        # A row that is too long once shifted the columns: a label 7, and 0.2 for the cat in the first row.
        (["7,0,.2,.2,.2,.2,.2"], "row 0: Expected 6 columns, got 7"),
        (["0,.2,.2,.2,.2,.2", "1,.2,.2,.2,.2,.2,.7"], "row 1: Expected 6 columns, got 7"),
        (["0,.2,.2,.2,.2,.2,", "1,.2,.2,.2,.2,.2,"], "row 0: Expected 6 columns, got 7"),
        (["0,.2,.2,.2,.2,.2", "1,.2,.2,.2"], "row 1: Expected 6 columns, got 4"),
        (["0,.2,.2,.2,.2,.2", "1,.2,True,0,.3,.2"], "column 'dog': row 1: .* 'True'"),
        (["0,.2,.2,.2,.2,.2", "1,.2,,.2,.2,.2"], "column 'dog': row 1: .* ''"),
        (["0,.2,.2,.2,.2,.2", "1,.2,.2,NA,.2,.2"], "column 'truck': row 1: .* 'NA'"),
        (["0,.2,.2,.2,.2,.2", "1,.2,.2,nan,.2,.2"], "expected finite numbers, got nan in row 1, column 'truck'"),
        (["0,.2,.2,.2,.2,.2", "1,.2,.2,1e999,.2,.2"], "expected finite numbers, got inf in row 1, column 'truck'"),
        (['"0,.2,.2,.2,.2,.2', "1,.2,.2,.2,.2,.2"], "row 0: Expected 6 columns, got 1"),
        ([",.2,.2,.2,.2,.2"], "labels: expected a label in each row, got none in row 0"),
    ],
)
@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_rows_that_do_not_fit_header(
    rows: list[str], message: str, delimiter: str, tree: ew.Tree, tmp_path: Path
) -> None:
    path = tmp_path / ("a.csv" if delimiter == "," else "a.tsv")
    path.write_text("\n".join([HEADER, *rows]).replace(",", delimiter) + "\n")
    with pytest.raises(ValueError, match=message) as caught:
        read(path, tree)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + HEADER + "\ncat,.1,.2,.3,.4,0\ncar,0,0,0,0,1\n",
        HEADER + "\r\n\r\ncat,.1,.2,.3,.4,0\r\n\r\ncar,0,0,0,0,1",
        HEADER + ',\n"cat", .1,".2",3e-1,.4 ,0,\n"car\n",0,0,0,0,1.,\n',
        "," + HEADER + "\n0,cat,.1,.2,.3,.4,0\n1,car,0,0,0,0,1\n",
    ],
)
def test_forms_of_csv(text: str, tree: ew.Tree, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(text.encode())
    _, values, labels = read(tmp_path / "a.csv", tree)
    assert_array_equal(values, [[0.1, 0.2, 0.3, 0.4, 0], [0, 0, 0, 0, 1]])
    assert_array_equal(labels, [0, 4])


def test_columns_of_same_name(tree: ew.Tree, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"{HEADER},cat\n0,1,0,0,0,0,0\n")
    with pytest.raises(ValueError, match="expected each column once, got 'cat' again"):
        read(tmp_path / "a.csv", tree)


WIDE = [0.2] * 5
LISTS = [
    # Of 10 numbers in two rows, which were once cut into rows of five.
    (
        [[5.0, 0, 0], [0.0, 5, 0, 9, 1, 1, 1]],
        "expected 5 numbers in each row of column 'probs', .*, got 3 of them in row 0",
    ),
    ([WIDE, [*WIDE, 0.0], WIDE[1:]], "expected 5 numbers .*, got 6 of them in row 1"),
    ([WIDE, None], "expected 5 numbers .*, got None in row 1"),
    ([WIDE, [0.2, None, 0.2, 0.2, 0.4]], "column 'probs'"),
    ([WIDE, [0.2, float("nan"), 0.2, 0.2, 0.4]], "expected finite numbers, got nan in row 1, column 'probs'"),
    ([["a", "b", "c", "d", "e"]], "expected numbers in column 'probs', got "),
]


@pytest.mark.parametrize(("lists", "message"), LISTS)
def test_lists_that_are_not_rows(lists: Any, message: str, tree: ew.Tree, tmp_path: Path) -> None:
    table = pa.table({"label": [0] * len(lists), "probs": lists})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=message) as caught:
        read(tmp_path / "a.parquet", tree)
    assert str(caught.value).startswith(f"{tmp_path / 'a.parquet'}: ")
    for frame_of_lists in (table.to_pandas(), pl.from_arrow(table), pd.DataFrame(table.to_pydict())):
        with pytest.raises(ValueError, match="column 'probs'"):
            read(frame_of_lists, tree)


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.list_(pa.float64(), 5), pa.large_list(pa.float64())])
def test_kinds_of_lists(kind: Any, tree: ew.Tree, case: dict[str, Any], tmp_path: Path) -> None:
    lists = pa.array(case["probs"].tolist(), kind)
    parquet.write_table(pa.table({"label": case["labels"], "probs": lists}), tmp_path / "a.parquet")
    assert_allclose(read(tmp_path / "a.parquet", tree)[1], case["probs"], rtol=1e-6)


@pytest.mark.parametrize("form", ["parquet", "pandas", "polars"])
@pytest.mark.parametrize("kind", ["float", "int"])
def test_missing_predictions(form: str, kind: str, tree: ew.Tree, tmp_path: Path) -> None:
    whole = pa.array([1, 0], pa.float64() if kind == "float" else pa.int64())
    columns = {"label": [0, 1], **dict.fromkeys(NAMES, whole)}
    columns["bus"] = pa.array([1, None], whole.type)
    table = pa.table(columns)
    parquet.write_table(table, tmp_path / "a.parquet")
    given = {"parquet": tmp_path / "a.parquet", "pandas": table.to_pandas(), "polars": pl.from_arrow(table)}[form]
    with pytest.raises(ValueError, match="expected finite numbers, got nan in row 1, column 'bus'"):
        read(given, tree)


def test_nullable_columns_of_pandas(tree: ew.Tree) -> None:
    table = pd.DataFrame({"label": [0, 1], **{name: [0.2, 0.2] for name in NAMES}})
    for missing in (pd.array([1, None], dtype="Int64"), pd.array([1, None], dtype="Float64")):
        with pytest.raises(ValueError, match="column 'bus'"):
            read(table.assign(bus=missing), tree)
    for labels in (pd.array(["cat", None], dtype="string"), pd.array([0, None], dtype="Int64")):
        with pytest.raises(ValueError, match="labels: expected a label in each row, got none in row 1"):
            read(table.assign(label=labels), tree)
    assert_array_equal(read(table.astype({"label": "Int64"} | dict.fromkeys(NAMES, "Float64")), tree)[2], [0, 1])


def test_masked_arrays(tree: ew.Tree) -> None:
    values = np.ma.masked_array(np.eye(5), mask=np.eye(5) > 0)
    with pytest.raises(ValueError, match="predictions: expected an array without masked entries, got 5"):
        read(values, tree, np.arange(5))
    with pytest.raises(ValueError, match="labels: expected an array without masked entries, got 1"):
        read(np.eye(5), tree, np.ma.masked_array(np.arange(5), mask=[0, 0, 1, 0, 0]))


def test_labels_of_another_shape(tree: ew.Tree, tmp_path: Path) -> None:
    labels = np.array([[0, 1], [2, 3]])
    np.savez(tmp_path / "a.npz", probs=np.eye(5)[:4], labels=labels)
    np.save(tmp_path / "labels.npy", labels)
    with pytest.raises(
        ValueError, match=r"labels: expected one label for each row, shape \[rows\], got shape \(2, 2\)"
    ):
        read(tmp_path / "a.npz", tree)
    with pytest.raises(ValueError, match=r"labels\.npy: expected one label for each row, .* got shape \(2, 2\)"):
        read(np.eye(5)[:4], tree, tmp_path / "labels.npy")
    np.save(tmp_path / "labels.npy", labels.reshape(4, 1))
    assert_array_equal(read(np.eye(5)[:4], tree, tmp_path / "labels.npy")[2], [0, 1, 2, 3])


def test_lines_of_label_files(tmp_path: Path) -> None:
    # The second name holds the sign for "next line", at which Python's `splitlines` splits.
    space = ew.Chain(2, names=["cat", "big\x85dog"])
    path = tmp_path / "labels.txt"
    for text in ("\ufeffcat\nbig\x85dog\n", "cat\r\nbig\x85dog", "cat\rbig\x85dog\r"):
        path.write_bytes(text.encode())
        assert_array_equal(read(np.eye(2), space, path)[2], [0, 1])
    path.write_text("cat\n\nbig\x85dog\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"labels\.txt: expected a label in each row, got none in row 1"):
        read(np.eye(3)[:, :2], space, path)
