"""Losses, decisions and metrics of a ``DTensor`` in two, three and four gloo processes: the cases of `worker`."""

from __future__ import annotations

import json
from contextlib import suppress

import torch.multiprocessing as mp

from tests.processes import start
from tests.sharded import worker


def test_in_processes(tmp_path):
    # One test for all cases, because the start of the processes takes longer than most of them.
    with suppress(mp.ProcessRaisedException, mp.ProcessExitedException):
        start(worker.run, worker.RANKS, str(tmp_path))
    paths = [tmp_path / f"{rank}.json" for rank in range(worker.RANKS)]
    results = [json.loads(path.read_text()) if path.exists() else {} for path in paths]
    for name in worker.CASES:
        said = {result.get(name, "not finished") for result in results}
        assert said == {"passed"}, f"{name}: {max(said, key=len)}"
