"""The operations by the CPU kernels: called directly, and as operators inside of ``torch.compile``."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from earthwork.kernels.cpu import Layout, kernels, operators, tree_tables
from earthwork.ops.definition import COMPOSED, Route, as_rows, composed_cost
from earthwork.ops.first_order import unchanged, version, with_gradient
from earthwork.ops.labels import LabelledLoss, check_labels
from earthwork.ops.masses import Check, check_masses, mass_tolerance
from earthwork.spaces import EdgeSpace, Space
from earthwork.spaces.derived import derived
from earthwork.spaces.space import HALF

TYPES = (torch.float32, torch.float64)
# For masses of each stored type. Half of what is allowed, because the kernels add up in the type of the data.
_TOLERANCES = {stored: 0.5 * mass_tolerance(stored) for stored in (*TYPES, *HALF)}


class Kernels(Route):
    """Compiled kernels with the tables of one space. They compute the gradient in the same pass as the value."""

    def __init__(self, run: ModuleType, layout: Layout) -> None:
        self.run = run
        self.layout = layout

    def distances(self, p: Tensor, q: Tensor, space: Any, rho: float, check: Check | None = None) -> Tensor:
        """Compute the distances, and check the masses in the same pass, as `pair_costs` does."""
        x, y, shape = p, q, None
        # The last axes are equal, so as many entries means as many rows.
        if p.ndim != 2 or q.ndim != 2 or p.numel() != q.numel():
            x, y = torch.broadcast_tensors(p, q)
            x, y, shape = as_rows(x), as_rows(y), x.shape[:-1]
        needs_gradient = (x.requires_grad or y.requires_grad) and torch.is_grad_enabled()
        tolerance = _TOLERANCES[p.dtype if check is None else check[0]]
        costs, slopes, valid = self.run.pairs(self.layout, x, y, rho, needs_gradient, tolerance)
        if check is not None and not valid:
            check_masses(p, q, *check)
        if needs_gradient:
            if y.requires_grad:
                costs = with_gradient((costs, slopes, lambda x, y: composed_cost(x - y, space, rho)), x, y)
            else:
                # Not an input: one more takes as long as all that comes before the kernel. This is `version`, without a
                # call.
                before = None if y.is_inference() else y._version
                costs = with_gradient((costs, slopes, lambda x: composed_cost(x - unchanged(y, before), space, rho)), x)
        result: Tensor = costs if shape is None else costs.view(shape)
        return result

    def gradient(self, p: Tensor, q: Tensor, space: Any, rho: float) -> Tensor:
        p, q = torch.broadcast_tensors(p.detach(), q.detach())
        slopes: Tensor = self.run.pairs(self.layout, as_rows(p), as_rows(q), rho, True, 1.0)[1]
        return slopes.view(p.shape)

    def loss_of_labels(self, loss: LabelledLoss, logits: Tensor, labels: Tensor, weight: Tensor | None) -> Tensor:
        kernel, given, shape, layout = loss.label_kernel, weight, labels.shape, self.layout
        assert kernel is not None, "the operation asked"
        if weight is not None:
            # Before it is converted: PyTorch itself would read freed storage there.
            self.run.address("weight", weight)
            weight = weight.detach().to("cpu", torch.float64).contiguous()
        if kernel.weights is not None:
            layout = derived(loss.space, weighted_layout, kernel.weights, getattr(loss, kernel.parameter))
        if len(shape) != 1:
            logits, labels = as_rows(logits), labels.reshape(-1)
        labels = labels.long().contiguous()
        rows = logits if logits.is_contiguous() else logits.detach().contiguous()
        needs_gradient = torch.is_grad_enabled() and logits.requires_grad
        option = getattr(loss, kernel.option) if kernel.option else 0.0
        ignore, reduction = loss.ignore_index, loss.reduction
        result: Tensor
        losses, slopes, valid, total, result, summed = self.run.labels(
            layout, rows, labels, option, needs_gradient, weight, ignore, reduction, kernel.operation
        )
        if not valid:
            check_labels(labels.view(shape), loss.space.num_bins, ignore)
            raise ValueError("target: expected class indices in range, got one that was changed during the call")
        if weight is not None and not weight.all():
            skipped = (weight == 0)[torch.where(labels == ignore, 0, labels)] & (labels != ignore)
            # The kernels skip rows of weight 0; 0 times NaN is NaN.
            if not rows.detach()[skipped].isfinite().all():
                result = COMPOSED.loss_of_labels(loss, logits, labels, given)
                return result if result.ndim == 0 else result.view(shape)
        if kernel.underflows and math.isnan(summed):
            _replace_nan(losses, slopes, rows, labels, total if reduction == "mean" else 1.0, loss.as_called())
            result = losses if reduction == "none" else losses.sum()
        if reduction == "mean" and not total:
            result = losses.new_tensor(math.nan if loss.empty == "nan" else 0.0)
        if needs_gradient:
            called, before = loss.as_called(), None if labels.is_inference() else labels._version
            weighed = None if given is None else (given, version(given))

            def defined(x: Tensor) -> Tensor:
                if weighed is not None:
                    unchanged(*weighed)
                return COMPOSED.loss_of_labels(called, x, unchanged(labels, before), given)

            result = with_gradient((result, slopes, defined), logits)
        return result if result.ndim == 0 or len(shape) == 1 else result.view(shape)

    def expected(self, p: Tensor, space: Space) -> Tensor:
        # Without a derivative, which `expected_distances` attaches.
        result: Tensor = self.run.expectations(self.layout, as_rows(p))
        return result.view(p.shape)


def _replace_nan(
    losses: Tensor, slopes: Tensor | None, rows: Tensor, labels: Tensor, total: float, defined: LabelledLoss
) -> None:
    """Compute the losses that are NaN, and their slopes, by their definition; ``total`` divides them."""
    defined.reduction = "none"
    index = losses.isnan().nonzero().flatten()
    # In double precision, because differences of huge logits would inherit their rounding errors.
    x, chosen = rows.detach()[index].double(), labels[index]
    with torch.set_grad_enabled(slopes is not None):
        values = defined.defined_loss(x.requires_grad_(slopes is not None), chosen)
        if slopes is not None:
            (slope,) = torch.autograd.grad(values.sum(), x)
            slopes[index] = (slope / total).to(slopes.dtype)
    losses[index] = (values.detach() / total).to(losses.dtype)


class _Operators(Route):
    ignored = operators.IGNORED

    def distances(self, p: Tensor, q: Tensor, space: Any, rho: float) -> Tensor:
        p, q = torch.broadcast_tensors(p, q)
        costs: Tensor = operators.costs(as_rows(p), as_rows(q), derived(space, operator_tables), rho)
        return costs.view(p.shape[:-1])

    def gradient(self, p: Tensor, q: Tensor, space: Any, rho: float) -> Tensor:
        p, q = torch.broadcast_tensors(p.detach(), q.detach())
        slopes: Tensor = operators.kernel(as_rows(p), as_rows(q), derived(space, operator_tables), rho, True)[1]
        return slopes.view(p.shape)

    def logit_distances(self, logits: Tensor, labels: Tensor, space: Any, rho: float) -> Tensor:
        flat = labels.reshape(-1).long()
        costs: Tensor = operators.costs(as_rows(logits), flat, derived(space, operator_tables), rho)
        return costs.view(labels.shape)


OPERATORS = _Operators()


def kernels_of(space: Space) -> Kernels | None:
    """Return the kernels with the tables of a space, ``None`` if there are none."""
    run = kernels()
    tables = kernel_tables(space) if run is not None and isinstance(space, EdgeSpace) else None
    return None if run is None or tables is None else Kernels(run, Layout(tables, space.num_bins))


def weighted_layout(space: EdgeSpace, weights: Callable[..., Tensor], parameter: float) -> Layout:
    """Return a layout with other numbers in place of the costs: ``weights(space, parameter)``."""
    tables = kernel_tables(space.with_costs(weights(space, parameter)))
    assert tables is not None, "only spaces with kernels have them"
    return Layout(tables, space.num_bins, own=1.0)


def kernel_tables(space: EdgeSpace) -> list[NDArray[Any]] | None:
    """Return the tables of a space as `Layout` takes them."""
    tables = space.kernel_tables()
    if tables is None or not space.hierarchical:
        return tables
    *shape, costs = tables
    return [tree_tables(*shape), costs]


def operator_tables(space: EdgeSpace) -> list[Tensor] | None:
    """Return the same as tensors, which operators of a compiled graph take."""
    tables = kernel_tables(space)
    return None if tables is None else [torch.tensor(table, device="cpu") for table in tables]
