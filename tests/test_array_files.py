"""Arrays in .npz and .npy files that are damaged, encrypted, or larger than they look."""

from __future__ import annotations

import io
import os
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.lib import format as npy

import earthwork as ew
from earthwork import array_files
from earthwork.array_files import ArrayFile

METHODS = {"deflate": zipfile.ZIP_DEFLATED, "lzma": zipfile.ZIP_LZMA, "bz2": zipfile.ZIP_BZIP2}


def header(shape: tuple[int, ...], kind: str) -> bytes:
    buffer = io.BytesIO()
    npy.write_array_header_1_0(buffer, {"descr": kind, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def write(path: Path, method: int = zipfile.ZIP_DEFLATED, **members: bytes) -> None:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)


@pytest.mark.parametrize("method", METHODS)
def test_damaged_members(tmp_path: Path, method: str) -> None:
    random = np.random.default_rng(0)
    write(tmp_path / "a.npz", METHODS[method], probs=header((1000, 5), "<f4") + random.bytes(20_000))
    good = (tmp_path / "a.npz").read_bytes()
    path = tmp_path / "b.npz"
    for place in (40, 50, 60, 100, 500, 3000, 15_000):
        damaged = bytearray(good)
        damaged[place : place + 8] = random.bytes(8)
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"b\.npz: not a readable \.npz file"):
            ArrayFile(path).read("probs")
        with pytest.raises(ValueError, match=r"b\.npz: (not a readable \.npz file|the file ends)"):
            list(ArrayFile(path).stream("probs", 7))


def test_encrypted_members(tmp_path: Path) -> None:
    write(tmp_path / "a.npz", zipfile.ZIP_STORED, probs=header((2, 2), "<f4") + bytes(16))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[6] |= 1
    data[data.index(b"PK\1\2") + 8] |= 1
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(ValueError, match=r"a\.npz: not a readable \.npz file: .* is encrypted"):
        ArrayFile(tmp_path / "a.npz").shape("probs")


def test_array_larger_than_half_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.npz", labels=header((1000,), "<i8") + bytes(8000))
    monkeypatch.setattr(array_files, "_memory", lambda: 15_998)
    with pytest.raises(ValueError, match="1000 values of int64 take 8000 bytes, and at most 7999, half of the memory"):
        ArrayFile(tmp_path / "a.npz").read("labels")
    with pytest.raises(ValueError, match="take 8000 bytes"):
        next(ArrayFile(tmp_path / "a.npz").stream("labels", 1000))
    assert len(next(ArrayFile(tmp_path / "a.npz").stream("labels", 999))) == 999


def test_header_that_announces_more_than_there(tmp_path: Path) -> None:
    write(tmp_path / "a.npz", probs=header((2**40, 2), "<f4"))
    with pytest.raises(ValueError, match="values of float32 are 8796093022208 bytes, and there are 0"):
        ArrayFile(tmp_path / "a.npz").read("probs")
    with pytest.raises(ValueError, match="values of float32 take 8796093022208 bytes"):
        next(ArrayFile(tmp_path / "a.npz").stream("probs", 2**40))
    with pytest.raises(ValueError, match="the file ends after 0 of 1099511627776 rows"):
        next(ArrayFile(tmp_path / "a.npz").stream("probs", 100))


def test_texts_longer_than_names(tmp_path: Path) -> None:
    write(tmp_path / "a.npz", classes=header((1,), "<U10001") + bytes(40_004))
    with pytest.raises(ValueError, match="expected texts of at most 10000 characters, got <U10001"):
        ArrayFile(tmp_path / "a.npz").read("classes")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes on this system")
@pytest.mark.parametrize("ending", ["npz", "npy", "csv", "parquet"])
def test_pipes_are_not_opened(tmp_path: Path, ending: str) -> None:
    os.mkfifo(tmp_path / f"a.{ending}")
    with pytest.raises(ValueError, match=rf"a\.{ending}: expected a regular file"):
        ew.evaluate(tmp_path / f"a.{ending}", [0], ew.Chain(2))
    np.save(tmp_path / "p.npy", np.full((1, 2), 0.5))
    with pytest.raises(ValueError, match=rf"a\.{ending}: expected a regular file"):
        ew.evaluate(tmp_path / "p.npy", tmp_path / f"a.{ending}", ew.Chain(2))


@pytest.mark.parametrize("member", ["labels", "classes"])
def test_lengths_compared_before_anything_read(tmp_path: Path, member: str) -> None:
    """A file of 50 kB that holds 40 MB of labels or names."""
    members = {
        "probs": header((2, 2), "<f4") + np.full(4, 0.5, np.float32).tobytes(),
        "labels": header((2,), "<i8") + bytes(16),
        "classes": header((2,), "<U1") + "ab".encode("utf-32-le"),
    }
    members[member] = header((5_000_000,), "<i8" if member == "labels" else "<U2") + bytes(40_000_000)
    write(tmp_path / "a.npz", **members)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"a\.npz: expected .*, got 5000000( labels and 2 rows)?$"):
            ew.evaluate(tmp_path / "a.npz", None, ew.Chain(2, names=["a", "b"]))
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
