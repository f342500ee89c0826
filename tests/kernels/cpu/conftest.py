from __future__ import annotations

import pytest

from earthwork.kernels.cpu import loading

CORE = loading.library()


def _builds():
    """The builds of the kernels that this machine can run."""
    if CORE is None:
        return []
    before = CORE.ew_build()
    found = [name for name in loading.BUILDS if CORE.ew_use_build(name.encode())]
    CORE.ew_use_build(before)
    return found


@pytest.fixture(autouse=True)
def _kernels():
    assert CORE is not None, "the compiled kernels are missing: reinstall the package with a C++ compiler"


@pytest.fixture(params=_builds())
def each_build(request):
    """Every build of the kernels that this machine can run."""
    before = CORE.ew_build()
    CORE.ew_use_build(request.param.encode())
    yield request.param
    CORE.ew_use_build(before)


@pytest.fixture
def threads_on_small_input():
    """Several threads even if there are only a few elements for each."""
    CORE.ew_set_elements_per_thread(1)
    yield
    CORE.ew_set_elements_per_thread(0)
