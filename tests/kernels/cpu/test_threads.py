"""Kernels run on the threads of torch, or on their own where torch has none, as in a forked process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import earthwork as ew
from earthwork import private_api
from earthwork.kernels.cpu import loading, run
from earthwork.ops import operations as routes
from tests.cases import random_distribution
from tests.kernels.cpu.cases import space_of

pytestmark = pytest.mark.usefixtures("threads_on_small_input")


@pytest.fixture(autouse=True)
def _as_many_threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["torch", "own"])
def _each_thread_pool(request):
    core, torch_threads = loading.library(), private_api.parallel_for()
    core.ew_use_parallel_for(torch_threads if request.param == "torch" else None)
    yield
    core.ew_use_parallel_for(torch_threads)


@pytest.mark.usefixtures("_each_thread_pool")
@pytest.mark.parametrize("name", ["any", "chain"])
@pytest.mark.parametrize("rows", [1, 16, 53])
def test_results_not_depend_on_number_threads(rng, name, rows):
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
def test_invalid_row_reported_by_every_thread(rng):
    torch.set_num_threads(3)
    space = space_of("any", rng)
    p = random_distribution(rng, 80, space.num_bins)
    for row in (0, 40, 79):
        q = p.clone()
        q[row] *= 2
        with pytest.raises(ValueError, match="mass"):
            ew.emd(p, q, space)


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
def test_forked_child_has_its_own_threads(rng):
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
def test_in_workers_of_data_loader(rng):
    torch.set_num_threads(2)
    space = space_of("any", rng)
    p, q = (random_distribution(rng, 40, space.num_bins) for _ in range(2))
    here = ew.emd(p, q, space)
    there = list(DataLoader(_Distances(p, q, space), batch_size=None, num_workers=2, timeout=60))
    torch.testing.assert_close(torch.stack(there), torch.stack([here + i for i in range(4)]))


@pytest.mark.usefixtures("_each_thread_pool")
def test_sixteen_threads_call_one_loss(rng):
    torch.set_num_threads(2)
    space = space_of("any", rng)
    loss = ew.EMDLoss(space, 1.5)
    cases = [(torch.randn(64, space.num_bins), torch.randint(space.num_bins, (64,))) for _ in range(16)]

    def gradient(case):
        logits = case[0].clone().requires_grad_()
        return torch.autograd.grad(loss(logits, case[1]), logits)[0]

    alone = [gradient(case) for case in cases]
    with ThreadPoolExecutor(16) as pool:
        for _ in range(5):
            assert all(map(torch.equal, pool.map(gradient, cases), alone))


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.parametrize("threads", ["torch", "own"])
def test_a_signal_handler_that_raises_during_a_kernel(threads):
    """Python runs it when the kernel has returned, so no thread uses buffers that have been freed."""
    code = f"""
        import signal, torch, earthwork as ew
        from earthwork import private_api
        from earthwork.kernels.cpu import loading

        loading.library().ew_use_parallel_for(private_api.parallel_for() if "{threads}" == "torch" else None)
        torch.set_num_threads(2)
        loss, caught = ew.EMDLoss(ew.Chain(200), 1.7), 0
        logits, labels = torch.randn(4000, 200, requires_grad=True), torch.randint(200, (4000,))

        def handler(*_):
            raise TimeoutError

        signal.signal(signal.SIGALRM, handler)
        while caught < 20:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.003)
                while True:
                    loss(logits.detach().clone().requires_grad_(), labels).backward()
            except TimeoutError:
                caught += 1
        print("alive")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
