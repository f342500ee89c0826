"""The operations that losses, metrics and decisions are made of, and the one function that chooses who computes them.

| implementation | serves | in |
|---|---|---|
| `Kernels` | the common case on a CPU: float32 or float64, fixed costs, first derivatives | `cpu`, `kernels/cpu` |
| `OPERATORS` | the same inside ``torch.compile`` | `cpu`, `kernels/cpu/operators` |
| `GpuKernels` | the common case on a GPU, also inside ``torch.compile`` | `gpu_route`, `kernels/gpu` |
| `FIRST_ORDER` | chains and trees on any device: value and gradient in plain PyTorch, without a graph | `first_order` |
| `COMPOSED` | everything: it is the definition | `definition` |

All of them compute the same numbers up to rounding, and can be differentiated as often as the space allows: where a
fast one is differentiated twice, the definition takes over.
"""

from __future__ import annotations

import torch
from torch import Tensor

from earthwork import private_api
from earthwork.kernels.cpu import loading, operators
from earthwork.ops.cpu import OPERATORS, TYPES, Kernels, kernels_of, operator_tables
from earthwork.ops.definition import COMPOSED, Route
from earthwork.ops.first_order import FIRST_ORDER
from earthwork.ops.gpu_route import PLAIN, gpu_route
from earthwork.ops.labels import LabelledLoss
from earthwork.ops.masses import Check, can_read, check_masses
from earthwork.spaces import EdgeSpace, Space
from earthwork.spaces.derived import derived
from earthwork.spaces.edges import linear
from earthwork.spaces.space import HALF

# Below this many entries, a kernel for expected distances saves nothing.
MIN_ENTRIES_EXPECTED = 2**16

# Where a space keeps its kernels; see `derived`.
_KERNELS = (kernels_of,)
# Exporting without the compiler runs under a dispatch mode.
_is_compiling = torch.compiler.is_dynamo_compiling


def pair_costs(
    p: Tensor, q: Tensor, space: Space, rho: float, costs: Tensor | None = None, check: Check | None = None
) -> Tensor:
    """Compute the cost of moving each row of ``p`` to that of ``q``: ``[..., num_bins]`` to ``[...]``.

    ``costs`` is what the edges cost, if not what the space says; ``check`` is given if the masses are to be checked.
    """
    route = choose(space, p, q) if costs is None else Route(costs)
    if isinstance(route, Kernels):
        return route.distances(p, q, space, rho, check)
    if check is not None and can_read(p, q):
        check_masses(p, q, *check)
    return route.distances(p, q, space, rho)


def pair_gradients(p: Tensor, q: Tensor, space: Space, rho: float) -> Tensor:
    """Return the derivative of `pair_costs` with respect to ``p``, without autograd."""
    return choose(space, p, q).gradient(p, q, space, rho)


def label_costs(p: Tensor, labels: Tensor, space: Space, rho: float, costs: Tensor | None = None) -> Tensor:
    """Compute the cost of moving each distribution ``p[..., num_bins]`` to its label, which is in range."""
    route = choose(space, p, labels) if costs is None else Route(costs)
    return route.label_distances(p, labels, space, rho)


def label_loss(loss: LabelledLoss, rows: Tensor, labels: Tensor, weight: Tensor | None) -> Tensor:
    """Compute the whole loss of ``rows[..., num_bins]`` against class indices, by a kernel if the loss has one.

    The rows are logits, or what ``loss.normalize`` says. A label that is neither a bin nor ignored is an error that
    names it, or a loss of NaN where values cannot be read.
    """
    kernel = loss.label_kernel
    if kernel is None or loss.normalize != "softmax" or (weight is not None and weight.requires_grad):
        return loss.defined_loss(rows, labels)
    for name in kernel.unless:
        if getattr(loss, name):
            return loss.defined_loss(rows, labels)
    # The GPU kernels read half precision as it is stored.
    if rows.dtype in HALF and not on_gpu(rows):
        rows = rows.float()
    return choose(loss.space, rows, labels).loss_of_labels(loss, rows, labels, weight)


def expected_distances(p: Tensor, space: Space) -> Tensor:
    """Compute ``p @ D.T`` with the matrix D of distances, for any ``p[..., num_bins]`` of at least single precision."""
    route = choose(space, p, expected=True)
    if not (isinstance(route, Kernels) and p.requires_grad and torch.is_grad_enabled()):
        return route.expected(p, space)

    # The distances are symmetric, so the map is its own transpose. A gradient may be served by others than ``p`` is.
    def expected(x: Tensor) -> Tensor:
        return expected_distances(x.detach(), space)

    return linear(p, expected, expected)


def on_gpu(x: Tensor) -> bool:
    """Return whether ``x`` is on a GPU for which Triton compiles: NVIDIA's, or AMD's, which torch calls "cuda" too."""
    return x.is_cuda


def choose(space: Space, p: Tensor, target: Tensor | None = None, expected: bool = False) -> Route:
    """Return who computes an operation on masses or logits ``p``, and masses or labels, in the current context."""
    acyclic = space.acyclic
    if _is_compiling():
        if private_api.is_exporting() or not isinstance(space, EdgeSpace):
            # An exported program consists of PyTorch's own operators, which ONNX has counterparts for.
            return COMPOSED
        if on_gpu(p):
            return gpu_route(space, p, target, expected) or COMPOSED
        return OPERATORS if not expected and _can_be_operators(space, p, target) else COMPOSED
    # Forward-mode differentiation, traces, modes and transforms have to see every operation. This is `under_transform`,
    # and below `is_plain`, without calls: on a small batch what comes before the kernel takes as long as the kernel.
    if (
        private_api.forward_mode._current_level >= 0
        or private_api.tracing_state() is not None
        or private_api.count_dispatch_modes() > 0
        or private_api.transform_level() is not None
    ):
        return COMPOSED
    if on_gpu(p):
        route = gpu_route(space, p, target, expected) if isinstance(space, EdgeSpace) else None
        return route or (FIRST_ORDER if acyclic else COMPOSED)
    keys, plain, dtype = private_api.dispatch_keys, private_api.PLAIN_KEYS, p.dtype
    if (
        (acyclic or expected)
        and dtype in TYPES
        and (not expected or p.numel() >= MIN_ENTRIES_EXPECTED)
        and type(p) in PLAIN
        and keys(p).raw_repr() in plain
        and (
            target is None
            or (
                (target.dtype is dtype or not target.is_floating_point())
                and type(target) in PLAIN
                and keys(target).raw_repr() in plain
            )
        )
        and loading.enabled
    ):
        # As `derived` does, which takes longer than this to find it.
        known = space._derived.get(_KERNELS) or derived(space, kernels_of)
        if known is not None:
            return known
    return FIRST_ORDER if acyclic else COMPOSED


def _can_be_operators(space: EdgeSpace, p: Tensor, target: Tensor | None) -> bool:
    return (
        operators.AVAILABLE
        and loading.enabled
        and space.acyclic
        and derived(space, operator_tables) is not None
        and p.device.type == "cpu"
        and p.dtype in TYPES
        and (target is None or target.dtype == p.dtype or not target.is_floating_point())
        and (target is None or target.device.type == "cpu")
    )
