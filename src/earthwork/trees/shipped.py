"""The trees that come with the library."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.resources import files

from earthwork.files import parse_json
from earthwork.spaces import Tree
from earthwork.spaces.space import check_word
from earthwork.trees.nested import from_document
from earthwork.trees.shaping import reweight


def imagenet1k(costs: str = "unit", rule: str = "first") -> Tree:
    """Load WordNet's hierarchy over the 1000 classes of ILSVRC2012, in the order of their class index.

    Where WordNet gives a synset several hypernyms, a rule chooses one of them as its parent. ``"first"`` takes the one
    that WordNet lists first. ``"paper"`` gives the 1374 nodes of the paper, but it puts pets below ``domestic_animal``,
    far from their wild relatives: a tabby is nearer to a dalmatian than to a tiger. Use it to reproduce the paper.

    Args:
        costs: ``"unit"``: every edge costs 1. ``"hops"``: an edge costs the number of WordNet edges that it replaces.
        rule: ``"first"`` or ``"paper"``.

    Example:
        >>> import earthwork as ew
        >>> tree, paper = ew.trees.imagenet1k(), ew.trees.imagenet1k(rule="paper")
        >>> tree, paper
        (Tree(1372 nodes, 1000 bins, depth 16, cost 1), Tree(1374 nodes, 1000 bins, depth 13, cost 1))
        >>> tabby, tiger, dalmatian = map(tree.bin_names.index, ["tabby", "tiger", "dalmatian"])
        >>> tree.distance(tabby, tiger).item(), tree.distance(tabby, dalmatian).item()
        (5.0, 7.0)
        >>> paper.distance(tabby, tiger).item(), paper.distance(tabby, dalmatian).item()
        (10.0, 4.0)
    """
    return _from_wordnet("imagenet1k", costs, rule)


def tiny_imagenet200(costs: str = "unit", rule: str = "first") -> Tree:
    """Load WordNet's hierarchy over the 200 classes of Tiny ImageNet, in the order of their sorted synset ids.

    That is the order in which datasets that read a folder for each class number them; ``wnids.txt`` has another order.

    The arguments are those of `imagenet1k`.
    """
    return _from_wordnet("tiny_imagenet200", costs, rule)


def cifar100() -> Tree:
    """Load the 100 classes of CIFAR-100 below their 20 superclasses, in the dataset's (alphabetical) order.

    Example:
        >>> import earthwork as ew
        >>> ew.trees.cifar100()
        Tree(121 nodes, 100 bins, depth 2, cost 1)
    """
    return _shipped("cifar100")


def cifar10() -> Tree:
    """Load the 10 classes of CIFAR-10, in the dataset's order, as six animals and four vehicles.

    The grouping is ours: the dataset has none.

    Example:
        >>> import earthwork as ew
        >>> ew.trees.to_paths(ew.trees.cifar10())[:3]
        ['root/vehicle/airplane', 'root/vehicle/automobile', 'root/animal/bird']
    """
    return _shipped("cifar10")


def naics2022() -> Tree:
    """Load the 308 industry groups (four digits) of NAICS 2022 below their 96 subsectors and 20 sectors, by code.

    The North American Industry Classification System, United States, is published by the US Office of Management and
    Budget and the Census Bureau: a work of the US government, in the public domain in the United States. Nodes are
    called ``"code title"``, and ``node_data["id"]`` holds the codes. For industries of five and six digits, pass the
    Census Bureau's list to `from_codes`.

    Example:
        >>> import earthwork as ew
        >>> tree = ew.trees.naics2022()
        >>> tree
        Tree(425 nodes, 308 bins, depth 3, cost 1)
        >>> ew.trees.to_paths(ew.trees.restrict(tree, ["3111"]))
        ['root/31-33 Manufacturing/311 Food Manufacturing/3111 Animal Food Manufacturing']
    """
    return _shipped("naics2022")


SHIPPED: dict[str, Callable[..., Tree]] = {
    "imagenet1k": imagenet1k,
    "imagenet1k_paper": partial(imagenet1k, rule="paper"),
    "tiny_imagenet200": tiny_imagenet200,
    "tiny_imagenet200_paper": partial(tiny_imagenet200, rule="paper"),
    "cifar100": cifar100,
    "cifar10": cifar10,
    "naics2022": naics2022,
}


def _from_wordnet(name: str, costs: str, rule: str) -> Tree:
    check_word("costs", costs, "unit", "hops")
    check_word("rule", rule, "first", "paper")
    tree = _shipped(name if rule == "first" else f"{name}_paper")
    return tree if costs == "unit" else reweight(tree, costs)


def _shipped(name: str) -> Tree:
    text = files("earthwork.trees").joinpath("data", f"{name}.json").read_text(encoding="utf-8")
    return from_document(parse_json(text))
