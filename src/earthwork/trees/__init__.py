"""Hierarchies: build, load, save, shape and look at the tree for any set of classes."""

from earthwork.trees.jsonfile import load, save
from earthwork.trees.paths import from_paths, to_paths
from earthwork.trees.relations import from_edges, from_parents, to_edges
from earthwork.trees.schemes import with_costs
from earthwork.trees.shaping import collapse, relabel, restrict
from earthwork.trees.shipped import SHIPPED, cifar10, cifar100, imagenet1k, tiny_imagenet200
from earthwork.trees.wordnet import from_wordnet

__all__ = [
    "SHIPPED",
    "cifar10",
    "cifar100",
    "collapse",
    "from_edges",
    "from_parents",
    "from_paths",
    "from_wordnet",
    "imagenet1k",
    "load",
    "relabel",
    "restrict",
    "save",
    "tiny_imagenet200",
    "to_edges",
    "to_paths",
    "with_costs",
]
