"""What ``earthwork tree info`` and ``earthwork tree rules`` say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from earthwork import trees
from earthwork.spaces import Tree
from earthwork.trees.wordnet import RULES


def describe(tree: Tree) -> dict[str, str]:
    """The facts about a tree, by name."""
    children = np.bincount(tree.parents[tree.parents >= 0].cpu().numpy(), minlength=tree.num_nodes)
    branching = children[children > 0]
    costs = tree.costs.detach()
    facts = {
        "nodes": f"{tree.num_nodes:,}",
        "classes": f"{tree.num_bins:,}",
        "leaves": f"{(children == 0).sum():,}",
        "depth": f"{tree.depth:,}",
        "diameter": f"{tree.diameter().item():g}",
        "branching": f"{branching.mean():.2f} children on average, at most {branching.max():,}"
        if len(branching)
        else "none",
        "single-child nodes": f"{(children == 1).sum():,}",
        "costs": " to ".join(dict.fromkeys(f"{end.item():g}" for end in costs.aminmax())) if len(costs) else "none",
    }
    if "hops" in tree.node_data:
        facts["diameter in hops"] = f"{trees.with_costs(tree, 'hops').diameter().item():g}"
    return {name: str(value) for name, value in tree.info.items()} | facts


def rules_table(synsets: Sequence[str] | None, wordnet: Path | None) -> str:
    """A Markdown table: for each rule, with single-child nodes dropped and kept, the size and width of the tree."""
    paper = synsets is None
    if synsets is None:
        shipped = trees.imagenet1k()
        synsets = [shipped.node_data["id"][node] for node in shipped.bins.tolist()]
    rows = [
        "| rule | single-child nodes | nodes | leaves | diameter, unit edges | diameter, hops |",
        "|---|---|--:|--:|--:|--:|",
    ]
    if paper:
        rows.append("| *the paper* | *not said* | *1374* | *1000* | *26* | |")
    for rule in RULES:
        for collapse in (True, False):
            tree = trees.from_wordnet(synsets, wordnet, rule, collapse=collapse, inner_bins=True)
            unit, hops = (trees.with_costs(tree, costs).diameter().item() for costs in ("unit", "hops"))
            kept = "dropped" if collapse else "kept"
            rows.append(f"| `{rule}` | {kept} | {tree.num_nodes} | {tree.num_bins} | {unit:g} | {hops:g} |")
    return "\n".join(rows)
