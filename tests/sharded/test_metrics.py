"""Metrics that add up batches, on a ``DTensor``; the functions behind them are compared in `test_processes`."""

from __future__ import annotations

import pytest
import torch

import earthwork as ew
from tests.cases import random_space

pytest.importorskip("torchmetrics")


@pytest.mark.filterwarnings("ignore")
def test_metrics_add_up_batches(rng, tmp_path):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    space = random_space(rng, "tree", 30)
    logits, labels = torch.randn(10, space.num_bins), torch.randint(space.num_bins, (10,))
    logits[::2, 1:4] = -torch.inf
    p = logits.softmax(-1)
    torch.distributed.init_process_group("gloo", f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        for kind in (ew.metrics.MeanDistance, ew.metrics.MeanEMD, ew.metrics.HierarchicalF1, ew.metrics.ExpectedCost):
            plain, sharded = kind(space), kind(space)
            for rows in (slice(0, 4), slice(4, 10)):
                plain.update(p[rows], labels[rows])
                sharded.update(distribute_tensor(p[rows], mesh, [Shard(1)]), labels[rows])
            torch.testing.assert_close(sharded.compute(), plain.compute(), rtol=1e-6, atol=1e-6)
            of_logits = kind(space, normalize="softmax")
            torch.testing.assert_close(
                of_logits(distribute_tensor(logits, mesh, [Shard(1)]), labels), plain.compute(), rtol=1e-6, atol=1e-6
            )
        curve = ew.metrics.CalibrationCurve(space)
        with pytest.raises(TypeError, match=r"preds: expected a plain tensor for this metric.*pass preds\.full_tensor"):
            curve.update(distribute_tensor(p, mesh, [Shard(1)]), labels)
    finally:
        torch.distributed.destroy_process_group()
