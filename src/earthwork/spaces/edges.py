"""Spaces made of edges: the maps between bins and edges, their derivatives, and the costs of the edges."""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from earthwork import private_api
from earthwork.spaces.space import Space, _same_values, check_real, check_rho, is_complex, owned

Costs: TypeAlias = "float | Sequence[float] | NDArray[Any] | Tensor"
Map: TypeAlias = Callable[[Tensor], Tensor]

# How many entries of a table are hashed at a time: they are converted to one type first.
_HASHED = 2**16


class Intervals(NamedTuple):
    """An order of the bins, and for each edge the first place below it and the one after the last."""

    order: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


class EdgeSpace(Space):
    r"""Bins joined by edges that each cost something to cross: a chain, a ring or a tree.

    It consists of two linear maps that are each other's transpose, :meth:`flow` and :meth:`potential`, and a cost for
    each edge. With :math:`\varphi = \mathrm{flow}(p - q)` the relaxed distance is :math:`\sum_i w_i |\varphi_i|^\rho`.

    A subclass sets :attr:`num_bins` and :attr:`num_edges`, calls ``_set_costs``, and implements :meth:`flow`,
    :meth:`potential` and :meth:`distance`. If its flow is not determined by what the bins hold it also implements
    :meth:`settle`; otherwise it sets :attr:`acyclic`.
    """

    num_edges: int

    default_rho: ClassVar[float] = 2.0

    acyclic: ClassVar[bool] = False
    """Whether each edge divides the bins in two, so that the content of the bins determines the flow."""

    _costs: Tensor
    _structure: Tensor
    _copies: _DeviceCopies | None = None

    def _set_costs(self, costs: Costs) -> None:
        tensor = _cost_tensor(costs)
        check_real("costs", tensor)
        if tensor.ndim > 1 or (tensor.ndim == 1 and len(tensor) not in self._cost_counts()):
            expected = " or ".join(map(str, self._cost_counts()))
            raise ValueError(
                f"costs: expected a number or {expected} edge costs for this {type(self).__name__}, "
                f"got shape {tuple(tensor.shape)}"
            )
        self._check_costs("costs", tensor.detach())
        self._register_costs("_costs", tensor)
        if "_structure" not in self._buffers:
            self.register_buffer("_structure", _digest(self.num_bins, self.num_edges, *self._structure_tables()))

    def _structure_tables(self) -> tuple[Tensor, ...]:
        """What distinguishes this space from others with as many bins and edges, apart from costs and names."""
        return ()

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load the costs if they belong to the same edges; a state without a structure is trusted."""
        key = prefix + "_structure"
        here, saved = self._buffers.get("_structure"), state_dict.get(key)
        if here is not None and isinstance(saved, Tensor) and _differ(here, saved):
            error_msgs.append(f"{key}: expected the edges of {self}, got the state of a space with other edges")
            return
        rest = missing_keys, unexpected_keys, error_msgs
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, *rest)
        if key in missing_keys:
            missing_keys.remove(key)

    def _cost_counts(self) -> tuple[int, ...]:
        return (self.num_edges,)

    @property
    def costs(self) -> Tensor:
        """The cost of each edge, shape ``[num_edges]``, in the order of :meth:`flow`."""
        return self._costs.expand(self.num_edges) if self._costs.ndim == 0 else self._edge_costs()

    def _edge_costs(self) -> Tensor:
        return self._costs

    @property
    def cost_source(self) -> Tensor | None:
        """The tensor that the costs were given as."""
        return getattr(self, "_costs", None)

    @property
    def device(self) -> torch.device:
        """Where the costs are stored."""
        return self.costs.device

    def on(self, device: torch.device) -> Self:
        """This space on a device: itself, or a copy that is cached, so that its tables are not copied in every call."""
        source = self.cost_source
        if source is None or source.device == device or source.requires_grad or torch.compiler.is_compiling():
            return self
        if isinstance(source, nn.Parameter):
            # Moving a copy would move the parameter itself.
            return self
        copies: _DeviceCopies | None = self._copies
        if copies is None or copies.source is not source or copies.version != source._version:
            copies = self._copies = _DeviceCopies(source)
        if device not in copies.spaces:
            copies.spaces[device] = self.__copy__().to(device)
        result: Self = copies.spaces[device]
        return result

    def with_costs(self, costs: Costs) -> Self:
        """The same space with other edge costs. Cheap: everything but the costs is shared.

        Args:
            costs: A number, or one for each edge. May require grad, as ``softplus`` of a parameter does.
        """
        twin = self.__copy__()
        twin._set_costs(costs)
        return twin

    def _scaled(self, factor: Tensor) -> Self:
        return self.with_costs(self._costs * factor)

    @abstractmethod
    def flow(self, x: Tensor) -> Tensor:
        """How much of the bins' content ``x`` crosses each edge: ``[..., num_bins]`` to ``[..., num_edges]``.

        On an acyclic space this is the sum of ``x`` over the bins on one side of the edge.
        """

    @abstractmethod
    def potential(self, g: Tensor) -> Tensor:
        """The transpose of :meth:`flow`: ``[..., num_edges]`` to ``[..., num_bins]``."""

    def settle(self, flow: Tensor, weights: Tensor, rho: float) -> Tensor:
        """The cheapest flow with the divergence of ``flow``; there is only one unless the space has a cycle."""
        return flow

    def settle_slope(self, slope: Tensor, flow: Tensor, weights: Tensor, rho: float) -> Tensor:
        """The derivative of the cost w.r.t. the settled ``flow``, made valid where the flow is free to circulate."""
        return slope

    def kinks(self, flow: Tensor, costs: Tensor, rho: float) -> Tensor:
        """The edges at whose settled ``flow`` the distance has no second derivative, for ρ < 2."""
        idle = (flow == 0) & (costs > 0)
        # An edge with no bin, or with every bin, on one side carries no flow.
        count = self.flow(torch.ones(self.num_bins, dtype=flow.dtype, device=flow.device))
        return idle & (count > 0) & (count < self.num_bins)

    def distances_to(self, labels: Tensor, like: Tensor) -> Tensor:
        """The distance from every bin to each label, ``[...]`` to ``[..., num_bins]``, in the type of ``like``."""
        if not self.acyclic:
            return super().distances_to(labels, like)
        costs = self.costs.to(like)
        # The edges above the label are crossed by what is not below them, the others by what is.
        above = self.flow(one_hot(labels, like.new_empty(self.num_bins)))
        # No matrix product, which autocast would compute in half precision.
        return (above * costs).sum(-1, keepdim=True) + self.potential(costs * (1 - 2 * above))

    def expected_distances(self, p: Tensor) -> Tensor:
        """For every bin, the expected distance to a bin drawn from ``p[..., num_bins]``, without a matrix."""
        if not self.acyclic:
            return super().expected_distances(p)
        costs = self.costs.to(p)
        below = self.flow(p)
        mass = p.sum(-1, keepdim=True)
        return (costs * below).sum(-1, keepdim=True) + self.potential(costs * (mass - 2 * below))

    def log_masses(self) -> nn.Module:
        """A module that computes the logarithms of the masses on either side of each edge; see `spaces.log_masses`."""
        raise TypeError(f"space: expected a Chain or a Tree, whose edges divide the classes in two, got {self}")

    def check_rho(self, rho: float) -> None:
        """Raise unless ``rho`` is a real number ≥ 1."""
        if type(rho) not in (float, int) or not 1 <= rho < math.inf:
            check_rho(rho)

    def _has_costs_of(self, other: Any) -> bool:
        return torch.equal(self._structure.cpu(), other._structure.cpu()) and _same_values(self.costs, other.costs)

    # The three below are for the first-order path, which needs no autograd graph: the flow over the edges that carry
    # more than one bin's content ("branches"), its transpose, and the costs of those edges and of each bin's own edge,
    # which have the type of `like`.
    def _branch_flow(self, x: Tensor) -> Tensor:
        return self.flow(x)

    def _branch_potential(self, g: Tensor) -> Tensor:
        return self.potential(g)

    def _split_costs(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.costs.to(like), None

    def kernel_tables(self, number_nodes: Callable[..., Any], weights: Tensor | None = None) -> list[Tensor] | None:
        """The tensors from which compiled kernels compute on this space; ``None`` if there are no kernels for it.

        Args:
            number_nodes: How the kernels want the nodes of a tree to be numbered; see ``kernels.cpu``.
            weights: What a kernel takes in place of the costs of the edges.
        """
        return None

    @property
    def has_kernel_tables(self) -> bool:
        """Whether :meth:`kernel_tables` can be called where only tensor operations are allowed."""
        return False

    def intervals(self) -> Intervals | None:
        """The bins on one side of each edge as an interval, in an order of the bins where they are contiguous.

        ``None`` if there is no such order, or none is known.
        """
        return None

    def _check_last_axis(self, name: str, x: Tensor, size: int, what: str) -> None:
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: expected a tensor, got {type(x).__name__}")
        if x.ndim == 0 or x.shape[-1] != size:
            raise ValueError(f"{name}: expected a last axis of {size} ({what} of {self}), got shape {tuple(x.shape)}")

    def _cost_range(self) -> str:
        costs = self.costs.detach()
        if costs.numel() == 0:
            return "no edges"
        low, high = costs.min().item(), costs.max().item()
        return f"cost {low:g}" if low == high else f"costs {low:g} to {high:g}"


class _DeviceCopies:
    """Copies of a space on other devices, and the costs that these were made with."""

    def __init__(self, source: Tensor) -> None:
        self.source = source
        self.version = source._version
        self.spaces: dict[torch.device, Any] = {}

    def __reduce__(self) -> Any:
        # A copy of the space, in this process or another, builds its own.
        return type(None), ()


def _cost_tensor(costs: Costs) -> Tensor:
    if is_complex(costs):
        raise TypeError(f"costs: expected real numbers, got {costs.dtype}")
    if isinstance(costs, Tensor):
        return owned(costs)
    try:
        return torch.as_tensor(costs, dtype=torch.float64, device="cpu").clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"costs: expected a number or a number for each edge, got {costs!r}") from error


def _differ(here: Tensor, saved: Tensor) -> bool:
    """Whether two hashes differ; those of modules without storage are not compared."""
    return not (here.is_meta or saved.is_meta) and not torch.equal(here.cpu(), saved.cpu().long())


def _digest(bins: int, edges: int, *tables: Tensor) -> Tensor:
    """A hash of the structure of a space, shape ``[4]``, so that states of different spaces can be told apart."""
    digest = hashlib.sha256(np.array([bins, edges, *map(len, tables)], dtype="<i8").data)
    for table in tables:
        for piece in table.split(_HASHED):
            digest.update(np.ascontiguousarray(piece.cpu().numpy(), dtype="<i8").data)
    return torch.from_numpy(np.frombuffer(digest.digest(), dtype="<i8").astype(np.int64))


def one_hot(labels: Tensor, like: Tensor) -> Tensor:
    """One-hot rows, ``[...]`` to ``[..., n]``, in the type and with the bins of ``like[..., n]``."""
    # PyTorch's own reads the labels' values, which functional transforms do not allow.
    return (labels.unsqueeze(-1) == torch.arange(like.shape[-1], device=labels.device)).to(like)


def running_sum(x: Tensor) -> Tensor:
    """The running sum over the last axis, in float64.

    In float32 it would leave noise where the true sum is 0, and at ρ = 1 the sign of that noise is a wrong gradient
    of full size.
    """
    # Converting with cumsum's `dtype` argument instead takes ten times as long on a CPU.
    return (x.float() if x.device.type == "mps" else x.double()).cumsum(-1)


def linear(x: Tensor, direct: Map, transpose: Map) -> Tensor:
    """``direct(x)``, a linear map on the last axis, differentiable any number of times and under every transform."""
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
