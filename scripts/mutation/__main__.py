"""Runs mutmut on a random sample of the mutants: ``python scripts/mutation --sample 400``.

The sample of each package is spread over its files in proportion to their mutants. A larger one holds every smaller one
of the same seed, and what has been run is not run again (delete ``mutants/`` for that), so a run may be stopped and
continued.

Mutants that a few fast tests kill are dealt with first, in forks of a process that has collected the tests (`warm`);
what is left goes to mutmut, which starts pytest again. ``--first-pass`` stops in between.

``--compiled`` looks once more at what was not killed: one after the other it is written into a copy of the source, and
the tests of ``torch.compile`` are run, which mutmut's own way of putting mutants in place cannot do.
"""

from __future__ import annotations

import argparse
import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from compiled import NO_TESTS, SURVIVED, look_again
from mutmut import __main__ as mutmut
from mutmut.configuration import config
from mutmut.workers import isolation
from warm import KILLED as KILLED_NOW
from warm import first_pass

# "Interrupted" is what pytest says, and mutmut after it, where a mutant keeps a test module from being imported.
KILLED = ("killed", "timeout", "segfault", "suspicious", "check was interrupted by user")


def main() -> None:
    """Run the sample and print what became of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=0, help="how many mutants of each package; 0 for all")
    parser.add_argument("--seed", type=int, default=0, help="another seed, another sample")
    parser.add_argument("--again", action="store_true", help="run those once more that were not killed")
    parser.add_argument("--compiled", action="store_true", help="look once more at what only the compiler runs")
    parser.add_argument("--package", action="append", help="mutate this package, such as losses; may be repeated")
    parser.add_argument("--seconds", type=float, default=8.0, help="processor time for a mutant in the first pass")
    parser.add_argument("--minutes", type=float, default=math.inf, help="the most time for the first pass")
    parser.add_argument("--first-pass", action="store_true", help="stop after the first pass")
    parser.add_argument("--variants", type=int, default=12, help="of each test in the first pass")
    parser.add_argument("--first", default="", help="pattern of tests that the first pass runs first, such as new ones")
    parser.add_argument("--processes", type=int, default=1, help="how many mutants at a time")
    options = parser.parse_args()
    if options.package:
        config().only_mutate = [f"src/earthwork/{package}/*" for package in options.package]
    chosen: list[tuple[Any, str, int | None]] = []
    collect = mutmut.collect_source_file_mutation_data

    def collect_sample(*, mutant_names: Iterable[str]) -> tuple[list[Any], dict[str, Any]]:
        mutants, data = collect(mutant_names=tuple(mutant_names))
        packages = defaultdict(list)
        for _, name, _ in mutants:
            packages[name.split(".")[1]].append(name)
        # The first of each package, then the second of each, and so on.
        samples = [sample(names, options.sample or None, options.seed) for names in packages.values()]
        rank = {name: number for names in samples for number, name in enumerate(names)}
        once_more = (SURVIVED, NO_TESTS) if options.again else ()
        chosen[:] = [(m, name, None if code in once_more else code) for m, name, code in mutants if name in rank]
        # In random order, so that the first ones, if the time is up, are a sample too.
        chosen.sort(key=lambda mutant: rank[mutant[1]])
        first_pass(chosen, options.seconds, options.minutes, options.variants, options.first)
        if options.first_pass:
            raise SystemExit
        chosen[:] = [
            (m, name, KILLED_NOW if m.exit_code_by_key[name] == KILLED_NOW else code) for m, name, code in chosen
        ]
        return chosen, data

    mutmut.collect_source_file_mutation_data = collect_sample
    if options.first_pass:
        # It finds out by itself which tests call which functions, and some may fail because of the trampolines.
        mutmut.collect_or_load_stats = lambda *args, **kwargs: None
    # An endless loop runs into the limit of processor time; a clock would also end what only had to wait its turn.
    isolation.register_timeout = lambda pid, timeout_s: None
    mutmut._run((), options.processes)
    if options.compiled:
        look_again([(m, name) for m, name, _ in chosen], options.processes)
    report({name: mutmut.status_by_exit_code[m.exit_code_by_key[name]] for m, name, _ in chosen})


def sample(names: list[str], size: int | None, seed: int) -> list[str]:
    """The first of the names, in an order that is random within a file and even between files."""
    files = defaultdict(list)
    for name in names:
        files[name.rpartition(".")[0]].append(name)
    place = {
        name: (rank + 0.5) / len(group)
        for group in files.values()
        for rank, name in enumerate(sorted(group, key=lambda name: lot(name, seed)))
    }
    return sorted(names, key=lambda name: (place[name], lot(name, seed)))[:size]


def lot(name: str, seed: int) -> bytes:
    """A random number that does not change when other mutants come or go."""
    return hashlib.sha256(f"{seed} {name}".encode()).digest()


def report(status: dict[str, str]) -> None:
    """Print the score, its interval and the mutants that nothing noticed."""
    counts = Counter(status.values())
    killed, total = sum(counts[kind] for kind in KILLED), len(status) - counts["not checked"]
    low, high = wilson(killed, total)
    for name, kind in sorted(status.items()):
        if kind not in (*KILLED, "not checked"):
            print(f"{kind}: {name}")
    print(", ".join(f"{count} {kind}" for kind, count in counts.most_common()))
    print(f"score: {killed} of {total}, {killed / total:.1%} (95 % interval {low:.1%} to {high:.1%})")


def wilson(hits: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval for a proportion."""
    share, width = hits / total, z * z / total
    centre, spread = share + width / 2, z * math.sqrt(share * (1 - share) / total + width / total / 4)
    return (centre - spread) / (1 + width), (centre + spread) / (1 + width)


if __name__ == "__main__":
    main()
