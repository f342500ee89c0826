"""What `test_processes` cannot ask of a loss of a ``DTensor``: labels that cannot be read without waiting for a GPU."""

from __future__ import annotations

import pytest
import torch

import earthwork as ew


@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_bad_labels_that_cannot_be_read(tmp_path, monkeypatch):
    """Their loss is NaN, as for a plain tensor, whatever the class weights."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    monkeypatch.setattr("earthwork.losses.contract.can_read_without_sync", lambda *tensors: False)
    labels = torch.tensor([0, 9, -7, -100, 3])
    torch.distributed.init_process_group("gloo", f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    try:
        logits = distribute_tensor(torch.randn(5, 4), init_device_mesh("cpu", (1,)), [Shard(1)])
        for weight in (None, torch.tensor([0.5, 1.0, 2.0, 3.0])):
            losses = ew.EMDLoss(ew.Chain(4), weight=weight, reduction="none")(logits, labels).full_tensor()
            assert losses.isnan().tolist() == [False, True, True, False, False]
    finally:
        torch.distributed.destroy_process_group()
