"""Files made to do harm, or damaged: one line says what is wrong, in bounded time and memory."""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import tarfile
import zipfile
import zlib
from contextlib import suppress
from dataclasses import asdict

import numpy as np
import PIL.EpsImagePlugin
import pytest
import torch
from PIL import Image

from earthwork_lab.training import Settings, images, load_model, train
from earthwork_lab.training.arrays import read_arrays
from earthwork_lab.training.images import BadImageError, decode, image_side, read_folder, unpacked
from earthwork_lab.training.recorder import checkpoint_name, last_good, load_checked, save_checked
from earthwork_lab.training.summary import RunResult, read_result, write_result
from lab.tests.training.helpers import LINEAR, tiny_options, write_arrays

PIXELS = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM"])
def test_formats_that_are_read_whatever_name(tmp_path, kind):
    PIXELS.save(tmp_path / "a.png", kind)
    assert decode(tmp_path / "a.png", 4).shape == (4, 4, 3)


def test_eps_file_does_not_start_ghostscript(tmp_path, monkeypatch):
    PIXELS.save(tmp_path / "a.png", "EPS")
    monkeypatch.setattr(PIL.EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("Ghostscript was started"))
    for read in (image_side, lambda path: decode(path, 4)):
        with pytest.raises(BadImageError, match=r"a\.png: cannot identify image file"):
            read(tmp_path / "a.png")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes on this system")
def test_pipes_and_devices_are_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    (tmp_path / "folder.png").mkdir()
    for path in tmp_path.iterdir():
        with pytest.raises(BadImageError, match=rf"{path.name}: expected a regular file"):
            decode(path, 4)


def test_huge_file_is_not_read(tmp_path):
    with (tmp_path / "a.png").open("wb") as file:
        file.truncate(2**41)
    with pytest.raises(BadImageError, match=r"a\.png: expected a file of at most 1073741824 bytes, got 2199023255552"):
        decode(tmp_path / "a.png", 4)


@pytest.mark.parametrize("side", [10_000, 50_000, 2**31 - 1])
def test_many_pixels_are_not_decoded(tmp_path, side):
    """The header of a PNG: width, height, 8 bits of RGB."""
    header = struct.pack(">II5B", side, side, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 1000)), (b"IEND", b"")]
    parts = [struct.pack(">I", len(x)) + name + x + struct.pack(">I", zlib.crc32(name + x)) for name, x in chunks]
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    with pytest.raises(BadImageError, match=r"a\.png: Image size \(\d+ pixels\) exceeds limit"):
        decode(tmp_path / "a.png", 4)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM"])
def test_damaged_images(tmp_path, kind):
    random = np.random.default_rng(0)
    buffer = io.BytesIO()
    PIXELS.save(buffer, kind)
    path = tmp_path / "a.png"
    for _ in range(100):
        data = np.frombuffer(buffer.getvalue(), np.uint8).copy()
        data[random.integers(len(data), size=3)] = random.integers(256, size=3)
        path.write_bytes(data[: random.integers(1, len(data) + 1)].tobytes())
        with suppress(BadImageError):
            decode(path, 4)


def test_annotations_name_files_of_own_folder(tmp_path):
    (tmp_path / "train" / "cat").mkdir(parents=True)
    PIXELS.save(tmp_path / "train" / "cat" / "0.png")
    (tmp_path / "val").mkdir()
    (tmp_path / "val" / "val_annotations.txt").write_text("../../secret.png\tcat\n")
    with pytest.raises(ValueError, match=r"line 1: expected the name of a file, got '\.\./\.\./secret\.png'"):
        read_folder(tmp_path)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EARTHWORK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("name", ["a.zip", "a.tar"])
def test_archive_larger_than_disk(tmp_path, cache, monkeypatch, name):
    path, content = tmp_path / name, b"\0" * 10_000
    if name == "a.zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("train/cat/0.png", content)
    else:
        with tarfile.open(path, "w:xz") as archive:
            member = tarfile.TarInfo("train/cat/0.png")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    usage = type("Usage", (), {"free": 9_999})
    monkeypatch.setattr(images.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ValueError, match=f"{name}: cannot be unpacked: its files take 10000 bytes or more, and 9999"):
        unpacked(path, lambda _: None)
    assert not list(cache.iterdir()), "nothing is left in the cache"


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_damaged_zip_members(tmp_path, cache, method):
    random = np.random.default_rng(0)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as archive:
        archive.writestr("train/cat/0.png", random.bytes(2000))
    good = (tmp_path / "a.zip").read_bytes()
    for place in range(40, 1500, 100):
        damaged = bytearray(good)
        damaged[place : place + 20] = random.bytes(20)
        path = tmp_path / f"{place}.zip"
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"{place}\.zip: cannot be unpacked"):
            unpacked(path, lambda _: None)


def test_encrypted_zip(tmp_path, cache):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("train/cat/0.png", b"secret")
    data = bytearray((tmp_path / "a.zip").read_bytes())
    data[6] |= 1
    data[data.index(b"PK\1\2") + 8] |= 1
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(ValueError, match=r"a\.zip: cannot be unpacked: .* is encrypted"):
        unpacked(tmp_path / "a.zip", lambda _: None)


def test_zip_with_nameless_file(tmp_path, cache):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("x", b"content")
    # `zipfile` reads a name up to the first zero byte.
    (tmp_path / "a.zip").write_bytes((tmp_path / "a.zip").read_bytes().replace(b"x", b"\0"))
    with pytest.raises(ValueError, match=r"a\.zip: cannot be unpacked: one of its files has no name"):
        unpacked(tmp_path / "a.zip", lambda _: None)
    assert not list(cache.iterdir())


def test_lengths_compared_before_arrays_read(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 2)), y=np.zeros(5, np.int64))
    monkeypatch.setattr("earthwork.array_files.ArrayFile.read", lambda *_: pytest.fail("an array was read"))
    with pytest.raises(ValueError, match=r"data .*a\.npz: expected one label for each of the 4 in x, got 5"):
        read_arrays(tmp_path / "a.npz", 0)


GOOD = {
    "epoch": 1,
    "global_step": 2,
    "state_dict": {},
    "callbacks": {},
    "loops": {},
    "optimizer_states": [{}],
    "lr_schedulers": [{}],
}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "expected the state of a run, got list"),
        (torch.zeros(3), "expected the state of a run, got Tensor"),
        ({}, "expected 'epoch' of type int, got nothing"),
        ({**GOOD, "state_dict": 3}, "expected 'state_dict' of type dict, got int"),
        ({**GOOD, "optimizer_states": []}, "expected one of 'optimizer_states', got 0"),
        ({**GOOD, "loops": [1]}, "expected 'loops' of type dict, got list"),
        ({**GOOD, "state_dict": {"x": io.StringIO}}, "not a checkpoint: Weights only load failed"),
    ],
)
def test_checkpoint_with_valid_checksum_wrong_content(tmp_path, content, message):
    good, bad = tmp_path / checkpoint_name(0, 1), tmp_path / checkpoint_name(0, 2)
    save_checked(GOOD, good)
    save_checked(content, bad)
    said = []
    assert last_good(tmp_path, said.append) == good
    assert len(said) == 1
    assert message in said[0]
    assert len(said[0].splitlines()) == 1


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of one epoch, its settings and its last checkpoint."""
    folder = tmp_path_factory.mktemp("run")
    options = tiny_options(write_arrays(folder / "data.npz"), folder / "out", epochs=1, model=LINEAR)
    train(Settings(**options), say=lambda _: None)
    return options, max((folder / "out").rglob("step-*.ckpt"))


CHANGES = {
    "other shapes": lambda state: state["state_dict"].update({name: torch.zeros(1) for name in state["state_dict"]}),
    "no weights": lambda state: state["state_dict"].clear(),
    "no tensors": lambda state: state["state_dict"].update(dict.fromkeys(state["state_dict"], "x")),
    "another optimizer": lambda state: state["optimizer_states"][0].update(param_groups=[]),
    "numbers as optimizer": lambda state: state.update(optimizer_states=[7]),
    "no loops": lambda state: state["loops"].clear(),
    "other loops": lambda state: state["loops"].update(fit_loop=3),
    "numbers as callbacks": lambda state: state.update(callbacks=dict.fromkeys(state["callbacks"], 3)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_checkpoint_of_another_run_one_error(finished, tmp_path, change):
    options, checkpoint = finished
    state = load_checked(checkpoint)
    CHANGES[change](state)
    out = tmp_path / "out"
    shutil.copytree(options["out"], out)
    changed = out / checkpoint.relative_to(options["out"])
    for other in changed.parent.iterdir():
        other.unlink()
    save_checked(state, changed)
    with pytest.raises(ValueError, match=f"{changed.name}: cannot resume from it; remove it"):
        train(Settings(**{**options, "out": str(out), "epochs": 2}), resume=True, say=lambda _: None)


RESULT = RunResult("ce", 0, {"top1": "Accuracy"}, 1, {"top1": 0.5}, {"top1": 0.5}, 1.0, [{"top1": 0.5}])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ([], "expected the result of a run with loss, seed, .*, got list"),
        ({"more": 1}, "expected the result of a run with loss, seed, .*, got .*more"),
        ({"rows": [[1]]}, "expected the result of a run, got a 'rows' of another form"),
        ({"titles": [1]}, "expected the result of a run, got a 'titles' of another form"),
        ({"last": {"top1": "high"}}, "expected the result of a run, got a 'last' of another form"),
        ({"last": {}}, "expected the result of a run, got a 'last' of another form"),
        ({"epochs": "many"}, "expected the result of a run, got a 'epochs' of another form"),
        ({"seconds": {}}, "expected the result of a run, got a 'seconds' of another form"),
    ],
)
def test_result_of_odd_shape(tmp_path, change, message):
    write_result(tmp_path, RESULT)
    assert read_result(tmp_path, 1) == RESULT
    content = {**asdict(RESULT), **change} if isinstance(change, dict) else change
    (tmp_path / "result.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=rf"result\.json: {message}"):
        read_result(tmp_path, 1)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes on this system")
@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.ckpt", "a.pt"])
def test_archives_and_checkpoints_never_end(tmp_path, cache, name):
    read = {"a.ckpt": load_checked, "a.pt": load_model}.get(name, lambda path: unpacked(path, print))
    os.mkfifo(tmp_path / name)
    (tmp_path / f"zero-{name}").symlink_to("/dev/zero")
    for path in (tmp_path / name, tmp_path / f"zero-{name}"):
        with pytest.raises(ValueError, match=f"{path.name}: expected a regular file"):
            read(path)


def test_plain_ppm_files_whose_comments_take_quadratic(tmp_path):
    (tmp_path / "a.ppm").write_bytes(b"P3 3 3 255\n" + b"# x\n" * 1_000_000)
    with pytest.raises(BadImageError, match=r"a\.ppm: expected a binary PPM file, got one in plain text"):
        decode(tmp_path / "a.ppm", 4)


@pytest.mark.parametrize("name", ["wnids.txt", "val/val_annotations.txt"])
def test_lists_of_classes_that_are_not_text(tmp_path, name):
    for folder in ("train/a", "val"):
        (tmp_path / folder).mkdir(parents=True)
    PIXELS.save(tmp_path / "train" / "a" / "0.png")
    (tmp_path / name).write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=rf"{name}: expected UTF-8 text, got byte 0xff"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a file of weights"),
        (b"PK\x03\x04", "not a file of weights"),
        ([1], "expected the weights that `earthwork train` writes"),
        ({"classes": 3}, "expected the weights that `earthwork train` writes"),
        ({"mean": "x"}, "expected the weights that `earthwork train` writes"),
        ({"network": {}}, "Missing key"),
    ],
)
def test_files_of_weights_with_other_content(tmp_path, content, message):
    valid = {"model": "mlp", "classes": ["a", "b"], "mean": torch.zeros(3), "std": torch.ones(3), "network": {}}
    if isinstance(content, bytes):
        (tmp_path / "a.pt").write_bytes(content)
    else:
        torch.save({**valid, **content} if isinstance(content, dict) else content, tmp_path / "a.pt")
    with pytest.raises(ValueError, match=f"a.pt: .*{message}") as caught:
        load_model(tmp_path / "a.pt")
    assert "\n" not in str(caught.value)
