"""A pytest plugin for ``make mutation``: mutmut 3.8 asks for an attribute that pytest 9.2 no longer has."""

import pytest

if not hasattr(pytest.Item, "_nodeid"):
    pytest.Item._nodeid = property(lambda self: self.nodeid)  # type: ignore[attr-defined]
