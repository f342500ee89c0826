from __future__ import annotations

import pytest

from earthwork.kernels.cpu import backend

assert backend() != "none"


@pytest.fixture(autouse=True)
def _kernels_on_small_input_too(monkeypatch):
    monkeypatch.setattr("earthwork.transport.routes.MIN_ENTRIES", 0)
