"""Losses of a ``DTensor`` in two, three and four gloo processes: the cases of `worker`, all run by one set of them."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
import torch.multiprocessing as mp

from tests.sharded import worker


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    with suppress(mp.ProcessRaisedException, mp.ProcessExitedException):
        mp.spawn(worker.run, args=(str(folder),), nprocs=worker.RANKS)
    paths = [folder / f"{rank}.json" for rank in range(worker.RANKS)]
    return [json.loads(path.read_text()) if path.exists() else {} for path in paths]


@pytest.mark.parametrize("name", worker.CASES)
def test_in_processes(name, results):
    assert [result.get(name, "not finished") for result in results] == [""] * worker.RANKS
