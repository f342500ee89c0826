"""Hierarchies: build, load, save, shape and look at the tree for any set of classes."""

from earthwork.trees.anyfile import get, read, write
from earthwork.trees.clusters import from_confusion, from_embeddings, from_linkage
from earthwork.trees.graphs import from_networkx, to_networkx
from earthwork.trees.jsonfile import load, save
from earthwork.trees.nested import from_nested, to_nested
from earthwork.trees.newick import from_newick, to_newick
from earthwork.trees.paths import from_paths, to_paths
from earthwork.trees.relations import from_edges, from_parents, to_edges
from earthwork.trees.schemes import with_costs
from earthwork.trees.shaping import collapse, relabel, restrict
from earthwork.trees.shipped import SHIPPED, cifar10, cifar100, imagenet1k, tiny_imagenet200
from earthwork.trees.table import from_table, to_table
from earthwork.trees.wordnet import from_wordnet

__all__ = [
    "SHIPPED",
    "cifar10",
    "cifar100",
    "collapse",
    "from_confusion",
    "from_edges",
    "from_embeddings",
    "from_linkage",
    "from_nested",
    "from_networkx",
    "from_newick",
    "from_parents",
    "from_paths",
    "from_table",
    "from_wordnet",
    "get",
    "imagenet1k",
    "load",
    "read",
    "relabel",
    "restrict",
    "save",
    "tiny_imagenet200",
    "to_edges",
    "to_nested",
    "to_networkx",
    "to_newick",
    "to_paths",
    "to_table",
    "with_costs",
    "write",
]
