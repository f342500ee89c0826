"""What is known about the machine."""

from __future__ import annotations

import os

import pytest

from earthwork_lab.environment import available_cores


def test_cores_on_systems_not_tell_available(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= available_cores() <= (os.cpu_count() or 1)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert available_cores() == os.cpu_count()
