"""The losses that are compared: those of ``earthwork train``, and ordinal losses of other packages."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from earthwork import Chain, EdgeSpace, Space, Tree
from earthwork_lab.studies.registry import Contender, Criterion, named, register_loss

_WEIGHTS = (0.25, 0.5, 0.75)
# The tasks on which the exponent and the weight of mixtures are compared.
MIXING_TASKS = ("diamond-clarity", "wikivitals")


def _installed(package: str) -> Callable[[], bool]:
    return lambda: find_spec(package) is not None


def _corn(space: Space, value: Any) -> Criterion:
    from coral_pytorch.losses import corn_loss

    return lambda outputs, labels: corn_loss(outputs, labels, space.num_bins)


def _corn_outputs(space: Space) -> int:
    return space.num_bins - 1


def corn_log_probabilities(outputs: Tensor) -> Tensor:
    """CORN's outputs are the logits of P(y > k | y > k − 1); from them the log-probability of each class.

    Example:
        >>> import torch
        >>> from earthwork_lab.studies.contenders import corn_log_probabilities
        >>> corn_log_probabilities(torch.tensor([[0.0, 0.0]])).exp()
        tensor([[0.5000, 0.2500, 0.2500]])
    """
    above = functional.logsigmoid(outputs).cumsum(-1)
    reached = functional.pad(above, (1, 0))
    stops = functional.pad(functional.logsigmoid(-outputs), (0, 1))
    return reached + stops


def _weighted_kappa(space: Space, value: Any) -> Criterion:
    from dlordinal.losses import WKLoss

    loss = WKLoss(space.num_bins, use_logits=True)
    return lambda outputs, labels: loss(outputs, labels)


def _triangular(space: Space, value: Any) -> Criterion:
    from dlordinal.losses import TriangularLoss

    loss = TriangularLoss(base_loss=nn.CrossEntropyLoss(), num_classes=space.num_bins, alpha2=value)
    return lambda outputs, labels: loss(outputs, labels)


def _distance_weighted(space: Space, value: Any) -> Criterion:
    from dlordinal.losses import CDWCELoss

    loss = CDWCELoss(space.num_bins, alpha=value)
    return lambda outputs, labels: loss(outputs, labels)


for _contender in (
    named("ce"),
    named("mse"),
    named("emd1", spaces=(EdgeSpace,)),
    named("emd1.5", spaces=(EdgeSpace,)),
    named("emd2", spaces=(EdgeSpace,)),
    named("emd3", spaces=(EdgeSpace,)),
    named("emd2+ce", "{0}*emd2+{1}*ce", _WEIGHTS, spaces=(EdgeSpace,)),
    *(
        named(f"emd{rho}+ce", f"{{0}}*emd{rho}+{{1}}*ce", _WEIGHTS, (EdgeSpace,), tasks=MIXING_TASKS)
        for rho in (1, 1.5, 3)
    ),
    named("sd+ce", "{0}*sd+{1}*ce", _WEIGHTS),
    named("edge", spaces=(Chain, Tree)),
    named("hxe", "hxe:{0}", (0.1, 0.3, 0.5), spaces=(Tree,)),
    named("soft", "soft:{0}", (5, 10, 30)),
    Contender(
        "corn (coral-pytorch)",
        _corn,
        spaces=(Chain,),
        available=_installed("coral_pytorch"),
        outputs=_corn_outputs,
        log_probabilities=corn_log_probabilities,
    ),
    Contender("wk (dlordinal)", _weighted_kappa, spaces=(Chain,), available=_installed("dlordinal")),
    Contender(
        "triangular (dlordinal)", _triangular, (0.05, 0.1, 0.2), spaces=(Chain,), available=_installed("dlordinal")
    ),
    Contender("cdw-ce (dlordinal)", _distance_weighted, (0.5, 1.0, 2.0), (Chain,), _installed("dlordinal")),
):
    register_loss(_contender)
