"""The small language that losses are named in: ``ce``, ``emd2``, ``0.5*emd2+0.5*ce``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor, nn

from earthwork.losses import EMDLoss, MixedLoss
from earthwork.spaces import Space

Term: TypeAlias = tuple[float, str]

_NUMBER = re.compile(r"\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+")
_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9.]*|[^\s+*]+")
_ATOM = re.compile(r"ce|mse|sd|emd\d+(?:\.\d+)?")
_WORDS = "ce, mse, sd, emd1, emd1.5, emd2 …"


@dataclass(frozen=True)
class SinkhornOptions:
    """How the Sinkhorn distance ``sd`` is computed."""

    lam: float = 3.0
    max_iter: int = 100


@dataclass(frozen=True)
class LossExpression:
    """A weighted sum of losses, read from text.

    Attributes:
        terms: Pairs of a weight and a word: ``ce``, ``mse``, ``sd``, or ``emd`` and its exponent.
    """

    terms: tuple[Term, ...]

    def __str__(self) -> str:
        return "+".join(name if weight == 1 else f"{weight:g}*{name}" for weight, name in self.terms)

    @property
    def folder(self) -> str:
        """The expression as the name of a folder."""
        return str(self).replace("*", "")

    def build(self, space: Space, sinkhorn: SinkhornOptions | None = None) -> nn.Module:
        """The loss, over a space.

        Example:
            >>> import earthwork as ew
            >>> from earthwork.lab.training import parse_loss
            >>> parse_loss("0.5*emd2 + 0.5*ce").build(ew.Chain(5))
            MixedLoss(
              0.5 × EMDLoss, 0.5 × CrossEntropyLoss
              ...
        """
        losses = [(weight, _build_term(name, space, sinkhorn or SinkhornOptions())) for weight, name in self.terms]
        return losses[0][1] if len(losses) == 1 and losses[0][0] == 1 else MixedLoss(*losses)


def parse_loss(text: str) -> LossExpression:
    """Read a loss: words joined by ``+``, each with an optional weight and ``*`` before it.

    =============  ==================================================================================
    word           loss
    =============  ==================================================================================
    ``ce``         cross entropy
    ``emd2``       the relaxed Earth Mover's Distance with exponent 2 (any exponent ≥ 1: ``emd1.5``)
    ``sd``         the Sinkhorn distance
    ``mse``        the squared error between the probabilities and the one-hot target
    =============  ==================================================================================

    The weights are taken as they are written: ``emd2+ce`` is ``1*emd2+1*ce``.

    Raises:
        ValueError: If it cannot be read, with the position.

    Example:
        >>> from earthwork.lab.training import parse_loss
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
    again = next((name for name in names if names.count(name) > 1), None)
    if again is not None:
        raise _unreadable(text, text.rindex(again), f"each loss once, but {again!r} comes again")
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
    if not _ATOM.fullmatch(word.group()):
        raise _unreadable(text, place, f"a loss ({_WORDS})", word.group())
    if word.group().startswith("emd") and float(word.group()[3:]) < 1:
        raise _unreadable(text, place, "an exponent ≥ 1 after emd", word.group())
    return (weight, word.group()), word.end()


def _skip_blanks(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place


def _unreadable(text: str, place: int, expected: str, got: str | None = None) -> ValueError:
    got = got or text[place : place + 1]
    found = f"got {got!r}" if got else "got the end"
    return ValueError(f"loss {text!r}, position {place + 1}: expected {expected}, {found}")


def _build_term(name: str, space: Space, sinkhorn: SinkhornOptions) -> nn.Module:
    if name == "ce":
        return nn.CrossEntropyLoss()
    if name == "mse":
        return SquaredErrorLoss()
    if name == "sd":
        from earthwork.losses import SinkhornLoss

        return SinkhornLoss(space, lam=sinkhorn.lam, max_iter=sinkhorn.max_iter)
    return EMDLoss(space, rho=float(name[3:]))


class SquaredErrorLoss(nn.Module):
    r"""The mean over the batch of :math:`\sum_c (\mathrm{softmax}(x)_c - q_c)^2`, the Brier score.

    Shape:
        - input: logits ``[N, C]``
        - target: class indices ``[N]``

    Example:
        >>> import torch
        >>> from earthwork.lab.training.losses import SquaredErrorLoss
        >>> SquaredErrorLoss()(torch.zeros(2, 4), torch.tensor([0, 3]))
        tensor(0.7500)
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of logits against class indices."""
        p = input.softmax(-1)
        # Σ(p − onehot)² = Σp² − 2·p[target] + 1, without the one-hot matrix.
        at_target = p.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        return (p.square().sum(-1) - 2 * at_target + 1).mean()
