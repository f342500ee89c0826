"""Write the measured parts of docs/reproduction.md from the results in docs/results.

Run it after new results: `python scripts/make_reproduction_page.py`. With --check it only says whether the page is what
the results say.
"""

from __future__ import annotations

import sys
from pathlib import Path

from earthwork.lab.plot.reproduction import save_figures
from earthwork.lab.report import read_results
from earthwork.lab.reproduce import EXPERIMENTS
from earthwork.lab.reproduce.claims import as_markdown, judge_claims
from earthwork.lab.reproduce.experiment import Results
from earthwork.lab.reproduce.figures import figures

DOCS = Path(__file__).parent.parent / "docs"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def measured(results: dict[str, Results]) -> str:
    """The table of claims and the figures, as Markdown."""
    claims = judge_claims(results)
    parts = ["## Claims\n", as_markdown(claims), "## Figures\n"]
    for name, entry in results.items():
        charts = figures(entry)
        if charts:
            parts.append(f"### {EXPERIMENTS[name].title} ({EXPERIMENTS[name].paper})\n")
            parts.append(f"Data: {entry.data}.\n")
            parts += [f"![{chart.alt}](results/figures/{chart.key}.svg)\n" for chart in charts]
    return "\n".join(parts)


def page(text: str, results: dict[str, Results]) -> str:
    """The page with its measured part made anew."""
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n{measured(results)}\n{END}{rest.split(END)[1]}"


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
