"""Objectives of gradient boosting: derivatives against dense float64 autograd, and training in both libraries."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import cohen_kappa_score
from torch.nn.functional import one_hot

import earthwork as ew
from earthwork.boosting import EvalMetric, Objective, _softmax

SPACES = {
    "chain": ew.Chain(5, [0.5, 2.0, 1.0, 0.25]),
    "ring": ew.Ring(6, [0.5, 2.0, 1.0, 0.25, 0.7, 1.5]),
    "tree": ew.Tree([-1, 0, 0, 1, 1, 2, 2, 2], [0, 0.5, 1.5, 1, 2, 0.3, 0.7, 1.1], bins=[4, 6, 3, 7, 5]),
    "inner bins": ew.Tree([-1, 0, 0, 1, 1], bins=[0, 3, 1, 4, 2]),
}
RHOS = [1.0, 1.5, 2.0, 3.0]


def random_space(kind, seed):
    """A chain, ring or tree with random costs; the classes of a tree are leaves and an inner node, shuffled."""
    generator = np.random.default_rng(seed)
    count = int(generator.integers(2, 10))
    if kind == "chain":
        return ew.Chain(count, generator.uniform(0.1, 3.0, count - 1).tolist())
    if kind == "ring":
        return ew.Ring(count + 1, generator.uniform(0.1, 3.0, count + 1).tolist())
    nodes = 2 * count
    parents = [-1, *(int(generator.integers(node)) for node in range(1, nodes))]
    leaves = sorted(set(range(nodes)) - set(parents))
    bins = generator.permutation([*leaves, *generator.choice(sorted(set(range(nodes)) - set(leaves)), 1)])
    return ew.Tree(parents, [0.0, *generator.uniform(0.1, 3.0, nodes - 1)], bins=bins.tolist())


def scores(space, rows=7, scale=1.5):
    generator = np.random.default_rng(rows)
    return generator.normal(size=(rows, space.num_bins)) * scale, generator.integers(space.num_bins, size=rows)


def dense_loss(x, label, space, rho, loss):
    q = one_hot(torch.tensor(label), space.num_bins).double()
    if loss == "edge":
        below, side = space.flow(x.softmax(-1)), space.flow(q)
        return -(space.costs * (side * below.log() + (1 - side) * (1 - below).log())).sum()
    return ew.emd(x.softmax(-1), q, space, rho)


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("name", SPACES)
def test_gradient_is_that_of_autograd(name, rho):
    space = SPACES[name]
    x, y = scores(space)
    gradient, _ = Objective(space, rho).derivatives(x, y)
    for row, label, ours in zip(x, y, gradient, strict=True):
        theirs = torch.func.grad(dense_loss)(torch.tensor(row), label, space, rho, "emd")
        np.testing.assert_allclose(ours, theirs, atol=1e-10)


def gauss_newton(row, label, space, rho):
    """J^T H J with dense Jacobians, and the curvature of the parabola above |φ|^ρ where ρ < 2."""
    x = torch.tensor(row)
    jacobian = torch.func.jacrev(lambda x: space.flow(x.softmax(-1)))(x)
    costs = space.costs.double()
    flow = space.flow(x.softmax(-1) - one_hot(torch.tensor(label), space.num_bins))
    flow = space.settle(flow, costs, rho)
    second = costs * (rho * (rho - 1) if rho >= 2 else rho) * flow.abs().clamp(min=1e-6) ** (rho - 2)
    hessian = second.diag()
    if isinstance(space, ew.Ring):
        hessian = hessian - second.outer(second) / second.sum()
    return (jacobian.T @ hessian @ jacobian).diagonal()


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("name", SPACES)
def test_curvature_is_the_dense_gauss_newton_diagonal(name, rho):
    space = SPACES[name]
    x, y = scores(space)
    _, curvature = Objective(space, rho).derivatives(x, y)
    for row, label, ours in zip(x, y, curvature, strict=True):
        least = 1e-6 * space.costs.sum().item()
        np.testing.assert_allclose(ours, gauss_newton(row, label, space, rho).clamp(min=least), atol=1e-8)


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("kind", ["chain", "ring", "tree"])
@pytest.mark.parametrize("seed", range(5))
def test_derivatives_on_random_spaces(seed, kind, rho):
    space = random_space(kind, seed)
    x, y = scores(space)
    gradient, curvature = Objective(space, rho).derivatives(x, y)
    least = 1e-6 * space.costs.sum().item()
    for row, label, slope, diagonal in zip(x, y, gradient, curvature, strict=True):
        theirs = torch.func.grad(dense_loss)(torch.tensor(row), label, space, rho, "emd")
        np.testing.assert_allclose(slope, theirs, atol=1e-8)
        np.testing.assert_allclose(diagonal, gauss_newton(row, label, space, rho).clamp(min=least), atol=1e-8)


MAJORANTS = [(name, rho, "emd") for name in SPACES for rho in (1.5, 2.0, 3.0)]
MAJORANTS += [(name, 2.0, "edge") for name in SPACES if name != "ring"]


@pytest.mark.parametrize(("name", "rho", "loss"), MAJORANTS)
def test_the_majorant_is_nowhere_below_the_hessian(name, rho, loss):
    space = SPACES[name]
    x, y = scores(space, rows=12, scale=3.0)
    _, curvature = Objective(space, rho, loss=loss, curvature="majorant").derivatives(x, y)
    for row, label, diagonal in zip(x, y, curvature, strict=True):
        hessian = torch.func.hessian(dense_loss)(torch.tensor(row), label, space, rho, loss)
        assert torch.linalg.eigvalsh(torch.tensor(diagonal).diag() - hessian).min() >= -1e-8


@pytest.mark.parametrize("mix", [0.0, 0.5])
@pytest.mark.parametrize(("name", "rho", "loss"), MAJORANTS)
def test_class_weights_scale_the_majorant(name, rho, loss, mix):
    space = SPACES[name]
    x, y = scores(space)
    plain = Objective(space, rho, loss=loss, mix=mix, curvature="majorant").derivatives(x, y)
    weight = np.full(space.num_bins, 0.5)
    halves = Objective(space, rho, loss=loss, mix=mix, weight=weight, curvature="majorant").derivatives(x, y)
    np.testing.assert_array_equal(halves, np.multiply(plain, 0.5))


@pytest.mark.parametrize("mix", [0.5, 1.0])
@pytest.mark.parametrize("name", SPACES)
def test_the_majorant_bounds_a_mixture_too(name, mix):
    space = SPACES[name]
    x, y = scores(space, rows=12, scale=3.0)
    x[:4] = np.where(np.arange(space.num_bins) < 2, 0.0, -9.0)
    _, curvature = Objective(space, mix=mix, curvature="majorant").derivatives(x, y)
    for row, label, diagonal in zip(x, y, curvature, strict=True):

        def mixture(x, label=label):
            entropy = torch.nn.functional.cross_entropy(x, torch.tensor(label))
            return (1 - mix) * dense_loss(x, label, space, 2.0, "emd") + mix * entropy

        hessian = torch.func.hessian(mixture)(torch.tensor(row))
        assert torch.linalg.eigvalsh(torch.tensor(diagonal).diag() - hessian).min() >= -1e-8


def test_edge_cross_entropy_and_its_fisher_diagonal():
    space = SPACES["tree"]
    x, y = scores(space)
    gradient, curvature = Objective(space, loss="edge").derivatives(x, y)
    for row, label, slope, diagonal in zip(x, y, gradient, curvature, strict=True):
        theirs = torch.func.grad(dense_loss)(torch.tensor(row), label, space, 2.0, "edge")
        np.testing.assert_allclose(slope, theirs, atol=1e-9)
        below = space.flow(torch.tensor(row).softmax(-1))
        jacobian = torch.func.jacrev(lambda x: space.flow(x.softmax(-1)))(torch.tensor(row))
        fisher = (space.costs / (below * (1 - below))).unsqueeze(-1) * jacobian.square()
        np.testing.assert_allclose(diagonal, fisher.sum(0), atol=1e-8)


def test_mix_is_a_share_of_cross_entropy():
    space = SPACES["chain"]
    x, y = scores(space)
    weight = torch.linspace(0.5, 1.5, space.num_bins, dtype=torch.float64)
    gradient, curvature = Objective(space, mix=0.25, weight=weight).derivatives(x, y, np.arange(1, 8))
    logits = torch.tensor(x, requires_grad=True)
    options = {"weight": weight, "reduction": "none"}
    loss = 0.75 * ew.EMDLoss(space, **options)(logits, torch.tensor(y))
    loss = loss + 0.25 * torch.nn.CrossEntropyLoss(**options)(logits, torch.tensor(y))
    (theirs,) = torch.autograd.grad((loss * torch.arange(1, 8)).sum(), logits)
    np.testing.assert_allclose(gradient, theirs, atol=1e-10)
    assert (curvature > 0).all()


@pytest.mark.parametrize("curvature", ["gauss-newton", "majorant"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rho", RHOS)
def test_saturated_scores_give_finite_derivatives(rho, dtype, curvature):
    space = SPACES["tree"]
    x, y = scores(space, scale=1e3)
    gradient, diagonal = Objective(space, rho, curvature=curvature).derivatives(x.astype(dtype), y)
    assert np.isfinite(gradient).all()
    assert np.isfinite(diagonal).all()
    assert (diagonal > 0).all()
    assert gradient.dtype == diagonal.dtype == dtype


def table(rows=300, classes=4):
    generator = np.random.default_rng(0)
    features = generator.normal(size=(rows, 3))
    signal = features[:, 0] + 0.3 * generator.normal(size=rows)
    return features, np.digitize(signal, np.quantile(signal, np.arange(1, classes) / classes))


@pytest.mark.parametrize("rho", RHOS)
def test_lightgbm_by_both_interfaces(rho):
    lightgbm = pytest.importorskip("lightgbm")
    features, labels = table()
    objective = Objective(ew.Chain(4), rho)
    options = {"num_class": 4, "verbose": -1, "num_threads": 1, "learning_rate": 0.2}
    booster = lightgbm.train({**options, "objective": objective.lightgbm}, lightgbm.Dataset(features, labels), 40)
    p = objective.predict_proba(booster.predict(features))
    assert (p.argmax(1) == labels).mean() > 0.8
    model = lightgbm.LGBMClassifier(
        objective=objective.lightgbm, n_estimators=40, n_jobs=1, verbose=-1, learning_rate=0.2
    )
    raw = model.fit(features, labels).predict(features, raw_score=True)
    np.testing.assert_allclose(objective.predict_proba(raw), p, atol=1e-6)


def test_lightgbm_stops_early_by_a_metric():
    lightgbm = pytest.importorskip("lightgbm")
    features, labels = table()
    train, held_out = lightgbm.Dataset(features[:200], labels[:200]), lightgbm.Dataset(features[200:], labels[200:])
    objective, metric = Objective(ew.Chain(4)), EvalMetric(ew.Chain(4), "rps")
    booster = lightgbm.train(
        {"objective": objective.lightgbm, "num_class": 4, "verbose": -1, "num_threads": 1, "metric": "None"},
        train,
        200,
        valid_sets=[held_out],
        feval=metric.lightgbm,
        callbacks=[lightgbm.early_stopping(10, verbose=False)],
    )
    assert 1 < booster.best_iteration < 200
    best = booster.best_score["valid_0"]["rps"]
    assert best == pytest.approx(metric.value(booster.predict(features[200:]), labels[200:]), abs=1e-6)


@pytest.mark.filterwarnings("ignore:The argument 'eval_set' is deprecated")  # older versions have no other
def test_the_scikit_learn_class_of_lightgbm_stops_early():
    lightgbm = pytest.importorskip("lightgbm")
    features, labels = table()
    objective, metric = Objective(ew.Chain(4)), EvalMetric(ew.Chain(4), "mae", decision="least_risk")
    model = lightgbm.LGBMClassifier(objective=objective.lightgbm, n_estimators=200, n_jobs=1, verbose=-1)
    model.fit(
        features[:200], labels[:200], eval_set=[(features[200:], labels[200:])], eval_metric=metric.lightgbm,
        callbacks=[lightgbm.early_stopping(10, first_metric_only=True, verbose=False)],
    )  # fmt: skip
    assert 1 <= model.best_iteration_ < 200
    raw = model.predict(features[200:], raw_score=True)
    assert model.best_score_["valid_0"]["mae"] == pytest.approx(metric.value(raw, labels[200:]), abs=1e-6)


@pytest.mark.parametrize("name", ["rps", "mae", "kappa", "severity"])
def test_xgboost_stops_early_by_a_metric(name):
    xgboost = pytest.importorskip("xgboost")
    features, labels = table()
    objective, metric = Objective(ew.Chain(4)), EvalMetric(ew.Chain(4), name)
    held_out = xgboost.DMatrix(features[200:], labels[200:])
    booster = xgboost.train(
        {"num_class": 4, "nthread": 1, "disable_default_eval_metric": True},
        xgboost.DMatrix(features[:200], labels[:200]), 200, obj=objective.xgboost, custom_metric=metric.xgboost,
        evals=[(held_out, "held_out")], early_stopping_rounds=10, verbose_eval=False,
    )  # fmt: skip
    assert booster.best_iteration < 199
    best = booster.predict(held_out, output_margin=True, iteration_range=(0, booster.best_iteration + 1))
    assert booster.best_score == pytest.approx(metric(labels[200:], best), abs=1e-5)
    model = xgboost.XGBClassifier(
        objective=objective.xgboost, eval_metric=metric, early_stopping_rounds=10, n_estimators=200, n_jobs=1
    )
    model.fit(features[:200], labels[:200], eval_set=[(features[200:], labels[200:])], verbose=False)
    assert model.best_iteration == booster.best_iteration
    assert model.best_score == pytest.approx(booster.best_score, abs=1e-5)


@pytest.mark.parametrize("strategy", ["one_output_per_tree", "multi_output_tree"])
def test_xgboost_by_both_interfaces(strategy):
    xgboost = pytest.importorskip("xgboost")
    features, labels = table()
    objective, metric = Objective(ew.Chain(4)), EvalMetric(ew.Chain(4), "mae")
    data = xgboost.DMatrix(features, labels)
    options = {"num_class": 4, "nthread": 1, "learning_rate": 0.2, "multi_strategy": strategy, "base_score": 0.0}
    history: dict = {}
    booster = xgboost.train(
        {**options, "disable_default_eval_metric": True, "tree_method": "hist"},
        data,
        40,
        obj=objective.xgboost,
        custom_metric=metric.xgboost,
        evals=[(data, "train")],
        evals_result=history,
        verbose_eval=False,
    )
    p = objective.predict_proba(booster.predict(data, output_margin=True))
    assert (p.argmax(1) == labels).mean() > 0.8
    assert history["train"]["mae"][-1] == pytest.approx(np.abs(p.argmax(1) - labels).mean(), abs=1e-6)
    model = xgboost.XGBClassifier(
        objective=objective.xgboost, n_estimators=40, n_jobs=1, learning_rate=0.2, multi_strategy=strategy,
        base_score=0.0, tree_method="hist",
    )  # fmt: skip
    raw = model.fit(features, labels).predict(features, output_margin=True)
    np.testing.assert_allclose(objective.predict_proba(raw), p, atol=1e-5)


@pytest.mark.parametrize("curvature", ["gauss-newton", "majorant"])
@pytest.mark.parametrize("rho", RHOS)
def test_separable_data_do_not_diverge(rho, curvature):
    lightgbm = pytest.importorskip("lightgbm")
    features = np.repeat(np.arange(4.0), 50)[:, None]
    labels = features[:, 0].astype(int)
    objective = Objective(ew.Chain(4), rho, curvature=curvature)
    booster = lightgbm.train(
        {"objective": objective.lightgbm, "num_class": 4, "verbose": -1, "num_threads": 1, "min_data_in_leaf": 5,
         "min_sum_hessian_in_leaf": 0.0, "learning_rate": 0.5},
        lightgbm.Dataset(features, labels), 150,
    )  # fmt: skip
    raw = booster.predict(features)
    assert np.isfinite(raw).all()
    losses = [
        EvalMetric(ew.Chain(4)).value(booster.predict(features, num_iteration=count), labels) for count in (1, 20, 150)
    ]
    assert losses[0] > losses[1] >= losses[2] - 1e-9
    assert losses[2] < 0.01


@pytest.mark.parametrize("options", [{"rho": 1.0}, {"rho": 2.0}, {"rho": 3.0}, {"loss": "edge"}, {"mix": 0.5}])
@pytest.mark.parametrize("name", ["lightgbm", "xgboost"])
def test_no_objective_diverges_on_a_separable_tree(name, options):
    """With steps of full size and no limit to the curvature of a leaf."""
    library = pytest.importorskip(name)
    tree = ew.Tree([-1, 0, 0, 1, 1, 2, 2])
    features = np.repeat(np.arange(4.0), 20)[:, None]
    labels = features[:, 0].astype(int)
    objective = Objective(tree, **options)
    if name == "lightgbm":
        limits = {"min_data_in_leaf": 5, "min_sum_hessian_in_leaf": 0.0, "num_threads": 1, "verbose": -1}
        settings = {"objective": objective.lightgbm, "num_class": 4, "learning_rate": 1.0, **limits}
        raw = library.train(settings, library.Dataset(features, labels), 60).predict(features)
    else:
        limits = {"min_child_weight": 0.0, "lambda": 0.0, "nthread": 1}
        settings = {"num_class": 4, "learning_rate": 1.0, "disable_default_eval_metric": True, **limits}
        data = library.DMatrix(features, labels)
        raw = library.train(settings, data, 60, obj=objective.xgboost).predict(data, output_margin=True)
    assert np.isfinite(raw).all()
    assert (raw.argmax(1) == labels).all()
    assert EvalMetric(tree).value(raw, labels) < 0.01


def test_metrics_by_hand():
    chain = ew.Chain(3)
    raw = np.log(np.array([[0.7, 0.2, 0.1], [0.4, 0.35, 0.25], [0.1, 0.2, 0.7]]))
    labels, weight = np.array([0, 2, 2]), np.array([1.0, 2.0, 1.0])
    p = np.exp(raw)
    rps = ((p.cumsum(1) - np.eye(3)[labels].cumsum(1)) ** 2).sum(1)
    assert EvalMetric(chain, "rps").value(raw, labels, weight) == pytest.approx(np.average(rps, weights=weight))
    assert EvalMetric(chain, "rps", raw=False).value(p, labels) == pytest.approx(rps.mean())
    assert EvalMetric(chain, "mae").value(raw, labels, weight) == pytest.approx(2 * 2 / 4)
    assert EvalMetric(chain, "mae", decision="least_risk").value(raw, labels) == pytest.approx(1 / 3)
    kappa = cohen_kappa_score(labels, p.argmax(1), weights="quadratic", sample_weight=weight, labels=[0, 1, 2])
    assert EvalMetric(chain, "kappa").value(raw, labels, weight) == pytest.approx(kappa)
    assert EvalMetric(chain, "quadratic kappa").lightgbm(labels, raw, weight)[1:] == (pytest.approx(kappa), True)
    assert EvalMetric(chain, "kappa")(labels, raw, weight) == pytest.approx(-kappa)
    assert EvalMetric(chain, "severity").value(raw, labels) == pytest.approx(2)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: Objective(ew.CostMatrix([[0, 1], [1, 0]])), TypeError, "space: expected a Chain, Ring or Tree"),
        (lambda: Objective(ew.Chain(3), 0.5), ValueError, "rho: expected a finite number ≥ 1, got 0.5"),
        (lambda: Objective(ew.Chain(3), loss="ce"), ValueError, 'loss: expected "emd" or "edge"'),
        (lambda: Objective(ew.Chain(3), mix=2), ValueError, "mix: expected a number from 0 to 1, got 2"),
        (lambda: Objective(ew.Chain(3), curvature="h"), ValueError, "curvature: expected"),
        (lambda: EvalMetric(3), TypeError, "space: expected a Chain, Ring, Tree or CostMatrix, got int"),
        (lambda: EvalMetric(ew.Chain(3), ["rps"]), ValueError, "name: expected one of kappa, mae, severity, rps, .*"),
        (lambda: EvalMetric(ew.Chain(3), decision="class"), ValueError, 'decision: expected "argmax", .* got .class'),
        (lambda: EvalMetric(ew.Chain(3), "auc"), ValueError, "name: expected one of kappa, mae, severity, rps, .*"),
        (
            lambda: EvalMetric(ew.Chain(3), "expected_cost"),
            ValueError,
            "name: expected a metric whose value says which",
        ),
        (
            lambda: Objective(ew.Chain(3)).derivatives(np.zeros((2, 4)), np.zeros(2)),
            ValueError,
            r"scores: expected shape \(rows, 3\).*got \(2, 4\); the booster's num_class must be 3",
        ),
        (
            lambda: Objective(ew.Chain(3)).derivatives(np.zeros((2, 3)), np.array([0.0, 1.5])),
            ValueError,
            "labels: expected class indices from 0 to 2, got 1.5 at position 1",
        ),
        (
            lambda: Objective(ew.Chain(3)).derivatives(np.zeros((2, 3)), np.zeros(3)),
            ValueError,
            "labels: expected 2, one for each row of the scores, got 3",
        ),
        (
            lambda: Objective(ew.Chain(3)).derivatives(np.zeros((2, 3)), np.array([0, np.nan])),
            ValueError,
            "labels: expected class indices from 0 to 2, got nan at position 1",
        ),
        (
            lambda: EvalMetric(ew.Chain(3)).value(np.zeros((2, 3)), np.zeros((2, 1))),
            ValueError,
            r"labels: expected 2, one for each row of the scores, got shape \(2, 1\)",
        ),
        (
            lambda: Objective(ew.Chain(3)).derivatives(np.zeros((2, 3)), np.zeros(2), np.ones(1)),
            ValueError,
            r"sample_weight: expected 2 finite numbers ≥ 0, one for each row, got array\(\[1",
        ),
        (
            lambda: EvalMetric(ew.Chain(3)).value(np.zeros((2, 3)), np.zeros(2), np.array([1, -1])),
            ValueError,
            "sample_weight: expected 2 finite numbers ≥ 0",
        ),
    ],
)
def test_bad_input(make, error, match):
    with pytest.raises(error, match=match):
        make()


def test_no_matrix_of_bins_by_bins(monkeypatch):
    """A tree of 40,000 leaves, whose matrix would take 6 GB in single precision."""

    def refuse(self, *options):
        raise AssertionError("the matrix of all distances was built")

    leaves = 40_000
    parents = np.concatenate([[-1], np.zeros(200, int), 1 + np.arange(leaves) % 200])
    tree = ew.Tree(parents)
    monkeypatch.setattr(ew.Tree, "distances", refuse)
    scores = np.random.default_rng(0).normal(size=(2, leaves))
    for options in ({}, {"rho": 1.5}, {"loss": "edge"}, {"curvature": "majorant"}):
        gradient, curvature = Objective(tree, **options).derivatives(scores, np.array([0, 5]))
        assert np.isfinite(gradient).all()
        assert (curvature > 0).all()


@pytest.mark.parametrize("name", SPACES)
def test_libraries_get_single_precision_in_their_own_order(name):
    space = SPACES[name]
    x, y = scores(space)
    objective = Objective(space)
    exact = objective.derivatives(x, y)
    for ours, order in ((objective.lightgbm(y, np.asfortranarray(x)), "F"), (objective.xgboost(y, x), "C")):
        for found, expected in zip(ours, exact, strict=True):
            assert found.dtype == np.float32
            assert found.flags[f"{order}_CONTIGUOUS"]
            np.testing.assert_allclose(found, expected, atol=1e-5 * float(space.costs.sum()))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", SPACES)
def test_blocks_of_rows_give_the_same_as_all_at_once(name, weighted, monkeypatch):
    space = SPACES[name]
    x, y = scores(space)
    weight = np.linspace(0.5, 2, len(y)) if weighted else None
    objective = Objective(space, mix=0.25)
    expected = objective.derivatives(x, y, weight)
    monkeypatch.setattr("earthwork.boosting._BLOCK", 2 * space.num_bins)
    for found in (objective.derivatives(x, y, weight), objective.lightgbm(y, x, weight)):
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5 * float(space.costs.sum()))


@pytest.mark.parametrize("classes", [1, 2, 15, 16, 40])
def test_softmax_of_few_and_of_many_classes(classes):
    x = 30 * torch.randn(50, classes, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    before = x.clone()
    torch.testing.assert_close(_softmax(x), x.softmax(-1), rtol=1e-13, atol=0)
    assert torch.equal(x, before)
