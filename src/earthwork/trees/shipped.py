"""The trees that come with the library."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files

from earthwork.spaces import Tree
from earthwork.trees.jsonfile import loads
from earthwork.trees.shaping import reweight


def imagenet1k(costs: str = "unit", rule: str = "least-depth") -> Tree:
    """WordNet's hierarchy over the 1000 classes of ILSVRC2012 in their class order: 1374 nodes, as in the paper.

    Its diameter is 19 in unit edges and 26 in WordNet hops. The rule that gives the paper's number of nodes takes pets
    away from their wild relatives: a tabby is nearer to a beagle than to a lynx. ``rule="first"`` does not.

    Args:
        costs: ``"unit"``: every edge costs 1. ``"hops"``: an edge costs the WordNet edges that it stands for.
        rule: Of `from_wordnet`: ``"least-depth"`` (1374 nodes), or ``"first"`` (1372 nodes, diameter 23 and 27).

    Example:
        >>> import earthwork as ew
        >>> tree = ew.trees.imagenet1k()
        >>> tree
        Tree(1374 nodes, 1000 bins, depth 13, cost 1)
        >>> tree.bin_names[281], tree.node_data["id"][tree.bins[281]]
        ('tabby', 'n02123045')
    """
    if rule not in ("least-depth", "first"):
        raise ValueError(f"rule: expected least-depth or first, got {rule!r}; from_wordnet() has others")
    return _shipped("imagenet1k" if rule == "least-depth" else "imagenet1k_first", costs)


def tiny_imagenet200(costs: str = "unit") -> Tree:
    """WordNet's hierarchy over the 200 classes of Tiny ImageNet, in the order of their sorted synset ids.

    That is the order that dataset classes reading one folder for each class give them; ``wnids.txt`` has another.

    Args:
        costs: As for `imagenet1k`.

    Example:
        >>> import earthwork as ew
        >>> ew.trees.tiny_imagenet200().num_bins
        200
    """
    return _shipped("tiny_imagenet200", costs)


def cifar100() -> Tree:
    """The 100 classes of CIFAR-100 below their 20 superclasses, in the dataset's (alphabetical) order.

    Example:
        >>> import earthwork as ew
        >>> ew.trees.cifar100()
        Tree(121 nodes, 100 bins, depth 2, cost 1)
    """
    return _shipped("cifar100")


def cifar10() -> Tree:
    """The 10 classes of CIFAR-10, in the dataset's order, as six animals and four vehicles.

    The grouping is ours: the dataset has none.

    Example:
        >>> import earthwork as ew
        >>> ew.trees.cifar10().show()
        root
        ├── vehicle
        │   ├── airplane
        │   ├── automobile
        │   ├── ship
        │   └── truck
        └── animal
            ├── bird
            ├── cat
            ├── deer
            ├── dog
            ├── frog
            └── horse
    """
    return _shipped("cifar10")


def imagenet1k_first(costs: str = "unit") -> Tree:
    """`imagenet1k` with ``rule="first"``, under a name for the command line."""
    return imagenet1k(costs, rule="first")


SHIPPED: dict[str, Callable[..., Tree]] = {
    "imagenet1k": imagenet1k,
    "imagenet1k_first": imagenet1k_first,
    "tiny_imagenet200": tiny_imagenet200,
    "cifar100": cifar100,
    "cifar10": cifar10,
}


def _shipped(name: str, costs: str = "unit") -> Tree:
    if costs not in ("unit", "hops"):
        raise ValueError(f"costs: expected unit or hops, got {costs!r}")
    tree = loads(files("earthwork.trees").joinpath("data", f"{name}.json").read_text(encoding="utf-8"))
    return tree if costs == "unit" else reweight(tree, costs)
