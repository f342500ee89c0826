"""Shards in the threads of one process: sums over them by a barrier, for many small cases without start-up time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Threads:
    """As many threads as shards, which sum tensors over all of them.

    Attributes:
        sums: The number of sums and maxima so far.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.sums = 0
        self._barrier = threading.Barrier(ranks, timeout=60)
        self._tensors: list[Any] = [None] * ranks

    def run(self, function: Callable[[int, Callable[..., Tensor]], Any]) -> list[Any]:
        """What ``function(rank, reduce)`` returns in each thread."""
        results: list[Any] = [None] * self.ranks

        def work(rank: int) -> None:
            try:
                results[rank] = function(rank, lambda x, largest=False: self._reduce(rank, x, largest))
            except BaseException as error:
                results[rank] = error
                self._barrier.abort()

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(self.ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        errors = [result for result in results if isinstance(result, BaseException)]
        for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
            raise error
        return results

    def _reduce(self, rank: int, x: Tensor, largest: bool) -> Tensor:
        self._tensors[rank] = x.clone()
        self._barrier.wait()
        every = torch.stack(self._tensors)
        self._barrier.wait()
        self.sums += rank == 0
        return x.copy_(every.amax(0) if largest else every.sum(0))
