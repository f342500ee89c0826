r"""Structured losses as objectives of gradient boosting: LightGBM and XGBoost.

A boosting library needs the gradient and a positive curvature of the loss with respect to the raw scores :math:`x` (one
for each class). With :math:`p = \mathrm{softmax}(x)`, the mass :math:`m = \mathrm{flow}(p)` below each edge and the
indicator :math:`a_{ej}` of "bin :math:`j` lies below edge :math:`e`", the mass has the derivative
:math:`\partial m_e / \partial x_j = p_j (a_{ej} - m_e)`. With the second derivative :math:`h_e` of the cost of an edge,
the Gauss–Newton matrix is :math:`J^T \mathrm{diag}(h) J`, and its diagonal takes one pass over the edges:

.. math:: p_j^2 \sum_e h_e (a_{ej} - m_e)^2 = p_j^2 \Big[\sum_e h_e m_e^2 + \mathrm{potential}(h (1 - 2m))_j\Big].
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from earthwork.decisions import expected_distance
from earthwork.losses import EdgeCrossEntropyLoss, EMDLoss
from earthwork.metrics.batch import Batch, Decision, check_decision
from earthwork.metrics.functional import measure_named
from earthwork.spaces import EdgeSpace, Space
from earthwork.spaces.derived import derived
from earthwork.spaces.edges import cost_tensor
from earthwork.spaces.space import check_rho, check_word

__all__ = ["EvalMetric", "Objective"]

Array: TypeAlias = NDArray[Any]
Curvature: TypeAlias = Literal["gauss-newton", "majorant"]

# Curvatures are at least this fraction of the sum of all costs, so that steps stay finite in leaves of confident rows.
_LEAST_CURVATURE = 1e-6
# Smaller flows are replaced by this in |φ|^(ρ−2), which is infinite at 0 for ρ < 2.
_LEAST_FLOW = 1e-6
# The number of entries that are processed at a time.
_BLOCK = 1 << 19
# With fewer classes PyTorch's softmax does not use vector instructions, and takes five times as long.
_FEW_CLASSES = 16


class Objective:
    r"""EMD^ρ or edge cross entropy as a custom objective for LightGBM and XGBoost.

    Pass :attr:`lightgbm` or :attr:`xgboost` as the objective to the libraries' own training function or to their
    scikit-learn classes, and the number of classes as ``num_class``. The labels are class indices. A trained model
    predicts raw scores, which :meth:`predict_proba` turns into probabilities.

    Args:
        space: How the classes are arranged: a chain, a ring or a tree.
        rho: The exponent of EMD^ρ, ≥ 1. Not used by edge cross entropy.
        loss: ``"emd"`` or ``"edge"`` (edge cross entropy, on a chain or a tree).
        mix: The share of cross entropy in the loss, from 0 to 1.
        weight: A weight ≥ 0 for each class, shape ``[num_bins]``.
        curvature: ``"gauss-newton"``: the diagonal of the Gauss–Newton matrix. ``"majorant"``: the diagonal of a matrix
            that is nowhere below the full Hessian, so that to second order a Newton step never overshoots.

    Example:
        >>> import numpy as np, earthwork as ew
        >>> objective = ew.boosting.Objective(ew.Chain(3))
        >>> gradient, curvature = objective.derivatives(np.zeros((1, 3)), np.array([0]))
        >>> gradient.round(3)
        array([[-0.37 ,  0.074,  0.296]])
        >>> curvature.round(3)
        array([[0.123, 0.049, 0.123]])
    """

    def __init__(
        self,
        space: EdgeSpace,
        rho: float = 2.0,
        *,
        loss: Literal["emd", "edge"] = "emd",
        mix: float = 0.0,
        weight: Any = None,
        curvature: Curvature = "gauss-newton",
    ) -> None:
        if not isinstance(space, EdgeSpace):
            raise TypeError(f"space: expected a Chain, Ring or Tree, got {space!r}")
        check_rho(rho)
        check_word("loss", loss, "emd", "edge")
        if not isinstance(mix, (int, float)) or isinstance(mix, bool) or not 0 <= mix <= 1:
            raise ValueError(f"mix: expected a number from 0 to 1, got {mix!r}")
        check_word("curvature", curvature, "gauss-newton", "majorant")
        self.space = space
        self.rho = float(rho)
        self.loss = loss
        self.mix = float(mix)
        self.curvature: Curvature = curvature
        make = partial(EMDLoss, rho=rho) if loss == "emd" else EdgeCrossEntropyLoss
        self._loss, self._weight = make(space, reduction="sum"), make(space, weight=weight).weight

    def lightgbm(self, first: Any, second: Any, weight: Any = None) -> tuple[Array, Array]:
        """Serve ``lightgbm.train`` (scores, dataset) and its scikit-learn classes (labels, scores, weight)."""
        # LightGBM stores derivatives in single precision, one class after the other, and would otherwise copy them.
        return self.derivatives(*_arguments(first, second, weight, np.float32), by_class=True)

    def xgboost(self, first: Any, second: Any, sample_weight: Any = None) -> tuple[Array, Array]:
        """Serve ``xgboost.train`` (scores, matrix) and its scikit-learn classes (labels, scores, weight)."""
        return self.derivatives(*_arguments(first, second, sample_weight, np.float32))

    def derivatives(
        self, scores: Array, labels: Array, sample_weight: Array | None = None, *, by_class: bool = False
    ) -> tuple[Array, Array]:
        """Compute the gradient of the loss with respect to the scores, and its positive diagonal curvature.

        Args:
            scores: Raw scores, shape ``[rows, num_bins]``.
            labels: Class indices, shape ``[rows]``.
            sample_weight: A weight ≥ 0 for each row, shape ``[rows]``.
            by_class: Whether the classes of the results lie one after the other in memory.
        """
        x = _as_scores(scores, self.space)
        y, weights = _as_labels(labels, len(x), self.space), _as_weights(sample_weight, len(x))
        gradient, curvature = (x.new_empty(x.shape[::-1]).t() if by_class else torch.empty_like(x) for _ in range(2))
        step = max(1, _BLOCK // x.shape[1])
        for start in range(0, len(x), step):
            rows = slice(start, start + step)
            gradient[rows], curvature[rows] = self._block(x[rows], y[rows])
        if weights is not None:
            scale = weights.to(x.dtype).unsqueeze(-1)
            gradient, curvature = gradient * scale, curvature * scale
        return gradient.numpy(), curvature.numpy()

    def _block(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self._loss(x, labels), x)
        with torch.no_grad():
            p = _softmax(x.detach())
            curvature = self._curvature(p, labels, gradient)
            if self.mix:
                n = p.shape[-1]
                cross = p.scatter_add(-1, labels.unsqueeze(-1), p.new_full((len(p), 1), -1.0))
                gradient = (1 - self.mix) * gradient + self.mix * cross
                # Row sums bound the Hessian diag(p) - p pᵀ; the other factor is that of LightGBM's own objective.
                factor = 2 if self.curvature == "majorant" else n / max(n - 1, 1)
                curvature = (1 - self.mix) * curvature + self.mix * factor * p * (1 - p)
            if self._weight is not None:
                # The loss of a row is scaled by the weight of its label, as in EMDLoss(reduction="sum").
                share = self._weight.to(p)[labels].unsqueeze(-1)
                gradient, curvature = gradient * share, curvature * share
            least = _LEAST_CURVATURE * max(float(self.space.flow_costs.sum()), torch.finfo(p.dtype).tiny)
            return gradient, curvature.clamp_(min=least)

    def _curvature(self, p: Tensor, labels: Tensor, gradient: Tensor) -> Tensor:
        space = self.space
        if self.curvature == "gauss-newton" and self.loss == "emd" and self.rho == 2 and space.acyclic:
            # 2 p² (E − ½ Σ p E) with the expected distance E to a random bin, because Σ p E = 2 Σ w m (1 − m).
            distance = expected_distance(p, space, validate=False)
            mean = torch.linalg.vecdot(p, distance).unsqueeze(-1)
            return distance.sub_(mean, alpha=0.5).mul_(p).mul_(p).mul_(2)
        below = space.flow(p)
        label = space.flow(torch.zeros_like(p).scatter_(-1, labels.unsqueeze(-1), 1.0))
        second = self._second_derivative(below, label)
        if self.curvature == "gauss-newton":
            # Σ_e h_e (a_ej − m_e)² for each bin j; on a ring minus the share of the free circulation.
            spread = (second * below.square()).sum(-1, keepdim=True) + space.potential(second * (1 - 2 * below))
            if not space.acyclic:
                total = second.sum(-1, keepdim=True).clamp(min=torch.finfo(p.dtype).tiny)
                spread -= (space.potential(second) - (second * below).sum(-1, keepdim=True)).square() / total
            return p.square() * spread
        # (Σ c_j δ_j)² ≤ Σ |c_j| · Σ |c_j| δ_j² bounds J^T diag(h) J by a diagonal, with c_j = p_j (a_ej − m_e), whose
        # sizes sum to 2 m (1 − m). The rest of the Hessian is Σ p_j v_j (δ_j − Σ p δ)², where p_j v_j is the gradient.
        second = second * below * (1 - below)
        # Σ_e second_e |a_ej − m_e| for each bin j.
        bound = 2 * p * ((second * below).sum(-1, keepdim=True) + space.potential(second * (1 - 2 * below)))
        rising = gradient.clamp(min=0)
        return bound + 2 * (rising + p * rising.sum(-1, keepdim=True))

    def _second_derivative(self, below: Tensor, label: Tensor) -> Tensor:
        """Differentiate each edge's cost twice in the mass below it; for ρ < 2 a parabola that bounds it from above."""
        costs, rho = derived(self.space, cost_tensor, below.device, below.dtype), self.rho
        if self.loss == "edge":
            least = torch.finfo(below.dtype).eps
            if self.curvature == "gauss-newton":
                # The cost of an edge is the log loss of a logit, whose Fisher information this is.
                return costs / (below * (1 - below)).clamp(min=least)
            return costs / (1 - (below - label).abs()).clamp(min=least).square()
        size = self.space.settle(below - label, costs, rho).abs()
        if rho >= 2:
            return rho * (rho - 1) * costs * size.pow(rho - 2)
        return rho * costs * size.clamp(min=_LEAST_FLOW).pow(rho - 2)

    def predict_proba(self, scores: Array) -> Array:
        """Return probabilities from the raw scores that a model with this objective predicts: their softmax."""
        return np.asarray(_as_scores(scores, self.space).softmax(-1))

    def __repr__(self) -> str:
        what = f"rho={self.rho:g}" if self.loss == "emd" else 'loss="edge"'
        return f"Objective({self.space}, {what}, mix={self.mix:g}, curvature={self.curvature!r})"


def _softmax(x: Tensor) -> Tensor:
    """Return ``x.softmax(-1)``, faster if there are few classes."""
    if x.shape[-1] >= _FEW_CLASSES:
        return x.softmax(-1)
    p = (x - x.amax(-1, keepdim=True)).exp_()
    return p.div_(p.sum(-1, keepdim=True))


class EvalMetric:
    """A metric on held-out data for early stopping, for LightGBM and XGBoost.

    Args:
        space: How the classes are arranged.
        name: A metric: a function of ``earthwork.metrics.functional``, a line of the report, or ``"rps"`` (the ranked
            probability score; on a tree EMD² to the label), ``"mae"``, ``"kappa"`` (quadratic) or ``"severity"``.
        decision: How a prediction becomes an answer: ``"argmax"``, ``"least_risk"`` or, on a tree, ``"inner"``.
        raw: Whether the library passes raw scores, as it does with an :class:`Objective`; with its built-in multiclass
            objective it passes probabilities.

    Example:
        >>> import numpy as np, earthwork as ew
        >>> metric = ew.boosting.EvalMetric(ew.Chain(3), "mae")
        >>> metric.value(np.array([[3.0, 0.0, 0.0], [3.0, 0.0, 0.0]]), np.array([0, 2]))
        1.0
    """

    def __init__(self, space: Space, name: str = "rps", *, decision: Decision = "argmax", raw: bool = True) -> None:
        self.measure = measure_named(name, space)
        check_word("decision", decision, "argmax", "least_risk", "inner")
        check_decision(decision, space, 0.0)
        self.measure.check(space, decision)
        self.space = space
        self.name = name
        self.decision: Decision = decision
        self.raw = raw
        # XGBoost's scikit-learn classes name a metric by this, and take no spaces.
        self.__name__ = ("negative_" if self.measure.higher_is_better else "") + name.replace(" ", "_")

    def value(self, scores: Array, labels: Array, sample_weight: Array | None = None) -> float:
        """Return the metric of the rows; NaN if there is nothing to average."""
        x = _as_scores(scores, self.space)
        y, weights = _as_labels(labels, len(x), self.space), _as_weights(sample_weight, len(x))
        p, logits = (x.softmax(-1), x) if self.raw else (x, None)
        return float(self.measure.of(Batch(self.space, y, p, decision=self.decision, logits=logits, weights=weights)))

    def lightgbm(self, first: Any, second: Any, weight: Any = None) -> tuple[str, float, bool]:
        """Serve ``feval`` of ``lightgbm.train`` and ``eval_metric`` of its scikit-learn classes."""
        return self.name, self.value(*_arguments(first, second, weight)), bool(self.measure.higher_is_better)

    def xgboost(self, scores: Any, matrix: Any) -> tuple[str, float]:
        """Serve ``custom_metric`` of ``xgboost.train``, which is minimised: one that should be high is negative."""
        scores, labels, weight = _arguments(scores, matrix, None)
        return self.__name__, self(labels, scores, weight)

    def __call__(self, y_true: Array, y_score: Array, sample_weight: Array | None = None) -> float:
        """Serve ``eval_metric`` of XGBoost's scikit-learn classes."""
        value = self.value(y_score, y_true, sample_weight)
        return -value if self.measure.higher_is_better else value


def _arguments(first: Any, second: Any, weight: Any, dtype: Any = None) -> tuple[Array, Any, Any]:
    """Return scores, labels and weights, whether called as (scores, dataset) or as (labels, scores, weight)."""
    labels, scores = first, second
    if hasattr(second, "get_label"):
        scores, labels, weight = first, second.get_label(), second.get_weight()
    return np.asarray(scores, dtype, order="C"), labels, weight


def _as_scores(scores: Array, space: Space) -> Tensor:
    """Return raw scores as a tensor ``[rows, num_bins]``, or an error that says what was received instead."""
    array = np.ascontiguousarray(scores)
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float64)
    if array.ndim != 2 or array.shape[1] != space.num_bins:
        raise ValueError(
            f"scores: expected shape (rows, {space.num_bins}), the bins of {space}, got {array.shape}; the booster's "
            f"num_class must be {space.num_bins}"
        )
    return torch.from_numpy(array)


def _as_labels(labels: Array, rows: int, space: Space) -> Tensor:
    """Return class indices as a tensor ``[rows]``; boosting libraries store them as floating point numbers."""
    array = np.asarray(labels)
    if array.shape != (rows,):
        got = len(array) if array.ndim == 1 else f"shape {array.shape}"
        raise ValueError(f"labels: expected {rows}, one for each row of the scores, got {got}")
    with np.errstate(invalid="ignore"):  # NaN is no class index
        indices = array.astype(np.int64)
    wrong = (indices != array) | (indices < 0) | (indices >= space.num_bins)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        got = f"{array[row]} at position {row}"
        raise ValueError(f"labels: expected class indices from 0 to {space.num_bins - 1}, got {got}")
    return torch.from_numpy(indices)


def _as_weights(sample_weight: Array | None, rows: int) -> Tensor | None:
    """Return a weight for each row, or ``None`` if there are none: in XGBoost an empty array."""
    if sample_weight is None or len(sample_weight) == 0:
        return None
    array = np.asarray(sample_weight, dtype=np.float64)
    if array.shape != (rows,) or not (np.isfinite(array) & (array >= 0)).all():
        raise ValueError(f"sample_weight: expected {rows} finite numbers ≥ 0, one for each row, got {array!r:.60}")
    return torch.from_numpy(array)
