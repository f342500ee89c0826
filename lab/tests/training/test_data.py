from __future__ import annotations

import tarfile
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

import earthwork as ew
from earthwork_lab.training import Settings, images, load_data
from lab.tests.training.helpers import CLASSES, write_arrays, write_images

CIFAR = ew.trees.cifar10()


def settings(data, **options):
    return Settings(
        **{"data": str(data), "space": "cifar10", "out": "unused", "image_size": 12, "workers": 0, **options}
    )


def load(data, tree=CIFAR, seed=0, said=None, **options):
    return load_data(settings(data, **options), tree, seed, (said if said is not None else []).append)


def test_image_folder(tmp_path):
    data = load(write_images(tmp_path))
    assert data.classes == CLASSES
    assert data.space.bin_names == CLASSES
    assert data.train.labels.tolist() == [label for label in range(4) for _ in range(4)]
    assert data.shape == (12, 12, 3)
    expected = np.asarray(Image.open(tmp_path / "train" / "cat" / "2.png"))[:, 2:14]
    scaled = data.train.source.take(torch.tensor([6]))[0].numpy()
    assert np.array_equal(scaled, expected), "a 16 × 12 image loses its sides"


def test_images_on_disk_are_those_in_memory(tmp_path):
    write_images(tmp_path)
    memory, disk = load(tmp_path, cache="memory"), load(tmp_path, cache="disk", workers=1)
    every = torch.arange(16)
    assert torch.equal(memory.train.source.take(every), disk.train.source.take(every))
    assert (memory.workers, disk.workers) == (0, 1)
    assert torch.equal(memory.mean, disk.mean)


def make_tiny_imagenet(root, nested):
    wnids = ["n02123045", "n02124075", "n01443537"]
    rng = np.random.default_rng(0)
    for wnid in wnids:
        folder = root / "train" / wnid / ("images" if nested else ".")
        folder.mkdir(parents=True)
        for number in range(3):
            Image.fromarray(rng.integers(0, 256, (8, 8, 3)).astype(np.uint8)).save(folder / f"{wnid}_{number}.JPEG")
    (root / "val" / "images").mkdir(parents=True)
    lines = []
    for number, wnid in enumerate(reversed(wnids)):
        Image.fromarray(rng.integers(0, 256, (8, 8, 3)).astype(np.uint8)).save(
            root / "val" / "images" / f"val_{number}.JPEG"
        )
        lines.append(f"val_{number}.JPEG\t{wnid}\t0\t0\t7\t7\n")
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    (root / "wnids.txt").write_text("\n".join(wnids))
    return root


@pytest.mark.parametrize("nested", [False, True])
def test_layout_of_tiny_imagenet(tmp_path, nested):
    tree = ew.trees.imagenet1k()
    data = load(make_tiny_imagenet(tmp_path, nested), tree, image_size=None, model="alexnet-bn-small")
    assert data.classes == ("n01443537", "n02123045", "n02124075")
    assert data.space.bin_names == ("goldfish", "tabby", "Egyptian_cat")
    assert data.val.labels.tolist() == [0, 1, 2], "by class, as the annotations say"
    first = np.asarray(Image.open(tmp_path / "val" / "images" / "val_0.JPEG"))
    assert np.array_equal(data.val.source.take(torch.tensor([0]))[0].numpy(), first)
    assert data.shape == (8, 8, 3)


@pytest.mark.parametrize("ending", ["tar.xz", "zip"])
def test_archive_is_unpacked_once(tmp_path, monkeypatch, ending):
    monkeypatch.setenv("EARTHWORK_CACHE", str(tmp_path / "cache"))
    write_images(tmp_path / "my-data")
    archive = tmp_path / f"data.{ending}"
    if ending == "zip":
        with zipfile.ZipFile(archive, "w") as file:
            for path in sorted((tmp_path / "my-data").rglob("*.png")):
                file.write(path, path.relative_to(tmp_path))
    else:
        with tarfile.open(archive, "w:xz") as file:
            file.add(tmp_path / "my-data", "my-data")
    said = []
    assert load(archive, said=said).classes == CLASSES
    assert load(archive, said=said).classes == CLASSES
    assert sum(line.startswith("unpacking") for line in said) == 1


def test_another_process_may_unpack_same_archive_first(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("EARTHWORK_CACHE", raising=False)
    write_images(tmp_path / "my-data")
    with tarfile.open(tmp_path / "data.tar", "w") as file:
        file.add(tmp_path / "my-data", "my-data")
    extract = images._extract

    def overtaken(archive, folder):
        monkeypatch.setattr(images, "_extract", extract)
        images.unpacked(archive, print)
        extract(archive, folder)

    monkeypatch.setattr(images, "_extract", overtaken)
    assert load(tmp_path / "data.tar").classes == CLASSES
    assert len(list((tmp_path / "cache" / "earthwork").iterdir())) == 1


def test_archive_cannot_write_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("EARTHWORK_CACHE", str(tmp_path / "cache"))
    with tarfile.open(tmp_path / "evil.tar", "w") as file:
        member = tarfile.TarInfo("../../escaped.txt")
        file.addfile(member)
    with pytest.raises(ValueError, match=r"evil.tar: cannot be unpacked: .*outside the destination"):
        load(tmp_path / "evil.tar")
    assert not list(tmp_path.rglob("escaped.txt"))
    assert not list((tmp_path / "cache").iterdir()), "nothing half-done is left"


def test_damaged_archive(tmp_path, monkeypatch):
    monkeypatch.setenv("EARTHWORK_CACHE", str(tmp_path / "cache"))
    (tmp_path / "bad.tar.gz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"bad.tar.gz: cannot be unpacked"):
        load(tmp_path / "bad.tar.gz")


def test_arrays(tmp_path):
    data = load(write_arrays(tmp_path / "a.npz"))
    assert data.classes == CLASSES
    assert (len(data.train), len(data.val), data.shape) == (80, 40, (8, 8, 3))


def test_arrays_without_names_or_validation(tmp_path):
    x = np.random.default_rng(0).standard_normal((100, 3))
    y = np.arange(100) % 10
    np.savez(tmp_path / "a.npz", x=x, y=y)
    data = load(tmp_path / "a.npz")
    assert data.classes == CIFAR.bin_names
    assert np.bincount(data.val.labels.numpy()).tolist() == [2] * 10
    rows = torch.cat([data.train.source.inputs, data.val.source.inputs]).double()
    assert torch.equal(rows.sort(0).values, torch.from_numpy(x.astype(np.float32)).double().sort(0).values)


def test_class_list_gives_order(tmp_path):
    names = ["truck", "cat"]
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 2)), y=[0, 1, 0, 1], x_val=np.zeros((1, 2)), y_val=[1], classes=names)
    assert load(tmp_path / "a.npz").space.bin_names == ("truck", "cat")


def test_per_class_depends_on_seed_alone(tmp_path):
    write_arrays(tmp_path / "a.npz")
    one, again, other = (load(tmp_path / "a.npz", seed=s, per_class=5).train.source.inputs for s in (0, 0, 1))
    assert len(one) == 20
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def damage(path, how):
    if how == "truncated":
        path.write_bytes(path.read_bytes()[:200])
    else:
        path.write_text("no image")


@pytest.mark.parametrize("how", ["truncated", "no image"])
@pytest.mark.parametrize("cache", ["memory", "disk"])
def test_bad_images_are_named_or_left_out(tmp_path, how, cache):
    write_images(tmp_path)
    bad = tmp_path / "train" / "dog" / "1.png"
    damage(bad, how)
    said = []
    data = load(tmp_path, cache=cache, skip_bad=True, said=said)
    assert len(data.train) == 15
    assert data.train.labels.bincount().tolist() == [4, 4, 3, 4]
    assert len(data.bad) == 1
    assert str(bad) in data.bad[0]
    assert any("left out 1 unreadable images" in line for line in said)
    with pytest.raises(ValueError, match=r"train/dog/1.png: .*"):
        load(tmp_path, cache=cache)


def test_size_of_first_image_can_read(tmp_path):
    write_images(tmp_path)
    damage(tmp_path / "train" / "airplane" / "0.png", "no image")
    options = {"image_size": None, "model": "alexnet-bn-small"}
    assert load(tmp_path, skip_bad=True, **options).shape == (12, 12, 3)
    with pytest.raises(ValueError, match=r"train/airplane/0.png: .*"):
        load(tmp_path, **options)


@pytest.mark.parametrize("size", [None, 12])
def test_folder_without_image_that_can_be_read(tmp_path, size):
    write_images(tmp_path)
    for path in tmp_path.rglob("*.png"):
        damage(path, "no image")
    with pytest.raises(ValueError, match=r"data .*: no readable images"):
        load(tmp_path, image_size=size, model="alexnet-bn-small", skip_bad=True)


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda root: None, r"data: no such file or folder"),
        (lambda root: root.mkdir(), r"expected the folders train and val, .* missing: train, val"),
        (lambda root: (root / "train").mkdir(parents=True), r"missing: val"),
        (lambda root: [(root / p / "cat").mkdir(parents=True) for p in ("train", "val")], r"train: no images"),
        (lambda root: (write_images(root), (root / "train" / "frog").mkdir()), r"classes without images: frog"),
        (lambda root: (write_images(root), (root / "val" / "frog").mkdir()), r"without training images: frog"),
        (lambda root: (write_images(root), (root / "wnids.txt").write_text("cat bird")), r"without images: bird"),
        (lambda root: (write_images(root), [p.unlink() for p in root.glob("val/*/*.png")]), r"val: no images"),
        (
            lambda root: (write_images(root), (root / "val" / "val_annotations.txt").write_text("a.png cat")),
            r"val_annotations.txt, line 1: expected file and class with a tab between",
        ),
        (
            lambda root: write_images(root, classes=("cat", "dgo", "unicorn")),
            r"2 not in the tree: 'dgo' \(near: .*'unicorn'",
        ),
        (lambda root: root.write_text(""), r"expected a folder, an archive of one \(.* …\), an .npz file or a table"),
    ],
)
def test_refuses_folders(tmp_path, prepare, message):
    prepare(tmp_path / "data")
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "data")


X, Y = np.zeros((4, 2)), np.zeros(4, dtype=int)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, r"expected the arrays x and y, missing: y"),
        ({"x": X, "y": Y, "x_val": X}, r"expected both x_val and y_val, or neither"),
        ({"x": X, "y": Y[:3]}, r"expected one label for each of the 4 in x, got 3"),
        ({"x": X, "y": Y + 10, "x_val": X, "y_val": Y}, r"y and y_val: expected class indices from 0 to 9, got '10'"),
        ({"x": X, "y": Y - 1, "x_val": X, "y_val": Y}, r"y and y_val: expected class indices from 0 to 9, got '-1'"),
        ({"x": X, "y": Y + 0.5}, r"y: expected class names or indices \[N\], .* got float64 of shape \(4,\)"),
        ({"x": np.zeros((4, 2, 2)), "y": Y}, r"x: expected images .* got float64 of shape \(4, 2, 2\)"),
        ({"x": X[:0], "y": Y[:0]}, r"x is empty"),
        ({"x": np.array([[0.0], [np.nan]]), "y": Y[:2]}, r"x: expected finite numbers, got others in rows 1"),
        ({"x": np.zeros((4, 0)), "y": Y}, r"x is empty, of shape \(4, 0\)"),
        (
            {"x": X, "y": Y, "x_val": np.zeros((4, 3)), "y_val": Y},
            r"expected x and x_val of the same shape .* \(4, 3\)",
        ),
        ({"x": X, "y": np.array([["cat"]] * 4)}, r"y: expected class names or indices \[N\], .* of shape \(4, 1\)"),
        (
            {"x": X, "y": Y, "classes": np.array("cat")},
            r"classes: expected each name once, on one axis, got array\('cat'",
        ),
        ({"x": X, "y": Y, "classes": np.array(["cat", "cat"])}, r"classes: expected each name once, on one axis, got"),
        ({"x": X, "y": Y[:4]}, r"too few examples to hold some out"),
        (
            {"x": X, "y": np.arange(9, 13)},
            r"y and y_val: expected class .* from 0 to 9, got '10'; the space is Tree\(13",
        ),
        ({"x": X, "y": np.array(["cat", "dog", "yeti", "truck"])}, r"1 not in the tree: 'yeti'; the space is Tree\(13"),
        ({"x": X, "y": np.eye(9)[:4]}, r"y: expected 10 columns, .* got 9; the space is Tree\(13"),
        (
            {"x": X, "y": np.array(["cat", "yeti"] * 2), "x_val": X, "y_val": np.array(["cat"] * 4)},
            r"1 not in the tree: 'yeti'",
        ),
    ],
)
def test_refuses_arrays(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "a.npz")


SETS = np.array([[True, False, False], [False, True, True], [False, False, True], [True, False, False]])


def three(path, y, **arrays):
    np.savez(path, x=np.arange(8.0).reshape(4, 2), y=y, x_val=np.zeros((4, 2)), **{"y_val": y, **arrays})
    return path


def test_sets_classes_passed_on_only_exact_ones_scored(tmp_path):
    data = load(three(tmp_path / "a.npz", SETS), ew.Chain(3))
    assert torch.equal(data.train.labels, torch.from_numpy(SETS))
    assert data.val.labels.tolist() == [0, 2, 0]
    assert len(data.val.source.inputs) == 3


def test_distributions_passed_on_scored_most_probable(tmp_path):
    q = np.array([[0.5, 0.25, 0.25], [0, 1, 0], [0.1, 0.2, 0.7], [0, 0, 1]])
    data = load(three(tmp_path / "a.npz", q), ew.Chain(3))
    np.testing.assert_allclose(data.train.labels, q)
    assert data.train.labels.dtype == torch.float32
    assert data.val.labels.tolist() == [0, 1, 2, 2]


def test_names_of_inner_nodes_are_sets(tmp_path):
    names = np.array(["cat", "animal", "truck", "dog"])
    data = load(three(tmp_path / "a.npz", names))
    assert data.space.bin_names == ("cat", "dog", "truck")
    assert data.train.labels.tolist() == [
        [True, False, False], [True, True, False], [False, False, True], [False, True, False],
    ]  # fmt: skip
    assert data.val.labels.tolist() == [0, 2, 1]
    exact = np.array(["cat", "cat", "animal", "truck"])
    assert load(three(tmp_path / "b.npz", exact)).train.labels.tolist() == [0, 0, 0, 1], "cats are all its animals"


def test_held_out_labels_are_exact(tmp_path):
    y = np.repeat(SETS[:3], 10, axis=0)
    np.savez(tmp_path / "a.npz", x=np.zeros((30, 2)), y=y)
    data = load(tmp_path / "a.npz", ew.Chain(3))
    assert data.val.labels.tolist() == [0, 0, 2, 2]
    assert len(data.train) == 26
    assert len(load(tmp_path / "a.npz", ew.Chain(3), per_class=3).train) == 9


def test_names_on_chain_keep_its_order(tmp_path):
    chain = ew.Chain(3, names=["low", "medium", "high"])
    data = load(three(tmp_path / "a.npz", np.array(["high", "low", "low", "high"])), chain)
    assert data.train.labels.tolist() == [2, 0, 0, 2]
    assert data.classes == ("low", "medium", "high")
    distribution = np.array([[0.9, 0.1]] * 4)
    data = load(three(tmp_path / "b.npz", distribution, classes=np.array(["high", "low"])), chain)
    np.testing.assert_allclose(data.train.labels[0], [0.1, 0, 0.9])


def test_integers_that_also_names_not_guessed(tmp_path):
    scale = ew.Chain(5, names=["1", "2", "3", "4", "5"])
    three(tmp_path / "a.npz", np.array([1, 2, 3, 4]))
    with pytest.raises(ValueError, match=r"1 can be the class called '1' .* choose with labels="):
        load(tmp_path / "a.npz", scale)
    assert load(tmp_path / "a.npz", scale, labels="index").train.labels.tolist() == [1, 2, 3, 4]
    assert load(tmp_path / "a.npz", scale, labels="name").train.labels.tolist() == [0, 1, 2, 3]
    three(tmp_path / "b.npz", np.array([1, 2, 3, 5]))
    assert load(tmp_path / "b.npz", scale).train.labels.tolist() == [0, 1, 2, 4], "5 is only a name"
    three(tmp_path / "c.npz", np.array([0, 1, 2, 3]))
    assert load(tmp_path / "c.npz", scale).train.labels.tolist() == [0, 1, 2, 3], "0 is only an index"


@pytest.mark.parametrize(
    ("y", "space", "message"),
    [
        (SETS & False, ew.Chain(3), r"y: expected at least one class in each set, got none in rows 0, 1, 2, 3"),
        (SETS, ew.Chain(4), r"y: expected 4 columns, one for each class of the space, got 3"),
        (SETS * 0.5, ew.Chain(3), r"y: expected distributions \(≥ 0 with sum 1\), got others in rows 0, 2, 3"),
        (np.ones((4, 3), bool), ew.Chain(3), r"expected validation labels of a single class, got only sets"),
        (np.array(["a", "b"] * 2), ew.Chain(2), r"names such as 'a', but the classes of the space have no names"),
        (
            np.array(["low", "hihg"] * 2),
            ew.Chain(2, names=["low", "high"]),
            r"1 labels are not in the space: 'hihg' \(near: 'high'\)",
        ),
    ],
)
def test_refuses_labels(tmp_path, y, space, message):
    with pytest.raises(ValueError, match=message):
        load(three(tmp_path / "a.npz", y), space)


def test_refuses_damaged_array_file(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 and nothing more")
    with pytest.raises(ValueError, match=r"data .*a.npz: not a readable .npz file"):
        load(tmp_path / "a.npz")
    (tmp_path / "text.npz").write_text("x, y")
    with pytest.raises(ValueError, match=r"data .*text.npz: not a readable .npz file: File is not a zip file"):
        load(tmp_path / "text.npz")
    np.savez(tmp_path / "b.npz", x=np.array([object()]), y=[0])
    with pytest.raises(ValueError, match=r"b.npz: `x` holds Python objects, which are not read"):
        load(tmp_path / "b.npz")


def test_fingerprint_tells_classes_trees_apart(tmp_path):
    write_arrays(tmp_path / "a.npz")
    one = load(tmp_path / "a.npz").fingerprint
    other = load(tmp_path / "a.npz", tree=ew.trees.reweight(CIFAR, "depth")).fingerprint
    assert one["class list"] == other["class list"]
    assert one["space"] != other["space"]
