"""A first pass over the mutants that takes a fraction of mutmut's time for each.

The tests are collected once. For each mutant the process forks, and the fork runs the tests that call the mutated
function, one variant of each test before the next, the fastest first, until one fails or the time is up. What test
modules made when they were imported was made without the mutant, so only kills count: the rest is left to mutmut.
"""

from __future__ import annotations

import os
import resource
import time
from collections import Counter
from typing import Any

import pytest
from mutmut.configuration import config
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.state import state
from mutmut.utils.format_utils import mangled_name_from_mutant_name

KILLED = 1


def first_pass(mutants: list[tuple[Any, str, int | None]], seconds: float, minutes: float) -> None:
    """Note which of the mutants that have not been run yet are killed.

    Args:
        mutants: What mutmut knows of the file of each mutant, the mutant's name, and its result so far.
        seconds: The processor time for each.
        minutes: The time for all of them.
    """
    waiting = {name: data for data, name, code in mutants if code is None}
    if not waiting:
        return
    reading, writing = os.pipe()
    server = os.fork()
    if server == 0:
        os.close(reading)
        try:
            _serve(list(waiting), seconds, time.monotonic() + 60 * minutes, writing)
        finally:
            os._exit(0)
    os.close(writing)
    counts: Counter[str] = Counter()
    with os.fdopen(reading) as lines:
        for line in lines:
            name, verdict, used = line.split()
            counts[verdict] += 1
            if verdict == "killed":
                waiting[name].exit_code_by_key[name] = KILLED
                waiting[name].save()
            print(f"{verdict}: {name} ({used} s)", flush=True)
    os.waitpid(server, 0)
    print(f"first pass: {counts['killed']} of {len(waiting)} killed, {counts['left']} left, "
          f"{len(waiting) - counts.total()} not run")  # fmt: skip


def _serve(names: list[str], seconds: float, end: float, writing: int) -> None:
    os.chdir("mutants")
    set_mutant_under_test("")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    arguments = ["--rootdir=.", "-p", "no:randomly", *config().pytest_add_cli_args_test_selection]
    pytest.main([*arguments, *config().pytest_add_cli_args], plugins=[_Server(names, seconds, end, writing)])


class _Server:
    """A pytest plugin that runs the collected tests in forks, once for each mutant."""

    def __init__(self, names: list[str], seconds: float, end: float, writing: int) -> None:
        self.names, self.seconds, self.end, self.writing = names, seconds, end, writing

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Take the place of pytest's loop over all tests."""
        items = {item.nodeid.removeprefix("mutants/"): item for item in session.items}
        for name in self.names:
            if time.monotonic() > self.end:
                break
            chosen = [items[test] for test in _ordered(_tests_of(name)) if test in items]
            start = time.monotonic()
            child = os.fork()
            if child == 0:
                self._run(name, chosen)
            status = os.waitpid(child, 0)[1]
            verdict = "killed" if status else "left"
            os.write(self.writing, f"{name} {verdict} {time.monotonic() - start:.1f}\n".encode())
        return True

    def _run(self, name: str, items: list[pytest.Item]) -> None:
        set_mutant_under_test(name)
        # An endless loop in one test is ended by the limit; several slow tests by the clock below.
        limit = int(3 * self.seconds) + 10
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for item in items:
            if time.process_time() > self.seconds:
                break
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        os._exit(0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A failure ends the fork."""
        if report.failed:
            os._exit(KILLED)


def _tests_of(name: str) -> set[str]:
    found: set[str] = state().tests_by_mangled_function_name.get(mangled_name_from_mutant_name(name), set())
    return found


def _ordered(tests: set[str]) -> list[str]:
    """The fastest variant of each test, then the second of each, and so on."""
    duration = state().duration_by_test
    variants: Counter[str] = Counter()
    rank = {}
    for test in sorted(tests, key=lambda test: duration.get(test, 0.0)):
        function = test.partition("[")[0]
        rank[test] = variants[function]
        variants[function] += 1
    return sorted(tests, key=lambda test: (rank[test], duration.get(test, 0.0)))
