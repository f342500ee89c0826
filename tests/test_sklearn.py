"""Estimators and scorers for scikit-learn."""

from __future__ import annotations

import itertools
import pickle
import re
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip("sklearn")
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import cohen_kappa_score, mean_absolute_error
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import earthwork as ew
from earthwork.sklearn import BoostedClassifier, ConformalClassifier, LeastRiskClassifier, scorer

LIBRARIES = ("lightgbm", "xgboost")
# What the rules do not allow for. They also want the most probable class as the answer.
EXCEPTIONS = {"check_classifiers_classes": "names have no order without a space"}
# Three times a gradient is rounded, three rows with it are not: 2e-7 after 20 rounds, where the rule allows 1e-7.
SINGLE = {"check_sample_weight_equivalence_on_dense_data": "XGBoost keeps weighted gradients in single precision"}


def exceptions(model):
    if isinstance(model, LeastRiskClassifier):
        return {}
    return EXCEPTIONS | SINGLE if getattr(model, "library", None) == "xgboost" else EXCEPTIONS


def boosted(space=None, library="lightgbm", **options):
    pytest.importorskip(library)
    return BoostedClassifier(space, library, **{"n_estimators": 20, "n_jobs": 1, "random_state": 0, **options})


@parametrize_with_checks(
    [LeastRiskClassifier(LogisticRegression()), ConformalClassifier(LogisticRegression(), alpha=0.3, random_state=0),
     *(BoostedClassifier(None, library, n_estimators=20, decision="argmax",
     n_jobs=1, random_state=0) for library in LIBRARIES if find_spec(library))],
    expected_failed_checks=exceptions,
)  # fmt: skip
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


@pytest.mark.parametrize("library", LIBRARIES)
def test_boosting_is_that_of_the_library(library):
    features, labels = ordinal()
    model = boosted(ew.Chain(5), library, loss="edge").fit(features, labels)
    p = model.predict_proba(features)
    np.testing.assert_allclose(p.sum(1), 1)
    np.testing.assert_array_equal(model.predict(features), ew.decide(p, ew.Chain(5)))
    np.testing.assert_array_equal(model.set_params(decision="argmax").predict(features), p.argmax(1))
    objective = ew.boosting.Objective(ew.Chain(5), loss="edge")
    if library == "lightgbm":
        import lightgbm

        options = {"num_class": 5, "num_threads": 1, "verbose": -1, "objective": objective.lightgbm}
        raw = lightgbm.train(options, lightgbm.Dataset(features, labels), 20).predict(features)
    else:
        import xgboost

        data = xgboost.DMatrix(features, labels)
        options = {"num_class": 5, "nthread": 1, "learning_rate": 0.1, "base_score": 0.0, "min_child_weight": 1e-3}
        raw = xgboost.train(options, data, 20, obj=objective.xgboost).predict(data, output_margin=True)
    np.testing.assert_allclose(p, objective.predict_proba(raw), atol=1e-6)


@pytest.mark.parametrize("library", LIBRARIES)
def test_boosting_takes_names_in_the_order_of_the_space(library):
    """Alphabetical order is another one: large, medium, small, tiny."""
    features, labels = ordinal(4)
    names = np.array(["tiny", "small", "medium", "large"])
    by_index = boosted(ew.Chain(4), library).fit(features, labels)
    for chain in (ew.Chain(4, names=names.tolist()), None):
        y = names[labels] if chain else pd.Categorical(names[labels], categories=names, ordered=True)
        by_name = boosted(chain, library).fit(features, y)
        assert by_name.classes_.tolist() == names.tolist()
        np.testing.assert_allclose(by_name.predict_proba(features), by_index.predict_proba(features))
        np.testing.assert_array_equal(by_name.predict(features), names[by_index.predict(features)])


@pytest.mark.parametrize("library", LIBRARIES)
def test_boosting_knows_classes_that_no_row_has(library):
    features, labels = ordinal(4)
    model = boosted(ew.Chain(6), library).fit(features, labels + (labels > 1))  # 0, 1, 3, 4
    assert model.classes_.tolist() == [0, 1, 2, 3, 4, 5]
    p = model.predict_proba(features)
    assert p.shape == (len(features), 6)
    assert p[:, [2, 5]].mean() < 0.1
    assert ew.evaluate(p, labels + (labels > 1), ew.Chain(6), intervals=False).report["accuracy"].value > 0.5


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("metric", ["rps", "kappa"])
def test_boosting_stops_early(library, metric):
    features, labels = ordinal()
    options = {"early_stopping": 5, "n_estimators": 300, "metric": metric}
    held_out = boosted(ew.Chain(5), library, **options).fit(features, labels)
    assert held_out.n_rounds_ < 200
    rest = slice(300, None)
    given = boosted(ew.Chain(5), library, **options)
    given.fit(features[:300], labels[:300], eval_set=(features[rest], labels[rest]))
    score = scorer(metric, ew.Chain(5))
    best = score(given, features[rest], labels[rest])
    given.n_rounds_ = 300 if library == "lightgbm" else given.booster_.num_boosted_rounds()
    assert best >= score(given, features[rest], labels[rest])


@pytest.mark.parametrize("library", LIBRARIES)
def test_sample_weight_moves_answers(library):
    features, labels = ordinal(2)
    heavy = boosted(ew.Chain(2), library).fit(features, labels, np.where(labels == 1, 20.0, 1.0))
    plain = boosted(ew.Chain(2), library).fit(features, labels)
    assert heavy.predict(features).mean() > plain.predict(features).mean()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("options", [{}, {"calibrate": True}, {"maximize": "kappa"}], ids=str)
def test_least_risk_by_an_objective_of_ours(library, options):
    """It failed, or trained on the alphabetical order of the names."""
    module = pytest.importorskip(library)
    features, labels = ordinal(4)
    names = np.array(["tiny", "small", "medium", "large"])
    chain = ew.Chain(4, names=names.tolist())
    objective = ew.boosting.Objective(chain)
    make = (
        module.LGBMClassifier(objective=objective.lightgbm, n_estimators=20, n_jobs=1, verbose=-1)
        if library == "lightgbm"
        else module.XGBClassifier(objective=objective.xgboost, n_estimators=20, n_jobs=1, base_score=0.0)
    )
    by_name = LeastRiskClassifier(make, chain, **options).fit(features, names[labels])
    by_index = LeastRiskClassifier(make, chain, **options).fit(features, labels)
    assert by_name.classes_.tolist() == names.tolist()
    np.testing.assert_allclose(by_name.predict_proba(features).sum(1), 1, rtol=1e-6)
    np.testing.assert_array_equal(by_name.predict(features), names[by_index.predict(features)])
    assert cohen_kappa_score(by_index.predict(features), labels, weights="quadratic") > 0.6
    with pytest.raises(ValueError, match=r"y: expected all 4 classes of the space, .* got none of class 3; Boosted"):
        LeastRiskClassifier(make, chain, **options).fit(features[labels < 3], labels[labels < 3])
    with pytest.raises(ValueError, match="space: expected that of the estimator's objective"):
        LeastRiskClassifier(make, ew.Chain(4), **options).fit(features, labels)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_conformal_sets_by_an_objective_of_ours():
    """It trained on the alphabetical order of the names, and failed."""
    module = pytest.importorskip("lightgbm")
    features, labels = ordinal(4)
    names = np.array(["tiny", "small", "medium", "large"])
    chain = ew.Chain(4, names=names.tolist())
    objective = ew.boosting.Objective(chain).lightgbm
    estimator = module.LGBMClassifier(objective=objective, n_estimators=20, n_jobs=1, verbose=-1)
    model = ConformalClassifier(estimator, chain, 0.2, random_state=0)
    sets = model.fit(features, names[labels]).predict_set(features)
    assert sets[np.arange(len(labels)), labels].mean() > 0.75
    np.testing.assert_array_equal(model.fit(features, labels).predict_set(features), sets)
    with pytest.raises(ValueError, match=r"y: expected all 4 classes of the space, .* got none of class 3; Boosted"):
        model.fit(features[labels < 3], labels[labels < 3])


def test_answers_for_kappa_by_cross_validation():
    features, labels = ordinal()
    chain = ew.Chain(5)
    plain, kappa = (
        LeastRiskClassifier(LogisticRegression(C=0.01), chain, maximize=metric) for metric in (None, "kappa")
    )
    scores = [
        cross_val_score(model, features, labels, scoring=scorer("kappa", chain)).mean() for model in (plain, kappa)
    ]
    assert scores[1] > scores[0] + 0.1
    assert 0 < kappa.fit(features, labels).decision_.trade_off_ < 1


@pytest.mark.parametrize(
    "model", [BoostedClassifier(ew.Chain(3), n_estimators=5, n_jobs=1), LeastRiskClassifier(LogisticRegression())]
)
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


def test_every_measure_of_the_report_is_a_scorer():
    features, labels = ordinal()
    model = LogisticRegression().fit(features, labels)
    chain = ew.Chain(5)
    report = ew.metrics.hierarchical_report(model.predict_proba(features), labels, chain)
    for line in report.lines:
        if line.higher_is_better is not None:
            score = scorer(line.label, chain)(model, features, labels)
            assert score == pytest.approx(line.estimates[0].value * (1 if line.higher_is_better else -1)), line.label


def test_scorers_are_defined_for_classes_that_were_not_seen():
    """A test fold with a class that its training folds lack made all of cross validation NaN."""
    features, labels = ordinal(4)
    rare = np.flatnonzero(labels == 3)
    labels[rare[1:]] = 2
    folds = [(np.setdiff1d(np.arange(len(labels)), rare), rare), (np.arange(0, 300), np.arange(300, len(labels)))]
    for space in (ew.Chain(4), None):
        for name in ("kappa", "mae", "rps"):
            score = scorer(name, space)
            found = cross_val_score(LogisticRegression(), features, labels, cv=folds, scoring=score)
            assert np.isfinite(found[1])
            assert np.isfinite(found[0]) or name == "kappa"  # all labels of that fold differ only in class
    train = folds[1][0]
    model = LogisticRegression().fit(features[train[labels[train] < 3]], labels[train[labels[train] < 3]])
    expected = cohen_kappa_score(labels, model.predict(features), weights="quadratic", labels=range(4))
    assert scorer("kappa", ew.Chain(4))(model, features, labels) == pytest.approx(expected)


def test_scorers_round_what_regressors_predict():
    features, labels = ordinal()
    model = LinearRegression().fit(features, labels)
    answers = np.rint(model.predict(features)).clip(0, 4)
    expected = cohen_kappa_score(labels, answers, weights="quadratic")
    for space in (ew.Chain(5), None):
        assert scorer("kappa", space)(model, features, labels) == pytest.approx(expected)
        with pytest.raises(ValueError, match="predict: expected finite numbers, got nan in row 0"):
            scorer("kappa", space)(SimpleNamespace(predict=lambda x: np.full(len(x), np.nan)), features, labels)
    stars = ew.Chain(5, names=list("12345"))
    shifted = LinearRegression().fit(features, labels + 1)
    assert scorer("kappa", stars)(shifted, features, (labels + 1).astype(str)) == pytest.approx(expected)
    model.intercept_ = np.nan
    for space in (ew.Chain(5), None):
        with pytest.raises(ValueError, match="predict: expected finite numbers, got nan in row 0"):
            scorer("kappa", space)(model, features, labels)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16])
def test_labels_of_small_types_do_not_wrap_around(dtype):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 3))
    labels = (60 + rng.integers(0, 60, 200)).astype(dtype)
    model = LinearRegression().fit(features, labels.astype(float))
    assert scorer("mae")(model, features, labels) == scorer("mae")(model, features, labels.astype(np.int64))
    many = ew.Chain(300)
    fitted = LeastRiskClassifier(GaussianNB(), many).fit(features, labels)
    wide = LeastRiskClassifier(GaussianNB(), many).fit(features, labels.astype(np.int64))
    np.testing.assert_array_equal(fitted.predict(features), wide.predict(features))
    hundreds = ew.Chain(3, names=["100", "200", "300"])
    y = np.where(labels > 90, 100, 200).astype(np.int16)
    assert set(LeastRiskClassifier(GaussianNB(), hundreds).fit(features, y.astype(np.uint8)).classes_) <= {100, 200}


def test_an_order_is_never_guessed():
    """Names were sorted, also those of an ordered Categorical."""
    features, labels = ordinal(3)
    names = np.array(["low", "middle", "high"])
    y = pd.Series(pd.Categorical(names[labels], categories=names, ordered=True))
    model = LogisticRegression().fit(features, y)
    expected = scorer("kappa", ew.Chain(3))(LogisticRegression().fit(features, labels), features, labels)
    assert scorer("kappa")(model, features, y) == pytest.approx(expected)
    assert scorer("kappa", ew.Chain(3, names=names.tolist()))(model, features, y) == pytest.approx(expected)
    message = "names, whose order is not known: pass space=ew.Chain"
    for unordered in (names[labels], pd.Series(names[labels]), pd.Series(names[labels], dtype="category")):
        with pytest.raises(ValueError, match=message):
            scorer("kappa")(model, features, unordered)
        for estimator in (boosted(), ConformalClassifier(LogisticRegression())):
            with pytest.raises(ValueError, match=message):
                estimator.fit(features, unordered)
    polars = pytest.importorskip("polars")
    by_polars = boosted().fit(features, polars.Series(names[labels], dtype=polars.Enum(names.tolist())))
    assert by_polars.classes_.tolist() == names.tolist()
    np.testing.assert_array_equal(by_polars.predict(features), boosted().fit(features, y).predict(features))


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
        (lambda x, y: boosted(decision="mode").fit(x, y), ValueError, 'decision: expected "least_risk" or "argmax"'),
        (
            lambda x, y: boosted(params={"objective": "multiclass"}).fit(x, y),
            ValueError,
            r"params: expected no objective, which is the loss of the space, got \['objective'\]",
        ),
        (lambda x, y: boosted(mix=2).fit(x, y), ValueError, "mix: expected a number from 0 to 1, got 2"),
        (
            lambda x, y: BoostedClassifier(library="cat").fit(x, y),
            ValueError,
            'library: expected "lightgbm" or "xgboost"',
        ),
        (lambda x, y: boosted(7).fit(x, y), TypeError, "space: expected a Chain, Ring, Tree, CostMatrix or None"),
        (lambda x, y: scorer("mae", 7), TypeError, "space: expected a Chain, Ring, Tree or CostMatrix, got int"),
        (
            lambda x, y: boosted(ew.Chain(2)).fit(x, y),
            ValueError,
            "y: expected class indices from 0 to 1, because the classes have no names, got '2'",
        ),
        (
            lambda x, y: boosted(ew.Chain(4, names=["3", "2", "1", "0"])).fit(x, y),
            ValueError,
            "y: 0 can be the class called '0' .* or the class with index 0 .*choose with labels as text for names",
        ),
        (lambda x, y: scorer("expected_cost"), ValueError, "name: expected a metric whose value says which model"),
        (lambda x, y: scorer("auc"), ValueError, "name: expected one of"),
    ],
)
def test_bad_input(call, error, match):
    features, labels = load_iris(return_X_y=True)
    with pytest.raises(error, match=match):
        call(features, labels)


class Known(ClassifierMixin, BaseEstimator):
    """A classifier whose features are probabilities."""

    def fit(self, features, labels):
        self.classes_ = np.unique(labels)
        return self

    def predict_proba(self, features):
        return features


def test_ties_of_least_risk_those_of_decide() -> None:
    tenths = [row for row in itertools.product(range(11), repeat=4) if sum(row) == 10]
    p, chain = np.array(tenths) / 10, ew.Chain(4)
    model = LeastRiskClassifier(Known(), chain).fit(p, np.arange(len(p)) % 4)
    np.testing.assert_array_equal(model.predict(p), ew.decide(p, chain))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("options", [{"maximize": "kappa"}, {"calibrate": True}], ids=str)
def test_cross_validation_keeps_the_order_of_names(library, options):
    """scikit-learn's cross_val_predict gives estimators the alphabetical places of names, read as indices here."""
    features, labels = ordinal(4)
    names = np.array(["tiny", "small", "medium", "large"])
    chain = ew.Chain(4, names=names.tolist())
    by_index = LeastRiskClassifier(boosted(chain, library), chain, **options).fit(features, labels)
    ordered = pd.Categorical(names[labels], names, ordered=True)
    for y in (names[labels], names[labels].tolist(), ordered, pd.Series(ordered, index=np.arange(442)[::-1])):
        by_name = LeastRiskClassifier(boosted(chain, library), chain, **options).fit(features, y)
        np.testing.assert_allclose(by_name.predict_proba(features), by_index.predict_proba(features))
        np.testing.assert_array_equal(by_name.predict(features), names[by_index.predict(features)])
    few = LeastRiskClassifier(boosted(chain, library), chain, **options)
    assert few.fit(features[labels != 1], names[labels[labels != 1]]).classes_.tolist() == names.tolist()


def test_kappa_without_a_space_is_that_of_a_chain():
    features, labels = ordinal(4)
    names = np.array(["tiny", "small", "medium", "large"])
    given, default = (LeastRiskClassifier(GaussianNB(), space, maximize="kappa") for space in (ew.Chain(4), None))
    expected = given.fit(features, labels).predict(features)
    np.testing.assert_array_equal(default.fit(features, labels).predict(features), expected)
    ordered = pd.Categorical(names[labels], names, ordered=True)
    np.testing.assert_array_equal(default.fit(features, ordered).predict(features), names[expected])
    with pytest.raises(ValueError, match="names, whose order is not known"):
        default.fit(features, names[labels])


@pytest.mark.parametrize("library", LIBRARIES)
def test_labels_for_early_stopping_are_those_of_the_rows(library):
    """Without a space they were read as indices: 1 and 2 of 1 to 4 as the second and the third class."""
    features, labels = ordinal(4)
    names = np.array(["tiny", "small", "medium", "large"])
    rest = slice(300, None)

    def rounds(y):
        model = boosted(None, library, early_stopping=3, n_estimators=60)
        return model.fit(features[:300], y[:300], eval_set=(features[rest], y[rest])).n_rounds_

    expected = rounds(labels)
    for y in (labels + 1, labels * 10.0, pd.Categorical(names[labels], names, ordered=True)):
        assert rounds(y) == expected
    with pytest.raises(ValueError, match=r"eval_set: expected the classes \[0, 1, 2, 3\], got (7|8|9|10) too"):
        boosted(early_stopping=3).fit(features, labels, eval_set=(features, labels + 7))
