"""Measure what a distance between number tokens adds to cross entropy, on sums that a small decoder learns.

The numbers 0 to 998 are tokens, the input is two of them below 500, the label is their sum. A GPT-2 of a million
parameters is trained from scratch by cross entropy plus 0.3 times `TokenEMDLoss`, with ρ = 1 and 2, and with the costs
as they are (at ρ = 1 the number token loss of Zausinger et al.) or scaled to a smaller diameter. The learning rate is
chosen for each loss and seed by the mean absolute error on validation data.

    python scripts/measure_number_tokens.py          # about seven minutes on one core; needs transformers
"""

from __future__ import annotations

import argparse
import statistics
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel

import earthwork as ew

NUMBERS, LARGEST = 999, 499
WEIGHT = 0.3
RATES = (1e-3, 2e-3)
DIAMETERS = (9.0, 99.0, None)


class Scores(NamedTuple):
    """What a trained network reaches on some sums, by its most probable and by its least-risk answers."""

    accuracy: float
    decided_accuracy: float
    error: float
    decided_error: float


def sums(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Pairs of numbers ``[count, 2]`` and their sums ``[count]``."""
    pairs = torch.randint(LARGEST + 1, (count, 2), generator=torch.Generator().manual_seed(seed))
    return pairs, pairs.sum(-1)


def decoder(seed: int) -> GPT2LMHeadModel:
    """A decoder of 0.9 million parameters with random weights."""
    torch.manual_seed(seed)
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    special = {"bos_token_id": None, "eos_token_id": None}
    size = {"vocab_size": NUMBERS, "n_positions": 2, "n_embd": 128, "n_layer": 4, "n_head": 4}
    return GPT2LMHeadModel(GPT2Config(**size, **no_dropout, **special))


def train(extra: ew.TokenEMDLoss | None, rate: float, seed: int, steps: int) -> GPT2LMHeadModel:
    """A decoder that was trained on random batches of 64 sums."""
    model = decoder(seed)
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    pairs, labels = sums(20_000, 1000 + seed)
    for rows in torch.randint(len(pairs), (steps, 64)):
        logits = model(pairs[rows]).logits[:, -1]
        loss = functional.cross_entropy(logits, labels[rows])
        if extra is not None:
            loss = loss + WEIGHT * extra(logits, labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model


@torch.no_grad()
def scores(model: GPT2LMHeadModel, seed: int) -> Scores:
    """Accuracies and mean absolute errors on 1,000 sums."""
    pairs, labels = sums(1_000, seed)
    p = model(pairs).logits[:, -1].softmax(-1)
    both = [p.argmax(-1), ew.decide(p, ew.Chain(NUMBERS))]
    accuracies = [(answers == labels).double().mean().item() for answers in both]
    return Scores(*accuracies, *((answers - labels).abs().double().mean().item() for answers in both))


def measure(extra: ew.TokenEMDLoss | None, seed: int, steps: int) -> Scores:
    """The scores on test data with the learning rate that is best on validation data."""
    models = [train(extra, rate, seed, steps) for rate in RATES]
    best = min(models, key=lambda model: scores(model, 2000 + seed).error)
    return scores(best, 3000 + seed)


def losses() -> dict[str, ew.TokenEMDLoss | None]:
    """The losses that are added to cross entropy, by name."""
    found: dict[str, Any] = {"cross entropy alone": None}
    for rho, diameter in product((1, 2), DIAMETERS):
        costs = "raw values" if diameter is None else f"diameter {diameter:g}"
        found[f"+ EMD, ρ = {rho}, {costs}"] = ew.TokenEMDLoss(range(NUMBERS), range(NUMBERS), rho, diameter=diameter)
    return found


HEADER = ("loss", "accuracy, least risk", "MAE, most probable", "MAE, least risk")


def _range(values: list[float], unit: str = "") -> str:
    return f"{statistics.fmean(values):.1f}{unit} ({min(values):.1f}–{max(values):.1f})"


def main(seeds: int = 3, steps: int = 300) -> str:
    """The table of all losses: means over seeds, and the range."""
    lines = [f"| {' | '.join(HEADER)} |", "|---|---:|---:|---:|"]
    print("\n".join(lines), flush=True)
    for name, extra in losses().items():
        _, accuracy, *errors = zip(*(measure(extra, seed, steps) for seed in range(seeds)), strict=True)
        share = _range([100 * one for one in accuracy], " %")
        lines.append(f"| {' | '.join([name, share, *(_range(list(found)) for found in errors)])} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    torch.set_num_threads(1)
    main(**vars(parser.parse_args()))
