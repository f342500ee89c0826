"""Conformal sets: their shapes, and guarantees that hold exactly when every row takes its turn as the new one."""

from __future__ import annotations

import itertools
import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import earthwork as ew
from earthwork.decisions.calibration import p_values
from earthwork.decisions.conformal import Threshold, exact_threshold
from earthwork.decisions.nested_sets import FAMILIES, ball_scores, radius_scores, subtree_scores
from tests.cases import random_distribution, random_space, random_tree

STARS = ew.Chain(5, names=[f"{k} stars" for k in range(1, 6)])
ANIMALS = ew.Tree([-1, 0, 0, 1, 1, 2, 2, 2], names=["thing", "animal", "vehicle", "cat", "dog", "car", "bus", "van"])


def families(rng: np.random.Generator, size: int = 8) -> list[tuple[str, ew.Space]]:
    spaces = [random_space(rng, kind, size) for kind in ("chain", "ring", "matrix")]
    spaces += [random_tree(rng, 2 * size, shape) for shape in ("any", "star", "path", "binary")]
    return [(kind, space) for kind, (_, needed) in FAMILIES.items() for space in spaces if isinstance(space, needed)]


def scores_of(kind: str, space: ew.Space, p: Tensor) -> Tensor:
    return FAMILIES[kind][0](p, space)


def labelled(rng: np.random.Generator, space: ew.Space, rows: int, noise: float = 1.5) -> tuple[Tensor, Tensor]:
    """Probabilities that are wrong by a temperature, and labels: classes that are near each other are confused."""
    n = space.num_bins
    labels = rng.integers(0, n, rows)
    near = -4 * space.distances().numpy()[labels] / max(float(space.diameter()), 1e-9)
    return torch.from_numpy(near + noise * rng.normal(size=(rows, n))).softmax(-1), torch.from_numpy(labels)


def grown(row: list[float], ring: bool) -> list[float]:
    """The growth of an interval or an arc, one class at a time."""
    n = len(row)
    low = high = max(range(n), key=lambda k: row[k])
    mass, scores = row[low], [0.0] * n
    for _ in range(n - 1):
        left = row[low - 1] if ring or low > 0 else -1.0
        right = row[(high + 1) % n] if ring or high < n - 1 else -1.0
        if right > left:
            high = (high + 1) % n
            scores[high] = mass
        else:
            low = (low - 1) % n
            scores[low] = mass
        mass += max(left, right)
    return scores


@pytest.mark.parametrize("n", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("kind", ["interval", "arc"])
@pytest.mark.parametrize("ties", [False, True])
def test_intervals_grow_to_more_probable_neighbour(n: int, kind: str, ties: bool, rng: np.random.Generator) -> None:
    space = ew.Ring(n) if kind == "arc" else ew.Chain(n)
    p = torch.from_numpy(rng.integers(0, 4, (200, n)) + 0.25 if ties else rng.random((200, n)))
    p = torch.cat([p, torch.ones(1, n, dtype=p.dtype)])
    p = p / p.sum(-1, keepdim=True)
    wanted = torch.tensor([grown(row, kind == "arc") for row in p.tolist()], dtype=p.dtype)
    torch.testing.assert_close(scores_of(kind, space, p), wanted, rtol=0, atol=1e-12)


def test_node_scores_masses_nodes_without_class(rng: np.random.Generator) -> None:
    for shape in ("any", "path", "binary"):
        tree = random_tree(rng, 14, shape)
        p = random_distribution(rng, 20, tree.num_bins).double()
        found = scores_of("node", tree, p)
        for row, y in itertools.product(range(20), range(tree.num_bins)):
            node, truth, without = int(tree.bins[p[row].argmax()]), int(tree.bins[y]), 0.0
            while int(tree.lowest_common_ancestor(node, truth)) != node:
                below = [int(tree.lowest_common_ancestor(node, int(b))) == node for b in tree.bins]
                without, node = float(p[row][below].sum()), int(tree.parents[node])
            assert math.isclose(float(found[row, y]), without, abs_tol=1e-9)


def test_subtrees_are_those_of_largest_density(rng: np.random.Generator) -> None:
    tree = random_tree(rng, 14)
    p = random_distribution(rng, 20, tree.num_bins).double()
    below = torch.stack([tree.lowest_common_ancestor(v, tree.bins) == v for v in range(tree.num_nodes)])
    density = (p @ below.double().T) / below.sum(-1).clamp(min=1)
    wanted = torch.where(below, density.unsqueeze(-1), 0).amax(1)
    torch.testing.assert_close(subtree_scores(p, tree), 1 - wanted / wanted.amax(-1, keepdim=True), rtol=0, atol=1e-9)


def test_balls_hold_all_nearer_classes(rng: np.random.Generator) -> None:
    for space in (random_space(rng, "matrix", 7), random_tree(rng, 12), ew.Ring(7)):
        p = random_distribution(rng, 30, space.num_bins).double()
        distance = space.distances()[ew.decide(p, space)]
        nearer = distance.unsqueeze(-1) > distance.unsqueeze(-2)
        wanted = (nearer * p.unsqueeze(-2)).sum(-1)
        torch.testing.assert_close(scores_of("ball", space, p), wanted, rtol=0, atol=1e-12)
        torch.testing.assert_close(radius_scores(p, space), distance, rtol=1e-7, atol=0)


@pytest.mark.parametrize("cost", [0.1, 0.7, 1 / 3])
def test_distances_that_differ_by_rounding_are_equal(cost: float) -> None:
    p = torch.tensor([[0.1, 0.2, 0.4, 0.2, 0.1]], dtype=torch.float64)
    for scores in (ball_scores(p, ew.Chain(5, cost)), radius_scores(p, ew.Chain(5, cost))):
        assert scores[0].tolist() == scores[0].flip(0).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sets_are_scores_up_to_limit(dtype: torch.dtype, rng: np.random.Generator) -> None:
    for kind, space in families(rng):
        p = random_distribution(rng, 60, space.num_bins).to(dtype)
        scores = scores_of(kind, space, p)
        assert bool((scores.amin(-1) == 0).all())
        predictor = ew.ConformalPredictor(space, kind=kind)  # type: ignore[arg-type]
        for limit in (-1.0, 0.0, 0.2, 0.5, 0.9, 1.1, math.inf):
            predictor.thresholds = [Threshold(limit, 1)]
            expected = scores <= torch.tensor(limit, dtype=dtype)
            assert torch.equal(predictor.predict(p), expected), (kind, space, limit)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_set_has_its_shape(dtype: torch.dtype, rng: np.random.Generator) -> None:
    for kind, space in families(rng, 9):
        p = random_distribution(rng, 80, space.num_bins).to(dtype)
        scores = scores_of(kind, space, p)
        predictor = ew.ConformalPredictor(space, kind=kind)  # type: ignore[arg-type]
        for sets in (scores <= limit for limit in (0.0, 0.3, 0.6, 0.95)):
            assert bool(sets.any(-1).all())
            if kind == "interval":
                assert _is_run(sets)
            elif kind == "arc":
                assert bool(((sets & ~sets.roll(1, -1)).sum(-1) <= 1).all())
            elif kind == "node":
                assert predictor.nodes(sets).sum(-1).tolist() == [1] * 80


def _is_run(sets: Tensor) -> bool:
    return all("01" not in "".join(map(str, row)).lstrip("0") for row in sets.int().tolist())


def each_in_turn(make: Callable[[], ew.ConformalPredictor], p: Tensor, y: Tensor, **options: Any) -> Tensor:
    """The set of each row by a predictor that was fitted on all others."""
    sets = []
    for row in range(len(p)):
        others = torch.arange(len(p)) != row
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = make().fit(p[others], y[others], **{name: value[others] for name, value in options.items()})
        sets.append(fitted.predict(p[row : row + 1], **{name: value[row : row + 1] for name, value in options.items()}))
    return torch.cat(sets)


@pytest.mark.parametrize(("rows", "alpha"), [(20, 0.1), (31, 0.1), (40, 0.25), (9, 0.1), (8, 0.1), (60, 0.05)])
def test_coverage_exact_if_row_new_one_in_turn(rows: int, alpha: float, rng: np.random.Generator) -> None:
    """Of n + 1 rows, exactly ⌊α(n + 1)⌋ are missed if scores differ; the quantile of n rows misses one more."""
    for kind, space in (("interval", ew.Chain(30)), ("arc", ew.Ring(30))):
        p, y = labelled(rng, space, rows, noise=3.0)
        scores = scores_of(kind, space, p).gather(-1, y.unsqueeze(-1))
        # A class that is right has the score 0 in every row; those rows are never missed.
        assert (scores > 0).sum() > alpha * rows + 1
        sets = each_in_turn(lambda space=space: ew.ConformalPredictor(space, alpha), p, y)  # type: ignore[misc]
        assert int((~sets.gather(-1, y.unsqueeze(-1))).sum()) == math.floor(alpha * rows + 1e-9)


def test_coverage_holds_for_kind_and_with_ties(rng: np.random.Generator) -> None:
    for kind, space in families(rng, 6):
        p, y = labelled(rng, space, 30)
        p = (p * 4).round() / 4
        p = (p + 0.01) / (p + 0.01).sum(-1, keepdim=True)
        sets = each_in_turn(lambda: ew.ConformalPredictor(space, 0.2, kind), p, y)  # type: ignore[arg-type]  # noqa: B023
        assert int((~sets.gather(-1, y.unsqueeze(-1))).sum()) <= 6, (kind, space)


def test_distance_score_and_risk_in_turn(rng: np.random.Generator) -> None:
    for space in (ew.Chain(9), ew.Ring(9), ANIMALS, random_space(rng, "matrix", 6)):
        p, y = labelled(rng, space, 25, noise=2.5)
        alpha = 0.06 * float(space.diameter())
        sets = each_in_turn(lambda: ew.ConformalPredictor(space, alpha, risk="distance"), p, y)  # noqa: B023
        distance = torch.where(sets, space.distances_to(y, p), math.inf).amin(-1)
        assert 0 < float(distance.mean()) <= alpha + 1e-12, space
        sets = each_in_turn(lambda: ew.ConformalPredictor(space, 0.2, "ball", score="distance"), p, y)  # noqa: B023
        assert int((~sets.gather(-1, y.unsqueeze(-1))).sum()) <= 5


def test_every_class_and_every_group_covered(rng: np.random.Generator) -> None:
    for kind, space in (("interval", ew.Chain(4)), ("node", ANIMALS)):
        p, y = labelled(rng, space, 60)
        y = y.clamp(max=2)
        sets = each_in_turn(lambda: ew.ConformalPredictor(space, 0.2, kind, by_class=True), p, y)  # type: ignore[arg-type]  # noqa: B023
        missed = ~sets.gather(-1, y.unsqueeze(-1)).squeeze(-1)
        for label in range(3):
            assert int(missed[y == label].sum()) <= math.floor(0.2 * int((y == label).sum()) + 1e-9)
        groups = torch.from_numpy(rng.integers(0, 2, 60)) * 7
        sets = each_in_turn(lambda: ew.ConformalPredictor(space, 0.2, kind), p, y, groups=groups)  # type: ignore[arg-type]  # noqa: B023
        missed = ~sets.gather(-1, y.unsqueeze(-1)).squeeze(-1)
        for group in (0, 7):
            assert int(missed[groups == group].sum()) <= math.floor(0.2 * int((groups == group).sum()) + 1e-9)


def drawn(threshold: Threshold, score: float) -> float:
    """The probability that a score is in a randomised set."""
    if score < threshold.below:
        return 1.0
    place = 2 if score == threshold.limit else 0 if score == threshold.below else 1
    return 0.0 if score > threshold.limit else 1 - threshold.cuts[place]


@pytest.mark.parametrize("levels", [2, 5, 1000])
@pytest.mark.parametrize("alpha", [0.03, 0.1, 0.25, 1 / 3, 0.9])
@pytest.mark.parametrize("rows", [2, 11, 30])
def test_randomised_coverage_exact_with_ties(levels: int, alpha: float, rows: int, rng: np.random.Generator) -> None:
    scores = torch.from_numpy(rng.integers(0, levels, rows) / levels)
    covered = 0.0
    for row in range(rows):
        others = torch.arange(rows) != row
        covered += drawn(exact_threshold(scores[others], alpha), float(scores[row]))
    assert math.isclose(covered / rows, 1 - alpha, abs_tol=1e-8)


def test_randomised_sets_drawn_threshold_says(rng: np.random.Generator) -> None:
    p, y = labelled(rng, ew.Chain(4), 12)
    p, y = torch.cat([p[:8], p[:4]]), torch.cat([y[:8], y[:4]])
    for dtype in (torch.float32, torch.float64):
        predictor = ew.ConformalPredictor(ew.Chain(4), 0.3, randomized=True).fit(p.to(dtype), y)
        (threshold,) = predictor.thresholds
        rows = p[:8].to(dtype)
        sets = predictor.predict(rows.repeat(20_000, 1), generator=torch.Generator().manual_seed(0))
        share = sets.view(20_000, 8, 4).double().mean(0)
        scores = scores_of("interval", ew.Chain(4), rows).double()
        wanted = torch.tensor([[drawn(threshold, score) for score in row] for row in scores.tolist()])
        assert {0.0, 1.0} < set(wanted.flatten().tolist())
        torch.testing.assert_close(share, wanted.double(), rtol=0, atol=5 * 0.5 / math.sqrt(20_000))


def test_risk_is_controlled_with_confidence() -> None:
    """The limit from 60 rows misses the risk of 0.1 in a tenth of the samples at most; the plain one in nearly half."""
    rng = np.random.default_rng(5)
    space = ew.Chain(12)
    p, y = labelled(rng, space, 30_000, noise=2.5)
    scores = scores_of("interval", space, p).gather(-1, y.unsqueeze(-1))[:, 0]
    missed = dict.fromkeys(("plain", "confident"), 0)
    for sample in torch.from_numpy(rng.permutation(30_000)[:24_000]).view(400, 60):
        for name, confidence in (("plain", None), ("confident", 0.9)):
            fitted = ew.ConformalPredictor(space, 0.1, confidence=confidence).fit(p[sample], y[sample])
            missed[name] += float((scores > fitted.thresholds[0].limit).double().mean()) > 0.1
    assert missed["confident"] <= 0.1 * 400 + 3 * math.sqrt(0.09 * 400)
    assert missed["plain"] > 100


def test_p_values() -> None:
    means = torch.tensor([0.0, 0.05, 0.1, 0.3], dtype=torch.float64)
    assert p_values(means, 20, 0.1, binary=True).tolist() == pytest.approx(
        [0.12158, 0.39175, 0.67693, 0.99761], abs=1e-5
    )
    general = p_values(means, 20, 0.1, binary=False)
    assert bool((general >= p_values(means, 20, 0.1, binary=True) - 1e-12).all())
    assert general[0].item() == pytest.approx(0.9**20)
    assert p_values(means, 20, 0.0, binary=True).tolist() == [1.0] * 4


def test_boldest_candidate_that_is_safe() -> None:
    losses = torch.zeros(99, 4)
    losses[:9, 1], losses[:2, 2], losses[:40, 3] = 1, 1, 1
    assert ew.control_risk(losses, 0.1) == 2, "(9 + 1) / (99 + 1) is 0.1"
    losses[9, 1] = 1
    assert ew.control_risk(losses, 0.1) == 0, "a bolder candidate counts with the losses before it"
    assert ew.control_risk(losses, 0.1, confidence=0.9) == 0
    assert ew.control_risk(losses[:, :1], 0.001) is None
    assert ew.control_risk(5 * losses, 0.6, bound=5.0) == 2
    for bad, level, confidence in (
        (losses - 1, 0.1, None),
        (losses[0], 0.1, None),
        (losses, 2, None),
        (losses, 0.1, 1.0),
    ):
        with pytest.raises(ValueError, match="expected"):
            ew.control_risk(bad, level, confidence=confidence)
    for name, options in (("level", {"level": None}), ("bound", {"level": 0.1, "bound": 0.0})):
        with pytest.raises((TypeError, ValueError), match=f"^{name}: expected a finite number"):
            ew.control_risk(losses, **options)  # type: ignore[arg-type]


def test_intervals_arcs_and_nodes_in_words() -> None:
    sets = np.array([[0, 1, 1, 1, 0], [0, 0, 0, 0, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]], dtype=bool)
    chain = ew.ConformalPredictor(STARS)
    assert chain.ends(sets).tolist() == [[1, 3], [4, 4], [0, 4], [-1, -1]]
    assert chain.describe(sets) == ["2 stars to 4 stars", "5 stars", "1 stars to 5 stars", "none"]
    ring = ew.ConformalPredictor(ew.Ring(5))
    assert ring.ends(np.roll(sets, 3, -1)).tolist() == [[4, 1], [2, 2], [0, 4], [-1, -1]]
    assert ring.describe(np.roll(sets, 3, -1))[0] == "4 to 1"
    tree = ew.ConformalPredictor(ANIMALS)
    sets = np.array([[1, 1, 0, 0, 0], [1, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 1, 0, 1], [0, 0, 0, 0, 0]], dtype=bool)
    assert tree.describe(torch.from_numpy(sets)) == ["animal", "vehicle or cat", "thing", "car or van", "none"]
    matrix = ew.ConformalPredictor(ew.CostMatrix(1 - np.eye(3), names=["a", "b", "c"]))
    assert matrix.describe(np.array([[True, False, True]])) == ["a or c"]
    with pytest.raises(TypeError, match='expected intervals or arcs, got sets of kind "subtrees"'):
        tree.ends(sets)
    with pytest.raises(TypeError, match="sets: expected booleans with a last axis of 5, got"):
        chain.ends(np.zeros((2, 4), dtype=bool))


def test_classes_of_dag_have_their_names() -> None:
    dag = ew.Dag([[], [0], [0], [1], [1, 2], [2]], names=["shop", "home", "food", "sofa", "kitchen", "bread"])
    predictor = ew.ConformalPredictor(dag)
    assert predictor.describe(torch.tensor([[True, False, True]])) == ["sofa or bread"]


def test_nodes_with_same_classes_lowest_named() -> None:
    tree = ew.Tree([-1, 0, 1, 2, 0], names=["root", "canine", "dog", "poodle", "cat"])
    predictor = ew.ConformalPredictor(tree, kind="node")
    assert predictor.describe(np.array([[True, False], [True, True]])) == ["poodle", "root"]


@pytest.mark.parametrize(
    "options", [{}, {"by_class": True}, {"randomized": True}, {"risk": "distance", "confidence": 0.8}]
)
def test_saved_predictors_are_equal(options: dict[str, Any], tmp_path: Path, rng: np.random.Generator) -> None:
    for space in (STARS, ew.Ring(5), ANIMALS, ew.CostMatrix(1 - np.eye(5))):
        p, y = labelled(rng, space, 120)
        alpha = 0.3 * float(space.diameter()) if "risk" in options else 0.3
        predictor = ew.ConformalPredictor(space, alpha, **options).fit(p, y)
        predictor.save(tmp_path / "predictor.json")
        again = ew.ConformalPredictor.load(tmp_path / "predictor.json")
        assert (again.space, again.kind, again.alpha) == (space, predictor.kind, alpha)
        assert again.thresholds == predictor.thresholds
        draws = [q.predict(p, generator=torch.Generator().manual_seed(1)) for q in (predictor, again)]
        assert torch.equal(*draws)
    groups = np.array(["a", "b"]).repeat(60)
    predictor = ew.ConformalPredictor(space, alpha).fit(p, y, groups) if not options else predictor
    predictor.save(tmp_path / "predictor.json")
    assert ew.ConformalPredictor.load(tmp_path / "predictor.json").groups == predictor.groups


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", 'expected "format"'),
        ('{"format": "earthwork-conformal-predictor", "version": 9}', "expected version 1, got 9"),
        ('{"format": "earthwork-conformal-predictor", "version": 1}', "expected 'space', got none"),
    ],
)
def test_other_files_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "predictor.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        ew.ConformalPredictor.load(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"space": {"bins": 5}}, '"space": expected a space, got'),
        ({"space": 5}, '"space": expected a space, got 5'),
        ({"groups": 2}, '"groups": expected different'),
        ({"groups": [1, None]}, '"groups": expected different'),
        ({"groups": [[1], [2]]}, '"groups": expected different'),
        ({"groups": [1, 1]}, '"groups": expected different'),
        ({"groups": None}, "expected a threshold for each group"),
        ({"by_class": True}, '"groups": expected all classes'),
        ({"thresholds": 5}, "expected a threshold for each group"),
        ({"thresholds": [{"limit": 1, "rows": 9, "below": 0, "cuts": 3}] * 2}, '"thresholds": expected numbers'),
    ],
)
def test_damaged_files_are_refused(entry: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "predictor.json"
    ew.ConformalPredictor(STARS, 0.3).fit(P, Y, Y % 2).save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | entry))
    with pytest.raises(ValueError, match=message) as error:
        ew.ConformalPredictor.load(path)
    assert str(path) in str(error.value)


def test_arrays_shapes_and_types(rng: np.random.Generator) -> None:
    p, y = labelled(rng, STARS, 60)
    predictor = ew.ConformalPredictor(STARS).fit(p, y)
    sets = predictor.predict(p)
    array = ew.ConformalPredictor(STARS).fit(p.numpy(), y.numpy()).predict(p.numpy())
    assert isinstance(array, np.ndarray)
    assert np.array_equal(array, sets.numpy())
    assert torch.equal(
        ew.ConformalPredictor(STARS).fit(p.view(6, 10, 5), y.view(6, 10)).predict(p.view(6, 10, 5)), sets.view(6, 10, 5)
    )
    assert torch.equal(predictor.predict(p.log(), normalize="softmax"), sets)
    assert predictor.predict(p[0]).shape == (5,)
    assert predictor.predict(p[:0]).shape == (0, 5)
    assert predictor.predict(p.half()).dtype == torch.bool
    assert "60 rows" in repr(predictor)
    assert "not fitted" in repr(ew.ConformalPredictor(STARS))


def test_tables_of_pandas(rng: np.random.Generator) -> None:
    pandas = pytest.importorskip("pandas")
    p, y, member = rng.dirichlet(np.ones(5), 200), rng.integers(0, 5, 200), rng.integers(0, 2, 200)
    index = rng.permutation(1000)[:200]
    frame, labels = pandas.DataFrame(p, index=index), pandas.Series(y, index=index)
    expected = ew.ConformalPredictor(ew.Chain(5), 0.2).fit(p, y, member).predict(p, member)
    names = np.array(["a", "b"], dtype=object)[member]
    for groups in (member == 1, names, names.tolist(), pandas.Series(names, index=index), pandas.Categorical(names)):
        fitted = ew.ConformalPredictor(ew.Chain(5), 0.2).fit(frame, labels, groups)
        np.testing.assert_array_equal(fitted.predict(frame, groups), expected)
    np.testing.assert_array_equal(ew.decide(frame, ew.Chain(5)), ew.decide(p, ew.Chain(5)))
    decision = ew.FittedDecision(ew.Chain(5)).fit(frame, labels)
    np.testing.assert_array_equal(decision.predict(frame), ew.FittedDecision(ew.Chain(5)).fit(p, y).predict(p))
    with pytest.raises(ValueError, match="groups: expected whole numbers or text"):
        ew.ConformalPredictor(ew.Chain(5)).fit(p, y, rng.random(200))


def test_default_device_does_not_matter(rng: np.random.Generator) -> None:
    for kind, space in (("interval", STARS), ("node", ANIMALS), ("subtrees", ANIMALS), ("ball", STARS)):
        p, y = labelled(rng, space, 60)
        make: Any = lambda: ew.ConformalPredictor(space, 0.2, kind).fit(p, y)  # type: ignore[arg-type]  # noqa: B023, E731
        wanted = make().predict(p)
        with torch.device("meta"):
            assert torch.equal(make().predict(p), wanted)
            assert len(make().describe(wanted)) == 60


def test_many_blocks_agree(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    p, y = labelled(rng, STARS, 50)
    groups = y.numpy() % 2
    whole = ew.ConformalPredictor(STARS, 0.2).fit(p, y, groups).predict(p, groups)
    monkeypatch.setattr("earthwork.decisions.conformal._BLOCK", 15)
    assert torch.equal(ew.ConformalPredictor(STARS, 0.2).fit(p, y, groups).predict(p, groups), whole)


def test_too_few_rows_give_class_and_warning(rng: np.random.Generator) -> None:
    p, y = labelled(rng, STARS, 8)
    with pytest.warns(UserWarning, match="alpha=0.1: expected at least 9 calibration rows, got 8: every set holds all"):
        predictor = ew.ConformalPredictor(STARS).fit(p, y)
    assert bool(predictor.predict(p).all())
    with pytest.warns(UserWarning, match="got 0: every set holds all classes"):
        assert bool(ew.ConformalPredictor(STARS).fit(p[:0], y[:0]).predict(p).all())
    with pytest.warns(UserWarning, match="expected more calibration rows, got 8"):
        ew.ConformalPredictor(STARS, confidence=0.9).fit(p, y)
    p, y = labelled(rng, STARS, 200)
    kept = y != 3
    with pytest.warns(UserWarning, match="got 0 to 0 for 1 of 5 classes: these are in every set"):
        predictor = ew.ConformalPredictor(STARS, by_class=True).fit(p[kept], y[kept])
    assert bool(predictor.predict(p)[:, 3].all())
    with pytest.warns(UserWarning, match="got 5 to 5 in 1 of 2 groups: their sets hold all classes"):
        ew.ConformalPredictor(STARS).fit(p, y, (np.arange(200) < 5).astype(int))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ew.ConformalPredictor(3), TypeError, "space: expected a Chain"),
        (lambda: ew.ConformalPredictor(STARS, 0), ValueError, "alpha: expected a number between 0 and 1"),
        (
            lambda: ew.ConformalPredictor(STARS, 4.5, risk="distance"),
            ValueError,
            "alpha: expected a number between 0 and 4",
        ),
        (lambda: ew.ConformalPredictor(STARS, kind="node"), TypeError, "got 'node', which is for a Tree"),
        (lambda: ew.ConformalPredictor(STARS, kind="sets"), ValueError, 'kind: expected "interval"'),
        (lambda: ew.ConformalPredictor(STARS, score="distance"), ValueError, 'score: expected "adaptive"'),
        (lambda: ew.ConformalPredictor(STARS, confidence=1.0), ValueError, "confidence: expected a number between"),
        (lambda: ew.ConformalPredictor(STARS, risk="distance", by_class=True), ValueError, "by_class, randomized"),
        (lambda: ew.ConformalPredictor(STARS).predict(P), ValueError, "call fit first"),
        (lambda: ew.ConformalPredictor(STARS).save("predictor.json"), ValueError, "call fit first"),
        (lambda: ew.ConformalPredictor(STARS).fit(P, Y[:5]), ValueError, r"labels: .* shape \(20,\), got \(5,\)"),
        (lambda: ew.ConformalPredictor(STARS).fit(P, Y + 4), ValueError, "labels: expected class indices from 0 to 4"),
        (lambda: ew.ConformalPredictor(STARS).fit(P, P[:, 0]), TypeError, "labels: expected class indices"),
        (lambda: ew.ConformalPredictor(STARS).fit(P[:, :4], Y), ValueError, "p: expected a last axis of 5"),
        (lambda: ew.ConformalPredictor(STARS).fit(P * math.nan, Y), ValueError, "got nan in bin 0 of row 0"),
        (lambda: ew.ConformalPredictor(STARS).fit(P.log(), Y), ValueError, 'for logits pass normalize="softmax"'),
        (lambda: ew.ConformalPredictor(STARS).fit(P, Y).predict(P, Y), ValueError, "groups: expected None"),
        (lambda: ew.ConformalPredictor(STARS).fit(P, Y, Y * 0).predict(P), ValueError, "groups: expected groups"),
        (lambda: ew.ConformalPredictor(STARS).fit(P, Y, Y * 0).predict(P, Y + 1), ValueError, r"got also \d$"),
        (lambda: ew.ConformalPredictor(STARS, by_class=True).fit(P, Y, Y), ValueError, "groups: expected None with by"),
        (lambda: ew.ConformalPredictor(STARS).fit(P, Y, P), ValueError, "groups: expected whole numbers or text"),
    ],
)
def test_mistakes_are_explained(make: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


P = torch.full((20, 5), 0.2, dtype=torch.float64)
Y = torch.arange(20) % 3
