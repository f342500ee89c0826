"""A long search for wrong numbers, and for files that are misread or crash a reader.

Each case (a space, inputs, options) is called in many forms, and every value and gradient is compared with dense
formulas in float64. At the same time files written by other code are read and compared, the parsers of trees run under
a coverage-guided fuzzer (atheris), if it is installed, and the readers of all kinds of files get mutated ones. Every
case has a number, and ``--case`` runs one again. ``python scripts/fuzz --minutes 30`` takes half an hour.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import torch

from search import SHOWN, Search


def main() -> int:
    """Fuzz until the time is up; the exit code is 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other cases")
    parser.add_argument("--case", type=int, help="run only the case of this number")
    parser.add_argument("--only-numbers", action="store_true", help="no files")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.case is not None:
        findings = list(Search().run(options.seed, options.case))
        print(*findings or ["nothing found"], sep="\n\n")
        return int(bool(findings))
    with tempfile.TemporaryDirectory() as corpus:
        beside = [] if options.only_numbers else start_readers(options.minutes, options.seed, Path(corpus))
        found = fuzz_numbers(options.minutes, options.seed)
        for process in beside:
            output, _ = process.communicate()
            lines = output.splitlines()
            print(*(lines[-6:] if process.returncode == 0 else lines[-200:]), sep="\n")
            found = found or process.returncode != 0
    return int(found)


def fuzz_numbers(minutes: float, seed: int) -> bool:
    """Case after case; whether anything was found."""
    start = time.monotonic()
    search = Search()
    shown: Counter[str] = Counter()
    numbers = itertools.takewhile(lambda _: time.monotonic() < start + 60 * minutes, itertools.count())
    # Ctrl-C ends the search early, and the counts are printed.
    with suppress(KeyboardInterrupt):
        for number, finding in ((n, finding) for n in numbers for finding in search.run(seed, n)):
            subject = search.last.subject
            shown[subject] += 1
            if shown[subject] <= SHOWN:
                seconds = time.monotonic() - start
                print(
                    f"\nafter {seconds:.1f} s: python scripts/fuzz --seed {seed} --case {number}\n{finding}", flush=True
                )
    print(search.table(), flush=True)
    return bool(search.failed)


def start_readers(minutes: float, seed: int, corpus: Path) -> list[subprocess.Popen[str]]:
    """What reads files, in processes of its own, because a damaged file could end one."""
    here = Path(__file__).parent
    commands = [
        ["-W", "ignore", str(here / f"{name}.py"), f"--minutes={minutes}", f"--seed={seed}"] for name in READERS
    ]
    if find_spec("atheris") is None:
        print("parsers: not fuzzed, because atheris is missing: pip install 'earthwork[fuzz]'")
    else:
        limits = [f"-max_total_time={int(60 * minutes)}", f"-seed={seed + 1}"]
        prefix = f"-artifact_prefix={Path.cwd()}/"
        commands.append([str(here / "parsers.py"), str(corpus), *limits, prefix, "-print_final_stats=1"])
    return [
        subprocess.Popen(
            [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        for command in commands
    ]


READERS = ("readers", "round_trips")

if __name__ == "__main__":
    sys.exit(main())
