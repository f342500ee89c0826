"""The history of all benchmark runs: ``python -m benchmarks.history`` compares the last two on the same machine.

    python -m benchmarks.history                     # the last two comparable runs
    python -m benchmarks.history 4dc0bae f16abe4     # the last run of each commit
    python -m benchmarks.history --draw FILE         # ratios over commits, as a picture

The exit code is 1 if something became slower beyond noise.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
HISTORY = ROOT / "docs" / "results" / "benchmarks-history.json"
MACHINE = ("processor", "cores", "threads", "type")
# Ratios of the same code differ by about a tenth between runs, even where they vary less within a run. Where the
# variation within a run is not known, as for single measurements in seconds, less than a third says nothing.
FLOOR, UNKNOWN = 0.1, 1 / 3

Entry = dict[str, Any]


class Change(NamedTuple):
    """A figure in two runs."""

    work: str
    before: float
    after: float
    limit: float  # the largest factor that noise explains
    verdict: str  # slower, faster or same


def entry(report: dict[str, Any]) -> Entry:
    """What the history keeps of a run: when, which commit, which machine, and every figure with its noise."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "commit": commit(),
        "quick": report["quick"],
        "machine": report["machine"],
        "figures": {
            bar["work"]: {key: bar.get(key, 0.0) for key in ("figure", "noise", "at_least")} for bar in report["bars"]
        },
    }


def commit() -> str:
    """The short hash of the commit that is checked out, with a + if files have changed since."""
    try:
        name = _git("rev-parse", "--short=7", "HEAD")
        return name + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def read(path: Path = HISTORY) -> list[Entry]:
    """All runs, oldest first."""
    entries: list[Entry] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return entries


def append(new: Entry, path: Path = HISTORY) -> None:
    """Add a run at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([*read(path), new], indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def comparable(a: Entry, b: Entry) -> bool:
    """Whether two runs were made on the same kind of machine, with the same settings."""
    return all(a["machine"].get(key) == b["machine"].get(key) for key in MACHINE) and a["quick"] == b["quick"]


def compare(before: Entry, after: Entry) -> list[Change]:
    """Every figure that both runs have. A change counts if it exceeds three standard deviations and a tenth.

    For a speed-up (``at_least``) lower is slower; for all other figures higher is.
    """
    changes = []
    for work, new in after["figures"].items():
        old = before["figures"].get(work)
        if old is None:
            continue
        known = old["noise"] and new["noise"]
        limit = 1 + (max(FLOOR, 3 * math.hypot(old["noise"], new["noise"])) if known else UNKNOWN)
        factor = old["figure"] / new["figure"] if new["at_least"] else new["figure"] / old["figure"]
        verdict = "slower" if factor > limit else "faster" if factor < 1 / limit else "same"
        changes.append(Change(work, old["figure"], new["figure"], limit, verdict))
    return changes


def select(entries: list[Entry], names: list[str]) -> tuple[Entry, Entry]:
    """The two runs to compare: of the commits that are named, or the last one and the comparable one before it."""
    if names:
        found = [[one for one in entries if one["commit"].startswith(name)] for name in names]
        for name, runs in zip(names, found, strict=True):
            if not runs:
                raise ValueError(
                    f"{name}: no run of this commit; there are {', '.join(one['commit'] for one in entries)}"
                )
        before, after = found[0][-1], found[1][-1]
        if not comparable(before, after):
            raise ValueError(f"{names[0]} and {names[1]} were run on different machines or with different settings")
        return before, after
    earlier = [one for one in entries[:-1] if comparable(one, entries[-1])]
    if not earlier:
        raise ValueError("expected two runs on the same machine with the same settings: run make bench again")
    return earlier[-1], entries[-1]


def draw(entries: list[Entry], path: Path) -> None:
    """The ratios over commits, for the runs that are comparable with the last one; one panel for each figure."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    runs = [one for one in entries if comparable(one, entries[-1])]
    works = list(runs[-1]["figures"])
    figure, axes = plt.subplots(-(-len(works) // 4), 4, figsize=(12, 2.1 * -(-len(works) // 4)), squeeze=False)
    for axis, work in zip(axes.flat, works, strict=False):
        points = [(place, run["figures"][work]) for place, run in enumerate(runs) if work in run["figures"]]
        axis.errorbar(
            [place for place, _ in points],
            [one["figure"] for _, one in points],
            yerr=[one["figure"] * one["noise"] for _, one in points],
            fmt="o-", color="#8d5524", markersize=3, capsize=2, lw=1,
        )  # fmt: skip
        axis.set_title(_wrapped(work), fontsize=7)
        axis.set_xticks(range(len(runs)), [run["commit"] for run in runs], rotation=60, fontsize=6)
        axis.tick_params(axis="y", labelsize=6)
        axis.set_ylim(0, 1.1 * axis.get_ylim()[1])
    for axis in axes.flat[len(works) :]:
        axis.axis("off")
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def _wrapped(work: str) -> str:
    head, slash, tail = work.partition(" / ")
    return f"{head}\n{slash.strip()} {tail}" if slash else work


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.history", description=__doc__.partition("\n")[0])
    parser.add_argument("commits", nargs="*", help="two commits; by default the last two comparable runs")
    parser.add_argument("--history", type=Path, default=HISTORY)
    parser.add_argument("--draw", type=Path, help="write the picture of ratios over commits to this file")
    options = parser.parse_args(arguments)
    entries = read(options.history)
    if not entries or len(options.commits) not in (0, 2):
        parser.error("expected no commits or two, and a history with at least one run")
    if options.draw:
        draw(entries, options.draw)
        return 0
    try:
        before, after = select(entries, options.commits)
    except ValueError as error:
        parser.error(str(error))
    changes = compare(before, after)
    print(f"{before['commit']} ({before['date']}) → {after['commit']} ({after['date']})")
    for change in changes:
        mark = "" if change.verdict == "same" else change.verdict.upper()
        print(f"{change.work:64}{change.before:9.2f} →{change.after:9.2f}  (noise: {change.limit:.2f} ×) {mark}")
    slower = sum(change.verdict == "slower" for change in changes)
    print(f"{slower} of {len(changes)} figures slower beyond noise" if slower else "nothing slower beyond noise")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
