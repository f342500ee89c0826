"""A first pass over the mutants that takes a fraction of mutmut's time for each.

The tests are collected once, and run once without a mutant, each in a fork and for a few seconds at most, to see which
functions they call. For each mutant the process forks, and the fork runs tests that call the mutated function until one
fails or the time is up: those first that killed the most other mutants of the function, then of its file, for the time
they take, then one variant of each test before the next, those first that are fast and call few functions. What test
modules made when they were imported was made without the mutant, so only kills count.
"""

from __future__ import annotations

import gc
import inspect
import json
import math
import os
import re
import resource
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from mutmut.configuration import config
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.state import state
from mutmut.utils.format_utils import mangled_name_from_mutant_name

KILLED = 1
# Which tests call which functions, and how long they take.
CALLS = Path("mutants/first-pass.json")
# What became of each mutant, and the test that killed it. What was left before is run again after all others.
RESULTS = Path("mutants/first-pass.tsv")
# Tests that start a process, where mutants are not visible.
_OTHER_PROCESS = re.compile(r"subprocess|DataLoader|_python\(")
# Seconds of processor time after which no further variant of a test is run to see what it calls, and for all of them.
_ENOUGH = 0.6
_MOST = 3.0
# Seconds by the clock after which a fork that waits for something is ended. It does not count as killed.
_STUCK = 120
# Results are saved when as many have come in.
_SAVED_AT_ONCE = 50
# Seconds that the fastest test takes in a fork, whatever was measured without one.
_FASTEST = 0.02


def first_pass(
    mutants: list[tuple[Any, str, int | None]], seconds: float, minutes: float, variants: int, first: str = ""
) -> None:
    """Note which of the mutants that have not been run yet are killed.

    Args:
        mutants: What mutmut knows of the file of each mutant, the mutant's name, and its result so far.
        seconds: The processor time for each.
        minutes: The time for all of them.
        variants: How many variants of a parametrized test are run.
        first: A pattern of the names of tests that are run before all others.
    """
    waiting = {name: data for data, name, code in mutants if code is None}
    known = [line.split("\t") for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    left = {name for name, verdict, *_ in known if verdict != "killed"}
    waiting = {name: waiting[name] for name in sorted(waiting, key=left.__contains__)}
    if not waiting:
        return
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        try:
            server = _Server(list(waiting), seconds, time.monotonic() + 60 * minutes, variants, writing, first)
            for name, _, _, test in known:
                server.count(name, test)
            _serve(server)
        finally:
            os._exit(0)
    os.close(writing)
    counts: Counter[str] = Counter()
    changed: list[Any] = []
    done: set[str] = set()
    with os.fdopen(reading) as lines, RESULTS.open("a") as results:
        for line in lines:
            name, verdict, used, by = line.rstrip("\n").split("\t")
            if verdict == "killed":
                waiting[name].exit_code_by_key[name] = KILLED
                changed.append(waiting[name])
            if verdict != "measured":
                counts[verdict] += 1
                done.add(name)
                results.write(line)
                results.flush()
            if len(changed) == _SAVED_AT_ONCE:
                _save(changed)
            print(f"{verdict}: {name} ({used} s{', ' + by if by else ''})", flush=True)
    _save(changed)
    os.waitpid(process, 0)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()), "of", len(waiting))
    run = {name for name, *_ in known} | done
    packages = defaultdict(list)
    for data, name, _ in mutants:
        if name in run:
            packages[name.split(".")[1]].append(data.exit_code_by_key[name] == KILLED)
    for package, killed in packages.items():
        print(f"{package}: {sum(killed)} of {len(killed)} killed, {sum(killed) / len(killed):.1%}")


def _save(changed: list[Any]) -> None:
    for data in {id(data): data for data in changed}.values():
        data.save()
    changed.clear()


def _serve(server: _Server) -> None:
    os.chdir("mutants")
    set_mutant_under_test("")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    options = [option for option in config().pytest_add_cli_args if option != "-x"]
    pytest.main(
        ["--rootdir=.", "-p", "no:randomly", *config().pytest_add_cli_args_test_selection, *options], plugins=[server]
    )


class _Server:
    """A pytest plugin that runs the collected tests in forks, once for each mutant."""

    def __init__(
        self, names: list[str], seconds: float, end: float, variants: int, writing: int, first: str = ""
    ) -> None:
        self.names, self.seconds, self.end, self.variants, self.writing = names, seconds, end, variants, writing
        self.first = re.compile(first or "$^")
        self.items: dict[str, pytest.Item] = {}
        self.calls: dict[str, list[str]] = {}
        self.times: dict[str, float] = {}
        # How many mutants of a function, and of a file, each test has killed.
        self.kills: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.notes = -1
        # In a fork, the test that is being run.
        self.running: str | None = None
        self.failed: set[str] = set()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Take the place of pytest's loop over all tests."""
        here = [item for item in session.items if not _OTHER_PROCESS.search(_source(item))]
        self.items = {_name(item): item for item in _some(here, self.variants)}
        self.calls = self._find_calls()
        # What the collector moves in a fork would be copied.
        gc.collect()
        gc.freeze()
        passing: set[str] = set()
        for name in self.names:
            if time.monotonic() > self.end:
                break
            function, file = mangled_name_from_mutant_name(name), name.rpartition(".")[0]
            before = _time_of_children()
            while True:
                chosen = [test for test in self.calls.get(function, ()) if test in self.items]
                chosen.sort(key=lambda test: self._place(function, file, test))
                verdict, by = self._fork(name, chosen)
                # A test that fails without a mutant too, in a fork or on its own, says nothing.
                if not by or by in passing or self._fork("", [by])[0] == "left":
                    break
                del self.items[by]
            if by:
                passing.add(by)
                self.count(name, by)
            os.write(self.writing, f"{name}\t{verdict}\t{_time_of_children() - before:.2f}\t{by}\n".encode())
        return True

    def count(self, name: str, test: str) -> None:
        """Remember which test killed a mutant, if one did."""
        if test:
            self.kills[mangled_name_from_mutant_name(name)][test] += 1
            self.kills[name.rpartition(".")[0]][test] += 1

    def _find_calls(self) -> dict[str, list[str]]:
        """For each function the tests that call it, in the order in which they are run."""
        file = Path("..") / CALLS
        known = json.loads(file.read_text()) if file.exists() else {}
        variants = defaultdict(list)
        for test in self.items:
            variants[test.partition("[")[0]].append(test)
        warm: set[str] = set()
        for number, (function, tests) in enumerate(variants.items()):
            if function not in known:
                known[function] = self._measure(tests)
                # The file is large, so that not every result is saved.
                if number % _SAVED_AT_ONCE == 0:
                    file.write_text(json.dumps(known))
                seconds = sum(seen[0] for seen in known[function].values() if seen)
                os.write(self.writing, f"{function}\tmeasured\t{seconds:.2f}\t\n".encode())
            # What is loaded on first use is loaded here, by a fast test of each file, and not in every fork.
            module = function.partition("::")[0]
            fast = [test for test, seen in known[function].items() if seen and seen[0] < _ENOUGH and test in self.items]
            if fast and module not in warm:
                warm.add(module)
                self._run_test(fast[0])
        file.write_text(json.dumps(known))
        _forget()
        calls = defaultdict(list)
        effort = {}
        for test in self.items:
            seen = known[test.partition("[")[0]]
            passed = [found for found in seen.values() if found]
            if not passed or (test in seen and not seen[test]):
                continue
            # Variants that were not run are taken to call what the others call, for as long.
            everything = max(seconds for seconds, _ in passed), sorted({name for _, names in passed for name in names})
            self.times[test], functions = seen.get(test, everything)
            # A test that calls few functions is more likely to be about one of them.
            effort[test] = (self.times[test] + _FASTEST) * math.sqrt(len(functions))
            for function in functions:
                calls[function].append(test)
        return {function: _ordered(tests, effort) for function, tests in calls.items()}

    def _measure(self, tests: list[str]) -> dict[str, tuple[float, list[str]] | None]:
        """The processor time of some variants of a test, and the functions they call; ``None`` for those that fail."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            found: dict[str, Any] = {}
            start, test = 0.0, ""

            def end(*_: Any) -> None:
                signal.setitimer(signal.ITIMER_PROF, 0)
                if test not in found:
                    found[test] = time.process_time() - start, sorted(state()._stats)
                with os.fdopen(writing, "w") as stream:
                    json.dump(found, stream)
                os._exit(0)

            signal.signal(signal.SIGPROF, end)
            signal.setitimer(signal.ITIMER_PROF, _MOST)
            signal.alarm(_STUCK)
            set_mutant_under_test("stats")
            begin = time.process_time()
            for test in tests:
                start = time.process_time()
                if start - begin > _ENOUGH:
                    break
                state()._stats.clear()
                self._run_test(test)
                calls = time.process_time() - start, sorted(state()._stats)
                found[test] = None if test in self.failed else calls
            test = next(iter(found))
            end()
        os.close(writing)
        with os.fdopen(reading) as stream:
            text = stream.read()
        os.waitpid(child, 0)
        measured: dict[str, tuple[float, list[str]] | None] = json.loads(text or "{}")
        return measured

    def _place(self, function: str, file: str, test: str) -> tuple[float, ...]:
        return -self._yield(function, test), not self.first.search(test), -self._yield(file, test)

    def _yield(self, where: str, test: str) -> float:
        """The mutants of a function or file that a test killed, for the time it takes."""
        return self.kills[where][test] / (self.times[test] + _FASTEST)

    def _fork(self, name: str, tests: list[str]) -> tuple[str, str]:
        """Whether a fork with this mutant fails, and at which test; a crash or an endless loop has no test."""
        reading, self.notes = os.pipe()
        child = os.fork()
        if child == 0:
            self._run(name, tests)
        os.close(self.notes)
        status = os.waitpid(child, 0)[1]
        with os.fdopen(reading) as notes:
            by = notes.read()
        stuck = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
        return "stuck" if stuck else "killed" if status else "left" if tests else "no tests", by

    def _run(self, name: str, tests: list[str]) -> None:
        set_mutant_under_test(name)
        # An endless loop in one test is ended by the limit; several slow tests by the clock below.
        limit = int(2 * self.seconds) + 10
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(_STUCK)
        self.failed.clear()
        start = time.process_time()
        for test in tests:
            # Slow tests only where no other calls the function.
            if self.running and time.process_time() - start + self.times[test] > self.seconds:
                continue
            self.running = test
            self._run_test(test)
            if self.failed:
                self._note_kill()
        os._exit(0)

    def _note_kill(self) -> None:
        os.write(self.notes, str(self.running).encode())
        os._exit(KILLED)

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Any:
        """End the fork where a test fails, before pytest describes the failure, which takes longer than most tests."""
        try:
            return (yield)
        except (Exception, pytest.fail.Exception):
            if self.running is not None and pyfuncitem.get_closest_marker("xfail") is None:
                self._note_kill()
            raise

    def _run_test(self, test: str) -> None:
        item = self.items[test]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what fails."""
        if report.failed:
            self.failed.add(report.nodeid.removeprefix("mutants/"))


def _forget() -> None:
    """Empty the caches of spaces, which mutants of the functions that fill them have to fill."""
    for value in gc.get_objects():
        if str(type(value).__module__).startswith("earthwork.") and isinstance(
            kept := getattr(value, "_derived", None), dict
        ):
            kept.clear()
            for name in ("flow_costs", "digest"):
                vars(value).pop(name, None)


def _name(item: pytest.Item) -> str:
    return item.nodeid.removeprefix("mutants/")


def _source(item: pytest.Item) -> str:
    return inspect.getsource(item.function) if isinstance(item, pytest.Function) else ""


def _function(item: pytest.Item) -> str:
    return _name(item).partition("[")[0]


def _some(items: Iterable[pytest.Item], variants: int) -> list[pytest.Item]:
    """At most as many variants of each test, evenly spread."""
    by_test: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        by_test[_function(item)].append(item)
    return [
        group[place]
        for group in by_test.values()
        for place in sorted({step * len(group) // variants for step in range(variants)})
    ]


def _time_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _ordered(tests: list[str], effort: dict[str, float]) -> list[str]:
    """The variant of each test that takes the least effort, then the second of each, and so on."""
    variants: Counter[str] = Counter()
    rank = {}
    for test in sorted(tests, key=effort.__getitem__):
        function = test.partition("[")[0]
        rank[test] = variants[function]
        variants[function] += 1
    return sorted(tests, key=lambda test: (rank[test], effort[test]))
