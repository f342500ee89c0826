"""A weighted sum of losses."""

from __future__ import annotations

import math
from collections import Counter

import torch
from torch import Tensor, nn

from earthwork import private_api


class MixedLoss(nn.Module):
    r"""A weighted sum of losses that take the same input and target.

    After each call :attr:`parts` holds the value of each loss, unweighted and detached, for a log; after one inside a
    functional transform, nothing.

    Args:
        *terms: Pairs of a weight and a loss. The paper's best is ``(0.5, EMDLoss(tree))`` with
            ``(0.5, nn.CrossEntropyLoss())``.

    Example:
        >>> import torch, earthwork as ew
        >>> from torch import nn
        >>> mixed = ew.MixedLoss((0.5, ew.EMDLoss(ew.Chain(5))), (0.5, nn.CrossEntropyLoss()))
        >>> mixed(torch.zeros(2, 5), torch.tensor([0, 2]))
        tensor(1.2047)
        >>> mixed.parts
        {'EMDLoss': tensor(0.8000), 'CrossEntropyLoss': tensor(1.6094)}
    """

    weights: tuple[float, ...]
    parts: dict[str, Tensor]

    def __init__(self, *terms: tuple[float, nn.Module]) -> None:
        super().__init__()
        if not terms:
            raise ValueError("terms: expected at least one pair of a weight and a loss, got none")
        for term in terms:
            if not (isinstance(term, (tuple, list)) and len(term) == 2 and isinstance(term[1], nn.Module)):
                raise TypeError(f"terms: expected pairs of a weight and a loss module, got {term!r}")
            if not (isinstance(term[0], (int, float)) and math.isfinite(term[0])):
                raise ValueError(f"terms: expected finite weights, got {term[0]!r}")
        self.weights = tuple(float(weight) for weight, _ in terms)
        self.losses = nn.ModuleList(loss for _, loss in terms)
        self.names = _distinct([type(loss).__name__ for loss in self.losses])
        self.parts = {}

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The weighted sum of the losses of ``input`` against ``target``."""
        values = [loss(input, target) for loss in self.losses]
        # What a transform has wrapped means nothing once the transform is over.
        kept = torch.compiler.is_compiling() or not any(map(private_api.is_wrapped, values))
        self.parts = {name: value.detach() for name, value in zip(self.names, values, strict=True) if kept}
        total: Tensor = self.weights[0] * values[0]
        for weight, value in zip(self.weights[1:], values[1:], strict=True):
            total = total + weight * value
        return total

    def extra_repr(self) -> str:
        """The weights."""
        return ", ".join(f"{weight:g} × {name}" for weight, name in zip(self.weights, self.names, strict=True))


def _distinct(names: list[str]) -> list[str]:
    repeated = {name for name, count in Counter(names).items() if count > 1}
    seen: Counter[str] = Counter()
    result = []
    for name in names:
        seen[name] += 1
        result.append(f"{name}_{seen[name]}" if name in repeated else name)
    return result
