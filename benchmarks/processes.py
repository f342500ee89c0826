"""What shows only in a process of its own: the first call, and the memory held at most."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

_START = """
import json, time, torch
start = time.perf_counter()
import earthwork as ew
imported = time.perf_counter()
loss = ew.EMDLoss(ew.trees.imagenet1k(rule="paper"))
logits, labels = torch.randn(512, 1000, requires_grad=True), torch.randint(1000, (512,))
ready = time.perf_counter()
loss(logits, labels).backward()
first = time.perf_counter()
loss(logits, labels).backward()
second = time.perf_counter()
print(json.dumps({"import": imported - start, "first call": first - ready, "second call": second - first}))
"""

# The most that the process holds is reset once the logits are there.
_MEMORY = """
import json, sys, torch
import torch.nn.functional as F
import earthwork as ew
from benchmarks.spaces import random_tree

def held(what):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(what))

tree = random_tree(1_000_000)
loss = {"F.cross_entropy": F.cross_entropy, "EMDLoss": ew.EMDLoss(tree)}[sys.argv[1]]
small = torch.randn(1, 1_000_000, requires_grad=True)
loss(small, torch.tensor([0])).backward()
logits, labels = torch.randn(16, 1_000_000, requires_grad=True), torch.randint(1_000_000, (16,))
with open("/proc/self/clear_refs", "w") as reset:
    reset.write("5")
before = held("VmRSS")
loss(logits, labels).backward()
print(json.dumps({"extra": (held("VmHWM") - before) / (logits.numel() * 4)}))
"""


def start(repeats: int) -> dict[str, float]:
    """Seconds to import earthwork after torch, to the first loss, and to a second one."""
    with tempfile.TemporaryDirectory() as folder:
        # Byte code is kept between the runs, as in any installation, even where the environment forbids writing it.
        kept = {"PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""}
        run_code(_START, **kept)
        runs = [run_code(_START, **kept) for _ in range(repeats)]
    return {name: statistics.median(times[name] for times in runs) for name in runs[0]}


def memory() -> dict[str, float]:
    """The most memory held beyond what was there before, as a multiple of the logits: 16 rows of a million classes."""
    return {name: run_code(_MEMORY, name)["extra"] for name in ("F.cross_entropy", "EMDLoss")}


def run_code(code: str, *arguments: str, **environment: str) -> Any:
    """What a process with this code prints, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return json.loads(done.stdout)
