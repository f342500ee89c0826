"""A pytest plugin for ``make mutation``: the same tests, sooner done with a mutant."""

import sys

import pytest
from hypothesis import Phase, settings

# mutmut 3.8 asks for an attribute that pytest 9.2 no longer has.
if not hasattr(pytest.Item, "_nodeid"):
    pytest.Item._nodeid = property(lambda self: self.nodeid)  # type: ignore[attr-defined]


def pytest_configure() -> None:
    """Hypothesis need not look for the smallest counterexample, nor as long for one; what that misses survives."""
    # What a test module makes when it is imported should be made by the mutant too, and not before it was put in place.
    for name in [name for name in sys.modules if name.startswith("tests.")]:
        del sys.modules[name]
    settings.register_profile(
        "mutation", settings.get_profile("default"), max_examples=20, phases=[Phase.explicit, Phase.generate]
    )
    settings.load_profile("mutation")
