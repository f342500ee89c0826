"""Count the Python frames, and the files, of the library that one call passes through.

python scripts/frames.py
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import earthwork as ew

LIBRARY = Path(ew.__file__).parent


def frames(call: Callable[[], Any]) -> list[tuple[str, str]]:
    """Return the file and the name of every Python function of the library that a call calls."""
    found = []

    def look(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(LIBRARY):
            found.append((path.relative_to(LIBRARY).as_posix(), frame.f_code.co_name))

    # Twice before, so that tables are made and kernels are loaded.
    for _ in range(2):
        call()
    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def calls() -> dict[str, Callable[[], Any]]:
    """Return the calls to count: a labelled batch, small and large, and pairs of distributions."""
    chain, tree = ew.Chain(10), ew.Tree([-1, 0, 0, *[1] * 5, *[2] * 5])
    losses = [ew.EMDLoss(chain), ew.EMDLoss(tree), ew.EdgeCrossEntropyLoss(chain)]
    found: dict[str, Callable[[], Any]] = {}
    for rows in (4, 64):
        x, labels = torch.randn(rows, 10, requires_grad=True), torch.randint(10, (rows,))
        p = x.detach().softmax(-1)
        for loss in losses:
            found[f"{type(loss).__name__}, {loss.space}, {rows} rows"] = partial(loss, x, labels)
        found[f"emd, {chain}, {rows} rows"] = partial(ew.emd, p, p, chain, 2.0)
    return found


def main() -> None:
    """Print the counts, or with ``--list`` every frame."""
    parser = argparse.ArgumentParser(description="Count the frames and files of the library that calls pass through.")
    parser.add_argument("--list", action="store_true", help="print every frame")
    listed = parser.parse_args().list
    for name, call in calls().items():
        found = frames(call)
        print(f"{name}: {len(found)} frames in {len({file for file, _ in found})} files")
        if listed:
            print("".join(f"    {file}: {function}\n" for file, function in found), end="")


if __name__ == "__main__":
    main()
