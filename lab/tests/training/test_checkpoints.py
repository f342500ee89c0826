from __future__ import annotations

import io

import pytest
import torch

from earthwork_lab.training.recorder import (
    BadCheckpointError,
    checkpoint_name,
    last_good,
    load_checked,
    save_checked,
)


def save(folder, step, value):
    path = folder / checkpoint_name(0, step)
    state = {"epoch": 0, "global_step": step, "optimizer_states": [{}], "lr_schedulers": [{}]}
    state |= {name: {} for name in ("state_dict", "callbacks", "loops")}
    save_checked({**state, "x": torch.tensor(value), "rows": [{"a": 0.1}]}, path)
    return path


def test_round_trip(tmp_path):
    path = save(tmp_path, 1, 3.0)
    assert load_checked(path)["x"] == 3
    assert torch.load(path, weights_only=True)["rows"] == [{"a": 0.1}], "readable without this library, too"
    assert [file.name for file in tmp_path.iterdir()] == [path.name], "no drafts are left"


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_checkpoint_cut_short_is_not_used(tmp_path, share):
    good, cut = save(tmp_path, 9, 1.0), save(tmp_path, 10, 2.0)
    content = cut.read_bytes()
    cut.write_bytes(content[: int(share * len(content))])
    said = []
    assert last_good(tmp_path, said.append) == good
    assert said == [f"skipped: {cut}: truncated (no checksum at its end)"]


def test_changed_checkpoint_is_not_used(tmp_path):
    path = save(tmp_path, 1, 1.0)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(BadCheckpointError, match=r"damaged \(the checksum does not match\)"):
        load_checked(path)
    said = []
    assert last_good(tmp_path, said.append) is None
    assert len(said) == 1


def test_nothing_is_unpickled(tmp_path):
    path = tmp_path / checkpoint_name(0, 1)
    save_checked({"x": io.StringIO}, path)
    with pytest.raises(Exception, match="Weights only load failed"):
        load_checked(path)


def test_names_sort_as_time():
    names = [checkpoint_name(epoch, step) for epoch, step in ((0, 2), (0, 10), (1, 11), (10, 1000), (99, 123456))]
    assert names == sorted(names)
