"""Spaces made of edges: the maps between bins and edges, their derivatives, and the costs of the edges."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, NoReturn, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from earthwork import private_api
from earthwork.spaces.derived import derived
from earthwork.spaces.space import Space, check_costs, check_rho, fixed_numbers, frozen, to_tensor

Costs: TypeAlias = "float | Sequence[float] | NDArray[Any] | Tensor"
Map: TypeAlias = Callable[[Tensor], Tensor]


class Intervals(NamedTuple):
    """An order of the bins, and for each edge the first place below it and the one after the last."""

    order: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


class EdgeSpace(Space):
    r"""Bins joined by edges that each cost something to cross: a chain, a ring or a tree.

    It consists of two linear maps that are each other's transpose, :meth:`flow` and :meth:`potential`, and a cost for
    each edge. With :math:`\varphi = \mathrm{flow}(p - q)` the relaxed distance is :math:`\sum_i w_i |\varphi_i|^\rho`.

    A subclass sets :attr:`num_bins` and :attr:`num_edges`, calls ``_set_costs`` and ``_seal``, and implements
    ``_flow``, ``_potential`` and ``_distance``. If its flow is not determined by what the bins hold it also implements
    :meth:`settle`; otherwise it sets :attr:`acyclic`.
    """

    num_edges: int

    default_rho: ClassVar[float] = 2.0

    _costs: NDArray[np.float64]

    def _set_costs(self, costs: Costs) -> None:
        """Check the costs of the edges, a number or one for each, and keep them in double precision."""
        array = self._edge_costs(fixed_numbers("costs", costs, "a number or a number for each edge"))
        check_costs("costs", torch.from_numpy(array))
        # One number takes no memory for each edge.
        self._costs = np.broadcast_to(array, (self.num_edges,))

    def _edge_costs(self, costs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the costs, or raise a ``ValueError`` unless they are one number or one for each edge."""
        if costs.shape not in ((), (self.num_edges,)):
            kind, count = type(self).__name__, self.num_edges
            raise ValueError(f"costs: expected a number or {count} edge costs for this {kind}, got shape {costs.shape}")
        return costs

    def _tables(self) -> tuple[NDArray[Any], ...]:
        return (self.costs.numpy(),)

    @cached_property
    def flow_costs(self) -> NDArray[np.float64]:
        """The costs that a flow is multiplied by: 0 for edges with all bins on one side, which carry rounding only."""
        divides = self._divides()
        return self._costs if divides.all() else frozen(np.where(divides, self._costs, 0.0))

    def _divides(self) -> NDArray[np.bool_]:
        """Return which edges have bins on both sides."""
        if not self.acyclic:
            return np.ones(self.num_edges, dtype=bool)
        count = self._flow(torch.ones(self.num_bins, dtype=torch.float64, device="cpu")).numpy()
        return (count > 0) & (count < self.num_bins)

    @property
    def costs(self) -> Tensor:
        """The cost of each edge, a copy of shape ``[num_edges]`` in float64, in the order of :meth:`flow`."""
        return to_tensor(self._costs)

    def with_costs(self, costs: Costs) -> Self:
        """Return the same space with other edge costs. Cheap: everything but the costs is shared.

        Args:
            costs: A number, or one for each edge. For costs that are learned see :class:`~earthwork.LearnedCosts`.
        """
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__getstate__())
        twin._set_costs(costs)
        twin._seal()
        return twin

    def _scaled(self, factor: float) -> Self:
        return self.with_costs(self._costs * factor)

    def flow(self, x: Tensor) -> Tensor:
        """Return how much of the bins' content ``x`` crosses each edge: ``[..., num_bins]`` to ``[..., num_edges]``.

        On an acyclic space this is the sum of ``x`` over the bins on one side of the edge: on a chain those before it,
        on a tree those below it.
        """
        self._check_last_axis("x", x, self.num_bins, "bins")
        return linear(x, self._flow, self._potential)

    def potential(self, g: Tensor) -> Tensor:
        """Return the transpose of :meth:`flow`: ``[..., num_edges]`` to ``[..., num_bins]``."""
        self._check_last_axis("g", g, self.num_edges, "edges")
        return linear(g, self._potential, self._flow)

    @abstractmethod
    def _flow(self, x: Tensor) -> Tensor:
        """Compute :meth:`flow`, which takes care of derivatives."""

    @abstractmethod
    def _potential(self, g: Tensor) -> Tensor:
        """Compute :meth:`potential`, which takes care of derivatives."""

    def settle(self, flow: Tensor, weights: Tensor, rho: float) -> Tensor:
        """Return the cheapest flow with the divergence of ``flow``; there is only one unless the space has a cycle."""
        return flow

    def settle_slope(self, slope: Tensor, flow: Tensor, weights: Tensor, rho: float) -> Tensor:
        """Return the derivative of the cost by the settled ``flow``, made valid where the flow is free to circulate."""
        return slope

    def kinks(self, flow: Tensor, costs: Tensor, rho: float) -> Tensor:
        """Return the edges at whose settled ``flow`` the distance has no second derivative, for ρ < 2."""
        return (flow == 0) & (costs > 0)

    def expected_distances(self, p: Tensor) -> Tensor:
        """Compute for every bin the expected distance to a bin drawn from ``p[..., num_bins]``, without a matrix."""
        if not self.acyclic:
            return super().expected_distances(p)
        costs = derived(self, cost_tensor, p.device, p.dtype)
        below = self.flow(p)
        mass = p.sum(-1, keepdim=True)
        return (costs * below).sum(-1, keepdim=True) + self.potential(costs * (mass - 2 * below))

    def log_masses(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r"""Return :math:`\log m` and :math:`\log (M - m)`, ``[..., num_edges]`` in float64; see `spaces.log_masses`.

        Given logarithms ``x[..., num_bins]`` of the bins' masses: :math:`m` is below the edge, :math:`M` in all
        bins. Where there is no bin the result is about `LOG_ZERO`.
        """
        raise TypeError(f"space: expected a Chain or a Tree, whose edges divide the classes in two, got {self}")

    def check_rho(self, rho: float) -> None:
        """Raise unless ``rho`` is a real number ≥ 1."""
        if type(rho) not in (float, int) or not 1 <= rho < math.inf:
            check_rho(rho)

    # The three below are for the first-order path, which needs no autograd graph: the flow over the edges that carry
    # more than one bin's content ("branches"), its transpose, and the costs of those edges and of each bin's own edge.
    def _branch_flow(self, x: Tensor) -> Tensor:
        return self._flow(x)

    def _branch_potential(self, g: Tensor) -> Tensor:
        return self._potential(g)

    def _split_costs(self, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        return derived(self, cost_tensor, device, dtype), None

    def kernel_tables(self) -> list[NDArray[Any]] | None:
        """Return the arrays from which compiled kernels compute on this space; ``None`` if there are none for it."""
        return None

    def intervals(self) -> Intervals | None:
        """Return the bins on one side of each edge as an interval, in an order of the bins where they are contiguous.

        ``None`` if there is no such order, or none is known.
        """
        return None

    def _check_last_axis(self, name: str, x: Tensor, size: int, what: str) -> None:
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: expected a tensor, got {type(x).__name__}")
        if x.ndim == 0 or x.shape[-1] != size:
            raise ValueError(f"{name}: expected a last axis of {size} ({what} of {self}), got shape {tuple(x.shape)}")

    def _cost_range(self) -> str:
        if not self.num_edges:
            return "no edges"
        low, high = float(self.costs.min()), float(self.costs.max())
        return f"cost {low:g}" if low == high else f"costs {low:g} to {high:g}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.num_bins} bins, {self._cost_range()})"


def cost_tensor(space: EdgeSpace, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the costs that a flow is multiplied by, to be read only."""
    return to_tensor(space.flow_costs, device, dtype)


def split_costs(space: EdgeSpace, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Return the costs of branches and of the bins' own edges, to be read only; see `EdgeSpace._branch_flow`."""
    return space._split_costs(device, dtype)


def one_hot(labels: Tensor, like: Tensor) -> Tensor:
    """Return one-hot rows, ``[...]`` to ``[..., n]``, in the type and with the bins of ``like[..., n]``."""
    # PyTorch's own reads the labels' values, which functional transforms do not allow.
    return (labels.unsqueeze(-1) == torch.arange(like.shape[-1], device=labels.device)).to(like)


def running_sum(x: Tensor) -> Tensor:
    """Compute the running sum over the last axis, in float64.

    In float32 it would leave noise where the true sum is 0, and at ρ = 1 the sign of that noise is a wrong gradient
    of full size.
    """
    # Converting with cumsum's `dtype` argument instead takes ten times as long on a CPU.
    return (x.float() if x.device.type == "mps" else x.double()).cumsum(-1)


def first_derivative(gradient: Tensor, message: str, *inputs: Tensor) -> Tensor:
    """Return ``gradient`` as a function of the inputs whose own derivative is unknown: an error instead of 0."""
    result: Tensor = _FirstDerivative.apply(gradient, message, *inputs)  # type: ignore[no-untyped-call]
    return result


class _FirstDerivative(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(gradient: Tensor, message: str, *inputs: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.message = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> NoReturn:
        raise NotImplementedError(ctx.message)


def linear(x: Tensor, direct: Map, transpose: Map) -> Tensor:
    """Compute ``direct(x)``, linear on the last axis, differentiable any number of times and under every transform."""
    # The compilers differentiate the plain operations themselves, and do not trace a custom autograd function.
    if torch.compiler.is_compiling() or private_api.tracing_state() is not None:
        return direct(x)
    result: Tensor = _Linear.apply(x, direct, transpose)  # type: ignore[no-untyped-call]
    return result


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, direct: Map, transpose: Map) -> Tensor:
        return direct(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Map, Map], output: Tensor) -> None:
        _, ctx.direct, ctx.transpose = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return linear(grad, ctx.transpose, ctx.direct), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        return linear(tangent, ctx.direct, ctx.transpose)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None, None], x: Tensor, *maps: Map) -> tuple[Tensor, int]:
        return linear(x.movedim(in_dims[0], 0), *maps), 0
