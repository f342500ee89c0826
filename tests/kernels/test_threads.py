"""As many threads as torch may use, and none that a fork could lose."""

from __future__ import annotations

import os
import threading
import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import earthwork as ew
from earthwork.kernels import threads
from tests.cases import random_distribution
from tests.kernels.cases import space_of


@pytest.fixture(autouse=True)
def _worth_it(monkeypatch):
    monkeypatch.setattr(threads, "_WORTH_A_THREAD", 1)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["any", "chain"])
@pytest.mark.parametrize("rows", [1, 16, 53])
def test_results_do_not_depend_on_their_number(rng, name, rows):
    space = space_of(name, rng)
    p, q = (random_distribution(rng, rows, space.num_bins).float() for _ in range(2))
    labels = torch.randint(space.num_bins, (rows,))
    results = []
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        x, logits = p.clone().requires_grad_(), p.clone().requires_grad_()
        values = ew.emd(x, q, space, 1.5), ew.EMDLoss(space)(logits, labels)
        (values[0].sum() + values[1]).backward()
        results.append([value.detach() for value in (*values, x.grad, logits.grad)])
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


def test_no_more_than_torch_may_use():
    def work(first, last):
        time.sleep(0.02)
        return threading.current_thread().name, first, last

    for count in (1, 2, 4):
        torch.set_num_threads(count)
        done = threads.over_tiles(work, (), 11, 1000)
        assert len({name for name, _, _ in done}) == len(done) == count
        assert [tile for _, first, last in done for tile in range(first, last)] == list(range(11))


def test_an_error_in_a_thread_is_raised_when_all_are_done():
    finished = []

    def work(first, last):
        if first == 0:
            raise ArithmeticError("first")
        time.sleep(0.05)
        finished.append(last)

    torch.set_num_threads(2)
    with pytest.raises(ArithmeticError, match="first"):
        threads.over_tiles(work, (), 8, 1000)
    assert finished == [8]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_starts_its_own():
    torch.set_num_threads(2)
    double = threads.over_tiles(lambda first, last: (first, last), (), 8, 1000)
    child = os.fork()
    if child == 0:
        try:
            again = threads.over_tiles(lambda first, last: (first, last), (), 8, 1000)
            os._exit(0 if again == double else 1)
        finally:
            os._exit(2)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    pytest.fail("the child waits for threads that are its parent's")


class _Distances(Dataset):
    def __init__(self, p, q, space):
        self.p, self.q, self.space = p, q, space

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return ew.emd(self.p, self.q, self.space) + index


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_in_the_workers_of_a_data_loader(rng):
    torch.set_num_threads(2)
    space = space_of("any", rng)
    p, q = (random_distribution(rng, 40, space.num_bins) for _ in range(2))
    here = ew.emd(p, q, space)
    there = list(DataLoader(_Distances(p, q, space), batch_size=None, num_workers=2, timeout=60))
    torch.testing.assert_close(torch.stack(there), torch.stack([here + i for i in range(4)]))
