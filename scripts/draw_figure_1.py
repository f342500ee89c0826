"""Draw figure 1 of the paper with `plot_tree`: the ellyvan, half elephant and half van.

    python scripts/draw_figure_1.py [docs/images/figure-1.png]

The paper's tree has no root: one edge joins "animal" and "vehicle". A root in the middle of that edge, with half
its cost on either side, changes neither the distance nor the gradients.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

from earthwork.plot import plot_tree
from earthwork.trees import from_edges

TREE = from_edges(
    [
        ("animal", "thing", 0.5),
        ("vehicle", "thing", 0.5),
        ("giraffe", "animal", 1.0),
        ("elephant", "animal", 1.0),
        ("truck", "vehicle", 1.0),
        ("plane", "vehicle", 1.0),
    ]
)


def main(path: str = "docs/images/figure-1.png") -> None:
    """Write the picture."""
    matplotlib.use("agg")
    ax = plot_tree(TREE, p=[0.2, 0.4, 0.2, 0.2], q=[0.0, 0.5, 0.5, 0.0])
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    ax.figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main(*sys.argv[1:])
