"""A long search for wrong numbers and parser crashes: ``python scripts/fuzz --minutes 30``.

The numbers are compared with a slow oracle in float64, case after case. At the same time the parsers of trees run under
a coverage-guided fuzzer (atheris), if it is installed, and the readers of all kinds of files get mutated ones. Every
case has a number, and ``--case`` runs one again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from numeric import CHECKS

# One of these is printed for each kind of check that fails, so that a systematic failure does not fill the screen.
_MOST_SHOWN = 5


def main() -> int:
    """Fuzz until the time is up; the exit code is 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other cases")
    parser.add_argument("--case", type=int, help="run only the case of this number")
    parser.add_argument("--no-parsers", action="store_true", help="only the numbers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.case is not None:
        run_case(options.seed, options.case)
        print(f"case {options.case}: nothing wrong")
        return 0
    with tempfile.TemporaryDirectory() as corpus:
        parsers = None if options.no_parsers else start_parsers(options.minutes, options.seed, Path(corpus))
        readers = None if options.no_parsers else start_readers(options.minutes, options.seed)
        found = fuzz_numbers(options.minutes, options.seed)
        for process in filter(None, (parsers, readers)):
            output, _ = process.communicate()
            lines = output.splitlines()
            print(*(lines[-6:] if process.returncode == 0 else lines[-200:]), sep="\n")
            found = found or process.returncode != 0
    return int(found)


def fuzz_numbers(minutes: float, seed: int) -> bool:
    """Check after check; whether any of them failed."""
    end = time.monotonic() + 60 * minutes
    done: Counter[str] = Counter()
    cases: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    number = 0
    while time.monotonic() < end:
        name = CHECKS[number % len(CHECKS)].__name__
        try:
            cases[name] += run_case(seed, number)
        except Exception:
            failed[name] += 1
            if failed[name] <= _MOST_SHOWN:
                command = f"python scripts/fuzz --seed {seed} --case {number}"
                print(f"\n{name}: {command}\n{traceback.format_exc()}", flush=True)
        done[name] += 1
        number += 1
    for name, count in done.items():
        print(f"{name:<20} {count:>9,} checks {cases[name]:>11,} cases {failed[name]:>6,} failed")
    print(
        f"{'numbers in all':<20} {done.total():>9,} checks {cases.total():>11,} cases {failed.total():>6,} failed",
        flush=True,
    )
    return bool(failed)


def run_case(seed: int, case: int) -> int:
    """One check, the same for the same numbers; returns of how many rows it compared the value and the gradient."""
    torch.manual_seed(case)
    return CHECKS[case % len(CHECKS)](np.random.default_rng([seed, case])) or 0


def start_parsers(minutes: float, seed: int, corpus: Path) -> subprocess.Popen[str] | None:
    """The fuzzer of the parsers, beside this process."""
    if find_spec("atheris") is None:
        print("parsers: not fuzzed, because atheris is missing: pip install 'earthwork[fuzz]'")
        return None
    script = Path(__file__).with_name("parsers.py")
    command = [sys.executable, str(script), str(corpus), f"-max_total_time={int(60 * minutes)}", f"-seed={seed + 1}"]
    return subprocess.Popen(
        [*command, f"-artifact_prefix={Path.cwd()}/", "-print_final_stats=1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def start_readers(minutes: float, seed: int) -> subprocess.Popen[str]:
    """The readers of all kinds of files, beside this process."""
    script = Path(__file__).with_name("readers.py")
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", str(script), f"--minutes={minutes}", f"--seed={seed}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


if __name__ == "__main__":
    sys.exit(main())
