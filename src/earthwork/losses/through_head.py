r"""Losses from hidden states: the logits of a few rows at a time, never all of them.

With a loss :math:`L = \sum_{k,r} f_k\, l_k(x_r)` of logits :math:`x_r = W h_r + b`, the gradients are sums over rows of

.. math:: \nabla_{h_r} = W^\top g_r, \qquad \nabla_W = \sum_r g_r h_r^\top, \qquad \nabla_b = \sum_r g_r,
          \qquad g_r = \sum_k f_k \nabla l_k(x_r)

so a chunk of rows is computed from its logits to its share of the gradients: in the forward pass if the loss is one
number, and in the backward pass, with the logits again, if there is a loss for each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.functional import linear

from earthwork import private_api
from earthwork.ops.labels import RowLosses
from earthwork.ops.masses import check_not_sharded
from earthwork.spaces.edges import first_derivative
from earthwork.spaces.space import HALF, dtype_or_type

_TWICE = (
    "from_hidden: expected first derivatives only, got a second one; call the loss on the logits, "
    "loss(linear(hidden, weight, bias), labels)"
)

# The size of the logits that are held at a time, in bytes.
CHUNK_BYTES = 2**26


class Term(NamedTuple):
    """One of the losses that are added."""

    # What computes the loss of each row of `logits[n, C]`, at least in float32, given their targets
    row_losses: RowLosses
    divisor: Tensor  # What the sum over all rows is divided by; 1 for a sum
    empty: float = 0.0  # The loss if the divisor is 0
    share: float = 1.0  # The weight of the loss among the others


class Layer(NamedTuple):
    """The last layer and its input."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None

    def check(self, classes: int | None, tokens: int = 0) -> None:
        """Raise unless shapes and types fit together; if given, also the number of classes, or the least of tokens."""
        hidden, weight, bias = self
        tensors = {"hidden": hidden, "weight": weight} | ({} if bias is None else {"bias": bias})
        for name, x in tensors.items():
            check_not_sharded(name, x)
            if not isinstance(x, Tensor) or not x.is_floating_point():
                raise TypeError(f"{name}: expected a floating point tensor, got {dtype_or_type(x)}")
        if hidden.ndim == 0:
            raise ValueError("hidden: expected shape (…, features), got a number")
        features, rows = hidden.shape[-1], weight.shape[0] if weight.ndim else 0
        if weight.ndim != 2 or weight.shape[1] != features or rows < tokens or classes not in (None, rows):
            first = "vocabulary" if tokens else "classes" if classes is None else classes
            least = f"a vocabulary of at least {tokens} tokens" if tokens else "the classes"
            raise ValueError(
                f"weight: expected shape ({first}, {features}), {least} and the features of hidden, got "
                f"{tuple(weight.shape)}"
            )
        if bias is not None and bias.shape != weight.shape[:1]:
            raise ValueError(f"bias: expected shape {tuple(weight.shape[:1])}, as weight, got {tuple(bias.shape)}")
        if self.dtype is hidden.dtype:
            for name, x in tensors.items():
                if x.dtype is not hidden.dtype:
                    raise TypeError(f"{name}: expected {hidden.dtype}, the type of hidden, got {x.dtype}")

    @property
    def autocast(self) -> bool:
        """Whether autocast chooses the type of the logits; it leaves double precision alone."""
        kind = self.hidden.device.type
        known = self.hidden.dtype != torch.float64 and torch.amp.is_autocast_available(kind)
        return known and torch.is_autocast_enabled(kind)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the logits."""
        return torch.get_autocast_dtype(self.hidden.device.type) if self.autocast else self.hidden.dtype


def untraced(function: private_api.Function) -> private_api.Function:
    """Return the function, which ``torch.compile`` calls as it is, with a graph break."""
    # Not as a decorator, which would import the compiler with this library.
    if not torch.compiler.is_dynamo_compiling():
        return function
    disabled: private_api.Function = torch.compiler.disable(function)
    return disabled


def loss_through_head(
    terms: Sequence[Term], layer: Layer, target: Tensor, by_row: bool, learned: Sequence[Tensor], chunk_rows: int | None
) -> tuple[Tensor, list[Tensor]]:
    """Compute a weighted sum of losses of the logits of a layer, and that of each term, detached and without its share.

    The losses take rows of ``target`` and depend on the tensors ``learned``. With ``by_row`` there is a loss for each
    row, instead of the sum over all rows divided by the divisors.
    """
    if chunk_rows is None:
        # The gradient of the weight is read and written for every chunk, so that chunks of few rows are slow. One of a
        # quarter as many rows as there are features takes a quarter of the memory of the weight.
        chunk_rows = max(CHUNK_BYTES // (4 * max(len(layer.weight), 1)), layer.weight.shape[1] // 4, 1)
    elif isinstance(chunk_rows, bool) or not isinstance(chunk_rows, int) or chunk_rows < 1:
        raise ValueError(f"chunk_rows: expected None or an integer ≥ 1, got {chunk_rows!r}")
    chunks = _Chunks([term.row_losses for term in terms], layer.dtype, chunk_rows, torch.is_grad_enabled())
    tensors = layer.hidden, target, layer.weight, layer.bias, *learned
    # As for cross entropy.
    dtype = torch.float32 if layer.autocast and layer.dtype in HALF else layer.dtype
    # What has to see every operation gets them, for all rows at once.
    watched = private_api.under_transform() or layer.hidden.is_meta
    if by_row:
        each = chunks.losses(linear(*layer), target) if watched else _Rows.apply(chunks, *tensors)  # type: ignore[no-untyped-call]
        shares = each.new_tensor([term.share for term in terms]).unsqueeze(-1)
        return (each * shares).sum(0).to(dtype), list(each.detach().to(dtype))
    wide = torch.promote_types(layer.dtype, torch.float32)
    divisors = torch.stack([term.divisor.to(wide) for term in terms])
    shares, empty = (divisors.new_tensor([getattr(term, name) for term in terms]) for name in ("share", "empty"))
    none = divisors == 0
    divisors, added = divisors + none, torch.where(none, empty, 0)
    factors = shares / divisors
    if watched:
        sums = chunks.losses(linear(*layer), target).sum(-1)
        total = (factors * sums).sum()
    else:
        total, sums = _Sum.apply(chunks, factors, *tensors)  # type: ignore[no-untyped-call]
    parts = (sums / divisors + added).detach().to(dtype)
    return (total + (shares * added).sum()).to(dtype), list(parts)


class _Chunks(NamedTuple):
    """How to compute the losses of some rows."""

    row_losses: list[RowLosses]
    dtype: torch.dtype
    rows: int
    differentiable: bool

    def losses(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the losses of all terms, ``[terms, rows]``."""
        wide = logits.float() if logits.dtype in HALF else logits
        return torch.stack([row_losses(wide, target) for row_losses in self.row_losses])

    def run(
        self, slopes: Tensor | None, needs: Sequence[bool], tensors: Sequence[Tensor | None]
    ) -> tuple[Tensor, list[Tensor | None]]:
        """Compute the losses of all rows, and their gradients, at least in float32, by those tensors that need one.

        The slopes are the derivatives by the losses, and broadcast to ``[terms, rows]``; without them there are no
        gradients. The tensors are hidden states, targets, weight, bias, and whatever else the losses depend on.
        """
        hidden, target, weight, bias, *learned = cast(list[Tensor], tensors)
        # Only the bias may be missing.
        weight, bias = weight.to(self.dtype), bias if bias is None else bias.to(self.dtype)
        gradients = [
            torch.zeros(x.shape, dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
            if x is not None and need and slopes is not None
            else None
            for x, need in zip(tensors, needs, strict=True)
        ]
        wide = torch.promote_types(self.dtype, torch.float32)
        found = [torch.zeros(len(self.row_losses), 0, dtype=wide, device=hidden.device)]
        # Autocast has chosen the type of the logits, and has no part in what follows.
        with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
            # Fresh memory is slow, so all chunks have their logits in the same.
            memory = hidden.new_empty(min(self.rows, len(hidden)), len(weight), dtype=self.dtype)
            for start in range(0, len(hidden), self.rows):
                rows = slice(start, start + self.rows)
                part = None if slopes is None else slopes.expand(-1, len(hidden))[:, rows]
                chunk, others = Layer(hidden[rows].to(self.dtype), weight, bias), [target[rows], *learned]
                # Only hidden states and targets have rows.
                sums = [x if x is None or place > 1 else x[rows] for place, x in enumerate(gradients)]
                try:
                    found.append(self._add_chunk(chunk, others, part, sums, memory))
                except ValueError as error:
                    error.add_note(f"from_hidden: row 0 of this message is row {start} of all rows")
                    raise
        return torch.cat(found, -1), gradients

    def _add_chunk(
        self, layer: Layer, others: list[Tensor], slopes: Tensor | None, gradients: list[Tensor | None], memory: Tensor
    ) -> Tensor:
        """Return the losses of a chunk, and add to the gradients; the others are its targets and what is learned."""
        by_hidden, by_target, by_weight, by_bias, *by_learned = gradients
        x, weight, bias = layer
        logits = memory[: len(x)]
        logits = torch.mm(x, weight.T, out=logits) if bias is None else torch.addmm(bias, x, weight.T, out=logits)
        logits = logits.float() if logits.dtype in HALF else logits
        if slopes is None:
            return self.losses(logits, others[0])
        others[0] = others[0].detach().requires_grad_(by_target is not None)
        logits.requires_grad_(any(gradient is not None for gradient in (by_hidden, by_weight, by_bias)))
        with torch.enable_grad():
            losses = self.losses(logits, others[0])
        pairs = zip(others, (by_target, *by_learned), strict=True)
        wanted = [(tensor, gradient) for tensor, gradient in pairs if gradient is not None]
        inputs = [tensor for tensor, _ in wanted] + [logits] * logits.requires_grad
        changes = torch.autograd.grad(losses, inputs, slopes, allow_unused=True) if losses.requires_grad else ()
        for (_, gradient), change in zip(wanted, changes, strict=False):
            if change is not None:
                gradient.add_(change)
        losses = losses.detach()
        slope = changes[-1] if changes and logits.requires_grad else None
        if slope is None:
            return losses
        if by_bias is not None:
            by_bias.add_(slope.sum(0))
        scale = None
        if self.dtype is torch.float16:
            # Nothing overflows or vanishes in half precision if the largest slope is 1.
            scale = slope.abs().amax().clamp(min=torch.finfo(slope.dtype).tiny)
            slope = slope / scale
        slope = slope.to(self.dtype)
        if by_hidden is not None:
            by_hidden.copy_(_times(slope @ weight, scale))
        if by_weight is not None:
            if by_weight.dtype is self.dtype:
                by_weight.addmm_(slope.T, x)
            else:
                by_weight.add_(_times(slope.T @ x, scale))
        return losses


def _times(x: Tensor, scale: Tensor | None) -> Tensor:
    # A number does not widen a tensor.
    return x if scale is None else x.float() * scale


class _Rows(torch.autograd.Function):
    """The losses of all rows, ``[terms, rows]``, whose logits are computed again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, chunks: _Chunks, *tensors: Tensor | None) -> Tensor:
        ctx.chunks = chunks
        ctx.save_for_backward(*tensors)
        return chunks.run(None, [False] * len(tensors), tensors)[0]

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        gradients = ctx.chunks.run(slopes[0], ctx.needs_input_grad[1:], tensors)[1]
        return None, *_once(gradients, tensors)


class _Sum(torch.autograd.Function):
    """The sum of the losses of all rows and terms, each times its factor; and the sums of the terms."""

    @staticmethod
    def forward(ctx: Any, chunks: _Chunks, factors: Tensor, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        needs = ctx.needs_input_grad[2:]
        slopes = factors.detach().unsqueeze(-1) if chunks.differentiable and any(needs) else None
        losses, ctx.gradients = chunks.run(slopes, needs, tensors)
        sums = losses.sum(-1)
        ctx.mark_non_differentiable(sums)
        ctx.save_for_backward(*tensors, sums)
        return (factors * sums).sum(), sums

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, sums = ctx.saved_tensors
        slope, gradients = slopes[0].detach(), ctx.gradients
        if private_api.keeps_graph():
            gradients = [None if gradient is None else gradient * slope for gradient in gradients]
        else:
            # The memory becomes that of the gradients, and there is no second backward pass.
            ctx.gradients = None
            gradients = [None if gradient is None else gradient.mul_(slope) for gradient in gradients]
        by_factors = slope * sums if ctx.needs_input_grad[1] else None
        return None, by_factors, *_once(gradients, tensors)


def _once(gradients: Sequence[Tensor | None], tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return the gradients in the types of the tensors; they raise if they are differentiated."""
    pairs = zip(gradients, tensors, strict=True)
    found = [None if gradient is None or x is None else gradient.to(x.dtype) for gradient, x in pairs]
    if not torch.is_grad_enabled():
        return found
    inputs = [x for x in tensors if x is not None]
    return [None if x is None else first_derivative(x, _TWICE, *inputs) for x in found]
