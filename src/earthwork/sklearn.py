"""Estimators and scorers for scikit-learn that know how classes are arranged.

Needs scikit-learn: ``pip install 'earthwork[sklearn]'``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from earthwork.decisions import ConformalPredictor, expected_distance, fit_temperature
from earthwork.decisions.decide import first_least
from earthwork.evaluation.labels import ClassIndex
from earthwork.extras import require
from earthwork.losses import EMDLoss
from earthwork.metrics import functional
from earthwork.spaces import Chain, CostMatrix, Space
from earthwork.targets import AnyOf

require("sklearn", "sklearn", "earthwork.sklearn")
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone  # noqa: E402
from sklearn.model_selection import cross_val_predict, train_test_split  # noqa: E402
from sklearn.utils import check_random_state, column_or_1d  # noqa: E402
from sklearn.utils.multiclass import check_classification_targets  # noqa: E402
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data  # noqa: E402

__all__ = ["ConformalClassifier", "EMDClassifier", "LeastRiskClassifier", "scorer"]

Array = NDArray[Any]

_REMEDY = "labels as text for names, or a space without names for indices"


class LeastRiskClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    r"""Predicts the class of least expected distance under another classifier's probabilities.

    .. math:: \hat y = \operatorname{argmin}_i \sum_j p_j\, d(i, j)

    Args:
        estimator: A classifier with ``predict_proba``. It is cloned before it is fitted.
        space: How the classes are arranged. The labels are names of its bins, or bin indices. ``None``: every mistake
            costs the same, so the answer is the most probable class.
        calibrate: Scale the log-probabilities by a temperature that is fitted on cross-validated predictions.
        cv: The cross-validation for ``calibrate``: a number of folds or a splitter.

    Attributes:
        estimator_: The fitted classifier.
        classes_: The labels that were seen.
        space_: The space that was used.
        temperature_: What log-probabilities are divided by; 1 without ``calibrate``.

    Example:
        >>> import earthwork.sklearn, earthwork as ew
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.linear_model import LogisticRegression
        >>> X, y = load_iris(return_X_y=True)
        >>> model = ew.sklearn.LeastRiskClassifier(LogisticRegression(max_iter=500), ew.Chain(3)).fit(X, y)
        >>> model.predict(X[:2])
        array([0, 0])
    """

    def __init__(self, estimator: Any, space: Space | None = None, *, calibrate: bool = False, cv: Any = 5) -> None:
        self.estimator = estimator
        self.space = space
        self.calibrate = calibrate
        self.cv = cv

    def fit(self, X: Any, y: Any, sample_weight: Any = None, **fit_params: Any) -> LeastRiskClassifier:  # noqa: N803
        """Fit the estimator, and the temperature if asked for."""
        if sample_weight is not None:
            fit_params["sample_weight"] = sample_weight
        self.estimator_ = clone(self.estimator).fit(X, y, **fit_params)
        self.classes_ = np.asarray(self.estimator_.classes_)
        if hasattr(self.estimator_, "n_features_in_"):
            self.n_features_in_ = self.estimator_.n_features_in_
        if hasattr(self.estimator_, "feature_names_in_"):
            self.feature_names_in_ = self.estimator_.feature_names_in_
        self.space_, self._bins = _arranged(self.classes_, self.space, default=_all_alike)
        self.temperature_ = 1.0
        if self.calibrate and len(self.classes_) > 1:
            held_out = cross_val_predict(
                clone(self.estimator), X, y, cv=self.cv, method="predict_proba", params=fit_params or None
            )
            labels = torch.from_numpy(np.searchsorted(self.classes_, y))
            self.temperature_ = fit_temperature(_log(held_out), labels)
        return self

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """The (calibrated) probabilities of ``classes_``, shape ``[rows, classes]``."""
        check_is_fitted(self)
        p = np.asarray(self.estimator_.predict_proba(X))
        if self.temperature_ == 1:
            return p
        scaled: Array = (_log(p) / self.temperature_).softmax(-1).numpy()
        return scaled

    def predict(self, X: Any) -> Array:  # noqa: N803
        """The class of least expected distance for each row."""
        answers = _least_risk(self.predict_proba(X), self.space_, self._bins)
        labels: Array = self.classes_[answers]
        return labels

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags = clone(self.estimator).__sklearn_tags__().input_tags
        return tags


class ConformalClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Adds sets of classes with a guarantee to another classifier; see :class:`~earthwork.ConformalPredictor`.

    Args:
        estimator: A classifier with ``predict_proba``. It is cloned before it is fitted.
        space: How the classes are arranged. The labels are names of its bins, or bin indices. ``None``: a chain of the
            sorted labels with unit gaps.
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

    def __init__(
        self,
        estimator: Any,
        space: Space | None = None,
        alpha: float = 0.1,
        *,
        kind: Any = None,
        calibration: float = 0.3,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.space = space
        self.alpha = alpha
        self.kind = kind
        self.calibration = calibration
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> ConformalClassifier:  # noqa: N803
        """Fit the estimator on some of the rows, and the sets on the others."""
        if y is None:
            raise ValueError("y: requires y to be passed, but the target y is None")
        y = column_or_1d(y, warn=True)
        train_x, held_x, train_y, held_y = train_test_split(
            X, y, test_size=self.calibration, random_state=self.random_state
        )
        self.estimator_ = clone(self.estimator).fit(train_x, train_y)
        self.classes_ = np.unique(y)
        if hasattr(self.estimator_, "n_features_in_"):
            self.n_features_in_ = self.estimator_.n_features_in_
        self.space_, self._bins = _arranged(self.classes_, self.space)
        self.predictor_ = ConformalPredictor(self.space_, self.alpha, self.kind)
        labels = self._bins[np.searchsorted(self.classes_, held_y)]
        self.predictor_.fit(self._all_bins(held_x), labels)
        return self

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """The probabilities of ``classes_``, shape ``[rows, classes]``."""
        p: Array = self._all_bins(X)[:, self._bins]
        return p

    def predict(self, X: Any) -> Array:  # noqa: N803
        """The most probable class of each row."""
        answers = self.predict_proba(X).argmax(-1)
        labels: Array = self.classes_[answers]
        return labels

    def predict_set(self, X: Any) -> NDArray[np.bool_]:  # noqa: N803
        """Whether each class of the space is in the set of each row, shape ``[rows, num_bins]``."""
        return self.predictor_.predict(self._all_bins(X))

    def _all_bins(self, X: Any) -> Array:  # noqa: N803
        """The probabilities of all classes of the space, 0 for those that the estimator has not seen."""
        check_is_fitted(self, "estimator_")
        p = np.asarray(self.estimator_.predict_proba(X), dtype=np.float64)
        whole = np.zeros((len(p), self.space_.num_bins))
        whole[:, self._bins[np.searchsorted(self.classes_, self.estimator_.classes_)]] = p
        return whole

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags = clone(self.estimator).__sklearn_tags__().input_tags
        return tags


class EMDClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A small neural network trained by the relaxed Earth Mover's Distance, with the interface of scikit-learn.

    Features are standardised, and trained on in full batches up to ``batch_size`` rows.

    Args:
        space: How the classes are arranged. The labels are names of its bins, or bin indices. ``None``: a chain of the
            sorted labels with unit gaps.
        rho: The exponent of the distance, ≥ 1.
        mix: The share of cross entropy in the loss, from 0 to 1.
        hidden: The widths of the hidden layers; none makes it a linear model.
        learning_rate: The step size of Adam.
        max_epochs: The number of passes over the data.
        batch_size: The number of rows in a step.
        weight_decay: The factor of the squared weights that is added to the loss.
        decision: ``"argmax"``, or ``"risk"`` for the class of least expected distance.
        random_state: The seed of the initial weights and of the batches.

    Attributes:
        classes_: The labels that were seen; with partial labels, all classes of the space.
        space_: The space that was used.
        loss_curve_: The loss of each epoch.

    Example:
        >>> import earthwork.sklearn, earthwork as ew
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> model = ew.sklearn.EMDClassifier(random_state=0).fit(X, y)
        >>> bool(model.score(X, y) > 0.9)
        True
    """

    def __init__(
        self,
        space: Space | None = None,
        rho: float = 2.0,
        *,
        mix: float = 0.5,
        hidden: Sequence[int] = (64,),
        learning_rate: float = 0.01,
        max_epochs: int = 100,
        batch_size: int = 512,
        weight_decay: float = 1e-4,
        decision: Literal["argmax", "risk"] = "argmax",
        random_state: Any = None,
    ) -> None:
        self.space = space
        self.rho = rho
        self.mix = mix
        self.hidden = hidden
        self.learning_rate = learning_rate
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.weight_decay = weight_decay
        self.decision = decision
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> EMDClassifier:  # noqa: N803
        """Train the network.

        Args:
            X: Features, shape ``[rows, features]``.
            y: Labels, shape ``[rows]``; or partial labels, a boolean array ``[rows, num_bins]`` that is true for the
                classes that are possible.
            sample_weight: A weight ≥ 0 for each row.
        """
        self._check_options()
        partial = getattr(y, "ndim", 1) == 2 and np.asarray(y).dtype == bool
        x, y = validate_data(self, X, y, dtype=np.float64, multi_output=partial)
        weight = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
        target = self._partial(y) if partial else self._labelled(y)
        self._mean, self._scale = _standardiser(x, weight)
        self._train(torch.from_numpy((x - self._mean) / self._scale), target, torch.from_numpy(weight))
        return self

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """The probabilities of ``classes_``, shape ``[rows, classes]``."""
        check_is_fitted(self)
        x = validate_data(self, X, dtype=np.float64, reset=False)
        with torch.no_grad():
            logits = self.network_(torch.from_numpy((x - self._mean) / self._scale))
        p: Array = logits[:, self._bins].softmax(-1).numpy()
        return p

    def predict(self, X: Any) -> Array:  # noqa: N803
        """The most probable class for each row, or that of least risk."""
        p = self.predict_proba(X)
        answers = p.argmax(1) if self.decision == "argmax" else _least_risk(p, self.space_, self._bins)
        labels: Array = self.classes_[answers]
        return labels

    def _check_options(self) -> None:
        if self.decision not in ("argmax", "risk"):
            raise ValueError(f'decision: expected "argmax" or "risk", got {self.decision!r}')
        if not 0 <= self.mix <= 1:
            raise ValueError(f"mix: expected a number from 0 to 1, got {self.mix!r}")

    def _labelled(self, y: Array) -> Tensor:
        check_classification_targets(y)
        self.classes_, indices = np.unique(y, return_inverse=True)
        if len(self.classes_) == 1:
            raise ValueError(f"y: expected at least 2 classes, got one class, {self.classes_[0]!r}")
        self.space_, self._bins = _arranged(self.classes_, self.space)
        return torch.from_numpy(self._bins[indices])

    def _partial(self, y: Array) -> Tensor:
        if self.space is None:
            raise ValueError("space: expected a space for partial labels, got None")
        self.space_, self._bins = self.space, np.arange(self.space.num_bins)
        names = self.space.bin_names
        self.classes_ = self._bins if names is None else np.asarray(names)
        return torch.from_numpy(y)

    def _train(self, x: Tensor, target: Tensor, weight: Tensor) -> None:
        random = check_random_state(self.random_state)
        generator = torch.Generator().manual_seed(int(random.randint(2**31)))
        self.network_ = _network([x.shape[1], *self.hidden, self.space_.num_bins], generator)
        optimizer = torch.optim.Adam(self.network_.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay)
        # Rows of weight 0 are left out, so that they do not affect the batches either.
        x, target, weight = x[weight > 0], target[weight > 0], weight[weight > 0]
        count = max(1, math.ceil(len(x) / self.batch_size))
        self.loss_curve_ = []
        for _ in range(self.max_epochs):
            order = torch.arange(len(x)) if count == 1 else torch.randperm(len(x), generator=generator)
            total = 0.0
            for rows in order.chunk(count):
                optimizer.zero_grad()
                loss = (self._losses(self.network_(x[rows]), target[rows]) * weight[rows]).sum()
                (loss / weight[rows].sum()).backward()
                optimizer.step()
                total += float(loss.detach())
            self.loss_curve_.append(total / float(weight.sum()))

    def _losses(self, logits: Tensor, target: Tensor) -> Tensor:
        given = AnyOf(target) if target.dtype == torch.bool else target
        losses: Tensor = (1 - self.mix) * EMDLoss(self.space_, self.rho, reduction="none")(logits, given)
        if not self.mix:
            return losses
        log_p = logits.log_softmax(-1)
        if target.dtype == torch.bool:
            return losses - self.mix * log_p.masked_fill(~target, -math.inf).logsumexp(-1)
        return losses - self.mix * log_p.gather(-1, target.unsqueeze(-1)).squeeze(-1)


def scorer(name: Literal["mae", "rps", "kappa"], space: Space | None = None) -> Callable[[Any, Any, Any], float]:
    """A scorer for ``GridSearchCV(scoring=…)`` and ``cross_val_score``; higher is better.

    Args:
        name: ``"mae"``: minus the mean distance of ``predict`` to the label. ``"rps"``: minus the ranked probability
            score of ``predict_proba``, EMD² to the label. ``"kappa"``: kappa weighted by the squared distance.
        space: How the classes are arranged; ``None``: a chain of the sorted labels with unit gaps.

    Example:
        >>> import earthwork.sklearn, earthwork as ew
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.linear_model import LogisticRegression
        >>> X, y = load_iris(return_X_y=True)
        >>> score = ew.sklearn.scorer("mae", ew.Chain(3))
        >>> bool(score(LogisticRegression(max_iter=500).fit(X, y), X, y) > -0.1)
        True
    """
    if name not in _SCORES:
        raise ValueError(f"name: expected one of {sorted(_SCORES)}, got {name!r}")
    return _Scorer(name, space)


class _Scorer:
    # A class, so that a scorer can be pickled into the processes of a grid search.
    def __init__(self, name: str, space: Space | None) -> None:
        self.name, self.space = name, space

    def __call__(self, estimator: Any, X: Any, y: Any) -> float:  # noqa: N803
        space, bins = _arranged(np.asarray(estimator.classes_), self.space)
        order = np.argsort(estimator.classes_)
        places = np.searchsorted(np.asarray(estimator.classes_)[order], y)
        labels = bins[order[places.clip(max=len(order) - 1)]]
        if not np.array_equal(np.asarray(estimator.classes_)[order[places.clip(max=len(order) - 1)]], np.asarray(y)):
            raise ValueError("y: expected the classes on which the estimator was fitted, got others too")
        return _SCORES[self.name](estimator, X, torch.from_numpy(labels), space, bins)

    def __repr__(self) -> str:
        return f"scorer({self.name!r}, {self.space})"


def _answers(estimator: Any, X: Any, bins: Array) -> Tensor:  # noqa: N803
    classes = np.asarray(estimator.classes_)
    order = np.argsort(classes)
    return torch.from_numpy(bins[order[np.searchsorted(classes[order], estimator.predict(X))]])


def _score_mae(estimator: Any, X: Any, labels: Tensor, space: Space, bins: Array) -> float:  # noqa: N803
    return -float(space.distance(_answers(estimator, X, bins), labels).double().mean())


def _score_rps(estimator: Any, X: Any, labels: Tensor, space: Space, bins: Array) -> float:  # noqa: N803
    p = torch.zeros(len(labels), space.num_bins, dtype=torch.float64)
    p[:, torch.from_numpy(bins)] = torch.as_tensor(np.asarray(estimator.predict_proba(X)), dtype=torch.float64)
    return -float(EMDLoss(space, 2.0, normalize=None)(p, labels))


def _score_kappa(estimator: Any, X: Any, labels: Tensor, space: Space, bins: Array) -> float:  # noqa: N803
    return float(functional.weighted_kappa(_answers(estimator, X, bins), labels, space, power=2))


_SCORES: dict[str, Callable[[Any, Any, Tensor, Space, Array], float]] = {
    "mae": _score_mae,
    "rps": _score_rps,
    "kappa": _score_kappa,
}


def _arranged(classes: Array, space: Space | None, default: Callable[[int], Space] = Chain) -> tuple[Space, Array]:
    """The space, and the bin of each class, by the rule of :func:`~earthwork.evaluate`."""
    if space is None:
        return default(len(classes)), np.arange(len(classes))
    if not isinstance(space, Space):
        raise TypeError(f"space: expected a Chain, Ring, Tree, CostMatrix or None, got {space!r}")
    return space, ClassIndex(space, remedy=_REMEDY).kinds("y", classes)


def _all_alike(count: int) -> Space:
    return CostMatrix(1 - torch.eye(count, dtype=torch.float64))


def _least_risk(p: Array, space: Space, bins: Array) -> Array:
    """For each row, the class of least expected distance among those with these bins."""
    full = torch.zeros(len(p), space.num_bins, dtype=torch.float64)
    full[:, torch.from_numpy(bins)] = torch.as_tensor(p, dtype=torch.float64)
    answers: Array = first_least(expected_distance(full, space)[:, torch.from_numpy(bins)]).numpy()
    return answers


def _log(p: ArrayLike) -> Tensor:
    p = torch.as_tensor(np.asarray(p), dtype=torch.float64)
    return p.clamp(min=torch.finfo(p.dtype).tiny).log()


def _standardiser(x: Array, weight: Array) -> tuple[Array, Array]:
    total = weight.sum()
    mean = (weight[:, None] * x).sum(0) / total
    scale = np.sqrt((weight[:, None] * (x - mean) ** 2).sum(0) / total)
    return mean, np.where(scale > 0, scale, 1.0)


def _network(widths: list[int], generator: torch.Generator) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layer = nn.Linear(before, after, dtype=torch.float64)
        with torch.no_grad():
            layer.weight.uniform_(-1, 1, generator=generator).mul_(math.sqrt(3 / before))
            layer.bias.zero_()
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])
