"""Which of several processes this one is."""

from __future__ import annotations

from lightning.fabric.utilities import rank_zero_only


def is_first_process() -> bool:
    """Whether this process is the one that prints and writes, as Lightning, torchrun or SLURM number them."""
    return int(getattr(rank_zero_only, "rank", 0)) == 0
