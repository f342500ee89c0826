"""Mutants of the Triton kernels: ``TRITON_INTERPRET=1 python scripts/mutation/gpu.py --sample 300``.

mutmut cannot put a mutant into a ``@triton.jit`` function. Triton's interpreter reads the source of a function before
it runs it; here one operator, number, comparison or statement is changed in what it reads. The tests are collected
once. Each mutant gets a fork, which runs the tests that call its function, the fastest first, until one fails.

Barriers are not removed: the interpreter runs one program after the other, so no test can miss them.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import inspect
import json
import math
import os
import resource
import sys
import textwrap
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from triton.runtime.interpreter import FunctionRewriter, InterpretedFunction

from earthwork.kernels.gpu import common, labels, pairs

MODULES = (common, labels, pairs)
TESTS = [f"tests/kernels/gpu/test_{name}.py" for name in ("labels", "pairs")]
KILLED = 1

OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.RShift: ast.LShift, ast.LShift: ast.RShift,
}  # fmt: skip
COMPARISONS = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,),
}  # fmt: skip
CALLS = {"maximum": "minimum", "minimum": "maximum", "max": "sum", "sum": "max", "cumsum": "abs", "floor": "ceil"}


class Mutant(NamedTuple):
    """A change to a function, and the changed function's source."""

    function: str
    line: int
    change: str
    source: str

    @property
    def name(self) -> str:
        """Where it is, and what it changes."""
        return f"{self.function}:{self.line}: {self.change}"


def mutants_of(function: Any) -> Iterator[Mutant]:
    """All mutants of a kernel, or of a function that kernels call."""
    lines, first = inspect.getsourcelines(function)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    body = tree.body[0].body[1:]  # type: ignore[attr-defined]
    label = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
    for statement in body:
        for node in ast.walk(statement):
            for change in _changes(node):
                # The change is made to a copy of the tree, in which the node is found by its position in the walk.
                found = next(i for i, other in enumerate(ast.walk(tree)) if other is node)
                twin = copy.deepcopy(tree)
                target = list(ast.walk(twin))[found]
                before = ast.unparse(target)
                change(target)
                ast.fix_missing_locations(twin)
                where = first + node.lineno - 1  # type: ignore[attr-defined]
                yield Mutant(label, where, f"{before} -> {ast.unparse(target)}", ast.unparse(twin))


def _changes(node: ast.AST) -> Iterator[Callable[[Any], None]]:
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in OPERATORS:
        yield lambda x: setattr(x, "op", OPERATORS[type(x.op)]())
    elif isinstance(node, ast.Compare):
        for other in COMPARISONS.get(type(node.ops[0]), ()):
            yield lambda x, other=other: setattr(x, "ops", [other()])
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        for by in (1, -1):
            yield lambda x, by=by: setattr(x, "value", x.value + by)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
        yield lambda x: setattr(x, "op", ast.UAdd())
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "where":
            yield lambda x: x.args.__setitem__(slice(1, 3), x.args[2:0:-1])
        elif node.func.attr in CALLS:
            yield lambda x: setattr(x.func, "attr", CALLS[x.func.attr])
    elif isinstance(node, ast.Expr) and "debug_barrier" not in ast.unparse(node):
        yield lambda x: setattr(x, "value", ast.Constant(0))


def all_mutants() -> list[Mutant]:
    """The mutants of every function of the kernels."""
    return [
        mutant
        for module in MODULES
        for value in vars(module).values()
        if isinstance(value, InterpretedFunction) and value.fn.__module__ == module.__name__
        for mutant in mutants_of(value.fn)
    ]


def put_in_place(mutant: Mutant) -> None:
    """Let the interpreter read the mutant instead of the function."""
    transform = FunctionRewriter._transform_ast

    def changed(self: Any, source: str) -> ast.AST:
        label = f"{self.fn.__module__.rpartition('.')[2]}.{self.fn.__name__}"
        if label == mutant.function:
            source = mutant.source[mutant.source.index("def ") :]
        return transform(self, source)

    FunctionRewriter._transform_ast = changed
    InterpretedFunction.rewritten_fn.clear()


class _Server:
    """A pytest plugin that runs the collected tests in forks: all of them once, then those of each mutant."""

    def __init__(self, mutants: list[Mutant], seconds: float, minutes: float) -> None:
        self.mutants, self.seconds, self.end = mutants, seconds, time.monotonic() + 60 * minutes
        self.verdicts: dict[Mutant, str] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Take the place of pytest's loop over all tests."""
        calls, times = self._baseline(session.items)
        for mutant in self.mutants:
            if time.monotonic() > self.end:
                break
            name = mutant.function.rpartition(".")[2]
            chosen = [item for item in session.items if name in calls[item.nodeid]]
            chosen.sort(key=lambda item: times[item.nodeid])
            start = os.times()
            child = os.fork()
            if child == 0:
                self._run(mutant, chosen)
            status = os.waitpid(child, 0)[1]
            used = os.times()
            verdict = self.verdicts[mutant] = "killed" if status else "survived" if chosen else "no tests"
            seconds = used.children_user + used.children_system - start.children_user - start.children_system
            print(f"{verdict}: {mutant.name} ({seconds:.1f} s)", flush=True)
        return True

    def _baseline(self, items: list[pytest.Item]) -> tuple[dict[str, list[str]], dict[str, float]]:
        """Which functions each test calls, and how long it takes; all of them must pass."""
        reading, writing = os.pipe()
        if os.fork() == 0:
            _be_silent()
            calls: dict[str, set[str]] = defaultdict(set)
            times, rewrite = {}, InterpretedFunction.rewrite
            for item in items:
                InterpretedFunction.rewrite = lambda self, item=item: (
                    calls[item.nodeid].add(self.fn.__name__) or rewrite(self)
                )
                start = time.process_time()
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
                times[item.nodeid] = time.process_time() - start
            with os.fdopen(writing, "w") as stream:
                json.dump([{item.nodeid: sorted(calls[item.nodeid]) for item in items}, times], stream)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as stream:
            text = stream.read()
        os.wait()
        if not text:
            raise SystemExit("the tests fail without a mutant")
        calls_of, times_of = json.loads(text)
        return calls_of, times_of

    def _run(self, mutant: Mutant, items: list[pytest.Item]) -> None:
        # An endless loop in one test is ended by the limit; several slow tests by the clock below.
        limit = int(2 * self.seconds) + 10
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _be_silent()
        put_in_place(mutant)
        start = time.process_time()
        for item in items:
            if time.process_time() - start > self.seconds:
                break
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        os._exit(0)

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self) -> Any:
        """A failure ends the fork, before pytest describes it."""
        try:
            return (yield)
        except (Exception, pytest.fail.Exception):
            os._exit(KILLED)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """So does an error outside of the test."""
        if report.failed:
            os._exit(KILLED)


def _be_silent() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)


def wilson(hits: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval for a proportion."""
    share, width = hits / total, z * z / total
    centre, spread = share + width / 2, z * math.sqrt(share * (1 - share) / total + width / total / 4)
    return (centre - spread) / (1 + width), (centre + spread) / (1 + width)


def main() -> None:
    """Run a sample of the mutants and print what became of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=0, help="how many mutants; 0, the default, for all")
    parser.add_argument("--seed", type=int, default=0, help="another seed, another sample")
    parser.add_argument("--seconds", type=float, default=30.0, help="processor time for the tests of a mutant")
    parser.add_argument("--minutes", type=float, default=math.inf, help="the most time for all of them")
    parser.add_argument("--only", default="", help="those whose name contains this, such as pairs.")
    options = parser.parse_args()
    everything = [mutant for mutant in all_mutants() if options.only in mutant.name]
    everything.sort(key=lambda mutant: hashlib.sha256(f"{options.seed} {mutant.name}".encode()).digest())
    chosen = everything[: options.sample or None]
    print(f"{len(chosen)} of {len(everything)} mutants", flush=True)
    server = _Server(chosen, options.seconds, options.minutes)
    pytest.main(["-q", "-s", "-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:faulthandler", *TESTS], [server])
    counts = Counter(server.verdicts.values())
    if not counts:
        raise SystemExit("no mutant was run")
    for mutant, verdict in sorted(server.verdicts.items()):
        if verdict != "killed":
            print(f"{verdict}: {mutant.name}")
    low, high = wilson(counts["killed"], counts.total())
    print(f"score: {counts['killed']} of {counts.total()}, {counts['killed'] / counts.total():.1%} "
          f"(95 % interval {low:.1%} to {high:.1%})")  # fmt: skip


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    main()
