"""Losses by name: ``ce``, ``emd2``, ``0.5*emd2+0.5*ce``, ``hxe:0.1``, ``package.module:function``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from earthwork import (
    EdgeCrossEntropyLoss,
    EMDLoss,
    HierarchicalCrossEntropyLoss,
    MixedLoss,
    SinkhornLoss,
    SoftLabelLoss,
    Space,
    Tree,
)
from earthwork.targets import AnyOf, any_of
from earthwork_lab.training.models import import_object

Term: TypeAlias = tuple[float, str]

_NUMBER = re.compile(r"\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+")
_WORD = re.compile(r"[^\s+*]+")
_VALUE = r"\d+(?:\.\d+)?"
_ATOM = re.compile(rf"ce|mse|sd|edge|emd{_VALUE}|(?:hxe|soft):{_VALUE}|[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_WITH_VALUE = ("hxe:", "soft:")
_WORDS = "ce, mse, sd, edge, emd1, emd1.5, emd2 …, hxe:0.1, soft:10, package.module:function"


@dataclass(frozen=True)
class SinkhornOptions:
    """How the Sinkhorn distance ``sd`` is computed."""

    lam: float = 3.0
    max_iter: int = 100


@dataclass(frozen=True)
class LossExpression:
    """A weighted sum of losses.

    Attributes:
        terms: Pairs of a weight and a name, such as ``(0.5, "emd2")``.
    """

    terms: tuple[Term, ...]

    def __str__(self) -> str:
        return "+".join(name if weight == 1 else f"{weight:g}*{name}" for weight, name in self.terms)

    @property
    def folder(self) -> str:
        """The expression as a folder name."""
        return str(self).replace("*", "").replace(":", "-")

    @property
    def functions(self) -> tuple[str, ...]:
        """The names that stand for functions that are imported."""
        return tuple(name for _, name in self.terms if ":" in name and not name.startswith(_WITH_VALUE))

    def build(self, space: Space, sinkhorn: SinkhornOptions | None = None) -> nn.Module:
        """The loss over a space.

        Example:
            >>> import earthwork as ew
            >>> from earthwork_lab.training import parse_loss
            >>> parse_loss("0.5*emd2 + 0.5*ce").build(ew.Chain(5))
            MixedLoss(
              0.5 × EMDLoss, 0.5 × CrossEntropyLoss
              ...
        """
        terms = [(weight, _build_term(name, space, sinkhorn or SinkhornOptions())) for weight, name in self.terms]
        return terms[0][1] if len(terms) == 1 and terms[0][0] == 1 else MixedLoss(*terms)


def parse_loss(text: str) -> LossExpression:
    """Parse a loss: names joined by ``+``, each with an optional weight and ``*`` before it.

    ===========================  ================================================================================
    name                         loss
    ===========================  ================================================================================
    ``ce``                       cross entropy
    ``emd2``                     the relaxed Earth Mover's Distance with exponent 2 (any exponent ≥ 1: ``emd1.5``)
    ``sd``                       the Sinkhorn distance
    ``mse``                      the squared error between the probabilities and the target (the Brier score)
    ``edge``                     edge cross entropy
    ``hxe:0.1``                  hierarchical cross entropy with α = 0.1
    ``soft:10``                  cross entropy against soft labels with β = 10
    ``package.module:function``  the loss that the function returns when it is called with the space
    ===========================  ================================================================================

    Weights are used as written: ``emd2+ce`` is ``1*emd2+1*ce``.

    Raises:
        ValueError: If the text cannot be parsed; the message gives the position.

    Example:
        >>> from earthwork_lab.training import parse_loss
        >>> parse_loss("0.25*sd+0.75*ce").terms
        ((0.25, 'sd'), (0.75, 'ce'))
    """
    if not isinstance(text, str):
        raise TypeError(f"loss: expected text such as 'emd2+ce', got {text!r}")
    terms: list[Term] = []
    place = 0
    while True:
        term, place = _read_term(text, place)
        terms.append(term)
        place = _skip_blanks(text, place)
        if place == len(text):
            break
        if text[place] != "+":
            raise _unreadable(text, place, "'+' or the end")
        place += 1
    names = [name for _, name in terms]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise _unreadable(text, text.rindex(repeated), f"each loss once, but {repeated!r} is repeated")
    return LossExpression(tuple(terms))


def _read_term(text: str, place: int) -> tuple[Term, int]:
    place = _skip_blanks(text, place)
    weight = 1.0
    number = _NUMBER.match(text, place)
    if number:
        weight = float(number.group())
        star = _skip_blanks(text, number.end())
        if text[star : star + 1] != "*":
            raise _unreadable(text, star, f"'*' after the weight {number.group()}")
        if weight == 0:
            raise _unreadable(text, place, "a weight above 0")
        place = _skip_blanks(text, star + 1)
    word = _WORD.match(text, place)
    if not word:
        raise _unreadable(text, place, f"a loss ({_WORDS})")
    name = word.group()
    if not _ATOM.fullmatch(name):
        # A name followed by a stray character is a complete name with something wrong after it.
        start = re.match(r"[A-Za-z_][A-Za-z_0-9.:]*", name)
        if start and start.group() != name and _ATOM.fullmatch(start.group()):
            return (weight, start.group()), place + start.end()
        raise _unreadable(text, place, f"a loss ({_WORDS})", name)
    if name.startswith("emd") and ":" not in name and float(name[3:]) < 1:
        raise _unreadable(text, place, "an exponent ≥ 1 after emd", name)
    return (weight, name), word.end()


def _skip_blanks(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place


def _unreadable(text: str, place: int, expected: str, got: str | None = None) -> ValueError:
    got = got or text[place : place + 1]
    found = f"got {got!r}" if got else "got the end"
    return ValueError(f"loss {text!r}, position {place + 1}: expected {expected}, {found}")


def _build_term(name: str, space: Space, sinkhorn: SinkhornOptions) -> nn.Module:
    word, _, value = name.partition(":")
    if name == "ce":
        return CrossEntropyLoss()
    if name == "mse":
        return SquaredErrorLoss()
    if name == "sd":
        return SinkhornLoss(space, lam=sinkhorn.lam, max_iter=sinkhorn.max_iter)
    if name == "edge":
        try:
            return EdgeCrossEntropyLoss(space)
        except TypeError as error:
            raise ValueError(f"loss {name!r}: {error}") from None
    if word == "hxe":
        if not isinstance(space, Tree):
            raise ValueError(f"loss {name!r}: expected a tree, got {space}")
        return HierarchicalCrossEntropyLoss(space, alpha=float(value))
    if word == "soft":
        return SoftLabelLoss(space, beta=float(value))
    if value:
        return _imported(name, space)
    return EMDLoss(space, rho=float(name[3:]))


def _imported(name: str, space: Space) -> nn.Module:
    """The loss of a user's function of the space."""
    function = import_object("loss", name)
    if not callable(function):
        raise ValueError(f"loss {name!r}: expected a function of the space, got {function!r}")
    try:
        loss = function(space)
    except TypeError as error:
        raise ValueError(f"loss {name!r}: expected a function of the space, but: {error}") from error
    if not callable(loss):
        raise ValueError(f"loss {name!r}: expected it to return a loss, got {type(loss).__name__}")
    return loss if isinstance(loss, nn.Module) else _FunctionLoss(name, loss)


class _FunctionLoss(nn.Module):
    def __init__(self, name: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.name = name
        self.function = function

    def forward(self, input: Tensor, target: Tensor | AnyOf) -> Any:
        try:
            return self.function(input, cast(Tensor, target))
        except (IndexError, RuntimeError, TypeError, AttributeError) as error:
            labels = target.mask if isinstance(target, AnyOf) else target
            raise ValueError(
                f"loss {self.name!r}: {error} (called with logits of shape {tuple(input.shape)} and {labels.dtype} "
                f"labels of shape {tuple(labels.shape)})"
            ) from error


def as_target(labels: Tensor) -> Tensor | AnyOf:
    """Labels as losses take them: booleans are sets of classes, of which one is the true one."""
    return any_of(labels) if labels.dtype == torch.bool else labels


class CrossEntropyLoss(nn.CrossEntropyLoss):
    r"""``nn.CrossEntropyLoss`` that also takes set-valued labels: :math:`-\log` of the set's mass.

    Shape:
        - input: logits ``[N, C]``
        - target: class indices ``[N]``, distributions ``[N, C]``, or sets of classes, ``any_of(mask)`` ``[N, C]``

    Example:
        >>> import torch
        >>> from earthwork_lab.training.losses import CrossEntropyLoss
        >>> from earthwork.targets import any_of
        >>> CrossEntropyLoss()(torch.zeros(1, 4), any_of(torch.tensor([[True, True, False, False]])))
        tensor(0.6931)
    """

    def forward(self, input: Tensor, target: Tensor | AnyOf) -> Tensor:
        """The mean loss of logits against labels."""
        if not isinstance(target, AnyOf):
            return super().forward(input, target)
        outside = input.masked_fill(~target.mask, -torch.inf)
        return (input.logsumexp(-1) - outside.logsumexp(-1)).mean()


class SquaredErrorLoss(nn.Module):
    r"""The mean over the batch of :math:`\sum_c (\mathrm{softmax}(x)_c - q_c)^2`, the Brier score.

    Shape:
        - input: logits ``[N, C]``
        - target: class indices ``[N]`` or distributions ``[N, C]``

    Example:
        >>> import torch
        >>> from earthwork_lab.training.losses import SquaredErrorLoss
        >>> SquaredErrorLoss()(torch.zeros(2, 4), torch.tensor([0, 3]))
        tensor(0.7500)
    """

    def forward(self, input: Tensor, target: Tensor | AnyOf) -> Tensor:
        """The mean loss of logits against labels."""
        p = input.softmax(-1)
        if isinstance(target, AnyOf):
            raise ValueError("loss 'mse': expected class indices or distributions, got sets of classes")
        if target.is_floating_point():
            return (p - target).square().sum(-1).mean()
        # Σ(p − onehot)² = Σp² − 2·p[target] + 1, without the one-hot matrix.
        at_target = p.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        return (p.square().sum(-1) - 2 * at_target + 1).mean()
