"""Our trees beside those of networkx, SciPy and scikit-bio: the same distances."""

from __future__ import annotations

import io
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from earthwork import Tree, trees
from tests.trees.hierarchies import hierarchies

skbio = pytest.importorskip("skbio")


@given(hierarchies())
def test_networkx_finds_same_distances(tree: Tree) -> None:
    graph = trees.to_networkx(tree).to_undirected()
    found = dict(nx.all_pairs_dijkstra_path_length(graph, weight="weight"))
    expected = [[found[a][b] for b in tree.bin_names or ()] for a in tree.bin_names or ()]
    np.testing.assert_allclose(tree.distances(), expected, rtol=1e-12, atol=1e-9)


def test_trees_from_networkx_its_distances() -> None:
    graph = nx.random_labeled_tree(40, seed=0)
    for a, b in graph.edges:
        graph.edges[a, b]["weight"] = 1.0 + (a * b) % 7
    tree = trees.from_networkx(graph, root=3)
    found = dict(nx.all_pairs_dijkstra_path_length(graph))
    expected = [[found[int(a)][int(b)] for b in tree.bin_names or ()] for a in tree.bin_names or ()]
    np.testing.assert_array_equal(tree.distances(), expected)


@pytest.mark.parametrize("method", ["single", "complete", "average", "ward"])
def test_linkage_has_cophenetic_distances(method: str, rng: np.random.Generator) -> None:
    merges = hierarchy.linkage(rng.normal(size=(30, 4)), method)
    tree = trees.from_linkage(merges)
    np.testing.assert_allclose(tree.distances(), squareform(hierarchy.cophenet(merges)), rtol=1e-12)
    theirs = skbio.TreeNode.from_linkage_matrix(merges, [str(i) for i in range(30)])
    np.testing.assert_allclose(tree.distances(), skbio_distances(theirs, [str(i) for i in range(30)]), rtol=1e-9)


@given(hierarchies())
def test_scikit_bio_reads_our_newick(tree: Tree) -> None:
    # Its reader strips the blanks at the ends of quoted names, so they get plain ones.
    plain = trees.relabel(tree, [f"it's {node}, _" for node in range(tree.num_nodes)])
    theirs = skbio.TreeNode.read(io.StringIO(trees.to_newick(plain)), format="newick")
    np.testing.assert_allclose(plain.distances(), skbio_distances(theirs, plain.bin_names or ()), rtol=1e-9, atol=1e-9)


def test_we_read_newick_of_scikit_bio(rng: np.random.Generator) -> None:
    merges = hierarchy.linkage(rng.normal(size=(20, 3)), "average")
    names = [f"species {i} (it's)" for i in range(20)]
    theirs = skbio.TreeNode.from_linkage_matrix(merges, names)
    for node in theirs.traverse():
        if node.length is not None:
            node.length = float(node.length)
    text = str(theirs)
    ours = trees.from_newick(text, classes=names)
    np.testing.assert_allclose(ours.distances(), skbio_distances(theirs, names), rtol=1e-9)


def skbio_distances(tree: object, names: object) -> np.ndarray:
    matrix = tree.cophenet()  # type: ignore[attr-defined]
    return matrix.filter(list(names)).data  # type: ignore[call-overload]


def test_class_vectors_clustered_as_scipy(rng: np.random.Generator) -> None:
    points = rng.normal(size=(12, 5))
    expected = squareform(hierarchy.cophenet(hierarchy.linkage(points, "average", metric="cosine")))
    tree = trees.from_embeddings(torch.from_numpy(points), metric="cosine")
    np.testing.assert_allclose(tree.distances(), expected, rtol=1e-9)


def test_classes_that_are_confused_are_near() -> None:
    matrix = np.diag([90.0, 90.0, 90.0, 90.0])
    matrix[0, 2] = matrix[2, 0] = 9
    matrix[1, 3] = 5
    tree = trees.from_confusion(matrix, ["a", "b", "c", "d"])
    order = [tree.distance(i, j).item() for i, j in pairwise([0, 2, 1, 3])]
    assert order[0] < order[2] < order[1]
    assert tree.info["source"] == "confusion matrix"
