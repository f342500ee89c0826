"""Estimators and scorers for scikit-learn that know how classes are arranged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from earthwork.boosting import EvalMetric, Objective
from earthwork.decisions import ConformalPredictor, FittedDecision, decide, expected_distance, fit_temperature
from earthwork.decisions.calibration import at_temperature, log_of
from earthwork.decisions.decide import first_least
from earthwork.evaluation.labels import ClassIndex
from earthwork.extras import require
from earthwork.metrics.batch import Batch
from earthwork.metrics.functional import measure_named
from earthwork.spaces import Chain, CostMatrix, Space
from earthwork.spaces.space import check_word

require("sklearn", "sklearn", "earthwork.sklearn")
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone  # noqa: E402
from sklearn.model_selection import check_cv, train_test_split  # noqa: E402
from sklearn.utils import _safe_indexing, check_random_state, column_or_1d  # noqa: E402
from sklearn.utils.multiclass import check_classification_targets  # noqa: E402
from sklearn.utils.validation import (  # noqa: E402
    _check_method_params,
    _check_sample_weight,
    check_is_fitted,
    validate_data,
)

__all__ = ["BoostedClassifier", "ConformalClassifier", "LeastRiskClassifier", "scorer"]

Array = NDArray[Any]

_REMEDY = "labels as text for names, or a space without names for indices"


class _Wrapper(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier made of another one, whose classes are some of the bins of a space."""

    estimator: Any
    space: Space | None
    space_: Space
    classes_: Array

    def _target(self, y: Any) -> Any:
        """Return the labels as the estimator takes them: as bins, and all of these, if its objective is ours."""
        objective = _objective(self.estimator)
        if objective is None:
            return y
        if self.space is None or self.space != objective.space:
            raise ValueError(f"space: expected that of the estimator's objective, {objective.space}, got {self.space}")
        bins = ClassIndex(self.space, remedy=_REMEDY).labels("y", np.asarray(y))
        missing = np.setdiff1d(np.arange(self.space.num_bins), bins)
        if len(missing):
            raise ValueError(
                f"y: expected all {self.space.num_bins} classes of the space, which this estimator cannot train "
                f"without, got none of class {missing[0]}; BoostedClassifier can"
            )
        return bins

    def _adopt(self, fitted: Any, classes: Array, space: Space, bins: Array) -> None:
        """Keep a fitted estimator, and the space with the bin of each class."""
        self.estimator_, self.classes_, self.space_, self._bins = fitted, classes, space, bins
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(fitted, name):
                setattr(self, name, getattr(fitted, name))

    def _all_bins(self, X: Any, estimator: Any = None) -> Tensor:  # noqa: N803
        """Compute the probabilities of all bins, 0 for those that the estimator does not know."""
        if estimator is None:
            check_is_fitted(self, "estimator_")
            estimator = self.estimator_
        own = _objective(estimator) is not None
        bins = estimator.classes_ if own else self._bins[_places(self.classes_, estimator.classes_, "classes_")]
        return _spread(_probabilities(estimator, X), self.space_, bins)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags = clone(self.estimator).__sklearn_tags__().input_tags
        return tags


@dataclass(eq=False, repr=False)
class LeastRiskClassifier(_Wrapper):
    r"""Predicts the class of least expected distance by another classifier's probabilities, or the best for a metric.

    .. math:: \hat y = \operatorname{argmin}_i \sum_j p_j\, d(i, j)

    Args:
        estimator: A classifier with ``predict_proba``, or ``LGBMClassifier`` or ``XGBClassifier`` with an
            :class:`~earthwork.boosting.Objective`. It is cloned before it is fitted.
        space: How the classes are arranged. The labels are names of its bins, or bin indices. ``None``: every mistake
            costs the same; with ``maximize`` a chain of the labels, which are numbers or an ordered Categorical.
        maximize: A metric, such as ``"kappa"``, for which the answers are chosen by
            :class:`~earthwork.FittedDecision`, fitted on cross-validated predictions.
        calibrate: Scale the log-probabilities by a temperature that is fitted on cross-validated predictions.
        cv: The cross-validation for ``maximize`` and ``calibrate``: a number of folds or a splitter.

    Attributes:
        estimator_: The fitted classifier.
        classes_: The labels that were seen.
        space_: The space that was used.
        temperature_: What log-probabilities are divided by; 1 without ``calibrate``.
        decision_: The fitted decision; ``None`` without ``maximize``.

    Example:
        >>> import earthwork.sklearn, earthwork as ew
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.linear_model import LogisticRegression
        >>> X, y = load_iris(return_X_y=True)
        >>> model = ew.sklearn.LeastRiskClassifier(LogisticRegression(max_iter=500), ew.Chain(3)).fit(X, y)
        >>> model.predict(X[:2])
        array([0, 0])
    """

    estimator: Any
    space: Space | None = None
    _: KW_ONLY
    maximize: str | None = None
    calibrate: bool = False
    cv: Any = 5

    def fit(self, X: Any, y: Any, sample_weight: Any = None, **fit_params: Any) -> LeastRiskClassifier:  # noqa: N803
        """Fit the estimator, and the temperature and the decision if asked for."""
        if sample_weight is not None:
            fit_params["sample_weight"] = sample_weight
        target = self._target(y)
        fitted = clone(self.estimator).fit(X, target, **fit_params)
        # In the order of the space, where the estimator knows bins.
        first = None if target is y else np.unique(target, return_index=True)[1]
        classes = np.asarray(fitted.classes_) if first is None else np.asarray(y)[first]
        if self.space is None and self.maximize in (None, "accuracy"):
            space: Space = CostMatrix(1 - np.eye(len(classes)))
            bins = np.arange(len(classes))
        else:
            space, _, bins = _arranged(classes, self.space, _order_of(y))
        self._adopt(fitted, classes, space, bins)
        self.temperature_, self.decision_ = 1.0, None
        if (self.calibrate or self.maximize) and len(classes) > 1:
            p, rows = self._held_out(X, target, fit_params)
            labels = torch.from_numpy(_places(classes, np.asarray(y))[rows])
            if self.maximize:
                # Its temperature is that of the probabilities too.
                self.decision_ = FittedDecision(self.space_, self.maximize)
                self.decision_.fit(p, torch.from_numpy(self._bins)[labels])
            if self.calibrate:
                self.temperature_ = fit_temperature(log_of(p[:, self._bins]), labels)
        return self

    def _held_out(self, X: Any, y: Any, params: dict[str, Any]) -> tuple[Tensor, Array]:  # noqa: N803
        """Return the probabilities of rows by estimators that have not seen them, and which rows these are."""
        # Not cross_val_predict, which would replace the labels by their alphabetical places.
        found, rows = [], []
        for train, test in check_cv(self.cv, np.asarray(y), classifier=True).split(X, np.asarray(y)):
            own = _check_method_params(X, params, indices=train)
            fitted = clone(self.estimator).fit(_safe_indexing(X, train), _safe_indexing(y, train), **own)
            found.append(self._all_bins(_safe_indexing(X, test), fitted))
            rows.append(test)
        return torch.cat(found), np.concatenate(rows)

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """Return the (calibrated) probabilities of ``classes_``, shape ``[rows, classes]``."""
        return at_temperature(self._all_bins(X)[:, self._bins], self.temperature_).numpy()

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return the class of least expected distance, or the best one for the metric, for each row."""
        check_is_fitted(self)
        if self.decision_ is None:
            risk = expected_distance(_spread(self.predict_proba(X), self.space_, self._bins), self.space_)
        else:
            risk = -self.decision_.scores(self._all_bins(X))
        return self.classes_.take(first_least(risk[:, self._bins]).numpy())


@dataclass(eq=False, repr=False)
class ConformalClassifier(_Wrapper):
    """Adds sets of classes with a guarantee to another classifier; see :class:`~earthwork.ConformalPredictor`.

    Args:
        estimator: A classifier with ``predict_proba``. It is cloned before it is fitted.
        space: How the classes are arranged. The labels are names of its bins, or bin indices. ``None``: a chain of the
            labels, which are numbers or an ordered Categorical, with unit gaps.
        alpha: The probability that a set misses the label.
        kind: The shape of the sets.
        calibration: The share of the rows that the sets are fitted on; the classifier is fitted on the others.
        random_state: The seed of the split.

    Attributes:
        estimator_: The fitted classifier.
        classes_: The labels that were seen.
        space_: The space that was used.
        predictor_: The fitted predictor, whose ``describe`` puts sets into words.

    Example:
        >>> import earthwork.sklearn, earthwork as ew
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.linear_model import LogisticRegression
        >>> X, y = load_iris(return_X_y=True)
        >>> model = ew.sklearn.ConformalClassifier(LogisticRegression(max_iter=500), random_state=0).fit(X, y)
        >>> model.predict_set(X[:2])
        array([[ True, False, False],
               [ True, False, False]])
    """

    estimator: Any
    space: Space | None = None
    alpha: float = 0.1
    _: KW_ONLY
    kind: Any = None
    calibration: float = 0.3
    random_state: Any = None

    def fit(self, X: Any, y: Any) -> ConformalClassifier:  # noqa: N803
        """Fit the estimator on some of the rows, and the sets on the others."""
        if y is None:
            raise ValueError("y: requires y to be passed, but the target y is None")
        order, y = _order_of(y), column_or_1d(y, warn=True)
        train_x, held_x, train_y, held_y = train_test_split(
            X, y, test_size=self.calibration, random_state=self.random_state
        )
        fitted, classes = clone(self.estimator).fit(train_x, self._target(train_y)), np.unique(y)
        space, _, bins = _arranged(classes, self.space, order)
        self._adopt(fitted, classes, space, bins)
        self.predictor_ = ConformalPredictor(self.space_, self.alpha, self.kind)
        self.predictor_.fit(self._all_bins(held_x), self._bins[_places(classes, held_y)])
        return self

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """Compute the probabilities of ``classes_``, shape ``[rows, classes]``."""
        return self._all_bins(X)[:, self._bins].numpy()

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return the most probable class of each row."""
        answers: Array = self.predict_proba(X).argmax(-1)
        return self.classes_.take(answers)

    def predict_set(self, X: Any) -> NDArray[np.bool_]:  # noqa: N803
        """Return whether each class of the space is in the set of each row, shape ``[rows, num_bins]``."""
        return self.predictor_.predict(self._all_bins(X)).numpy()


@dataclass(eq=False, repr=False)
class BoostedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Gradient boosting by LightGBM or XGBoost with an objective that knows how classes are arranged.

    Args:
        space: How the classes are arranged: a chain, a ring or a tree. The labels are names of its bins, or indices.
            ``None``: a chain of the labels, in the order of an ordered Categorical, or of numbers, with unit gaps.
        library: ``"lightgbm"`` or ``"xgboost"``.
        loss: ``"emd"`` or ``"edge"`` (edge cross entropy, on a chain or a tree).
        rho: The exponent of EMD^ρ.
        mix: The share of cross entropy in the loss, from 0 to 1.
        decision: How a prediction becomes an answer: ``"least_risk"`` or ``"argmax"``. For a metric, such as kappa,
            wrap the classifier: ``LeastRiskClassifier(BoostedClassifier(space), space, maximize="kappa")``.
        n_estimators: The number of rounds; at most so many with early stopping.
        learning_rate: The step size.
        early_stopping: After how many rounds without an improvement to stop; ``None``: not at all.
        validation_fraction: The share of rows that is held out for early stopping, if ``fit`` gets no ``eval_set``.
        metric: The metric of early stopping, of answers by ``decision``; see :class:`~earthwork.boosting.EvalMetric`.
        params: Further parameters of the library.
        n_jobs: The number of threads; ``None``: the library's default.
        random_state: The seed of the held-out rows and of the library.

    Attributes:
        booster_: The trained model of the library.
        classes_: All classes of the space in its order, as names if the labels are names; also those that no row has.
            Metrics of scikit-learn such as ``neg_log_loss`` expect the alphabetical order: use :func:`scorer`.
        space_: The space that was used.
        n_rounds_: The number of rounds that are used to predict.

    Example:
        >>> import earthwork.sklearn, earthwork as ew
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> model = ew.sklearn.BoostedClassifier(ew.Chain(3), n_estimators=20, n_jobs=1).fit(X, y)
        >>> model.predict(X[[0, 70, 140]])
        array([0, 1, 2])
    """

    space: Space | None = None
    library: Literal["lightgbm", "xgboost"] = "lightgbm"
    _: KW_ONLY
    loss: Literal["emd", "edge"] = "emd"
    rho: float = 2.0
    mix: float = 0.0
    decision: Literal["least_risk", "argmax"] = "least_risk"
    n_estimators: int = 100
    learning_rate: float = 0.1
    early_stopping: int | None = None
    validation_fraction: float = 0.2
    metric: str = "rps"
    params: dict[str, Any] | None = None
    n_jobs: int | None = None
    random_state: Any = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None, eval_set: Any = None) -> BoostedClassifier:  # noqa: N803
        """Train the model; ``eval_set`` has features and labels for early stopping, in place of held-out rows.

        NaN in ``X`` is a missing value.
        """
        check_word("library", self.library, "lightgbm", "xgboost")
        check_word("decision", self.decision, "least_risk", "argmax")
        taken = {"objective", "num_class"} & set(self.params or {})
        if taken:
            raise ValueError(f"params: expected no objective, which is the loss of the space, got {sorted(taken)}")
        order = _order_of(y)
        x, y = validate_data(self, X, y, dtype=np.float64, ensure_all_finite="allow-nan")
        check_classification_targets(y)
        weight = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
        found, places = np.unique(y, return_inverse=True)
        if len(found) == 1:
            raise ValueError(f"y: expected at least 2 classes, got one class, {y[0]!r}")
        self.space_, self.classes_, known = _arranged(found, self.space, order)
        bins = known[places]
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        held_out = None
        if self.early_stopping is not None:
            if eval_set is None:
                x, other, bins, labels, weight, weights = train_test_split(
                    x, bins, weight, test_size=self.validation_fraction, random_state=seed
                )
            else:
                other = validate_data(self, eval_set[0], dtype=np.float64, ensure_all_finite="allow-nan", reset=False)
                labels = _places(self.classes_, np.asarray(eval_set[1]), "eval_set")
                weights = np.ones(len(other))
            held_out = {"data": other, "label": labels, "weight": weights}
        self._objective = Objective(self.space_, self.rho, loss=self.loss, mix=self.mix)  # type: ignore[arg-type]
        self.booster_, self.n_rounds_ = _trained(self, x, bins, weight, held_out, seed)
        return self

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """Return the probabilities of ``classes_``, shape ``[rows, classes]``."""
        check_is_fitted(self)
        x = validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan", reset=False)
        if self.library == "lightgbm":
            raw = self.booster_.predict(x, num_iteration=self.n_rounds_)
        else:
            matrix = require("xgboost", "boosting", "BoostedClassifier").DMatrix(x)
            raw = self.booster_.predict(matrix, output_margin=True, iteration_range=(0, self.n_rounds_))
        return self._objective.predict_proba(np.asarray(raw, dtype=np.float64).reshape(len(x), -1))

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return the class of least expected distance for each row, or the most probable one."""
        p = self.predict_proba(X)
        return self.classes_.take(p.argmax(1) if self.decision == "argmax" else decide(p, self.space_, validate=False))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


# What the libraries need to know about an objective of one's own.
_PARAMS: dict[str, dict[str, Any]] = {
    # A table so small that no feature can be split is an error otherwise.
    "lightgbm": {"metric": "None", "verbose": -1, "feature_pre_filter": False},
    # As in LightGBM: the default weight of 1 is meant for the log loss, whose curvature is larger than that of EMD^ρ.
    "xgboost": {"disable_default_eval_metric": True, "base_score": 0.0, "min_child_weight": 1e-3},
}


def _trained(
    model: BoostedClassifier, x: Array, bins: Array, weight: Array, held_out: Any, seed: int
) -> tuple[Any, int]:
    """Return the booster, and the number of its rounds to use."""
    library = require(model.library, "boosting", "BoostedClassifier")
    params: dict[str, Any] = {"num_class": model.space_.num_bins, "learning_rate": model.learning_rate, "seed": seed}
    params |= _PARAMS[model.library] | ({} if model.n_jobs is None else {"nthread": model.n_jobs})
    params |= model.params or {}
    metric = EvalMetric(model.space_, model.metric, decision=model.decision)
    options: dict[str, Any] = {}
    if model.library == "lightgbm":
        params["objective"] = model._objective.lightgbm
        data = library.Dataset(x, bins, weight=weight, free_raw_data=True)
        if held_out is not None:
            options["valid_sets"] = [library.Dataset(**held_out, reference=data)]
            options["feval"] = metric.lightgbm
            options["callbacks"] = [library.early_stopping(model.early_stopping, verbose=False)]
        booster = library.train(params, data, model.n_estimators, **options)
        rounds = model.n_estimators if held_out is None else booster.best_iteration or booster.current_iteration()
        return booster, rounds
    options |= {"obj": model._objective.xgboost, "verbose_eval": False}
    if held_out is not None:
        options["evals"] = [(library.DMatrix(**held_out), "held_out")]
        options |= {"custom_metric": metric.xgboost, "early_stopping_rounds": model.early_stopping}
    booster = library.train(params, library.DMatrix(x, bins, weight=weight), model.n_estimators, **options)
    return booster, booster.best_iteration + 1 if held_out is not None else model.n_estimators


def scorer(name: str, space: Space | None = None) -> Callable[[Any, Any, Any], float]:
    """Return a scorer for ``GridSearchCV(scoring=…)`` and ``cross_val_score``; higher is better.

    It is defined for classes that the estimator has not seen, and for regressors, for which the nearest class counts.

    Args:
        name: A metric, as for :class:`~earthwork.boosting.EvalMetric`; one that should be low has a minus sign.
        space: How the classes are arranged; ``None``: a chain of the labels, which are numbers or an ordered
            Categorical, with unit gaps.

    Example:
        >>> import earthwork.sklearn, earthwork as ew
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.linear_model import LogisticRegression
        >>> X, y = load_iris(return_X_y=True)
        >>> score = ew.sklearn.scorer("mae", ew.Chain(3))
        >>> bool(score(LogisticRegression(max_iter=500).fit(X, y), X, y) > -0.1)
        True
    """
    measure_named(name, Chain(2) if space is None else space)
    return _Scorer(name, space)


# A class, so that a scorer can be pickled into the processes of a grid search.
@dataclass(frozen=True, repr=False)
class _Scorer:
    name: str
    space: Space | None

    def __call__(self, estimator: Any, X: Any, y: Any) -> float:  # noqa: N803
        truth = np.asarray(y)
        known = np.asarray(getattr(estimator, "classes_", np.unique(truth)))
        space, names, found = _arranged(np.concatenate([known, truth]), self.space, _order_of(y))
        bins, labels = np.split(found, [len(known)])
        measure, truth_bins = measure_named(self.name, space), torch.from_numpy(labels)
        if measure.needs_probabilities:
            batch = Batch(space, truth_bins, _spread(_probabilities(estimator, X), space, bins))
        else:
            answers = np.asarray(estimator.predict(X))
            if hasattr(estimator, "classes_"):
                given = bins[_places(known, answers, "predict")]
            else:
                named = Chain(len(names), names=[str(name) for name in names]) if self.space is None else space
                index = ClassIndex(named, remedy=_REMEDY)
                by_name = self.space is None or index.read("y", truth).by_name
                given = index.nearest("predict", answers, by_name)
            batch = Batch(space, truth_bins, given=torch.from_numpy(given), decision="class")
        value = float(measure.of(batch))
        return value if measure.higher_is_better else -value

    def __repr__(self) -> str:
        return f"scorer({self.name!r}, {self.space})"


def _order_of(y: Any) -> list[Any] | None:
    """Return the classes of an ordered Categorical of pandas, or of an Enum of polars, in their order."""
    dtype: Any = getattr(y, "dtype", None)
    return list(dtype.categories) if getattr(dtype, "ordered", False) or type(dtype).__name__ == "Enum" else None


def _places(names: Array, labels: Array, what: str = "y") -> Array:
    """Return the place of each label among the names."""
    order = np.argsort(names)
    places: Array = order[np.searchsorted(names[order], labels).clip(max=len(names) - 1)]
    wrong = names[places] != labels
    if wrong.any():
        raise ValueError(f"{what}: expected the classes {names.tolist()}, got {labels[wrong].tolist()[0]!r} too")
    return places


def _arranged(classes: Array, space: Space | None, order: list[Any] | None) -> tuple[Space, Array, Array]:
    """Return the space, by default a chain, all of its classes as the labels are written, and the bins of ``classes``.

    Labels are read by the rule of :func:`~earthwork.evaluate`.
    """
    if space is None:
        names = np.unique(classes) if order is None else np.asarray(order)
        if order is None and names.dtype.kind not in "biuf":
            some = ", ".join(repr(str(name)) for name in names[:3])
            raise ValueError(
                f"y: expected numbers or an ordered Categorical where no space is given, got names, whose order is not "
                f"known: pass space=ew.Chain({len(names)}, names=[…]) with {some}, … in their order"
            )
        return Chain(len(names)), names, _places(names, classes)
    if not isinstance(space, Space):
        raise TypeError(f"space: expected a Chain, Ring, Tree, CostMatrix or None, got {space!r}")
    bins, by_name = ClassIndex(space, remedy=_REMEDY).read("y", classes, with_rows=False)
    names = np.asarray(space.bin_names) if by_name else np.arange(space.num_bins)
    if classes.dtype.kind in "fiu":
        numbers = names.astype(np.float64 if classes.dtype.kind == "f" else np.int64)
        names = numbers.astype(classes.dtype)
        names = names if np.array_equal(names, numbers) else numbers  # not all fit into a small type
    return space, names, bins


def _objective(estimator: Any) -> Objective | None:
    """Return the structured objective that an estimator of a boosting library is trained with."""
    found = getattr(getattr(estimator, "objective", None), "__self__", None)
    return found if isinstance(found, Objective) else None


def _probabilities(estimator: Any, X: Any) -> Array:  # noqa: N803
    """Return ``predict_proba``, which the boosting libraries do not compute for an objective that they do not know."""
    objective = _objective(estimator)
    if objective is None:
        return np.asarray(estimator.predict_proba(X))
    raw = {"raw_score": True} if objective.lightgbm == estimator.objective else {"output_margin": True}
    return objective.predict_proba(np.asarray(estimator.predict(X, **raw), dtype=np.float64))


def _spread(p: Array, space: Space, bins: Array) -> Tensor:
    """Return the probabilities of some classes as those of all."""
    full = torch.zeros(len(p), space.num_bins, dtype=torch.float64)
    full[:, torch.from_numpy(bins)] = torch.as_tensor(p, dtype=torch.float64)
    return full
