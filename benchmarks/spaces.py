"""The trees that are measured."""

from __future__ import annotations

import numpy as np

import earthwork as ew


def random_tree(leaves: int, seed: int = 0) -> ew.Tree:
    """A random tree with as many inner nodes for its leaves as ImageNet's, and classes in no order."""
    rng = np.random.default_rng(seed)
    inner = max(2, leaves * 374 // 1000)
    above = np.r_[-1, (rng.random(inner - 1) * np.arange(1, inner)).astype(np.int64)]
    leaf_above = np.r_[np.arange(inner), rng.integers(0, inner, leaves - inner)]
    return ew.Tree(np.r_[above, leaf_above], bins=inner + rng.permutation(leaves))
