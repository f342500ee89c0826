from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import earthwork as ew

NAMES = ["animal", "vehicle", "cat", "dog", "truck", "bus", "car"]


@pytest.fixture(scope="session")
def tree() -> ew.Tree:
    return ew.Tree([-1, 0, 0, 1, 1, 2, 2, 2], names=["thing", *NAMES])


@pytest.fixture
def tree_file(tree: ew.Tree, tmp_path: Path) -> Path:
    ew.save(tree, tmp_path / "tree.json")
    return tmp_path / "tree.json"


@pytest.fixture
def case(tree: ew.Tree, rng: np.random.Generator) -> dict[str, Any]:
    """Predictions with labels that they make likely."""
    logits = rng.normal(size=(60, tree.num_bins)).astype(np.float32)
    labels = rng.integers(0, tree.num_bins, 60)
    logits[np.arange(60), labels] += 1
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    return {"logits": logits, "probs": probs, "labels": labels}
