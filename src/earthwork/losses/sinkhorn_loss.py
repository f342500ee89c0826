"""The Sinkhorn distance as a loss."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, Unpack

from torch import Tensor

from earthwork.losses.contract import Options, StructuredLoss
from earthwork.ops.labels import cost_to_label
from earthwork.spaces import Space
from earthwork.spaces.space import check_word
from earthwork.transport.sinkhorn import Method, check_options, sinkhorn_prepared

Value: TypeAlias = Literal["cost", "regularized"]


class SinkhornLoss(StructuredLoss):
    r"""The Sinkhorn distance from a model's logits to its targets; a drop-in for ``nn.CrossEntropyLoss``.

    .. math:: \mathrm{SD}_\lambda(\mathrm{softmax}(x), q) = \langle M, T \rangle, \qquad
              \nabla_p = \mathrm{centre}(\log(u) / \lambda)

    This value and this gradient are the paper's. The gradient is that of the minimum over all plans,

    .. math:: \min_{T \in U(p, q)} \langle M, T \rangle + \tfrac1\lambda \langle T, \log T \rangle
              = \tfrac1\lambda \big(\langle p, \log u \rangle + \langle q, \log v \rangle\big),

    which ``value="regularized"`` returns, for a line search or where ``gradcheck`` has to pass. It may be negative.

    A class index determines the plan, so it needs no iterations and no matrix of distances: the value is the expected
    distance to the class :math:`l`, and :math:`\nabla_p = \mathrm{centre}(M_{\cdot l} + \log(p) / \lambda)`. A soft or
    smoothed target is iterated.

    Args:
        space: How the classes are arranged.
        lam: The parameter λ > 0; the larger, the weaker the regularisation.
        max_iter: The maximum number of iterations, ≥ 1.
        tol: Stop with a row when the error of its plan's marginals is at most this; see :func:`~earthwork.sinkhorn`.
        method: ``"log"``, or ``"paper"`` for Algorithm 1 as printed, NaNs included.
        value: ``"cost"`` for :math:`\langle M, T \rangle`, or ``"regularized"`` for the minimum.
        **options: As for :class:`~earthwork.EMDLoss`, from ``weight`` on, without ``root``.

    Example:
        >>> import torch, earthwork as ew
        >>> loss_function = ew.SinkhornLoss(ew.Chain(5))
        >>> loss_function(torch.zeros(2, 5), torch.tensor([0, 2]))
        tensor(1.6000)
    """

    def __init__(
        self,
        space: Space,
        lam: float = 3.0,
        max_iter: int = 100,
        *,
        tol: float | None = None,
        method: Method = "log",
        value: Value = "cost",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(space, **options)
        self.lam = lam
        self.max_iter = max_iter
        self.tol = tol
        self.method: Method = method
        self.value: Value = value

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("lam", "max_iter", "tol", "method"):
            check_options(**{name: value})
        super().__setattr__(name, value)

    def _checked_value(self, value: Value) -> Value:
        return check_word("value", value, "cost", "regularized")

    def losses(self, p: Tensor, q: Tensor) -> Tensor:
        """Compute the distance of each row to its target."""
        options = (float(self.lam), self.max_iter, self.tol, self.method)
        return sinkhorn_prepared(p, q, self.space, options, regularized=self.value == "regularized").value

    def label_losses(self, p: Tensor, labels: Tensor) -> Tensor:
        """Compute the distance of each row to its label, without iterations."""
        if self.method != "log":
            return super().label_losses(p, labels)
        return cost_to_label(p, labels, self.space, self.lam, self.value == "regularized")

    def _shown_options(self) -> str:
        value = "" if self.value == "cost" else f"value={self.value!r}, "
        return f"lam={self.lam:g}, max_iter={self.max_iter}, tol={self.tol}, {value}{super()._shown_options()}"
