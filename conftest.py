from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from typing import Any

# Triton decides when it is imported whether kernels are compiled or run by its interpreter, on CPU tensors.
os.environ["TRITON_INTERPRET"] = "1"
# Some virtual machines report AMX but trap its instructions, so that a product in bfloat16 ends the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import numpy as np
import pytest
import torch
from hypothesis import settings
from packaging.version import Version

# Few examples and no deadline, so that the suite is the same on a slow machine; `make fuzz` looks for longer.
settings.register_profile("default", deadline=None, max_examples=60, derandomize=True)
# For `make test-lowest`, which is about other packages and not about random input.
settings.register_profile("few", deadline=None, max_examples=10, derandomize=True)
settings.load_profile("default")

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests of compiled code where the compiler breaks the graph at a loss: before torch 2.12."""
    if Version(torch.__version__) < Version("2.12"):
        for item in items:
            if "compil" in item.nodeid:
                item.add_marker(pytest.mark.skip(reason="needs torch 2.12: older compilers break the graph"))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    """Forget what a test compiled: the compiler gives up on a function that was compiled too often in one process."""
    yield
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None and dynamo.counters:
        torch._dynamo.reset()
        dynamo.counters.clear()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    found = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if found is None:
        pytest.skip(f"needs a browser: {', '.join(BROWSERS)}")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()
