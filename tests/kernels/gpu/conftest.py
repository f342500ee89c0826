from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def _gpu_route_on_the_cpu(monkeypatch):
    """Take the route of CUDA tensors; `conftest.py` at the root has switched Triton to its interpreter."""
    monkeypatch.setattr("earthwork.ops.operations.on_gpu", lambda x: True)
    # The tests compare the kernels themselves; `test_check.py` tests the comparison on first use.
    for operator in ("labels", "pairs"):
        monkeypatch.setattr(f"earthwork.kernels.gpu.check._compare_{operator}", lambda *arguments: None)
    # The interpreter computes with NumPy, which warns of what a GPU computes silently, such as -inf - -inf.
    with np.errstate(all="ignore"):
        yield
