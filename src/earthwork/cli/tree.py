"""``earthwork tree``: look at hierarchies, build them, convert them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from earthwork import trees
from earthwork.cli.tree_build import SOURCES, build_tree, lost_in, read_classes
from earthwork.cli.tree_facts import describe, rules_table
from earthwork.spaces import Tree
from earthwork.trees.classes import find_nodes
from earthwork.trees.show import render

app = typer.Typer(help="Look at hierarchies, build them, convert them.", no_args_is_help=True)

TreeArgument = Annotated[str, typer.Argument(metavar="TREE", help=f"A file, or one of {', '.join(trees.SHIPPED)}.")]
Costs = Annotated[str, typer.Option(help="Edge costs: keep, unit, hops, depth, height.")]


@app.command()
def show(
    tree: TreeArgument,
    depth: Annotated[int | None, typer.Option(help="Levels below the root; by default what fits 200 lines.")] = None,
    costs: Costs = "keep",
) -> None:
    """Print a tree."""
    if depth is not None and depth < 0:
        raise ValueError(f"--depth: expected a number of levels ≥ 0, got {depth}")
    Console(highlight=False, soft_wrap=True).print(render(_get(tree, costs), depth))


@app.command()
def info(tree: TreeArgument, costs: Costs = "keep") -> None:
    """Print what a tree is made of: nodes, leaves, depth, diameter, branching, where it comes from."""
    facts = describe(_get(tree, costs))
    width = max(map(len, facts)) + 2
    for name, value in facts.items():
        print(f"{name:<{width}}{value}")


@app.command()
def distance(
    tree: TreeArgument,
    a: Annotated[str, typer.Argument(help="A node's name or id.")],
    b: Annotated[str, typer.Argument(help="Another one's.")],
    costs: Costs = "keep",
) -> None:
    """Print the cost of the way between two nodes, and the way."""
    found = _get(tree, costs)
    names = found.names or tuple(map(str, range(found.num_nodes)))
    start, end = find_nodes("nodes", [a, b], names, found.node_data.get("id"))
    top = int(found.lowest_common_ancestor(start, end))
    up, down = _climb(found, start, top), _climb(found, end, top)
    way = " → ".join(names[node] or str(node) for node in [*up, top, *reversed(down)])
    print(f"{found.node_distance(start, end).item():g}  {way}")


def _climb(tree: Tree, node: int, top: int) -> list[int]:
    way = []
    while node != top:
        way.append(node)
        node = int(tree.parents[node])
    return way


@app.command()
def convert(
    source: Annotated[str, typer.Argument(help="A file, or the name of a shipped tree.")],
    target: Annotated[Path, typer.Argument(help="The file to write; its ending says the format.")],
    classes: Annotated[Path | None, typer.Option(help="A file of class names, in the order to keep.")] = None,
) -> None:
    """Convert a tree to another format: .json, .nwk, .csv, .tsv, .yaml, .txt."""
    tree = trees.get(source)
    if classes is not None:
        tree = trees.restrict(tree, read_classes(classes))
    _write(tree, target)


@app.command()
def build(
    source: Annotated[str, typer.Option("--from", help=f"What to build from: {', '.join(SOURCES)}.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write; its ending says the format.")],
    input: Annotated[Path | None, typer.Argument(help="The file to build from (none for wordnet).")] = None,
    classes: Annotated[
        Path | None, typer.Option(help="Class names in your order, one a line, or a JSON class_to_idx. wordnet: ids.")
    ] = None,
    rule: Annotated[str, typer.Option(help="wordnet: which hypernym becomes the parent.")] = "least-depth",
    wordnet: Annotated[Path | None, typer.Option(help="wordnet: the dict folder.")] = None,
    keep_single: Annotated[bool, typer.Option(help="wordnet: keep nodes with a single child.")] = False,
    separator: Annotated[str, typer.Option(help="paths: what is between the parts.")] = "/",
    columns: Annotated[str | None, typer.Option(help="table: columns from coarse to fine, with commas.")] = None,
    method: Annotated[str, typer.Option(help="embeddings, confusion: how to merge.")] = "average",
    inner_bins: Annotated[bool, typer.Option(help="Let a class be an ancestor of another.")] = False,
    full_names: Annotated[bool, typer.Option(help="paths, nested, table: call nodes by their path.")] = False,
    costs: Costs = "keep",
) -> None:
    """Build a tree from any source and write it."""
    tree = build_tree(
        source,
        input,
        classes,
        rule=rule,
        wordnet=wordnet,
        collapse=not keep_single,
        separator=separator,
        columns=columns,
        method=method,
        inner_bins=inner_bins,
        full_names=full_names,
    )
    _write(trees.with_costs(tree, costs), output)


@app.command()
def rules(
    classes: Annotated[Path | None, typer.Argument(help="A file of synset ids; by default those of ImageNet.")] = None,
    wordnet: Annotated[Path | None, typer.Option(help="The WordNet dict folder.")] = None,
) -> None:
    """Print, as Markdown, what each rule makes of WordNet: nodes, leaves, diameter."""
    print(rules_table(None if classes is None else list(read_classes(classes)), wordnet))


def _get(tree: str, costs: str) -> Tree:
    return trees.with_costs(trees.get(tree), costs)


def _write(tree: Tree, path: Path) -> None:
    trees.write(tree, path)
    lost = lost_in(tree, path)
    if lost:
        typer.echo(f"note: {path.suffix} files hold no {', no '.join(lost)}; .json holds everything", err=True)
    typer.echo(f"{path}: {tree}")
