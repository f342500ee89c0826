"""Write docs/benchmarks.md from the results of ``make bench``.

python scripts/make_benchmarks_page.py build/benchmarks
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"

_HEAD = """\
# Benchmarks

<!-- Made by scripts/make_benchmarks_page.py from docs/results/benchmarks.json: do not edit. -->

What does a structured loss cost? One run of `make bench` on {processor}, {cores} cores (load before the run
{load before:.1f}), {threads} threads, torch {torch}, Python {python}, {type}. Every figure is forward and backward. The
functions of a table take turns, so that a slow moment of the machine hits all of them; ratios are those of medians.
"""

_GROWTH = """
## From a hundred classes to a million

![Time against the number of classes](results/figures/growth.png)

Each point is the same amount of numbers, 16 million logits: 160,000 rows of 100 classes, or 16 of a million. The dense
matrix of bins × edges ends at a thousand classes; at 100,000 it would take 55 GB. `cumsum` by hand knows only the
chain, and rounds its running sums in float32.
"""

_NOTES = """
## Notes

- Neither POT nor GeomLoss has a loss in closed form on a tree; they are measured as Sinkhorn solvers. Among those, the
  others solve 8 of the 512 rows, and their times are multiplied by 64. To let them solve all, run
  `python -m benchmarks.sinkhorn --rows 512`.
- dlordinal is installed without its dependency torchvision, which its EMD loss does not need.
- The portable path is plain torch: what runs on an accelerator, and without Numba.
- The kernels work on the threads that torch has already (OpenMP's, as many as `torch.set_num_threads` says) and start
  none beside them. In a forked process, and where torch was built with another library for threads, they use plain
  threads of their own, which share the processors with those of torch that wait awake for more work.
- Small batches are bound by the overhead of each call and not by arithmetic, which is why their ratios vary most. An
  `autograd.Function` that computes nothing shows where their time goes: most of it is torch's, for the node, the mean
  and the way back; the kernel itself takes about two microseconds.
"""

# Tables with times, by what they are called in the results: their title, and the row that counts as 1.
_TABLES = {
    "tree, 512 × 1000": ("ImageNet's hierarchy, logits and class indices, 512 × 1000", "F.cross_entropy"),
    "chain, 512 × 1000": ("A chain, two batches of histograms, 512 × 1000", "F.mse_loss"),
    "chain, 64 × 10": ("A chain of 10 bins, batch of 64", "cumsum by hand"),
    "chain, 64 × 60": ("A chain of 60 bins, batch of 64", "cumsum by hand"),
    "Sinkhorn, tree, 512 × 1000": ("Sinkhorn on ImageNet's hierarchy, two batches, 512 × 1000", "emd, rho=2"),
    "Sinkhorn solvers": ("Sinkhorn solvers, 100 iterations", None),
    "decisions": ("Expected distances", None),
}


def page(report: dict[str, Any]) -> str:
    """The page."""
    parts = [_HEAD.format(**report["machine"]), _promises(report["bars"]), _GROWTH]
    parts += [
        _table(title, report["results"][name], one)
        for name, (title, one) in _TABLES.items()
        if name in report["results"]
    ]
    return "\n".join([*parts, _NOTES])


def _promises(bars: list[dict[str, Any]]) -> str:
    lines = ["", "| work | measured | promised | |", "|---|---:|---:|---|"]
    for bar in bars:
        bound = f"≥ {bar['promised']:g}" if bar["at_least"] else f"≤ {bar['promised']:g}"
        digits = ".0f" if bar["figure"] >= 100 else ".2f"
        verdict = "" if bar["holds"] else "missed"
        lines.append(f"| {bar['work']} | {bar['figure']:{digits}} {bar['unit']} | {bound} {bar['unit']} | {verdict} |")
    return "\n".join(lines)


def _table(title: str, times: dict[str, dict[str, float]], one: str | None) -> str:
    lines = [
        f"\n## {title}\n",
        "| | median | minimum |" + (" ratio |" if one else ""),
        "|---|---:|---:|" + "---:|" * bool(one),
    ]
    for name, row in times.items():
        ratio = f" {row['median'] / times[one]['median']:.2f} × |" if one else ""
        lines.append(f"| {name} | {_time(row['median'])} | {_time(row['minimum'])} |{ratio}")
    return "\n".join(lines)


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def main(folder: Path) -> None:
    """Copy the results into the documentation, and write the page."""
    (DOCS / "results" / "figures").mkdir(parents=True, exist_ok=True)
    shutil.copy(folder / "benchmarks.json", DOCS / "results" / "benchmarks.json")
    shutil.copy(folder / "growth.png", DOCS / "results" / "figures" / "growth.png")
    report = json.loads((folder / "benchmarks.json").read_text(encoding="utf-8"))
    (DOCS / "benchmarks.md").write_text(page(report), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
