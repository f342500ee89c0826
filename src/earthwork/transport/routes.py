"""Which implementation serves a call: `choose` decides it, once for each call, for distances and losses alike.

| route | serves | implemented in |
|---|---|---|
| `Kernels` | the common case on a CPU: float32 or float64, fixed costs, first derivatives | `kernels/cpu` |
| `OPERATOR` | the same inside ``torch.compile`` | `kernels/cpu/operators` |
| `GpuKernels` | the common case on a GPU, also inside ``torch.compile`` | `kernels/gpu` |
| `FIRST_ORDER` | chains and trees on any device: value and gradient in plain PyTorch, without a graph | `closed_form` |
| `COMPOSED` | every edge space, learned costs, transforms, export, derivatives of any order | `closed_form` |
| `PROGRAMME` | spaces without edges | `linear_programme`, `labels` |

Every route computes the same numbers up to rounding, and can be differentiated as often as the space allows: where a
fast route is differentiated twice, the composed one takes over. The logarithmic losses (`losses.log_loss`) have kernels
for CPUs; where the route is another, they are composed of operations on log-masses.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from earthwork.kernels.cpu import Layout, kernels, loading, operators, tree_tables
from earthwork.private_api import is_exporting, is_plain, is_watched
from earthwork.spaces import EdgeSpace, Space
from earthwork.spaces.derived import derived
from earthwork.spaces.edges import linear
from earthwork.spaces.space import HALF
from earthwork.transport.closed_form import composed_cost, unchanged, version, with_gradient
from earthwork.transport.gpu_route import gpu_route
from earthwork.transport.labels import smoothed_one_hot
from earthwork.transport.masses import check_masses, mass_tolerance
from earthwork.transport.portable_routes import COMPOSED, FIRST_ORDER, PROGRAMME, Composed, Route, as_rows

# Below this many entries, loading or calling a compiled kernel costs more than it saves.
MIN_ENTRIES = 256
MIN_ENTRIES_EXPECTED = 2**16

_TYPES = (torch.float32, torch.float64)
# For masses of each stored type. Half of what is allowed, because the kernels add up in the type of the data.
_TOLERANCES = {stored: 0.5 * mass_tolerance(stored) for stored in (*_TYPES, *HALF)}
_PLAIN = (Tensor, nn.Parameter)
# Exporting without the compiler runs under a dispatch mode, which `is_watched` sees.
_is_compiling = torch.compiler.is_dynamo_compiling


class _Operator(Composed):
    name = "operator"

    def distances(self, p: Tensor, q: Tensor, space: Any, rho: float) -> Tensor:
        p, q = torch.broadcast_tensors(p, q)
        costs: Tensor = operators.pair_costs(as_rows(p), as_rows(q), derived(space, operator_tables), rho)
        return costs.view(p.shape[:-1])

    def gradient(self, p: Tensor, q: Tensor, space: Any, rho: float) -> Tensor:
        p, q = torch.broadcast_tensors(p.detach(), q.detach())
        slopes: Tensor = operators.pair_kernel(as_rows(p), as_rows(q), derived(space, operator_tables), rho, True)[1]
        return slopes.view(p.shape)

    def label_distances(self, p: Tensor, labels: Tensor, space: Any, rho: float, smoothing: float = 0.0) -> Tensor:
        return self.distances(p, smoothed_one_hot(labels, p, smoothing), space, rho)

    def logit_distances(self, logits: Tensor, labels: Tensor, space: Any, rho: float) -> Tensor:
        return self.label_loss(logits, labels, space, rho, (None, operators.NONE_IGNORED, "none", 0.0))

    def label_loss(
        self, logits: Tensor, labels: Tensor, space: Any, rho: float, options: tuple[Tensor | None, int, str, float]
    ) -> Tensor:
        """The whole loss of logits against class indices; for the options see `Kernels.label_loss`."""
        weight, ignore, reduction, empty = options
        tables = derived(space, operator_tables)
        weight = None if weight is None else weight.double()
        rows, flat = as_rows(logits), labels.reshape(-1).long()
        loss: Tensor = operators.label_loss(rows, flat, weight, tables, rho, ignore, reduction, empty)
        return loss.view(labels.shape) if reduction == "none" else loss


OPERATOR = _Operator()


class LabelKernel(NamedTuple):
    """A kernel that computes the losses of rows of logits against class indices; see ``kernels.cpu.run.labels``."""

    operation: str
    option: float = 0.0
    weights: tuple[Any, ...] | None = None
    """A function of the space, and its options, that returns what the kernel takes in place of costs."""
    exact: Callable[[Tensor, Tensor], Tensor] | None = None
    """The losses of rows against labels from logarithms, for the rows where the kernel's are NaN."""


class Kernels(Route):
    """Compiled kernels with the tables of one space. They compute the gradient in the same pass as the distance."""

    name = "kernels"

    def __init__(self, run: ModuleType, layout: Layout) -> None:
        self.run = run
        self.layout = layout

    def distances(self, p: Tensor, q: Tensor, space: Any, rho: float) -> Tensor:
        """The distance of each row of ``p`` to that of ``q``, which were checked."""
        return self.checked_distances(p, q, space, rho, p.dtype, False)

    def checked_distances(
        self,
        p: Tensor,
        q: Tensor,
        space: Any,
        rho: float,
        stored: torch.dtype,
        validate: bool,
        names: tuple[str, str] = ("p", "q"),
    ) -> Tensor:
        """As `Route.checked_distances`; the kernel checks the masses. If it rejects them they are rechecked exactly."""
        x, y, shape = p, q, None
        # The last axes are equal, so as many entries means as many rows.
        if p.ndim != 2 or q.ndim != 2 or p.numel() != q.numel():
            x, y = torch.broadcast_tensors(p, q)
            x, y, shape = as_rows(x), as_rows(y), x.shape[:-1]
        needs_gradient = (x.requires_grad or y.requires_grad) and torch.is_grad_enabled()
        costs, slopes, valid = self.run.pairs(self.layout, x, y, rho, needs_gradient, _TOLERANCES[stored])
        if validate and not valid:
            check_masses(p, q, stored, names)
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
        """The derivative of the distances with respect to ``p``, of the shape to which ``p`` and ``q`` broadcast."""
        p, q = torch.broadcast_tensors(p.detach(), q.detach())
        slopes: Tensor = self.run.pairs(self.layout, as_rows(p), as_rows(q), rho, True, 1.0)[1]
        return slopes.view(p.shape)

    def logit_distances(self, logits: Tensor, labels: Tensor, space: Any, rho: float) -> Tensor:
        """The distance of the softmax of each row to its label; the labels are in range."""

        def composed(x: Tensor, labels: Tensor) -> Tensor:
            return COMPOSED.logit_distances(x, labels, space, rho)

        options = (None, operators.NONE_IGNORED, "none", 0.0)
        losses = self.label_loss(logits, labels, space, LabelKernel("labels", rho), options, composed)
        if losses is None:
            raise ValueError("target: expected class indices in range, got one that was changed during the call")
        return losses

    def label_loss(
        self,
        logits: Tensor,
        labels: Tensor,
        space: Any,
        kernel: LabelKernel,
        options: tuple[Tensor | None, int, str, float],
        composed: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor | None:
        """The whole loss of logits against class indices; ``None`` if a label is out of range.

        Args:
            logits: Shape ``[..., num_bins]``.
            labels: Class indices, shape ``[...]``.
            space: How the bins are arranged.
            kernel: Which loss.
            options: The weight of each class, the ignored label, the reduction, and the value of an empty mean.
            composed: The same loss as a function of ``logits[rows, num_bins]`` and ``labels[rows]``, by the composed
                route.
        """
        weight, ignore, reduction, empty = options
        if weight is not None:
            # Before it is converted: PyTorch itself would read freed storage there.
            self.run.address("weight", weight)
            weight = weight.detach().to("cpu", torch.float64).contiguous()
        shape = labels.shape
        if len(shape) != 1:
            logits, labels = as_rows(logits), labels.reshape(-1)
        labels = labels.long().contiguous()
        needs_gradient = torch.is_grad_enabled() and logits.requires_grad
        mean = reduction == "mean"
        rows = logits if logits.is_contiguous() else logits.detach().contiguous()
        losses: Tensor
        losses, slopes, valid, total = self.run.labels(
            self._layout_of(kernel, space),
            rows,
            labels,
            kernel.option,
            needs_gradient,
            weight,
            ignore,
            mean,
            kernel.operation,
        )
        if not valid:
            return None
        if weight is not None and _hides_nan(rows, labels, weight, ignore):
            losses = composed(logits, labels)
            return losses if losses.ndim == 0 else losses.view(shape)
        if kernel.exact is not None and losses.isnan().any():
            _replace_nan(losses, slopes, rows, labels, weight, total, kernel.exact)
        if reduction != "none":
            losses = losses.sum() if total else losses.new_tensor(empty)
        if needs_gradient:
            weights, versions = options[0], (version(labels), version(options[0]))

            def recomposed(x: Tensor) -> Tensor:
                if weights is not None:
                    unchanged(weights, versions[1])
                return composed(x, unchanged(labels, versions[0]))

            losses = with_gradient((losses, slopes, recomposed), logits)
        return losses if losses.ndim == 0 or len(shape) == 1 else losses.view(shape)

    def _layout_of(self, kernel: LabelKernel, space: Any) -> Layout:
        if kernel.weights is None:
            return self.layout
        return derived(space, _weighted_layout, *kernel.weights)

    def expected(self, p: Tensor, space: Any) -> Tensor:
        """For every bin, the expected distance to a bin drawn from ``p``."""
        if not (torch.is_grad_enabled() and p.requires_grad):
            return self._expected(p)

        # The distances are symmetric, so the map is its own transpose. A gradient may need another route than `p`.
        def expected(x: Tensor) -> Tensor:
            x = x.detach()
            route = choose(space, x, expected=True)
            return route._expected(x) if isinstance(route, Kernels) else COMPOSED.expected(x, space)

        return linear(p, expected, expected)

    def _expected(self, p: Tensor) -> Tensor:
        result: Tensor = self.run.expectations(self.layout, as_rows(p))
        return result.view(p.shape)


def on_gpu(x: Tensor) -> bool:
    """Whether ``x`` is on a GPU for which Triton compiles: NVIDIA's, or AMD's, which torch calls "cuda" too."""
    return x.is_cuda


def choose(space: Space, p: Tensor, target: Tensor | None = None, expected: bool = False) -> Route:
    """The route for these tensors in the current context.

    Args:
        space: How the bins are arranged.
        p: The masses or logits, at least in float32.
        target: The masses or labels that ``p`` is compared with, if any.
        expected: Whether the call computes expected distances rather than distances.
    """
    if not isinstance(space, EdgeSpace):
        return PROGRAMME
    if _is_compiling():
        if is_exporting():
            # The exported program consists of PyTorch's own operators, which ONNX has counterparts for.
            return COMPOSED
        if on_gpu(p):
            return gpu_route(space, p, target, expected) or COMPOSED
        return OPERATOR if _can_be_operator(space, p, target) and not expected else COMPOSED
    if is_watched():
        return COMPOSED
    dtype = p.dtype
    # The most common route, and the cheapest checks, come first: on a small batch they take as long as the kernel.
    if (
        (expected or space.acyclic)
        and dtype in _TYPES
        and p.numel() >= (MIN_ENTRIES_EXPECTED if expected else MIN_ENTRIES)
        and type(p) in _PLAIN
        and (target is None or ((target.dtype is dtype or not target.is_floating_point()) and type(target) in _PLAIN))
        and is_plain(p, target)
        and loading.enabled
    ):
        known = derived(space, _kernels)
        if known is not None:
            return known
    if on_gpu(p):
        route = gpu_route(space, p, target, expected)
        if route is not None:
            return route
    return FIRST_ORDER if space.acyclic and not expected else COMPOSED


def _kernels(space: EdgeSpace) -> Kernels | None:
    """Return the CPU kernels with the tables of a space, ``None`` if there are none."""
    run = kernels()
    tables = None if run is None else kernel_tables(space)
    return None if run is None or tables is None else Kernels(run, Layout(tables, space.num_bins))


def _weighted_layout(space: EdgeSpace, weights: Callable[..., Tensor], *parameters: float) -> Layout:
    """Return a layout with other numbers in place of the costs: ``weights(space, *parameters)``."""
    tables = kernel_tables(space, weights(space, *parameters).numpy())
    assert tables is not None, "only spaces with kernels have them"
    return Layout(tables, space.num_bins, own=1.0)


def kernel_tables(space: EdgeSpace, weights: NDArray[np.float64] | None = None) -> list[NDArray[Any]] | None:
    """Return the tables of a space as `Layout` takes them."""
    tables = space.kernel_tables(weights)
    if tables is None or not space.hierarchical:
        return tables
    *shape, costs = tables
    return [tree_tables(*shape), costs]


def operator_tables(space: EdgeSpace) -> list[Tensor] | None:
    """Return the same as tensors, which operators of a compiled graph take."""
    tables = kernel_tables(space)
    return None if tables is None else [torch.tensor(table, device="cpu") for table in tables]


def _can_be_operator(space: EdgeSpace, p: Tensor, target: Tensor | None) -> bool:
    return (
        operators.AVAILABLE
        and loading.enabled
        and space.acyclic
        and derived(space, operator_tables) is not None
        and p.device.type == "cpu"
        and p.dtype in _TYPES
        and (target is None or target.dtype == p.dtype or not target.is_floating_point())
        and (target is None or target.device.type == "cpu")
    )


def _hides_nan(rows: Tensor, labels: Tensor, weight: Tensor, ignore: int) -> bool:
    """Whether a row of weight 0, which the kernels skip, may be NaN, which 0 times NaN is for cross entropy."""
    if weight.all():
        return False
    skipped = (weight == 0)[torch.where(labels == ignore, 0, labels)] & (labels != ignore)
    return not rows.detach()[skipped].isfinite().all()


def _replace_nan(
    losses: Tensor,
    slopes: Tensor | None,
    rows: Tensor,
    labels: Tensor,
    weight: Tensor | None,
    total: float,
    exact: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """Compute the losses that are NaN, and their slopes, by another function; ``total`` divides the weights."""
    index = losses.isnan().nonzero().flatten()
    # In double precision, because differences of huge logits would inherit their rounding errors.
    x, chosen = rows.detach()[index].double(), labels[index]
    factor = (torch.ones_like(x[:, 0]) if weight is None else weight[chosen]) / total
    with torch.set_grad_enabled(slopes is not None):
        values = exact(x.requires_grad_(slopes is not None), chosen)
        if slopes is not None:
            (slope,) = torch.autograd.grad(values.sum(), x)
            slopes[index] = (slope * factor.unsqueeze(-1)).to(slopes.dtype)
    losses[index] = (values.detach() * factor).to(losses.dtype)
