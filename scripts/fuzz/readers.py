"""Valid files with some bytes changed: whatever a reader is given, it returns something or says what is wrong.

Run by ``scripts/fuzz`` in a process of its own, because a damaged file could end it.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import sys
import tarfile
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.random import Generator

import earthwork as ew
from earthwork_lab.training.arrays import read_arrays
from earthwork_lab.training.images import _extract, decode
from earthwork_lab.training.recorder import load_checked
from earthwork_lab.training.summary import read_result

# What a reader may raise; the command line turns each into one line.
_ALLOWED = (ValueError, TypeError, OSError)
_ROWS = 6
_NAMES = ["cat", "dog", "fox"]
# Slower files are findings: those here are a few kilobytes.
_MAX_SECONDS = 5.0

Reader = Callable[[Path], object]


def evaluate(path: Path) -> object:
    """Predictions."""
    labels = np.zeros(_ROWS, np.int64) if path.suffix == ".npy" else None
    return ew.evaluate(path, labels, ew.Chain(3, names=_NAMES), intervals=False)


def unpack(path: Path) -> object:
    """An archive of images."""
    with tempfile.TemporaryDirectory() as folder:
        return _extract(path, Path(folder))


def load_with_checksum(path: Path) -> object:
    """A checkpoint whose checksum is that of its content, whatever that is."""
    content = path.read_bytes()
    path.write_bytes(content + b"\nearthwork-sha256:" + hashlib.sha256(content).hexdigest().encode())
    return load_checked(path)


def seeds() -> dict[str, tuple[bytes, Reader]]:
    """For each kind of file a valid one, and what reads it."""
    rng = np.random.default_rng(0)
    probs, labels = rng.dirichlet(np.ones(3), _ROWS), np.arange(_ROWS) % 3
    tables = {f"predictions{ending}": (content, evaluate) for ending, content in _tables(probs, labels).items()}
    arrays = {"x": rng.random((_ROWS, 2)), "y": labels, "x_val": rng.random((3, 2)), "y_val": labels[:3]}
    found: dict[str, tuple[bytes, Reader]] = {
        **tables,
        "stored.npz": (_npz(np.savez, probs=probs, labels=labels, classes=np.array(_NAMES)), evaluate),
        "deflated.npz": (_npz(np.savez_compressed, logits=probs, labels=np.array(_NAMES)[labels]), evaluate),
        "predictions.npy": (_npz(np.save, arr=probs), evaluate),
        "training.npz": (_npz(np.savez, **arrays), lambda path: read_arrays(path, 0)),
        "a.zip": (_zip(rng.bytes(300)), unpack),
        "a.tar": (_tar("w", rng.bytes(300)), unpack),
        "a.tar.xz": (_tar("w:xz", rng.bytes(300)), unpack),
        "a.ckpt": (_state(), load_with_checksum),
        "result.json": (b'{"loss": "ce", "seed": 0, "rows": [{"a": 1.5}]}', lambda path: read_result(path.parent, 1)),
        "matrix.npy": (_npz(np.save, arr=1 - np.eye(3)), ew.load),
        "matrix.csv": (b"a,b\n0,1\n1,0\n", ew.load),
        "tree.json": (b'{"a": ["b", "c"], "d": null}', ew.load),
        "tree.yaml": (b"a: [b, c]\nd:\n", ew.load),
        "tree.nwk": (b"(a:1,(b:1,c:2)d:1)r;", ew.load),
        "tree.txt": (b"a/b\na/c\nd\n", ew.load),
        "tree.gml": (b"graph [ directed 1 node [ id 0 ] node [ id 1 ] edge [ source 0 target 1 ] ]", ew.load),
    }
    if find_spec("PIL"):
        found |= {
            f"{kind}.png": (_image(kind), lambda path: decode(path, 4)) for kind in ("PNG", "JPEG", "GIF", "TIFF")
        }
    return found


def _tables(probs: np.ndarray, labels: np.ndarray) -> dict[str, bytes]:
    import pandas

    frame = pandas.DataFrame(probs, columns=_NAMES).assign(label=labels)
    tables = {".csv": frame.to_csv(index=False).encode(), ".tsv": frame.to_csv(index=False, sep="\t").encode()}
    return tables | ({".parquet": frame.to_parquet()} if find_spec("pyarrow") else {})


def _npz(write: Callable[..., object], **arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    write(buffer, **arrays)
    return buffer.getvalue()


def _state() -> bytes:
    buffer = io.BytesIO()
    torch.save({"epoch": 1, "state_dict": {"weight": torch.ones(3)}, "rows": [{"a": 0.5}]}, buffer)
    return buffer.getvalue()


def _zip(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("train/cat/0.png", content)
    return buffer.getvalue()


def _tar(mode: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        member = tarfile.TarInfo("train/cat/0.png")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _image(kind: str) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(buffer, kind)
    return buffer.getvalue()


def mutated(content: bytes, rng: Generator) -> bytes:
    """``content`` with bytes changed, cut out, repeated or cut off."""
    data = bytearray(content)
    for _ in range(rng.integers(1, 5)):
        at = int(rng.integers(len(data) + 1))
        size = int(rng.integers(1, 9))
        kind = rng.integers(5)
        if kind == 0:
            data[at : at + size] = rng.bytes(size)
        elif kind == 1:
            del data[at : at + size]
        elif kind == 2:
            data[at:at] = data[at : at + size] * int(rng.integers(1, 50))
        elif kind == 3:
            del data[at:]
        elif at < len(data):
            data[at] = int(rng.choice([0, 1, 127, 128, 255, data[at] ^ 1]))
    return bytes(data)


def main() -> int:
    """Read mutated files until the time is up; the exit code is 1 if a reader failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="run only the case of this number")
    options = parser.parse_args()
    files = list(seeds().items())
    end = time.monotonic() + 60 * options.minutes
    failed: Counter[str] = Counter()
    case = options.case or 0
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            name, (content, read) = files[case % len(files)]
            path = Path(folder) / name
            path.write_bytes(mutated(content, np.random.default_rng([options.seed, case])))
            # Processor time: the machine may be busy.
            start = time.process_time()
            try:
                with suppress(*_ALLOWED):
                    read(path)
                if time.process_time() - start > _MAX_SECONDS:
                    raise AssertionError(f"took {time.process_time() - start:.0f} seconds")
            except Exception:
                failed[name] += 1
                if failed[name] <= 2:
                    print(f"\n{name}: readers.py --seed {options.seed} --case {case}\n{traceback.format_exc()}")
            case += 1
            if options.case is not None:
                break
    print(f"{'files of all kinds':<28} {case:>9,} cases {failed.total():>6,} failed", flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
