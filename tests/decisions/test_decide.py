"""Least-risk decisions against brute force over all answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

import earthwork as ew
from tests.cases import KINDS, distributions, random_distribution, random_space, random_tree, spaces


@pytest.mark.parametrize("kind", KINDS)
def test_answer_of_least_expected_distance(kind: str, rng: np.random.Generator) -> None:
    space = random_space(rng, kind, 25)
    p = random_distribution(rng, 30, space.num_bins)
    risk = p @ space.distances()
    chosen = risk.gather(-1, ew.decide(p, space)[:, None]).squeeze(-1)
    torch.testing.assert_close(chosen, risk.amin(-1), atol=1e-10, rtol=0)


@given(data=st.data(), space=spaces())
def test_never_higher_expected_cost_than_most_probable(data: st.DataObject, space: ew.Space) -> None:
    p = data.draw(distributions(space.num_bins))
    risk = p @ space.distances()
    assert risk[ew.decide(p, space)] <= risk[p.argmax()] + 1e-9 * max(1.0, float(risk.max()))


@given(data=st.data(), space=spaces())
def test_best_k_are_sorted_and_start_with_best(data: st.DataObject, space: ew.Space) -> None:
    p = data.draw(distributions(space.num_bins))
    k = data.draw(st.integers(1, space.num_bins))
    best = ew.decide_top_k(p, space, k)
    assert best[0] == ew.decide(p, space)
    risk = p @ space.distances()
    rounding = 1e-9 * max(1.0, float(risk.max()))
    assert len(set(best.tolist())) == k
    torch.testing.assert_close(risk[best], risk.sort().values[:k], atol=rounding, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_ties_go_to_lowest_index(dtype: torch.dtype) -> None:
    # Thirds are not exact in binary, so the risks of the five leaves differ by rounding.
    star = ew.Tree([-1] + [0] * 5, costs=[0, 0.1, 0.1, 0.1, 0.1, 0.1])
    p = torch.tensor([[1 / 3, 0, 1 / 3, 0, 1 / 3], [0, 1 / 3, 1 / 3, 1 / 3, 0]], dtype=dtype)
    assert ew.decide(p, star).tolist() == [0, 1]
    assert ew.decide_top_k(p, star, 5).tolist() == [[0, 2, 4, 1, 3], [1, 2, 3, 0, 4]]
    assert ew.decide(torch.ones(6, dtype=dtype) / 6, ew.Ring(6)) == 0


def brute_force_risk(p: torch.Tensor, tree: ew.Tree, vagueness: float) -> torch.Tensor:
    """The risk of each node by walking from node to node."""
    parents = tree.parents.tolist()
    costs = np.insert(tree.costs.numpy(), tree.root, 0)

    def above(node: int) -> list[int]:
        path = [node]
        while parents[path[-1]] >= 0:
            path.append(parents[path[-1]])
        return path

    def distance(a: int, b: int) -> float:
        return float(sum(costs[node] for node in set(above(a)) ^ set(above(b))))

    bins = tree.bins.tolist()
    risk = torch.full((tree.num_nodes,), float("inf"), dtype=torch.float64)
    for node in range(tree.num_nodes):
        below = [b for b in bins if node in above(b)]
        if below:
            height = 0.0 if node in bins else max(distance(node, b) for b in below)
            risk[node] = sum(w * distance(node, b) for w, b in zip(p.tolist(), bins, strict=True)) + vagueness * height
    return risk


@pytest.mark.parametrize("vagueness", [-0.7, -0.2, 0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("inner_bins", [False, True])
def test_inner_nodes_against_brute_force(vagueness: float, inner_bins: bool, rng: np.random.Generator) -> None:
    for _ in range(20):
        tree = random_tree(rng, int(rng.integers(2, 15)), inner_bins=inner_bins)
        p = random_distribution(rng, tree.num_bins)
        risk = brute_force_risk(p, tree, vagueness)
        node = int(ew.decide(p, tree, allow_inner=True, vagueness=vagueness))
        # The first of those that only rounding sets apart.
        assert node == int((risk <= risk.min() + 1e-12).int().argmax())


def test_vagueness_goes_from_median_to_bins(rng: np.random.Generator) -> None:
    tree = random_tree(rng, 40, inner_bins=False).with_costs(1.0)
    p = random_distribution(rng, 200, tree.num_bins)
    is_bin = torch.zeros(tree.num_nodes, dtype=torch.bool).index_fill(0, tree.bins, True)
    shares = [is_bin[ew.decide(p, tree, True, vagueness)].double().mean() for vagueness in (0, 0.2, 0.6, 1.1)]
    assert shares[0] < shares[1] <= shares[2] <= shares[3] == 1
    assert torch.equal(ew.decide(p, tree, True, 1.1), tree.bins[ew.decide(p, tree)])


def test_calibrated_predictions_wrong_by(rng: np.random.Generator) -> None:
    tree = random_tree(rng, 60, inner_bins=False).with_costs(1.0)
    rows = 20_000
    p = torch.from_numpy(rng.dirichlet(np.full(tree.num_bins, 0.2), rows))
    # Calibrated: the truth is drawn from the prediction.
    truth = torch.multinomial(p, 1, generator=torch.Generator().manual_seed(0)).squeeze(-1)
    cost = {
        "argmax": tree.distance(p.argmax(-1), truth),
        "least risk": tree.distance(ew.decide(p, tree), truth),
    }
    gain = cost["argmax"] - cost["least risk"]
    standard_error = gain.std() / rows**0.5
    assert gain.mean() > 10 * standard_error
    severity = {name: value[value > 0].mean() for name, value in cost.items()}
    assert severity["least risk"] < severity["argmax"] - 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_edge_above_classes_not_drown_others(dtype: torch.dtype, rng: np.random.Generator) -> None:
    parents, costs = [-1, 0, 0, 1, 1, 2, 2], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 1.0]
    plain = ew.Tree(parents, costs)
    # The same tree two edges below another root, which has a branch without a class too.
    above = ew.Tree([7, 0, 0, 1, 1, 2, 2, 8, -1, 8], [4e23, *costs[1:], 4e23, 0.0, 4e23], bins=[3, 4, 5, 6])
    p = random_distribution(rng, 200, 4).to(dtype)
    labels = torch.from_numpy(rng.integers(0, 4, 200))
    for vagueness in (-0.9, -0.3, 0.0, 0.4, 1.5):
        nodes = ew.decide(p, plain, True, vagueness)
        assert len(nodes.unique()) > 1
        assert torch.equal(ew.decide(p, above, True, vagueness), nodes)
    assert (ew.decide(p, above, True, -1.5) == 8).all(), "below -1 the answer is the root"
    for tree in (plain, above):
        cost = ew.metrics.functional.expected_cost(p, labels, tree, decision="inner")
        assert_allclose(cost, ew.metrics.functional.expected_cost(p, labels, plain, decision="inner"), rtol=1e-6)
    assert ew.tune_vagueness(p, labels, above, accuracy=0.6) == ew.tune_vagueness(p, labels, plain, accuracy=0.6)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"vagueness": 0.5}, ValueError, "vagueness: expected 0 unless allow_inner is True, got 0.5"),
        ({"allow_inner": True, "vagueness": -torch.inf}, ValueError, "vagueness: expected a finite number, got -inf"),
        ({"allow_inner": True, "vagueness": float("nan")}, ValueError, "vagueness: expected a finite number"),
        ({"allow_inner": True, "vagueness": "low"}, TypeError, "vagueness: expected a number, got 'low'"),
    ],
)
def test_bad_options(options: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ew.decide(torch.ones(2) / 2, ew.Tree([-1, 0, 0]), **options)  # type: ignore[arg-type]


def test_only_trees_have_inner_nodes() -> None:
    with pytest.raises(TypeError, match=r"allow_inner: expected a Tree, whose inner nodes are answers too, got Chain"):
        ew.decide(torch.ones(2) / 2, ew.Chain(2), allow_inner=True)


def test_bad_k() -> None:
    p = torch.ones(2) / 2
    with pytest.raises(ValueError, match=r"k: expected 1 to 2, the bins of Chain\(2 bins, cost 1\), got 3"):
        ew.decide_top_k(p, ew.Chain(2), 3)
    with pytest.raises(TypeError, match=r"k: expected an integer, got 1\.5"):
        ew.decide_top_k(p, ew.Chain(2), 1.5)  # type: ignore[arg-type]


def test_logits_are_named() -> None:
    with pytest.raises(ValueError, match='for logits pass normalize="softmax"'):
        ew.decide(torch.tensor([3.0, -1.0]), ew.Chain(2))
    assert ew.decide(torch.tensor([3.0, -1.0]), ew.Chain(2), normalize="softmax") == 0


def test_what_costs_to_miss_something_not_what_false() -> None:
    ok, broken = 0, 2
    space = ew.CostMatrix([[0, 1, 9], [1, 0, 9], [2, 2, 0]])
    p = torch.tensor([[0.7, 0.0, 0.3]])
    torch.testing.assert_close(ew.expected_distance(p, space), torch.tensor([[2.7, 3.4, 1.4]]))
    assert ew.decide(p, space).tolist() == [broken]
    certain = torch.eye(3)[[ok]]
    missed = torch.tensor([broken])
    assert ew.EMDLoss(space, 1.0, normalize=None)(certain, missed) == 9
    for measure in (ew.metrics.MeanEMD, ew.metrics.MistakeSeverity, ew.metrics.MeanDistance):
        assert measure(space)(certain, missed) == 9


def test_array_that_cannot_be_written_to() -> None:
    p = np.array([[0.2, 0.5, 0.3], [0.6, 0.3, 0.1]])
    p.setflags(write=False)
    assert ew.decide(p, ew.Chain(3)).tolist() == [1, 0]
    assert ew.metrics.hierarchical_report(p, np.array([1, 0]), ew.Chain(3))["accuracy"].value == 1


FAR = [
    ew.Chain.from_values([0, 1, 2, 5, 1e6]),
    ew.CostMatrix([[0, 1, 1e7], [1, 0, 1e7], [1e7, 1e7, 0]]),
    ew.Tree([-1, 0, 0, 1, 1, 2], [0, 1, 1e7, 1, 1, 1]),
    ew.Ring(5, [1, 1, 1e6, 1, 1]),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("space", FAR, ids=["chain", "matrix", "tree", "ring"])
def test_near_classes_are_told_apart_beside_far_ones(space: ew.Space, dtype: torch.dtype) -> None:
    p, classes = torch.eye(space.num_bins, dtype=dtype), torch.arange(space.num_bins)
    assert torch.equal(ew.decide(p, space), classes)
    assert torch.equal(ew.decide_top_k(p, space, 2)[:, 0], classes)
    if isinstance(space, ew.Tree):
        assert torch.equal(ew.decide(p, space, allow_inner=True), space.bins)
