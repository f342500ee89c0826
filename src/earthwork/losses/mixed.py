"""A weighted sum of losses."""

from __future__ import annotations

import math
from collections import Counter

import torch
from torch import Tensor, nn

from earthwork import private_api
from earthwork.losses.contract import check_class_dim


class MixedLoss(nn.Module):
    r"""A weighted sum of losses that take the same input and target.

    After each call :attr:`parts` holds the value of each loss, unweighted and detached, for a log; after one inside a
    functional transform, nothing.

    Args:
        *terms: Pairs of a weight and a loss. The paper's best is ``(0.5, EMDLoss(tree))`` with
            ``(0.5, nn.CrossEntropyLoss())``.
        class_dim: The axis of the input that holds the classes, for all terms, such as -1 for sequences ``(B, T, C)``,
            which ``nn.CrossEntropyLoss`` does not take. ``None``: each loss reads the input as it does on its own.

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

    def __init__(self, *terms: tuple[float, nn.Module], class_dim: int | None = None) -> None:
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
        self.class_dim = check_class_dim(class_dim)
        self.parts = {}

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The weighted sum of the losses of ``input`` against ``target``."""
        if self.class_dim is None or input.ndim < 2:
            values = [loss(input, target) for loss in self.losses]
        else:
            rows, labels, batch = self._as_rows(input, target)
            values = [loss(rows, labels) for loss in self.losses]
            values = [value.view(batch) if value.ndim else value for value in values]
        # A tensor wrapped by a transform cannot be used after it.
        kept = torch.compiler.is_compiling() or not any(map(private_api.is_wrapped, values))
        self.parts = {name: value.detach() for name, value in zip(self.names, values, strict=True) if kept}
        total: Tensor = self.weights[0] * values[0]
        for weight, value in zip(self.weights[1:], values[1:], strict=True):
            total = total + weight * value
        return total

    def _as_rows(self, input: Tensor, target: Tensor) -> tuple[Tensor, Tensor, torch.Size]:
        """Input and target as ``[rows, C]`` or ``[rows]``, which every loss reads alike, and the batch's shape."""
        if not -input.ndim <= (axis := self.class_dim or 0) < input.ndim:
            raise ValueError(f"input: expected an axis class_dim={axis}, got shape {tuple(input.shape)}")
        moved = input.movedim(axis, -1)
        batch = moved.shape[:-1]
        if target.shape == input.shape:
            target = target.movedim(axis, -1).flatten(0, -2)
        elif target.shape == batch:
            target = target.flatten()
        else:
            raise ValueError(
                f"target: expected shape {tuple(batch)} or {tuple(input.shape)}, got {tuple(target.shape)}"
            )
        return moved.flatten(0, -2), target, batch

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
