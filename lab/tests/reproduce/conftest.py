from __future__ import annotations

from pathlib import Path

import pytest

from lab.tests.reproduce.tiny import write_all_results


@pytest.fixture(scope="session")
def tiny_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_all_results(tmp_path_factory.mktemp("results"))
