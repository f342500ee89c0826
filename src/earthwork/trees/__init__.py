"""Hierarchies: build and shape the tree for any set of classes."""

from earthwork.trees.builder import BuilderOptions
from earthwork.trees.classifications import from_codes, read_obo
from earthwork.trees.clusters import from_confusion, from_embeddings, from_linkage
from earthwork.trees.migration import Migration, migrate, record_classes, recorded_classes
from earthwork.trees.nested import from_nested, to_nested
from earthwork.trees.newick import from_newick, to_newick
from earthwork.trees.parts import TreePart, read_part
from earthwork.trees.paths import from_paths, from_table, to_paths, to_table
from earthwork.trees.relations import from_dag, from_edges, from_networkx, from_parents, to_edges, to_networkx
from earthwork.trees.shaping import collapse, relabel, restrict, reweight
from earthwork.trees.shipped import SHIPPED, cifar10, cifar100, imagenet1k, naics2022, tiny_imagenet200

__all__ = [
    "SHIPPED",
    "BuilderOptions",
    "Migration",
    "TreePart",
    "cifar10",
    "cifar100",
    "collapse",
    "from_codes",
    "from_confusion",
    "from_dag",
    "from_edges",
    "from_embeddings",
    "from_linkage",
    "from_nested",
    "from_networkx",
    "from_newick",
    "from_parents",
    "from_paths",
    "from_table",
    "imagenet1k",
    "migrate",
    "naics2022",
    "read_obo",
    "read_part",
    "record_classes",
    "recorded_classes",
    "relabel",
    "restrict",
    "reweight",
    "tiny_imagenet200",
    "to_edges",
    "to_nested",
    "to_networkx",
    "to_newick",
    "to_paths",
    "to_table",
]
