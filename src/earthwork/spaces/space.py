"""What every space has in common: bins, edges with costs, and the two maps between them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from operator import index
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import Self

HALF = (torch.float16, torch.bfloat16)

Costs: TypeAlias = "float | Sequence[float] | NDArray[Any] | Tensor"


class Space(nn.Module):
    r"""A set of bins joined by edges that each cost something to cross.

    A space is two linear maps that are each other's transpose, :meth:`flow` and :meth:`potential`, and one cost
    for each edge. It is a module so that it follows the ``.to()`` of the module that holds it; it is immutable in
    every other respect. It has no ``device`` argument: results live where the input lives.
    """

    num_bins: int
    num_edges: int

    # Where `transport` keeps what it has compiled for this space.
    _kernels: Any = None

    def _seal(self) -> None:
        self._sealed = True

    def __setattr__(self, name: str, value: Any) -> None:
        # nn.Module itself sets `training`, and its private bookkeeping.
        if self.__dict__.get("_sealed") and not name.startswith("_") and name != "training":
            raise AttributeError(f"{type(self).__name__} is immutable: cannot set `{name}`")
        super().__setattr__(name, value)

    def __copy__(self) -> Self:
        """A shallow copy: it shares every tensor, and moving one does not move the other."""
        twin = self.__class__.__new__(self.__class__)
        twin.__dict__.update({k: v.copy() if isinstance(v, dict) else v for k, v in self.__dict__.items()})
        return twin

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """As every module's, but what is made in inference mode can be used outside of it."""
        with torch.inference_mode(False):
            kept = tensor.clone() if tensor is not None and tensor.is_inference() else tensor
            super().register_buffer(name, kept, persistent)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Follow the module that holds this space to another device or type, within reason."""

        def moved(tensor: Tensor) -> Tensor:
            try:
                result = fn(tensor)
            except TypeError:
                # Some accelerators have no double precision, in which costs are kept.
                return fn(tensor.float())
            if isinstance(tensor, nn.Parameter):
                return result
            # Half precision would ruin costs for good, and an index is none as a floating point number.
            if not tensor.is_floating_point():
                return result if result.dtype == tensor.dtype else tensor.to(result.device)
            return tensor.to(result.device, torch.float32) if result.dtype in HALF else result

        with torch.inference_mode(False):
            super()._apply(moved, recurse)  # type: ignore[no-untyped-call]
        return self

    @property
    @abstractmethod
    def costs(self) -> Tensor:
        """The cost of each edge, shape ``[num_edges]``, in the order of :meth:`flow`."""

    @abstractmethod
    def flow(self, x: Tensor) -> Tensor:
        """Dirt over each edge when every bin's content ``x`` leaves it: ``[..., num_bins]`` to ``[..., num_edges]``."""

    @abstractmethod
    def potential(self, g: Tensor) -> Tensor:
        """The transpose of :meth:`flow`: ``[..., num_edges]`` to ``[..., num_bins]``."""

    def settle(self, flow: Tensor, weights: Tensor, rho: float) -> Tensor:
        """The cheapest flow with the divergence of ``flow``; there is only one unless the space has a cycle."""
        return flow

    def settle_slope(self, slope: Tensor, flow: Tensor, weights: Tensor, rho: float) -> Tensor:
        """The derivative of the cost by the settled ``flow``, made valid where the flow is free to circulate."""
        return slope

    @abstractmethod
    def distance(self, i: Tensor | int, j: Tensor | int) -> Tensor:
        """The distance between bins ``i`` and ``j``: tensors of indices of any shape, broadcast together."""

    def distances(self) -> Tensor:
        """The full matrix of distances, shape ``[num_bins, num_bins]``."""
        index = torch.arange(self.num_bins, device=self.costs.device)
        return self.distance(index[:, None], index[None, :])

    @abstractmethod
    def diameter(self) -> Tensor:
        """The largest distance between two bins, as a tensor without axes."""

    def _bin_index(self, name: str, index: Tensor | int) -> Tensor:
        return check_index(name, index, "bin", self.num_bins, self.costs.device)

    def _check_last_axis(self, name: str, x: Tensor, size: int, what: str) -> None:
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: expected a tensor, got {type(x).__name__}")
        if x.ndim == 0 or x.shape[-1] != size:
            raise ValueError(f"{name}: expected a last axis of {size} ({what} of {self}), got shape {tuple(x.shape)}")


class EdgeSpace(Space):
    """A space whose edges and costs are explicit: a chain, a ring or a tree."""

    _costs: Tensor

    def _set_costs(self, costs: Costs) -> None:
        tensor = _cost_tensor(costs)
        if tensor.ndim > 1 or (tensor.ndim == 1 and len(tensor) not in self._cost_counts()):
            expected = " or ".join(map(str, self._cost_counts()))
            raise ValueError(
                f"costs: expected a number or {expected} edge costs for this {type(self).__name__}, "
                f"got shape {tuple(tensor.shape)}"
            )
        if isinstance(tensor, nn.Parameter):
            self.register_parameter("_costs", tensor)
        else:
            self.register_buffer("_costs", tensor, persistent=False)
        check_costs("costs", self.costs.detach())

    def _cost_counts(self) -> tuple[int, ...]:
        return (self.num_edges,)

    @property
    def costs(self) -> Tensor:
        """The cost of each edge, shape ``[num_edges]``, in the order of :meth:`flow`."""
        return self._costs.expand(self.num_edges) if self._costs.ndim == 0 else self._edge_costs()

    def _edge_costs(self) -> Tensor:
        return self._costs

    def with_costs(self, costs: Costs) -> Self:
        """The same space with other edge costs. Cheap: everything but the costs is shared.

        Args:
            costs: A number, or one for each edge. May require grad, as ``softplus`` of a parameter does.
        """
        twin = self.__copy__()
        twin._parameters.pop("_costs", None)
        twin._buffers.pop("_costs", None)
        twin._set_costs(costs)
        return twin

    def _cost_range(self) -> str:
        costs = self.costs.detach()
        if costs.numel() == 0:
            return "no edges"
        low, high = costs.min().item(), costs.max().item()
        return f"cost {low:g}" if low == high else f"costs {low:g} to {high:g}"


def _cost_tensor(costs: Costs) -> Tensor:
    if is_complex(costs):
        raise TypeError(f"costs: expected real numbers, got {costs.dtype}")
    if isinstance(costs, Tensor):
        return costs if costs.is_floating_point() else costs.double()
    try:
        return torch.as_tensor(costs, dtype=torch.float64, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"costs: expected a number or a number for each edge, got {costs!r}") from error


def is_complex(values: object) -> TypeGuard[Tensor | NDArray[Any]]:
    """Whether a tensor, an array or a number is complex. PyTorch would drop the imaginary part of most."""
    if isinstance(values, Tensor):
        return values.is_complex()
    return isinstance(values, np.ndarray | np.generic) and np.iscomplexobj(values)


def check_space(space: Space) -> None:
    """Raise unless ``space`` is one."""
    if not isinstance(space, Space):
        raise TypeError(f"space: expected a Chain, Ring, Tree or CostMatrix, got {type(space).__name__}")


def check_index(name: str, index: Tensor | int, what: str, count: int, device: torch.device) -> Tensor:
    """``index`` as a tensor of integers, each of which is one of ``count`` bins or nodes.

    Raises:
        TypeError: If it does not hold integers.
        ValueError: If one of them is out of range.
    """
    try:
        tensor = torch.as_tensor(index, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name}: expected {what} indices (integers), got {index!r}") from error
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise TypeError(f"{name}: expected {what} indices (integers), got {tensor.dtype}")
    bad = tensor[(tensor < 0) | (tensor >= count)]
    if bad.numel():
        raise ValueError(f"{name}: expected {what}s from 0 to {count - 1}, got {int(bad[0])}")
    return tensor.long()


def check_costs(name: str, costs: Tensor) -> None:
    """Raise a ``ValueError`` that names the first cost that is negative or not finite."""
    bad = ~(torch.isfinite(costs) & (costs >= 0))
    if bad.any():
        at = int(bad.nonzero()[0])
        raise ValueError(f"{name}: expected finite numbers ≥ 0, got {costs[at].item():g} at {at}")


def check_count(name: str, n: int) -> int:
    """``n`` as a plain number of bins, which is at least one."""
    try:
        count = index(n)
    except TypeError as error:
        raise TypeError(f"{name}: expected a number of bins, got {n!r}") from error
    if count < 1:
        raise ValueError(f"{name}: expected at least one bin, got {count}")
    return count
