"""Compare ways of using coarse labels on Wikipedia articles, for docs/guides/coarse-labels.md.

A third of the training labels of the articles of Hierarchical WikiVitals is known only as the parent of the class:

    python scripts/measure_coarse_labels.py | python scripts/insert_table.py docs/guides/coarse-labels.md coarse -

The data is in $EARTHWORK_DATA. Networks, splits and the choice of configurations are those of `earthwork study losses`,
with cross entropy.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from earthwork import Tree
from earthwork_lab.statistics import interval_text, mean_interval, paired_difference
from earthwork_lab.study.contenders import CONTENDERS, descendants, softmax_head
from earthwork_lab.study.run import measure
from earthwork_lab.study.tasks import Table, Task, split
from earthwork_lab.study.texts import articles
from earthwork_lab.study.trainer import Configuration, Criterion, Head, Part, Schedule, Splits, train

SHARE = 1 / 3


def coarsened(labels: Tensor, tree: Tree) -> tuple[Tensor, Tensor, Tensor]:
    """Labels of which a share is replaced by an index of the parent; which ones; the set of classes of each index."""
    parents, place = tree.parents[tree.bins].unique(return_inverse=True)
    sets = torch.cat([torch.eye(tree.num_bins, dtype=torch.bool), descendants(tree)[parents]])
    generator = torch.Generator().manual_seed(37)
    count = round(SHARE * labels.shape[1])
    rows = torch.stack([torch.randperm(labels.shape[1], generator=generator)[:count] for _ in labels])
    chosen = torch.zeros_like(labels, dtype=torch.bool).scatter_(1, rows, value=True)
    return torch.where(chosen, tree.num_bins + place[labels], labels), chosen, sets


def mass(sets: Tensor, value: float) -> Criterion:
    """−log of the mass of the set."""

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        inside = outputs.masked_fill(~sets[labels], -torch.inf).logsumexp(-1)
        return (outputs.logsumexp(-1) - inside).sum()

    return loss


def spread(sets: Tensor, value: float) -> Criterion:
    """Cross entropy against the uniform distribution over the set."""
    targets = sets / sets.sum(-1, keepdim=True)
    return lambda outputs, labels: functional.cross_entropy(outputs, targets[labels], reduction="sum")


def main() -> None:
    """Train with every recipe and print a table."""
    load = partial(articles, None, 3)
    table: Table = Task("articles", "articles", load, "wikivitals", hidden=()).table(Path(os.environ["EARTHWORK_DATA"]))
    tree = table.space
    assert isinstance(tree, Tree)
    found = split(table, "many")
    assert found is not None
    splits, sizes = found
    x, y = splits.train
    labels, chosen, sets = coarsened(y, tree)
    fine = torch.stack([(~row).nonzero().squeeze(-1) for row in chosen])
    dropped = Part(x.gather(1, fine[:, :, None].expand(-1, -1, x.shape[2])), y.gather(1, fine))
    head = softmax_head(tree)
    plain = partial(CONTENDERS["ce"].criterion, tree)
    wider = Head(len(sets), lambda outputs: outputs[..., : tree.num_bins].log_softmax(-1))
    recipes = {
        "−log of the group's mass": (Part(x, labels), head, partial(mass, sets)),
        "spread evenly over the group's classes": (Part(x, labels), head, partial(spread, sets)),
        "dropped": (dropped, head, plain),
        "groups as further classes of the network": (Part(x, labels), wider, plain),
        "(all labels fine)": (splits.train, head, plain),
    }
    # Label smoothing has no meaning for sets, so no recipe has it.
    configurations = [
        Configuration(rate, decay, 0.0) for rate in (0.003, 0.006, 0.012) for decay in (0.03, 0.3, 1.0, 3.0)
    ]
    schedule = replace(Schedule(), hidden=())
    numbers = {}
    for name, (part, outputs, criterion) in recipes.items():
        best = train(Splits(part, splits.val, splits.test), outputs, criterion, configurations, schedule)
        numbers[name] = measure(best.log_p, splits.test.y, tree)
    overlap = sizes.test_share / (1 - sizes.test_share)
    print(f"{len(table.y)} articles, {tree.num_bins} classes, {sizes.train} to train on; five splits:\n")
    print(
        "| coarse labels | accuracy | against dropping | mean distance | against dropping |\n|---|---:|---:|---:|---:|"
    )
    for name, entry in numbers.items():
        cells = []
        for metric, scale, digits in (("accuracy", 100, 1), ("distance", 1, 3)):
            cells.append(interval_text({**mean_interval(entry[metric]), "high": None}, scale, digits))
            difference = paired_difference(entry[metric], numbers["dropped"][metric], overlap)
            cells.append("–" if name == "dropped" else interval_text(difference, scale, digits, "+").replace("-", "−"))
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
