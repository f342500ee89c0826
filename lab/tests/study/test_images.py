"""The task on images: which images the network is trained on, and of which the features are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import earthwork as ew
from earthwork_lab.study import TASKS
from earthwork_lab.study import images as images_module
from earthwork_lab.study.images import halves, images
from earthwork_lab.study.tasks import sizes
from earthwork_lab.training.data import make_data
from lab.tests.training.helpers import write_images


def test_halves_share_no_image(rng: np.random.Generator) -> None:
    x = rng.integers(0, 256, (60, 8, 8, 3)).astype(np.uint8)
    y = np.arange(60) % 4
    data = make_data((x[:48], y[:48]), (x[48:], y[48:]), ew.Chain(4))
    learned, others = halves(data, per_class=5)
    assert torch.bincount(learned.labels).tolist() == [5, 5, 5, 5]
    assert torch.bincount(others.labels).tolist() == [10, 10, 10, 10]
    found = [part.source.take(torch.arange(len(part))).numpy() for part in (learned, others)]
    assert sorted(image.tobytes() for image in np.concatenate(found)) == sorted(image.tobytes() for image in x)
    for part, inputs in zip((learned, others), found, strict=True):
        for image, label in zip(inputs, part.labels.tolist(), strict=True):
            assert y[(x == image).all((1, 2, 3))] == [label]
    assert {image.tobytes() for image in x[48:]} <= {image.tobytes() for image in found[1]}


def test_features_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EARTHWORK_CACHE", str(tmp_path / "cache"))
    names = ew.load("tiny_imagenet200_paper").bin_names
    assert names is not None
    write_images(tmp_path / "data", per_class=12, classes=names[:3], size=32)
    table = images(tmp_path / "data", per_class=4, epochs=1)
    assert isinstance(table.space, ew.Tree)
    assert table.space.bin_names == tuple(sorted(names[:3]))
    assert np.bincount(table.y).tolist() == [20, 20, 20]
    assert table.x.shape == (60, 15)
    monkeypatch.setattr(images_module, "_features", lambda *_: pytest.fail("trained again"))
    assert (images(tmp_path / "data", per_class=4, epochs=1).x == table.x).all()


def test_few_labels_are_left_out_by_the_rule() -> None:
    assert TASKS["images"].held_out
    many = sizes(60_000, 200, "many")
    assert many is not None
    assert many[:3] == (2000, 800, 4000)
    assert sizes(60_000, 200, "few") is None
