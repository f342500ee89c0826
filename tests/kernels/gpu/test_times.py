"""What ``python -m benchmarks --device cuda`` does on a GPU, with a clock that stands still."""

from __future__ import annotations

import json

import pytest
import torch
from benchmarks import gpu_times

import earthwork as ew
from earthwork.kernels.gpu import common


class Event:
    """Stands for an event of CUDA."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return 2.0


def test_table(monkeypatch, tmp_path, capsys):
    launched = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(common, "launch", lambda kernel: launched.append(kernel.__name__) or kernel)
    results = gpu_times.measure(torch.device("cpu"), 1, {"a chain, 2 × 5": (lambda: ew.Chain(5), 2)})
    # Four losses by the kernels, and three calls before the one that is timed.
    assert launched.count("label_costs_kernel") == launched.count("label_slopes_kernel") == 4 * 4
    gpu_times.report(results, tmp_path)
    assert json.loads((tmp_path / "gpu-times.json").read_text(encoding="utf-8")) == results
    rows = results["tables"]["a chain, 2 × 5"]
    assert len(rows) == 6
    assert {(row["median"], row["minimum"]) for row in rows.values()} == {(2e-3, 2e-3)}
    assert "EMDLoss, rho=2                      2000.0 µs    1.00 ×" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_gpu(tmp_path):
    with pytest.raises(SystemExit, match=r"--device: expected cuda .* on a machine that has it, got cuda"):
        gpu_times.run(torch.device("cuda"), True, tmp_path)
