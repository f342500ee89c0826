"""Kernels run on the threads of torch, or of Python where torch has none, as in a forked process."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import earthwork as ew
from earthwork.kernels.cpu import run, threads
from earthwork.kernels.cpu.loading import MachineCode
from earthwork.ops import operations as routes
from tests.cases import random_distribution
from tests.kernels.cpu.cases import space_of

THREAD_POOLS = {
    "torch": threads._torch_threads,
    "openmp": threads._openmp_threads,
    "python": threads._PythonThreads,
}


@pytest.fixture(autouse=True)
def _threads_on_small_input(monkeypatch):
    monkeypatch.setattr(threads, "_ELEMENTS_PER_THREAD", 1)
    monkeypatch.setattr(run, "MIN_PARALLEL", 0)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=THREAD_POOLS)
def _each_thread_pool(request, monkeypatch):
    chosen = THREAD_POOLS[request.param]()
    if chosen is None:
        pytest.skip(f"this build of torch has no {request.param} thread pool")
    monkeypatch.setattr(threads, "_thread_pool", chosen)


def _code(function):
    """A kernel that is a Python function."""
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)
    return MachineCode(call, ctypes.cast(call, ctypes.c_void_p).value)


@pytest.mark.usefixtures("_each_thread_pool")
@pytest.mark.parametrize("name", ["any", "chain"])
@pytest.mark.parametrize("rows", [1, 16, 53])
def test_results_do_not_depend_on_the_number_of_threads(rng, name, rows):
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


@pytest.mark.usefixtures("_each_thread_pool")
def test_an_invalid_row_is_reported_by_every_thread(rng):
    torch.set_num_threads(3)
    space = space_of("any", rng)
    p = random_distribution(rng, 80, space.num_bins)
    for row in (0, 40, 79):
        q = p.clone()
        q[row] *= 2
        with pytest.raises(ValueError, match="mass"):
            ew.emd(p, q, space)


@pytest.mark.usefixtures("_each_thread_pool")
@pytest.mark.parametrize("count", [1, 2, 4])
def test_no_more_threads_than_torch_uses(count):
    seen = []

    def work(task):
        seen.append((threading.get_ident(), task))
        time.sleep(0.02)

    torch.set_num_threads(count)
    threads.run_parallel(_code(work), 1234, count)
    assert len(seen) == len(set(seen)) == count
    assert {task for _, task in seen} == {1234}


@pytest.mark.parametrize(
    ("available", "tiles", "elements", "count"), [(1, 9, 99, 1), (4, 3, 99, 3), (4, 9, 2, 2), (4, 9, 99, 4)]
)
def test_no_more_threads_than_pay_off(available, tiles, elements, count):
    torch.set_num_threads(available)
    assert threads.thread_count(tiles, elements) == count


@pytest.mark.usefixtures("_each_thread_pool")
def test_the_call_waits_for_all_threads():
    finished = []

    def work(task):
        time.sleep(0.05 if finished else 0)
        finished.append(task)

    torch.set_num_threads(3)
    threads.run_parallel(_code(work), 1, 3)
    assert len(finished) == 3


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_the_call_waits_after_ctrl_c(monkeypatch, request):
    # A command that a shell script runs in the background ignores Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    monkeypatch.setattr(threads, "_thread_pool", threads._PythonThreads())
    main, finished = threading.main_thread(), []

    def work(task):
        if threading.current_thread() is not main:
            time.sleep(0.1)
            signal.pthread_kill(main.ident, signal.SIGINT)
            time.sleep(0.2)
        finished.append(task)

    torch.set_num_threads(2)
    with pytest.raises(KeyboardInterrupt):
        threads.run_parallel(_code(work), 1, 2)
    assert len(finished) == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError("can't start new thread")])
def test_the_call_waits_if_a_thread_cannot_be_started(monkeypatch, error):
    """The task and its buffers are freed when the call ends, so no thread may be using them then."""
    submit, events = ThreadPoolExecutor.submit, []

    def failing(self, *work):
        submit(self, *work)
        started.wait(10)
        raise error

    started = threading.Event()

    def work(task):
        started.set()
        time.sleep(0.1)
        events.append("finished")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", failing)
    with pytest.raises(type(error) if isinstance(error, Exception) else error):
        threads._PythonThreads()(_code(work), 1, 2)
    events.append("returned")
    time.sleep(0.2)
    assert events == ["finished", "returned"]


@pytest.mark.usefixtures("_each_thread_pool")
def test_called_from_several_threads_at_once(rng):
    torch.set_num_threads(2)
    space = space_of("any", rng)
    cases = [[random_distribution(rng, 64, space.num_bins) for _ in range(2)] for _ in range(6)]
    alone = [ew.emd(p, q, space) for p, q in cases]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(lambda case: [ew.emd(*case, space) for _ in range(20)], cases))
    assert all(
        torch.equal(result, expected) for results, expected in zip(together, alone, strict=True) for result in results
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.usefixtures("_each_thread_pool")
def test_a_forked_child_has_its_own_threads(rng):
    torch.set_num_threads(2)
    space = space_of("any", rng)
    layout = routes.choose(space, torch.rand(1, space.num_bins)).layout
    p, q = (random_distribution(rng, 64, space.num_bins) for _ in range(2))
    expected = run.pairs(layout, p, q, 1.5, True, 1.0)[0].tolist()
    child = os.fork()
    if child == 0:
        try:
            # No operation of torch here: it would wait for its threads, which the child does not have.
            os._exit(0 if run.pairs(layout, p, q, 1.5, True, 1.0)[0].tolist() == expected else 1)
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
    pytest.fail("the child waits for threads of its parent")


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
