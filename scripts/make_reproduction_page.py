"""Write the measured parts of docs/reproduction.md from the results in docs/results.

Run it after new results: `python scripts/make_reproduction_page.py`. With --check it writes nothing and fails if the
page differs from what the results give.
"""

from __future__ import annotations

import sys
from pathlib import Path

from earthwork_lab.report import read_results
from earthwork_lab.reproduce import EXPERIMENTS, judge_claims
from earthwork_lab.reproduce.claims_learning import OURS
from earthwork_lab.reproduce.experiment import Results
from earthwork_lab.reproduce.figures import LOSS_TITLES, figures
from earthwork_lab.reproduce.imagenet import SHARES
from earthwork_lab.reproduce.plots import save_figures
from earthwork_lab.reproduce.verdicts import as_markdown, summary_as_markdown
from earthwork_lab.statistics import interval_text

DOCS = Path(__file__).parent.parent / "docs"
PICTURES = {
    "ellyvan": {
        "ellyvan": "The tree of figure 1 with its flows and both gradients.",
        "chain": "Flows on a chain of six bins (figure 3).",
    }
}


def summary(results: dict[str, Results]) -> str:
    """How many claims have which verdict."""
    return summary_as_markdown(judge_claims(results))


def breathing(results: dict[str, Results]) -> str:
    """The final test EMD of each loss with both heads."""
    entry = results["breathing"]
    heads = entry.summary["heads"]
    lines = ["| loss | the paper's head | softmax head |", "|---|---|---|"]
    for loss in entry.settings["losses"]:
        cells = [interval_text(heads[head][loss]["last"]) for head in ("squares", "softmax")]
        lines.append(f"| {loss} | {' | '.join('NaN' if cell == '–' else cell for cell in cells)} |")
    constant = interval_text(entry.summary["constant"])
    lines.append(f"| (the training set's mean spectrum) | {constant} | {constant} |")
    return "\n".join(lines) + "\n"


SCORES = {
    "top1": "top-1 %",
    "emd": "EMD",
    "calibration": "calibration error %",
    "distance": "distance",
    "distance_decided": "distance after `decide`",
}


def imagenet(results: dict[str, Results]) -> str:
    """The scores after the last epoch, with few images and with all."""
    entry = results["imagenet"]
    lines = []
    for share, title in SHARES.items():
        runs = {loss: run for loss, run in entry.summary.get(share, {}).items() if run["final"]}
        if not runs:
            continue
        epochs = max(run["epochs"][-1] for run in runs.values())
        lines += [f"{title.capitalize()}, {epochs} epochs:", ""]
        lines += [f"| loss | {' | '.join(SCORES.values())} |", "|---|" + "---|" * len(SCORES)]
        for loss, run in runs.items():
            cells = [interval_text(run["final"][name], digits=1 if "%" in SCORES[name] else 2) for name in SCORES]
            lines.append(f"| {LOSS_TITLES.get(loss, loss)} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def claims(results: dict[str, Results]) -> str:
    """The table of the paper's claims; those of our own are in the table of `earthwork report --claims`."""
    return as_markdown([claim for claim in judge_claims(results) if claim.where != OURS], deciding=True)


def pictures(results: dict[str, Results]) -> str:
    """The figures of every experiment."""
    parts = []
    for name, entry in results.items():
        drawn = {**PICTURES.get(name, {}), **{chart.key: chart.alt for chart in figures(entry)}}
        if drawn:
            parts.append(f"### {EXPERIMENTS[name].paper.capitalize()}\n")
            parts += [f"![{alt}](results/figures/{key}.svg)\n" for key, alt in drawn.items()]
    return "\n".join(parts)


BLOCKS = {"summary": summary, "breathing": breathing, "imagenet": imagenet, "claims": claims, "figures": pictures}


def page(text: str, results: dict[str, Results]) -> str:
    """The page with its measured blocks written again."""
    for name, write in BLOCKS.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        head, rest = text.split(begin)
        text = f"{head}{begin}\n{write(results)}\n{end}{rest.split(end)[1]}"
    return text


def main() -> int:
    """Write or check the page."""
    path = DOCS / "reproduction.md"
    results = read_results(DOCS / "results")
    text = path.read_text(encoding="utf-8")
    made = page(text, results)
    if "--check" in sys.argv:
        return int(made != text)
    path.write_text(made, encoding="utf-8")
    for entry in results.values():
        for file in save_figures(entry, DOCS / "results" / "figures"):
            if file.suffix == ".png":
                file.unlink()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
