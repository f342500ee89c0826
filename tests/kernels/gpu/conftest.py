from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
if not hasattr(torch.library, "triton_op"):
    pytest.skip("the GPU kernels need torch 2.6", allow_module_level=True)


@pytest.fixture(autouse=True)
def _gpu_route_on_the_cpu(monkeypatch):
    """Take the route of CUDA tensors; `conftest.py` at the root has switched Triton to its interpreter."""
    for module in ("transport.routes", "losses.emd_loss"):
        monkeypatch.setattr(f"earthwork.{module}.on_gpu", lambda x: True)
    monkeypatch.setattr("earthwork.transport.routes.is_plain", lambda *tensors: False)
    # The tests compare the kernels themselves; `test_check.py` tests the comparison on first use.
    for operator in ("labels", "pairs"):
        monkeypatch.setattr(f"earthwork.kernels.gpu.check._compare_{operator}", lambda *arguments: None)
    # The interpreter computes with NumPy, which warns of what a GPU computes silently, such as -inf - -inf.
    with np.errstate(all="ignore"):
        yield
