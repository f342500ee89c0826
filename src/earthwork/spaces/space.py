"""What every space has in common: named bins, and a cost of moving mass between any two of them."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from operator import index
from typing import Any, ClassVar, Self, TypeGuard, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import embedding

from earthwork import private_api
from earthwork.spaces.parts import Part

# The largest cost: the sum over a million edges, times an exponent of 100, is still a finite float32.
MAX_COST = 1e30

# Storage types: whatever is computed from them is computed in float32.
HALF = (torch.float16, torch.bfloat16)


class Space(nn.Module):
    """A set of bins, and the cost of moving a unit of mass from one to another.

    A space is a module so that it follows the ``.to()`` of the module that holds it; it is immutable in every other
    respect. It takes no ``device`` argument: results live where the input lives.

    A subclass sets :attr:`num_bins` and implements :meth:`distance`; see also :class:`~earthwork.EdgeSpace`.
    """

    num_bins: int
    names: tuple[str, ...] | None = None

    default_rho: ClassVar[float] = 1.0
    """The exponent that :class:`~earthwork.EMDLoss` takes if none is given."""

    ordered: ClassVar[bool] = False
    """Whether the bins are in a row."""

    hierarchical: ClassVar[bool] = False
    """Whether there are inner nodes, which can be answers too."""

    partial: ClassVar[bool] = False
    """Whether it is only one shard of a space; see :func:`~earthwork.trees.read_part`."""

    # The name of the buffer or parameter that holds the costs.
    _cost_key: str = "_costs"

    # The kernels' tables for this space, on the CPU and on GPUs, set by `earthwork.transport`.
    _kernels: Any = None
    _gpu_kernels: Any = None

    def _seal(self) -> None:
        self._sealed = True

    def __setattr__(self, name: str, value: Any) -> None:
        # nn.Module itself sets `training` and private attributes.
        if self.__dict__.get("_sealed") and not name.startswith("_") and name != "training":
            raise AttributeError(f"{type(self).__name__} is immutable: cannot set `{name}`")
        super().__setattr__(name, value)

    def __copy__(self) -> Self:
        """A shallow copy: it shares every tensor, and moving one does not move the other."""
        twin = self.__class__.__new__(self.__class__)
        twin.__dict__.update({k: v.copy() if isinstance(v, dict) else v for k, v in self.__dict__.items()})
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return deep_copy(self, memo)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        leave_inference(self)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Like that of every module, but a buffer made in inference mode can be used outside of it."""
        with torch.inference_mode(False):
            kept = tensor.clone() if tensor is not None and tensor.is_inference() else tensor
            super().register_buffer(name, kept, persistent)

    def _register_costs(self, name: str, costs: Tensor) -> None:
        """Register costs under ``name``, as a parameter if they are one; replaces what was there before."""
        self._parameters.pop(name, None)
        self._buffers.pop(name, None)
        if isinstance(costs, nn.Parameter):
            self.register_parameter(name, costs)
        else:
            self.register_buffer(name, costs)
        self._cost_key = name

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
        """Load the costs; a state without costs, such as that of a model trained with another loss, keeps them."""
        key = prefix + self._cost_key
        costs, found = self._buffers.get(self._cost_key), state_dict.get(key)
        if costs is not None and isinstance(found, Tensor) and found.shape == costs.shape:
            try:
                self._check_costs(key, found.detach())
            except ValueError as error:
                error_msgs.append(str(error))
                return
            # Not copied in place: other losses and spaces share the tensor.
            self._register_costs(self._cost_key, found.detach().to(costs, copy=True))
        rest = missing_keys, unexpected_keys, error_msgs
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, *rest)
        if costs is not None and key in missing_keys:
            missing_keys.remove(key)

    def _check_costs(self, name: str, costs: Tensor) -> None:
        """Raise unless ``costs``, in the form in which they are given and stored, are valid."""
        check_costs(name, costs)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Follow the module that holds this space to another device or type; see the comments for the exceptions."""

        def moved(tensor: Tensor) -> Tensor:
            try:
                result = fn(tensor)
            except TypeError:
                # Some accelerators do not support float64, the default type of costs.
                return fn(tensor.float())
            if isinstance(tensor, nn.Parameter):
                return result
            # Index buffers must stay integers, and fixed costs would permanently lose precision in a half type.
            if not tensor.is_floating_point():
                return result if result.dtype == tensor.dtype else tensor.to(result.device)
            return tensor.to(result.device, torch.float32) if result.dtype in HALF else result

        with torch.inference_mode(False):
            super()._apply(moved, recurse)  # type: ignore[no-untyped-call]
        return self

    @property
    def bin_names(self) -> tuple[str, ...] | None:
        """The names of the bins, in the order of the classes; ``None`` if they have none."""
        return self.names

    @property
    def device(self) -> torch.device:
        """Where the costs are stored."""
        return next((x.device for x in (*self.parameters(), *self.buffers())), torch.device("cpu"))

    @property
    def cost_source(self) -> Tensor | None:
        """The one tensor that all costs are computed from, if there is one: what is cached depends on its version."""
        return None

    @abstractmethod
    def distance(self, i: Tensor | int, j: Tensor | int) -> Tensor:
        """The distance from bins ``i`` to bins ``j``: tensors of indices of any shape, broadcast together."""

    def distances(self) -> Tensor:
        """The full matrix of distances, shape ``[num_bins, num_bins]``."""
        bins = torch.arange(self.num_bins, device=self.device)
        return self.distance(bins[:, None], bins[None, :])

    def _distances(self) -> Tensor:
        """The same matrix, to be read only: a space that stores it returns it without a copy."""
        return self.distances()

    def distances_to(self, labels: Tensor, like: Tensor) -> Tensor:
        """The distance from every bin to each label, ``[...]`` to ``[..., num_bins]``, in the type of ``like``.

        Differentiable with respect to the costs. The labels are not checked.
        """
        return embedding(labels, self._distances().T.to(like))

    def nearest(self, allowed: Tensor) -> Tensor:
        """For each bin, the nearest of the bins where ``allowed[..., num_bins]`` is true; ties are broken arbitrarily.

        Each row must allow a bin; that is not checked.
        """
        rows, where = allowed.reshape(-1, self.num_bins).unique(dim=0, return_inverse=True)
        distances = self._distances().detach().to(allowed.device)
        # From every bin (a row of the matrix) to those that are allowed, one set at a time.
        found = torch.empty(rows.shape, dtype=torch.long, device=rows.device)
        for place, row in enumerate(rows):
            found[place] = distances.masked_fill(~row, math.inf).argmin(-1)
        return found[where].view(allowed.shape)

    def expected_distances(self, p: Tensor) -> Tensor:
        """For every bin, the expected distance to a bin drawn from ``p[..., num_bins]``: ``p`` times the distances."""
        # Autocast would compute the product in half precision.
        with torch.autocast(p.device.type, enabled=False):
            return p @ self._distances().to(p).T

    def diameter(self) -> Tensor:
        """The largest distance between two bins, as a tensor without axes."""
        return self._distances().max()

    @abstractmethod
    def _scaled(self, factor: Tensor) -> Self:
        """This space with all costs multiplied by ``factor``."""

    def normalized(self, diameter: float = 1.0) -> Self:
        """This space with its costs scaled so that the largest distance between two bins is ``diameter``.

        Example:
            >>> import earthwork as ew
            >>> ew.Chain(5).normalized().costs
            tensor([0.2500, 0.2500, 0.2500, 0.2500], dtype=torch.float64)
        """
        if not isinstance(diameter, (int, float)) or isinstance(diameter, bool):
            raise TypeError(f"diameter: expected a number > 0, got {diameter!r}")
        if not 0 < diameter < math.inf:
            raise ValueError(f"diameter: expected a finite number > 0, got {diameter}")
        largest = self.diameter()
        if largest == 0:
            raise ValueError(f"space: expected two bins with a distance > 0 to scale by, got {self}")
        return self._scaled(diameter / largest)

    def bin_order(self) -> Tensor:
        """All bins in an order in which neighbours are close: a walk around a tree, otherwise the class order."""
        return torch.arange(self.num_bins, device="cpu")

    def part(self, bounds: Sequence[int], rank: int) -> Part:
        """What a process needs of this space if it has only the classes of one shard; see `spaces.parts`.

        Args:
            bounds: The first class of each shard, ascending, and the number of classes.
            rank: Which shard.
        """
        raise TypeError(f"space: expected a Chain or a Tree for classes that are sharded, got {self}")

    def check_rho(self, rho: float) -> None:
        """Raise unless the relaxed distance is defined for the exponent ``rho`` on this space."""
        check_rho(rho)
        if rho != 1:
            raise ValueError(f"rho: expected 1 on {self}, which has no edges whose flow could be relaxed, got {rho}")

    def equals(self, other: object) -> bool:
        """Whether ``other`` is the same kind of space with the same bins, costs and names."""
        return (
            type(self) is type(other)
            and isinstance(other, Space)
            and self.num_bins == other.num_bins
            and self.names == other.names
            and self._has_costs_of(other)
        )

    def _has_costs_of(self, other: Any) -> bool:
        return _same_values(self._distances(), other._distances())

    def _bin_index(self, name: str, index: Tensor | int) -> Tensor:
        return check_index(name, index, "bin", self.num_bins, self.device)


def check_real(name: str, values: Tensor) -> None:
    """Raise a ``TypeError`` for a fake tensor, whose values cannot be checked."""
    if private_api.is_fake(values) and not torch.compiler.is_compiling():
        raise TypeError(f"{name}: expected values to check, got a fake tensor; make spaces before FakeTensorMode")


Module = TypeVar("Module", bound=nn.Module)
Word = TypeVar("Word")


def deep_copy(module: Module, memo: dict[int, Any]) -> Module:
    """What ``copy.deepcopy`` makes of a module; tensors copied in inference mode can still be used outside of it."""
    twin = module.__class__.__new__(module.__class__)
    memo[id(module)] = twin
    with torch.inference_mode(False):
        twin.__setstate__(copy.deepcopy(module.__dict__, memo))  # type: ignore[no-untyped-call]
    return twin


def leave_inference(module: nn.Module) -> None:
    """Copy what was unpickled in inference mode, so that it can be used outside of it."""
    with torch.inference_mode(False):
        for part in module.modules():
            for name, tensor in part._buffers.items():
                if tensor is not None and tensor.is_inference():
                    part._buffers[name] = tensor.clone()


def _same_values(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.detach().cpu().double(), b.detach().cpu().double())


def owned(values: Tensor) -> Tensor:
    """A copy of ``values`` as floating point numbers; a tensor that requires grad stays itself, so it can be learned.

    Later changes to the caller's tensor would otherwise change some results of a space and not others.
    """
    if values.requires_grad:
        return values
    if values.dtype in HALF:
        # Sums of costs soon exceed half precision.
        return values.detach().float()
    return values.detach().clone() if values.is_floating_point() else values.double()


def from_array(values: NDArray[Any]) -> Tensor:
    """An array as a tensor: of the same memory, or of a copy if that cannot be written to, which PyTorch warns of."""
    return torch.from_numpy(np.require(values, requirements=["C", "W"]))


def to_array(values: Tensor) -> NDArray[Any]:
    """The values of a tensor as an array; NumPy has no bfloat16."""
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy(force=True)


def is_complex(values: object) -> TypeGuard[Tensor | NDArray[Any]]:
    """Whether a tensor, an array or a number is complex. PyTorch would drop the imaginary part of most."""
    if isinstance(values, Tensor):
        return values.is_complex()
    return isinstance(values, np.ndarray | np.generic) and np.iscomplexobj(values)


def check_space(space: Space) -> None:
    """Raise a ``TypeError`` unless ``space`` is a :class:`Space`."""
    if not isinstance(space, Space):
        raise TypeError(f"space: expected a Chain, Ring, Tree or CostMatrix, got {type(space).__name__}")


def check_rho(rho: float) -> None:
    """Raise unless ``rho`` is a real number ≥ 1."""
    if not isinstance(rho, (int, float)) or isinstance(rho, bool):
        raise TypeError(f"rho: expected a number ≥ 1, got {rho!r}")
    if not 1 <= rho < math.inf:
        raise ValueError(f"rho: expected a finite number ≥ 1, got {rho}")


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
    # Values cannot be read inside a functional transform; and the compiler cannot trace the question.
    readable = torch.compiler.is_compiling() or not private_api.is_wrapped(tensor)
    if readable and (bad := tensor[(tensor < 0) | (tensor >= count)]).numel():
        raise ValueError(f"{name}: expected {what}s from 0 to {count - 1}, got {int(bad[0])}")
    return tensor.long()


def check_ignore_index(ignore_index: int) -> int:
    """``ignore_index`` as a plain integer: the label that does not count, whether it is a class or not."""
    try:
        number = index(ignore_index)
    except TypeError as error:
        raise TypeError(f"ignore_index: expected a class index (an integer), got {ignore_index!r}") from error
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"ignore_index: expected an integer of 64 bits, got {number}")
    return number


def check_word(name: str, word: Word, *words: str) -> Word:
    """``word``, if it is one of the words that option ``name`` takes."""
    if word not in words:
        *others, last = (f'"{word}"' for word in words)
        raise ValueError(f"{name}: expected {', '.join(others)} or {last}, got {word!r}")
    return word


def check_costs(name: str, costs: Tensor) -> None:
    """Raise a ``ValueError`` that names the first cost that is negative, not finite or above `MAX_COST`."""
    bad = ~((costs >= 0) & (costs <= MAX_COST))
    if bad.any():
        place = tuple(bad.nonzero()[0].tolist())
        raise bad_cost(name, "numbers", costs[place].item(), f"at {', '.join(map(str, place)) or 0}")


def bad_cost(name: str, what: str, cost: float, where: str) -> ValueError:
    """The error for a cost that is negative, not finite or above `MAX_COST`."""
    limits = f"{what} up to {MAX_COST:g}" if MAX_COST < cost < math.inf else f"finite {what} ≥ 0"
    return ValueError(f"{name}: expected {limits}, got {cost:g} {where}")


def check_count(name: str, n: int) -> int:
    """``n`` as a plain number of bins, which is at least one."""
    try:
        count = index(n)
    except TypeError as error:
        raise TypeError(f"{name}: expected a number of bins, got {n!r}") from error
    if count < 1:
        raise ValueError(f"{name}: expected at least one bin, got {count}")
    if count >= 2**62:
        raise ValueError(f"{name}: expected fewer than 2⁶² bins, got {count:.3g}")
    return count


def check_names(names: Sequence[str] | None, count: int, what: str) -> tuple[str, ...] | None:
    """``names`` as a tuple of ``count`` strings, one for each ``what``."""
    if names is None:
        return None
    if isinstance(names, str) or not isinstance(names, Collection):
        raise TypeError(f"names: expected a sequence of strings, got {names!r}")
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong:
        raise TypeError(f"names: expected a sequence of strings, got {wrong[0]!r} in it")
    if len(names) != count:
        raise ValueError(f"names: expected {count}, one for each {what}, got {len(names)}")
    return tuple(names)
