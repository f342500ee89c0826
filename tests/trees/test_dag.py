"""Nodes with several parents: one of them by a rule, or all of them kept."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

import earthwork as ew
from earthwork import trees

# "kitchen" is below home and, deeper, below cooking; home has the most children.
SHOP = [
    ("home", "shop"), ("food", "shop"), ("cooking", "food"), ("kitchen", "cooking"), ("kitchen", "home"),
    ("sofa", "home"), ("lamp", "home"), ("bread", "food"), ("kitchen", "food"),
]  # fmt: skip
PARENTS = {"shop": None, "home": "shop", "food": ["shop"], "kitchen": ["home", "food"], "sofa": "home", "bread": "food"}


@pytest.mark.parametrize(
    ("rule", "parent"), [("first", "cooking"), ("shortest", "home"), ("longest", "cooking"), ("siblings", "home")]
)
def test_a_rule_chooses_one_parent(rule, parent):
    import networkx as nx

    graph = nx.DiGraph([(above, child) for child, above in SHOP])
    mapping = {child: [p for c, p in SHOP if c == child] for child, _ in SHOP} | {"shop": None}
    for tree in (
        trees.from_edges(SHOP, rule=rule),
        trees.from_parents(mapping, rule=rule),
        trees.from_networkx(graph, rule=rule),
    ):
        kitchen = tree.names.index("kitchen")
        assert tree.names[tree.parents[kitchen]] == parent
        assert tree.notes == (f"rule {rule!r} chose one of several parents for 1 nodes: 'kitchen' is below {parent!r}",)


def test_several_parents_need_a_rule():
    message = r"parents: expected one parent for each node, got several for 1: 'kitchen' \('home', 'food'\); rule= "
    with pytest.raises(
        ValueError, match=message + r"chooses one \(first, shortest, longest, siblings\), ew\.trees\.from"
    ):
        trees.from_parents(PARENTS)
    with pytest.raises(ValueError, match="rule: expected one of first, shortest, longest, siblings, got 'deepest'"):
        trees.from_parents(PARENTS, rule="deepest")
    with pytest.raises(TypeError, match=r"parents: expected names, None or a list of names, got \[1\] for 'b'"):
        trees.from_parents({"a": None, "b": [1]})


def test_the_cost_is_that_of_the_edge_that_is_kept(tmp_path):
    (tmp_path / "shop.csv").write_text("child,parent,cost\nk,a,5\nk,b,7\na,r,1\nb,c,1\nc,r,1\nr,,\n")
    tree = ew.load(tmp_path / "shop.csv", rule="longest")
    assert dict(zip(trees.to_edges(tree), range(9), strict=False)).keys() >= {("k", "b", 7.0)}
    with pytest.raises(ValueError, match=r"edges: expected one parent .* 'k' \('a', 'b'\)"):
        ew.load(tmp_path / "shop.csv")
    with pytest.raises(TypeError, match="full_names: not an option of from_edges"):
        ew.load(tmp_path / "shop.csv", rule="first", full_names=True)


def test_an_edge_that_occurs_twice_counts_once():
    tree = trees.from_edges([("a", "r"), ("b", "r"), ("a", "r ")])
    assert tree.bin_names == ("a", "b")
    assert "'a' is below 'r' twice" in tree.notes


@pytest.mark.parametrize("build", [lambda e: trees.from_edges(e, rule="first"), trees.from_dag])
def test_a_cycle_is_named(build):
    with pytest.raises(ValueError, match="edges: expected no cycle, got 'b' → 'c' → 'b'"):
        build([("a", "r"), ("b", "r"), ("b", "c"), ("c", "b")])


def ancestors(name):
    above = PARENTS[name]
    names = () if above is None else (above,) if isinstance(above, str) else above
    return {name}.union(*(ancestors(parent) for parent in names))


def test_distance_is_cost_of_groups_of_one():
    costs = {name: 0.5 + place for place, name in enumerate(PARENTS)}
    dag = trees.from_dag(PARENTS, costs)
    assert dag.bin_names == ("kitchen", "sofa", "bread")
    for (i, a), (j, b) in itertools.product(enumerate(dag.bin_names), repeat=2):
        expected = sum(costs[name] for name in ancestors(a) ^ ancestors(b))
        assert dag.distance(i, j).item() == pytest.approx(expected)
    torch.testing.assert_close(dag.distance(torch.arange(3)[:, None], torch.arange(3)), dag.distances())


@pytest.mark.parametrize("name", ["Dag", "CostMatrix"])
def test_sets_of_single_examples_in_a_transform(name):
    dag = random_dag(0)
    space = dag if name == "Dag" else ew.CostMatrix(dag.distances())
    loss, rng = ew.SoftLabelLoss(space, reduction="none"), np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(size=(4, space.num_bins)))
    mask = torch.from_numpy(rng.random((4, space.num_bins)) < 0.5)
    mask[:, 0] = True
    found = torch.func.vmap(torch.func.grad(lambda x, allowed: loss(x, ew.targets.any_of(allowed))))(logits, mask)
    logits.requires_grad_()
    (expected,) = torch.autograd.grad(loss(logits, ew.targets.any_of(mask)).sum(), logits)
    torch.testing.assert_close(found, expected)


def test_distances_below_a_large_cost():
    dag = ew.Dag([[], [0], [0], [1], [1], [1, 2], [2]], [0, 1e20, 1, 1, 3, 1, 1])
    # The first three classes are below the node of cost 1e20, which none of these distances has a part of.
    assert dag.distances()[:3, :3].tolist() == [[0, 4, 3], [4, 0, 5], [3, 5, 0]]


def random_dag(seed, nodes=14):
    rng = np.random.default_rng(seed)
    parents = [rng.choice(node, min(node, int(rng.integers(1, 4))), replace=False).tolist() for node in range(1, nodes)]
    bins = rng.permutation(nodes)[: int(rng.integers(3, nodes))]
    return ew.Dag([[], *parents], rng.random(nodes) * (rng.random(nodes) < 0.8), bins)


@pytest.mark.parametrize("seed", range(6))
def test_one_parent_each_is_a_tree(seed):
    rng = np.random.default_rng(seed)
    parents = [-1, *(int(rng.integers(0, node)) for node in range(1, 20))]
    bins, costs = rng.permutation(20)[:7], rng.random(20)
    tree, dag = ew.Tree(parents, costs, bins), ew.Dag([[p] if p >= 0 else [] for p in parents], costs, bins)
    p, q = (torch.from_numpy(rng.dirichlet(np.ones(7), 5)) for _ in range(2))
    labels, logits = torch.arange(5), p.log()
    for call in (
        lambda space: space.distances(),
        lambda space: ew.emd(p, q, space, 1.0),
        lambda space: ew.emd_gradient(p, q, space, 2.0),
        lambda space: ew.expected_distance(p, space),
        lambda space: ew.decide(p, space),
        lambda space: ew.EMDLoss(space)(logits, labels),
        lambda space: ew.EMDLoss(space)(logits, ew.targets.any_of(q > 0.1)),
        lambda space: ew.EdgeCrossEntropyLoss(space)(logits, labels),
        lambda space: ew.SoftLabelLoss(space)(logits, labels),
        lambda space: ew.SinkhornLoss(space)(logits, labels),
        lambda space: ew.metrics.functional.mean_distance(p, labels, space),
    ):
        torch.testing.assert_close(call(dag), call(tree))


@pytest.mark.parametrize("seed", range(6))
def test_emd_is_at_most_the_transport_cost(seed):
    dag = random_dag(seed)
    exact = ew.CostMatrix(dag.distances(), symmetric=True, triangle=True)
    rng = np.random.default_rng(seed)
    p, q = (torch.from_numpy(rng.dirichlet(np.ones(dag.num_bins), 8)) for _ in range(2))
    hot = torch.eye(dag.num_bins, dtype=torch.float64)[rng.integers(0, dag.num_bins, 8)]
    torch.testing.assert_close(ew.emd(p, hot, dag), ew.emd(p, hot, exact))
    assert (ew.emd(p, q, dag) <= ew.emd(p, q, exact) + 1e-9).all()
    torch.testing.assert_close(ew.expected_distance(p, dag), ew.expected_distance(p, exact))


@pytest.mark.parametrize("rho", [1.5, 2.0])
def test_derivatives_by_finite_differences(rho):
    dag = random_dag(1)
    logits = torch.randn(3, dag.num_bins, dtype=torch.float64, requires_grad=True)
    labels = torch.arange(3) % dag.num_bins
    for loss in (ew.EMDLoss(dag, rho), ew.EdgeCrossEntropyLoss(dag)):
        assert torch.autograd.gradcheck(lambda x, loss=loss: loss(x, labels), logits)


def test_huge_logits():
    dag = trees.from_dag(PARENTS)
    logits = torch.tensor([[1e4, 0.0, -1e4]], requires_grad=True)
    loss = ew.EdgeCrossEntropyLoss(dag)(logits, torch.tensor([2]))
    (slope,) = torch.autograd.grad(loss, logits)
    assert loss > 1e4
    assert slope.isfinite().all()


def test_only_the_classes_and_what_is_above_them_is_kept():
    dag = trees.from_dag(SHOP, classes=["sofa", "kitchen"])
    assert set(dag.names) == {"sofa", "kitchen", "home", "food", "cooking", "shop"}
    assert dag.bin_names == ("sofa", "kitchen")
    with pytest.raises(ValueError, match=r"classes: 1 not in the tree: 'sofas' \(near: 'sofa'"):
        trees.from_dag(SHOP, classes=["sofas"])


def test_a_value(tmp_path):
    dag = trees.from_dag(PARENTS)
    assert dag == ew.Dag(dag.parents, dag.costs, dag.bins, dag.names)
    assert dag != dag.with_costs(2.0)
    assert dag.normalized().diameter() == 1
    ew.save(dag, tmp_path / "dag.json")
    again = ew.load(tmp_path / "dag.json")
    assert again == dag
    assert again.names == dag.names


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ew.Dag([[], [0], [3]]), "parents: expected nodes from 0 to 2, got 3"),
        (lambda: ew.Dag([[], [0.5]]), "^parents: expected integers, got float64"),
        (lambda: ew.Dag([-1, 0]), r"parents: expected a list of nodes for each node, got \[-1, 0\]"),
        (lambda: ew.Dag([[1], [0]]), "bins: expected at least one node, got none"),
        (lambda: ew.Dag([[], [0]], bins=[1, 1]), "bins: expected each node once, got node 1 twice"),
        (lambda: ew.Dag([[1], [0]], bins=[0]), "parents: expected no cycle, got one through node 0"),
        (lambda: ew.Dag([[], [0], [3], [2]], bins=[1]), "parents: expected no cycle, got one through node 2"),
        (lambda: ew.HierarchicalCrossEntropyLoss(random_dag(0)), "tree: expected a Tree, whose levels are asked for"),
        (lambda: trees.from_dag([("a", "b", 1)]), "the cost is that of a node"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_a_graph_too_deep_to_keep(monkeypatch):
    monkeypatch.setattr("earthwork.spaces.dag._MAX_PAIRS", 1000)
    with pytest.raises(ValueError, match=r"^parents: expected at most 1,000 pairs .* as a Tree$"):
        ew.Dag([[], *([node] for node in range(100))])


def hypernyms(folder):
    """(synset, hypernym) of WordNet's nouns, read by hand."""
    edges = []
    for line in (folder / "data.noun").read_text(encoding="utf-8").splitlines():
        fields = line.split(" | ")[0].split()
        if line.startswith(" ") or not fields:
            continue
        pointers = fields[5 + 2 * int(fields[3], 16) :]
        edges += [
            (f"n{fields[0]}", f"n{offset}")
            for symbol, offset, kind, _ in zip(*[iter(pointers)] * 4, strict=False)
            if symbol in ("@", "@i") and kind == "n"
        ]
    return edges


def test_wordnet_by_rule_and_whole():
    folder = Path("/usr/share/wordnet")
    if not (folder / "data.noun").is_file() or "WordNet 3.0" not in (folder / "data.noun").read_text()[:1000]:
        pytest.skip("needs WordNet 3.0 where Debian's wordnet-base puts it")
    shipped = trees.relabel(trees.imagenet1k("hops"), "id")
    edges = hypernyms(folder)
    dag = trees.from_dag(edges, classes=shipped.bin_names)
    assert dag.num_bins == 1000
    above = set(dag.names)
    tree = trees.restrict(trees.from_edges([e for e in edges if e[0] in above], rule="first"), shipped.bin_names)
    assert torch.equal(tree.distances(), shipped.distances())
    named = trees.imagenet1k().bin_names
    tabby, tiger, dalmatian = map(named.index, ["tabby", "tiger", "dalmatian"])
    assert dag.distance(tabby, tiger) < dag.distance(tabby, named.index("container_ship"))
    logits = torch.randn(4, 1000, requires_grad=True)
    loss = ew.EMDLoss(dag, rho=1)(logits, torch.tensor([tabby, tiger, dalmatian, 0]))
    expected = (logits.softmax(-1) * dag.distances()[[tabby, tiger, dalmatian, 0]].float()).sum(-1).mean()
    torch.testing.assert_close(loss, expected)
    loss.backward()


def test_it_trains():
    """Two classes that share a group are confused, so least risk answers the one between them."""
    dag = trees.from_dag(PARENTS)
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (300,), generator=generator)
    x = torch.eye(3)[labels] + 0.5 * torch.randn(300, 3, generator=generator)
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    for _ in range(60):
        optimizer.zero_grad()
        loss = ew.EMDLoss(dag)(model(x), labels)
        loss.backward()
        optimizer.step()
    answers = ew.decide(model(x).softmax(-1).detach(), dag)
    assert dag.distance(answers, labels).mean() < 0.6


def test_names_of_a_dag_are_cleaned_and_compared():
    edges = [("Kitchen", "Home"), ("Kitchen ", "Food"), ("Pans", "Home"), ("pans", "Home"), ("Pans", "Home")]
    with pytest.warns(UserWarning, match=r"'Pans' \(edge 2\) and 'pans' \(edge 3\) are nearly the same name") as caught:
        dag = trees.from_dag(edges)
    assert caught[0].filename == __file__
    assert dag.notes == ("'Kitchen ' was read as 'Kitchen' (edge 1)", "'Pans' is below 'Home' twice")
    assert pickle.loads(pickle.dumps(dag)).notes == dag.notes
    with pytest.raises(ValueError, match="expected names in one spelling, found 3:"):
        trees.from_dag(edges, strict=True)
    assert trees.from_dag(edges, clean=False).notes == ("'Pans' is below 'Home' twice",)
