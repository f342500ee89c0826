"""``earthwork tree``: inspect hierarchies, build them, convert them.

Importing PyTorch takes seconds, so ``--help`` does without: commands import what needs it when they run.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, cast

import typer

import earthwork as ew
from earthwork.cli.console import Command
from earthwork.files import read_json, read_lines, write_atomically
from earthwork.text import find_nodes, printable

if TYPE_CHECKING:
    from earthwork.trees.assemble import Classes

app = typer.Typer(help="Inspect hierarchies, build them, convert them.", no_args_is_help=True)

# The keys of `trees.SHIPPED` and of `reading.SOURCES`.
SHIPPED = "imagenet1k, imagenet1k_paper, tiny_imagenet200, tiny_imagenet200_paper, cifar100, cifar10, naics2022"
SOURCES = "parents, edges, paths, nested, table, newick, networkx, linkage, embeddings, confusion"

TreeArgument = Annotated[str, typer.Argument(metavar="TREE", help=f"A file, or one of {SHIPPED}.")]
Costs = Annotated[
    str | None, typer.Option(help="Edge costs: unit, hops, depth or height; by default those of the tree.")
]


class TreeCommand(Command):
    """A command whose errors name its options."""

    aliases: ClassVar = {"what": "tree", "scheme": "costs"}


@app.command(cls=TreeCommand)
def show(
    tree: TreeArgument,
    depth: Annotated[int | None, typer.Option(help="Levels below the root; by default what fits 200 lines.")] = None,
    costs: Costs = None,
    html: Annotated[Path | None, typer.Option(help="Write a page that folds and searches to this file.")] = None,
) -> None:
    """Print a tree, or write it as an HTML page."""
    from earthwork.plot.pages import tree_page
    from earthwork.spaces.outline import outline

    loaded = _load(tree, costs)
    if html is None:
        typer.echo(outline(loaded, depth))
    else:
        write_atomically(html, tree_page(loaded, f"{Path(tree).name}: {loaded}"))
        typer.echo(f"{html}: {loaded}")


@app.command(cls=TreeCommand)
def info(tree: TreeArgument, costs: Costs = None) -> None:
    """Print the properties of a tree: nodes, leaves, depth, diameter, branching and source."""
    facts = describe(_load(tree, costs))
    width = max(map(len, facts)) + 2
    for name, value in facts.items():
        typer.echo(printable(f"{name:<{width}}{value}"))


def describe(tree: ew.Tree) -> dict[str, str]:
    """Return the facts about a tree, by name."""
    import numpy as np

    children = np.bincount(tree._parents[tree._parents >= 0], minlength=tree.num_nodes)
    branching, costs = children[children > 0], tree.costs
    spread = f"{branching.mean():.2f} children on average, at most {branching.max():,}" if len(branching) else "none"
    facts = {
        "nodes": f"{tree.num_nodes:,}",
        "classes": f"{tree.num_bins:,}",
        "leaves": f"{(children == 0).sum():,}",
        "depth": f"{tree.depth:,}",
        "diameter": f"{tree.diameter().item():g}",
        "branching": spread,
        "single-child nodes": f"{(children == 1).sum():,}",
        "costs": " to ".join(dict.fromkeys(f"{end.item():g}" for end in costs.aminmax())) if len(costs) else "none",
    }
    if "hops" in tree.node_data:
        facts["diameter in hops"] = f"{ew.trees.reweight(tree, 'hops').diameter().item():g}"
    if tree.notes:
        facts["notes"] = f"{len(tree.notes)}: {'; '.join(tree.notes)}"
    return {name: str(value) for name, value in tree.info.items() if name != "notes"} | facts


@app.command(cls=TreeCommand)
def distance(
    tree: TreeArgument,
    a: Annotated[str, typer.Argument(help="The name or id of a node.")],
    b: Annotated[str, typer.Argument(help="The name or id of another node.")],
    costs: Costs = None,
) -> None:
    """Print the distance between two nodes, and the path between them."""
    found = _load(tree, costs)
    names = found.names or tuple(map(str, range(found.num_nodes)))
    start, end = find_nodes("nodes", [a, b], names, found.node_data.get("id"))
    top = int(found.lowest_common_ancestor(start, end))
    up, down, parents = [start], [end], found.parents.tolist()
    for way in (up, down):
        while way[-1] != top:
            way.append(parents[way[-1]])
    path = " → ".join(printable(names[node]) or str(node) for node in [*up, *reversed(down[:-1])])
    typer.echo(f"{found.node_distance(start, end).item():g}  {path}")


@app.command(cls=TreeCommand)
def convert(
    tree: Annotated[str, typer.Argument(metavar="SOURCE", help="A file, or the name of a shipped tree.")],
    target: Annotated[Path, typer.Argument(help="The file to write; its ending says the format.")],
    classes: Annotated[Path | None, typer.Option(help="A file of class names, in the order to keep.")] = None,
) -> None:
    """Convert a tree to another format: .json, .nwk, .csv, .tsv, .yaml, .txt, .npz."""
    loaded = _load(tree)
    _save(loaded if classes is None else ew.trees.restrict(loaded, read_classes(classes)), target)


@app.command(cls=TreeCommand)
def build(
    context: typer.Context,
    source: Annotated[str, typer.Option("--from", help=f"What to build from: {SOURCES}.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write; its ending says the format.")],
    input: Annotated[Path | None, typer.Argument(help="The file to build from.")] = None,
    classes: Annotated[
        Path | None, typer.Option(help="Class names in your order, one per line, or a JSON class_to_idx.")
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            help="edges, parents, networkx: which of several parents a node keeps: first, shortest, longest, siblings."
        ),
    ] = None,
    separator: Annotated[
        str, typer.Option(help="paths: separates the parts. paths, nested, table: joins full names.")
    ] = "/",
    columns: Annotated[str | None, typer.Option(help="table: columns from coarse to fine, with commas.")] = None,
    method: Annotated[str, typer.Option(help="embeddings, confusion: SciPy's linkage method.")] = "average",
    metric: Annotated[str, typer.Option(help="embeddings: SciPy's distance between vectors.")] = "euclidean",
    inner_bins: Annotated[bool, typer.Option(help="Allow a class to be an ancestor of another.")] = False,
    full_names: Annotated[bool, typer.Option(help="paths, nested, table: name nodes by their path.")] = False,
    clean: Annotated[bool, typer.Option(help="Clean white space and Unicode in names.")] = True,
    strict: Annotated[bool, typer.Option(help="Stop if a name is not clean, or looks like a mistake.")] = False,
    costs: Costs = None,
) -> None:
    """Build a tree from any source and write it."""
    from earthwork.storage import reading

    if source not in reading.SOURCES:
        raise ValueError(f"--from: expected one of {SOURCES}, got {source!r}")
    if input is None:
        raise ValueError(f"--from {source} needs the file to build from")
    read = reading.SOURCES[source]
    options = context.params | {
        "classes": None if classes is None else read_classes(classes),
        "columns": columns.split(",") if columns else None,
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        tree = read(input, **{name: options[name] for name in read.options() if name in options})
    for message in (*tree.notes, *(str(warning.message) for warning in caught)):
        typer.echo(f"note: {printable(cast(Command, context.command).in_options(message))}", err=True)
    _save(tree if costs is None else ew.trees.reweight(tree, costs), out)


def _load(tree: str, costs: str | None = None) -> ew.Tree:
    loaded = ew.load(tree)
    if not isinstance(loaded, ew.Tree):
        raise ValueError(f"{tree}: expected a tree, got {loaded}")
    return loaded if costs is None else ew.trees.reweight(loaded, costs)


def _save(tree: ew.Tree, path: Path) -> None:
    """Write a tree, and say what a file with this ending does not keep of it."""
    ew.save(tree, path)
    suffix = path.suffix.lower()
    keeps_costs = suffix in (".nwk", ".newick", ".tree", ".tre", ".yaml", ".yml", ".npz")
    keeps_order = suffix in (".csv", ".tsv", ".txt", ".npz")
    losses = {
        "costs": not keeps_costs and not bool((tree.costs == 1).all()),
        "order of classes": not keeps_order and tree.bin_order().tolist() != list(range(tree.num_bins)),
        "names": suffix == ".npz" and tree.names is not None,
        "ids": bool(tree.node_data),
    }
    lost = [what for what, is_lost in losses.items() if is_lost]
    if lost and suffix != ".json":
        typer.echo(f"note: {path.suffix} files hold no {', no '.join(lost)}; .json holds everything", err=True)
    typer.echo(f"{path}: {tree}")


def read_classes(path: Path) -> Classes:
    """Read class names from a file: one in each line, or a JSON list or object (name → index)."""
    if path.suffix.lower() != ".json":
        return [line.strip() for line in read_lines(path) if line.strip()]
    value = read_json(path)
    if not isinstance(value, list | dict):
        raise ValueError(f"{path}: expected a list of names or an object name → index")
    return value
