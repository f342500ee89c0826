"""Estimators and scorers for scikit-learn."""

from __future__ import annotations

import itertools
import pickle
import re
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import cohen_kappa_score, mean_absolute_error
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import earthwork as ew
from earthwork.sklearn import ConformalClassifier, EMDClassifier, LeastRiskClassifier, _least_risk, scorer


@parametrize_with_checks(
    [
        EMDClassifier(random_state=0),
        LeastRiskClassifier(LogisticRegression()),
        ConformalClassifier(LogisticRegression(), alpha=0.3, random_state=0),
    ]
)
def test_rules_of_scikit_learn(estimator, check):
    check(estimator)


def ordinal(classes=5):
    features, values = load_diabetes(return_X_y=True)
    return features, np.digitize(values, np.quantile(values, np.arange(1, classes) / classes))


def test_least_risk_is_brute_force_minimum():
    features, labels = ordinal()
    chain = ew.Chain(5, [1.0, 3.0, 0.5, 2.0])
    model = LeastRiskClassifier(LogisticRegression(), chain).fit(features, labels)
    p = LogisticRegression().fit(features, labels).predict_proba(features)
    np.testing.assert_array_equal(model.predict(features), (p @ chain.distances().numpy().T).argmin(1))
    np.testing.assert_allclose(model.predict_proba(features), p)
    by_argmax = p.argmax(1)
    distance = chain.distances().numpy()
    assert distance[model.predict(features), labels].mean() < distance[by_argmax, labels].mean()


def test_conformal_sets_of_a_classifier():
    features, labels = ordinal(3)
    sizes = np.array(["small", "medium", "large"])[labels]
    chain = ew.Chain(4, names=["small", "medium", "large", "huge"])
    model = ConformalClassifier(LogisticRegression(), chain, 0.2, random_state=0).fit(features, sizes)
    sets = model.predict_set(features)
    assert sets.shape == (442, 4)
    assert not sets[:, 3].all()
    assert sets[np.arange(442), labels].mean() > 0.75
    assert set(model.predictor_.describe(sets)) <= {
        a if a == b else f"{a} to {b}" for a in chain.names for b in chain.names
    }
    by_index = ConformalClassifier(LogisticRegression(), chain, 0.2, random_state=0).fit(features, labels)
    np.testing.assert_array_equal(by_index.predict_set(features), sets)
    np.testing.assert_array_equal(model.predict(features), np.array(chain.names)[by_index.predict(features)])


def test_labels_by_name_in_order_of_space():
    features, labels = ordinal(3)
    sizes = np.array(["small", "medium", "large"])
    chain = ew.Chain(3, names=["small", "medium", "large"])
    model = LeastRiskClassifier(LogisticRegression(), chain).fit(features, sizes[labels])
    by_index = LeastRiskClassifier(LogisticRegression(), chain).fit(features, labels)
    np.testing.assert_array_equal(model.predict(features), sizes[by_index.predict(features)])


def test_classes_that_were_not_seen():
    features, labels = ordinal(3)
    chain = ew.Chain(9)
    model = LeastRiskClassifier(LogisticRegression(), chain).fit(features, labels * 4)
    assert set(model.predict(features)) <= {0, 4, 8}
    network = EMDClassifier(chain, max_epochs=20, random_state=0).fit(features, labels * 4)
    assert network.predict_proba(features).shape == (len(features), 3)
    np.testing.assert_allclose(network.predict_proba(features).sum(1), 1)


def test_calibration_lowers_log_loss_overconfident():
    features, labels = ordinal()
    weak = GaussianNB()
    train, held_out = slice(0, 300), slice(300, None)
    plain = LeastRiskClassifier(weak, ew.Chain(5)).fit(features[train], labels[train])
    mild = LeastRiskClassifier(weak, ew.Chain(5), calibrate=True).fit(features[train], labels[train])
    assert mild.temperature_ > 1
    rows = np.arange(len(labels[held_out]))
    losses = [
        -np.log(model.predict_proba(features[held_out])[rows, labels[held_out]]).mean() for model in (plain, mild)
    ]
    assert losses[1] < losses[0]


def test_partial_labels_teach_what_they_say():
    features, labels = load_iris(return_X_y=True)
    generator = np.random.default_rng(0)
    mask = np.eye(3, dtype=bool)[labels]
    coarse = generator.random(len(labels)) < 0.5
    mask[coarse, 1:] |= (labels[coarse] > 0)[:, None]
    model = EMDClassifier(ew.Chain(3), max_epochs=60, random_state=0).fit(features, mask)
    assert model.score(features, labels) > 0.9


def test_sample_weight_moves_answers():
    features, labels = ordinal(2)
    chain = ew.Chain(2)
    heavy = EMDClassifier(chain, max_epochs=40, random_state=0).fit(features, labels, np.where(labels == 1, 20.0, 1.0))
    plain = EMDClassifier(chain, max_epochs=40, random_state=0).fit(features, labels)
    assert heavy.predict(features).mean() > plain.predict(features).mean()


def test_decision_by_least_risk():
    features, labels = ordinal()
    model = EMDClassifier(ew.Chain(5), max_epochs=20, random_state=0).fit(features, labels)
    p = torch.tensor(model.predict_proba(features))
    model.set_params(decision="risk")
    np.testing.assert_array_equal(model.predict(features), ew.decide(p, ew.Chain(5)).numpy())


@pytest.mark.parametrize("model", [EMDClassifier(ew.Chain(3), max_epochs=5), LeastRiskClassifier(LogisticRegression())])
def test_clones_pickles_and_pipelines(model):
    features, labels = load_iris(return_X_y=True)
    pipeline = make_pipeline(StandardScaler().set_output(transform="pandas"), clone(model)).fit(features, labels)
    again = pickle.loads(pickle.dumps(pipeline))
    np.testing.assert_array_equal(again.predict(features), pipeline.predict(features))


def test_scorers_of_scikit_learn_on_unit_gaps():
    features, labels = ordinal()
    model = LogisticRegression().fit(features, labels)
    answers = model.predict(features)
    assert scorer("mae", ew.Chain(5))(model, features, labels) == pytest.approx(-mean_absolute_error(labels, answers))
    kappa = cohen_kappa_score(labels, answers, weights="quadratic")
    assert scorer("kappa")(model, features, labels) == pytest.approx(kappa)
    p = model.predict_proba(features)
    rps = ((p.cumsum(1) - np.eye(5)[labels].cumsum(1)) ** 2).sum(1).mean()
    assert scorer("rps", ew.Chain(5))(model, features, labels) == pytest.approx(-rps)


def test_scorers_in_grid_search():
    features, labels = ordinal(3)
    search = GridSearchCV(LogisticRegression(), {"C": [0.01, 1.0]}, scoring=scorer("rps"), cv=3).fit(features, labels)
    assert search.best_params_["C"] == 1.0


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "earthwork.sklearn")
    with pytest.raises(ImportError, match=r"earthwork.sklearn needs `sklearn`: pip install 'earthwork\[sklearn\]'"):
        import_module("earthwork.sklearn")


@pytest.mark.filterwarnings("ignore")
def test_skorch_as_guide_shows_it():
    pytest.importorskip("skorch")
    guide = (Path(__file__).parents[1] / "docs" / "guides" / "tables.md").read_text(encoding="utf-8")
    (block,) = (code for code in re.findall(r"^```py\n(.*?)^```", guide, re.DOTALL | re.MULTILINE) if "skorch" in code)
    features, labels = np.tile(ordinal(8)[0], (2, 1)), np.tile(ordinal(8)[1], 2)
    names = {"ew": ew, "StandardScaler": StandardScaler, "features": features, "labels": labels, "space": ew.Chain(8)}
    exec(block, names)
    network, scaled, p = names["network"], names["scaled"], names["p"]
    assert isinstance(network.criterion_, ew.EMDLoss)
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-5)
    logits = clone(network).set_params(predict_nonlinearity="auto")
    torch.manual_seed(0)
    assert (logits.fit(scaled, labels).predict_proba(scaled) < 0).any()  # what the guide warns of
    search = GridSearchCV(network, {"criterion__rho": [1.0, 2.0]}, scoring=scorer("rps", ew.Chain(8)), cv=2)
    again = pickle.loads(pickle.dumps(search.fit(scaled, labels).best_estimator_))
    decided = LeastRiskClassifier(again, ew.Chain(8)).fit(scaled, labels)
    assert set(decided.predict(scaled)) <= set(range(8))


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda x, y: EMDClassifier(decision="mode").fit(x, y), ValueError, 'decision: expected "argmax" or "risk"'),
        (lambda x, y: EMDClassifier(mix=2).fit(x, y), ValueError, "mix: expected a number from 0 to 1, got 2"),
        (lambda x, y: EMDClassifier(7).fit(x, y), TypeError, "space: expected a Chain, Ring, Tree, CostMatrix or None"),
        (
            lambda x, y: EMDClassifier(ew.Chain(2)).fit(x, y),
            ValueError,
            "y: expected class indices from 0 to 1, because the classes have no names, got '2'",
        ),
        (
            lambda x, y: EMDClassifier(ew.Chain(4, names=["3", "2", "1", "0"])).fit(x, y),
            ValueError,
            "y: 0 can be the class called '0' .* or the class with index 0 .*choose with labels as text for names",
        ),
        (
            lambda x, y: EMDClassifier().fit(x, np.eye(3, dtype=bool)[y]),
            ValueError,
            "space: expected a space for partial",
        ),
        (lambda x, y: scorer("auc"), ValueError, "name: expected one of"),
    ],
)
def test_bad_input(call, error, match):
    features, labels = load_iris(return_X_y=True)
    with pytest.raises(error, match=match):
        call(features, labels)


def test_ties_of_least_risk_those_of_decide() -> None:
    tenths = [row for row in itertools.product(range(11), repeat=4) if sum(row) == 10]
    p, chain = np.array(tenths) / 10, ew.Chain(4)
    np.testing.assert_array_equal(_least_risk(p, chain, np.arange(4)), ew.decide(p, chain))
