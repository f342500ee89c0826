"""A simulated problem whose classes look alike as far as they are near in a tree. Not real data."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from earthwork.lab.training.data import TrainingData, make_data
from earthwork.spaces import Tree


def simulated_data(
    tree: Tree, seed: int, *, per_class: int = 10, val_per_class: int = 10, features: int = 64, noise: float = 4.0
) -> TrainingData:
    """Gaussian classes whose centres diffuse down the tree.

    The root is at 0, and each node is at its parent plus a standard normal step times the root of its edge's cost. So
    the squared distance between the centres of two classes is, on average, the tree's distance between them times the
    number of features. Each example is its class's centre plus noise.

    Args:
        tree: The hierarchy.
        seed: The seed of centres and examples.
        per_class: Training examples of each class.
        val_per_class: Validation examples of each class.
        features: The length of an example.
        noise: The standard deviation of an example about its centre.

    Example:
        >>> import earthwork as ew
        >>> from earthwork.lab.training import simulated_data
        >>> data = simulated_data(ew.trees.cifar10(), seed=0, per_class=5)
        >>> len(data.train), data.shape
        (50, (64,))
    """
    random = np.random.default_rng([seed, 2])
    centres = tree_walk(tree, features, random)
    parts = [_examples(centres, count, noise, random) for count in (per_class, val_per_class)]
    return make_data(parts[0], parts[1], tree)


def tree_walk(tree: Tree, features: int, random: np.random.Generator) -> NDArray[np.float64]:
    """A position for each class: a random walk from the root down to it, ``[bins, features]``."""
    parents, depths = tree.parents.cpu().numpy(), tree.depths.cpu().numpy()
    costs = np.insert(tree.costs.cpu().numpy().astype(float), tree.root, 0.0)
    places = random.standard_normal((tree.num_nodes, features)) * np.sqrt(costs)[:, None]
    for depth in range(1, tree.depth + 1):
        level = np.flatnonzero(depths == depth)
        places[level] += places[parents[level]]
    chosen: NDArray[np.float64] = places[tree.bins.cpu().numpy()]
    return chosen


def _examples(
    centres: NDArray[np.float64], per_class: int, noise: float, random: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    labels = np.repeat(np.arange(len(centres)), per_class)
    x = centres[labels] + noise * random.standard_normal((len(labels), centres.shape[1]))
    return x.astype(np.float32), labels
