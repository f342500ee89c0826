"""Finds phrases to avoid in comments, docstrings, messages and pages: ``python scripts/check_words.py [files]``.

Each pattern has a suggestion. Patterns match whole words and ignore case. A line that must contain such a phrase, for
instance to quote it, ends with ``words: ok``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
ENDINGS = {".py", ".md", ".yml", ".toml", ".html", ".js"}
ALLOWED = "words: ok"

# What was found in this project, and what a reader expects instead.
PHRASES = {
    r"called just as": "a drop-in replacement for",
    r"may buy|has bought|bought you|what it bought": "what you gain",
    r"made[- ]up (?:data|examples?|reviews?|numbers)": "synthetic",
    r"(?:images?|examples?|seconds?|minutes?|hours?) a (?:class|run|loss|call|step|row|seed)": "per class, per run",
    r"goes? on where (?:it|they) stopped": "resumes",
    r"rather vague than": "better vague than wrong",
    r"without a word": "silently",
    r"by a hair": "the match is fragile",
    r"a label that is (?:no|none)\w*": "an out-of-range label",
    r"dismissed and hired": "OpenMP rebuilds its thread pool",
    r"at leisure": "rechecked exactly",
    r"hired anew|trained anew|drawn anew": "again",
    r"has been telling": "available since",
    r"nobody will ask for": "not retained",
    r"love of equations": "the maths",
    r"in the same moment": "atomically",
    r"(?:a|the|this|that|each|every|other|one|all|own|two|several) rooms?\b(?! temperature)": "package, buffer, space",
    r"phones? home": "contacts a server",
    r"in the wild": "in published code",
    r"astonishing\w*": "say how many",
    r"none of (?:its|our|their|a \w+'s) business": "not relevant here",
    r"falls? over": "fails, crashes",
    r"second opinion": "an independent computation",
    r"(?:is|are|was|were) to be had|can be had": "is available",
    r"no worse for wear|for good measure|needless to say": "leave it out",
    r"out of nothing": "from …",
    r"and (?:its )?(?:friends|relatives)\b": "name them",
    r"look(?:ed)? at one by one": "reviewed individually",
    r"mend(?:s|ed|ing)?\b": "fix",
    r"(?:held|holds?) against": "compared with",
    r"beside the (?:oldest|newest) packages": "with the oldest packages",
    r"say(?:s|ing)? so aloud": "print a message",
    r"stands? for nothing": "is unused",
    r"in the manner of": "based on",
    r"round a circle": "around a circle",
    r"whoever else": "other threads",
    r"(?:derivatives?|gradients?)(?: of [^.,;:]{1,40})? by (?:the (?:raw )?(?:log|score)\w*|``[pqx](?=``))": "w.r.t.",
    r"(?:derivatives?|gradients?)(?: of [^.,;:]{1,40})? in (?:the|its) (?:log|score|row|flow|first input)\w*": "w.r.t.",
    r"(?:after|every|of|at most|on|in|below|up to) so (?:many|far|few)\b(?! as)": "this many, this far",
    r"so many (?:rows|bins|warps|numbers|entries|epochs|steps|examples|threads|iterations)": "this many",
    r"round the (?:tree|year|clock|ring|circle)": "around the",
    r"(?:that|which|they) shall\b": "should",
    r"cost(?:s|ing)? (?:a model )?most in all|hold in all|made in all": "in total",
    r"(?:that|which|it|label|labels) (?:is|are) no (?:number|class|label|answer|token|name|tree)s?\b": "is not a",
    r"drops? in for": "a drop-in replacement for",
    r"of equals? (?:ones|any one|the)": "ties go to",
    r"(?:count|read|treat)(?:s|ed)? alike": "in the same way",
    r"anew": "again, from scratch",
    r"at (?:its|their) word": "rely on",
    r"as they come": "unchanged",
    r"and says so|that says so": "and reports it",
    r"what came (?:out|instead)": "the results; what was received",
    r"the mean of nothing": "the value of an empty mean",
    r"large for little of it": "the larger, the weaker",
    r"(?:is|are) won by": "is often the best",
    r"nobody's": "not a … of any",
    r"here and now": "in the current context",
    r"of one's own": "custom",
    r"is of no use|are of no use": "does not help",
    r"for (?:ever|aye) and": "always",
    r"thus far|hitherto|heretofore|thereof|wherein|whilst": "use a current word",
    r"utili[sz]e[sd]?": "use",
    r"leverag(?:e[sd]?|ing)": "use",
    r"blazing(?:ly)?[- ]fast|lightning[- ]fast": "state a measured ratio",
    r"state[- ]of[- ]the[- ]art": "cite the result",
    r"simply (?:use|call|run|pass)": "leave out 'simply'",
    r"(?:is|are) the business of": "is handled by",
    r"(?:tell|tells|told) each other": "exchange",
    r"br(?:ing|ings|ought) (?:\w+ )?along": "include",
    r"for want of": "because there is no",
    r"parts? the (?:classes|bins) in two": "divides",
    r"in the mean over": "on average over",
    r"(?:better|worse|lower|higher) by (?:none|every one|every measure)": "on none of, on every",
    r"(?:a number near it|that|this|it) will do": "is sufficient",
    r"(?:is|are) read in none": "are scattered",
    r"the way (?:between|from \w+ to) (?:two )?(?:nodes?|bins?|classes|the class|the root)": "the path between",
}
PATTERNS = [(re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), better) for pattern, better in PHRASES.items()]


class Finding(NamedTuple):
    """A phrase to avoid."""

    line: int
    phrase: str
    better: str


def findings(text: str) -> Iterator[Finding]:
    """The phrases to avoid in a text, line by line."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.rstrip().endswith(ALLOWED):
            for pattern, better in PATTERNS:
                for match in pattern.finditer(line):
                    yield Finding(number, match[0], better)


def checked_files(names: Iterable[str]) -> list[Path]:
    """The given files, or all tracked ones."""
    listed = list(names)
    if not listed:
        found = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
        listed = found.stdout.splitlines()
    paths = [ROOT / name for name in listed]
    # The list itself, and its test, contain the phrases on purpose.
    own = {Path(__file__).resolve(), ROOT / "tests" / "docs" / "test_words.py"}
    return [path for path in paths if path.suffix in ENDINGS and path.is_file() and path.resolve() not in own]


def main(names: list[str]) -> int:
    """Print every finding; 1 if there is one."""
    count = 0
    for path in checked_files(names):
        for found in findings(path.read_text(encoding="utf-8")):
            count += 1
            print(f"{path.relative_to(ROOT)}:{found.line}: {found.phrase!r}: better {found.better!r}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
