"""The table of docs/guides/several-labels.md: ``EARTHWORK_DATA=… python scripts/measure_several_labels.py [seeds]``.

Texts that are made of one to three articles of WikiVitals, with the articles' categories as labels. A seed takes about
ten minutes. Needs scikit-learn, and earthwork-lab for the articles.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import Tensor, nn
from torch.nn import functional

import earthwork as ew
from earthwork_lab.study.texts import article_texts

TEXTS, LABELS, TREE = article_texts(Path(os.environ["EARTHWORK_DATA"]) / "wikivitals")
COUNTS = (4000, 800, 1200)
RATES, EPOCHS, THRESHOLDS = (1e-3, 4e-3), 20, (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6)
Part = tuple[Tensor, Tensor]


def data(seed: int) -> list[Part]:
    """Features and sets of labels for training, validation and test, from different articles."""
    rng = np.random.default_rng(seed)
    order, first, second = rng.permutation(len(LABELS)), int(0.6 * len(LABELS)), int(0.8 * len(LABELS))
    parts = np.split(order, [first, second])
    known = [TEXTS[at] for at in parts[0]]
    words = TfidfVectorizer(sublinear_tf=True, min_df=3, max_features=20000, stop_words="english").fit(known)
    reduced = TruncatedSVD(256, random_state=0).fit(words.transform(known))
    found = [_texts(rng, part, count) for part, count in zip(parts, COUNTS, strict=True)]
    rows = [
        functional.normalize(torch.from_numpy(reduced.transform(words.transform(texts))).float()) for texts, _ in found
    ]
    mean, std = rows[0].mean(0), rows[0].std(0)
    return [((x - mean) / std, mask) for x, (_, mask) in zip(rows, found, strict=True)]


def _texts(rng: np.random.Generator, part: NDArray[np.int64], count: int) -> tuple[list[str], Tensor]:
    texts, mask = [], torch.zeros(count, TREE.num_bins, dtype=torch.bool)
    for row in range(count):
        chosen = rng.choice(part, int(rng.integers(1, 4)), replace=False)
        texts.append(" ".join(TEXTS[at] for at in chosen))
        mask[row, torch.from_numpy(LABELS[chosen])] = True
    return texts, mask


def shares(mask: Tensor) -> Tensor:
    """A share of 1/k for each of k labels."""
    return mask / mask.sum(-1, keepdim=True)


def any_below(logits: Tensor, mask: Tensor) -> Tensor:
    """Binary cross entropy of the question, for every group and class, whether any label is below it."""
    none = TREE.flow(functional.logsigmoid(-logits)).clamp(max=-1e-7)
    some = torch.log(-torch.expm1(none))
    return -torch.where(TREE.flow(mask.float()) > 0.5, some, none).sum(-1).mean()


def binary(logits: Tensor, mask: Tensor) -> Tensor:
    """Binary cross entropy, summed over the classes."""
    return functional.binary_cross_entropy_with_logits(logits, mask.float(), reduction="none").sum(-1).mean()


EMD, EDGE, ANY = ew.EMDLoss(TREE), ew.EdgeCrossEntropyLoss(TREE), ew.HierarchicalCrossEntropyLoss(TREE, alpha=0.0)
MIXED = ew.MixedLoss((0.5, EMD), (0.5, nn.CrossEntropyLoss()))
LOSSES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], bool]] = {
    "binary cross entropy of sigmoids": (binary, True),
    "the same, asked of every group (any label below it?)": (any_below, True),
    "½ EMD² + ½ cross entropy, shares": (lambda x, mask: MIXED(x, shares(mask)), False),
    "`EdgeCrossEntropyLoss`, shares": (lambda x, mask: EDGE(x, shares(mask)), False),
    "cross entropy, shares": (lambda x, mask: functional.cross_entropy(x, shares(mask)), False),
    "cross entropy, `any_of` (the wrong meaning)": (lambda x, mask: ANY(x, ew.targets.any_of(mask)), False),
    "EMD², shares": (lambda x, mask: EMD(x, shares(mask)), False),
}


def scores(answers: Tensor, truth: Tensor) -> tuple[float, ...]:
    """F1 over all labels, and over labels and their ancestors."""
    pairs = [(answers, truth), tuple(TREE.flow(sets.float()) > 0.5 for sets in (answers, truth))]
    return tuple((2 * (a & b).sum() / (a.sum() + b.sum())).item() for a, b in pairs)


def answer(logits: Tensor, sigmoids: bool, threshold: float) -> Tensor:
    """The labels above a threshold, of the largest probability for a softmax; at least one."""
    p = logits.sigmoid() if sigmoids else logits.softmax(-1)
    most = p.amax(-1, keepdim=True)
    return ((p if sigmoids else p / most) >= threshold) | (p == most)


def measure(name: str, parts: list[Part], seed: int) -> tuple[float, ...]:
    """Both scores on the test data, each with what is best for it on the validation data."""
    (x, y), (x_val, y_val), (x_test, y_test) = parts
    loss, sigmoids = LOSSES[name]
    best = [(0.0, 0.0), (0.0, 0.0)]
    for rate in RATES:
        torch.manual_seed(seed)
        hidden = nn.Sequential(nn.Dropout(0.3), nn.Linear(256, 256), nn.ReLU(), nn.Dropout(0.3))
        head = nn.Linear(256, TREE.num_bins)
        if sigmoids:
            nn.init.constant_(head.bias, -4.0)
        net = nn.Sequential(hidden, head)
        optimizer = torch.optim.Adam(net.parameters(), rate, weight_decay=1e-5)
        for _ in range(EPOCHS):
            net.train()
            for rows in torch.randperm(len(x)).split(64):
                optimizer.zero_grad()
                loss(net(x[rows]), y[rows]).backward()
                optimizer.step()
            net.eval()
            with torch.no_grad():
                on_val, on_test = net(x_val), net(x_test)
            for threshold in THRESHOLDS:
                found = scores(answer(on_val, sigmoids, threshold), y_val)
                tested = scores(answer(on_test, sigmoids, threshold), y_test)
                # By the validation data alone, also where they are equal.
                best = [(v, t) if v > b[0] else b for b, v, t in zip(best, found, tested, strict=True)]
    return tuple(tested for _, tested in best)


def main(seeds: int = 2) -> None:
    """Print the table."""
    parts = [data(seed) for seed in range(seeds)]
    print("| loss | F1 of the labels | F1 with their ancestors |\n|---|---:|---:|")
    for name in LOSSES:
        columns = zip(*(measure(name, parts[seed], seed) for seed in range(seeds)), strict=True)
        cells = [", ".join(f"{100 * x:.1f}" for x in column) for column in columns]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
