from __future__ import annotations

import pytest

pytest.importorskip("numba")


@pytest.fixture(autouse=True)
def _kernels_on_small_input_too(monkeypatch):
    monkeypatch.setattr("earthwork.ops.operations.MIN_ENTRIES", 0)
