"""Lightning's notices that do not concern a user of the harness."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_NOTICES = (
    # The metrics are synchronised by torchmetrics before they are logged.
    r"It is recommended to use `self\.log\(.*sync_dist=True\)` when logging on epoch level",
    # Lightning's own use of PyTorch.
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    # Resuming in the middle of an epoch leaves modules as they were saved.
    r"Found \d+ module\(s\) in eval mode at the start of training",
)


@contextmanager
def without_chatter() -> Iterator[None]:
    """Leave out known notices of Lightning and its log of devices; real warnings still come through."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        for notice in _NOTICES:
            warnings.filterwarnings("ignore", notice)
        for logger in loggers:
            logger.setLevel(logging.WARNING)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
