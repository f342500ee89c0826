"""What every space has in common: named bins, and a cost of moving mass between any two of them."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from operator import index
from typing import Any, ClassVar, Self, TypeGuard, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from earthwork import private_api
from earthwork.spaces.derived import derived
from earthwork.spaces.parts import Part

# The largest cost: the sum over a million edges, times an exponent of 100, is still a finite float32.
MAX_COST = 1e30

# Storage types: whatever is computed from them is computed in float32.
HALF = (torch.float16, torch.bfloat16)


class Space(ABC):
    """A set of bins, and the cost of moving a unit of mass from one to another.

    A space is an immutable value over NumPy arrays: it is compared, hashed, pickled and shared, and has no device.
    Results live where the tensors that are passed live. Methods that take no tensor have the options ``device`` and
    ``dtype``, by default the CPU and float64.

    A subclass sets :attr:`num_bins` and implements ``_distance``; see also :class:`~earthwork.EdgeSpace`.
    """

    num_bins: int
    names: tuple[str, ...] | None = None

    default_rho: ClassVar[float] = 1.0  # the exponent that EMDLoss takes if none is given
    ordered: ClassVar[bool] = False  # whether the bins are in a row
    hierarchical: ClassVar[bool] = False  # whether there are inner nodes, which can be answers too
    # Whether there are edges, and each divides the bins in two, so that what the bins hold determines the flow.
    acyclic: ClassVar[bool] = False

    _sealed = False

    def _seal(self) -> None:
        self.__dict__["_sealed"] = True

    def __setattr__(self, name: str, value: Any) -> None:
        if self._sealed:
            raise AttributeError(f"{type(self).__name__} is immutable: cannot set `{name}`")
        super().__setattr__(name, frozen(value) if isinstance(value, np.ndarray) else value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: cannot delete `{name}`")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _OWN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Arrays can be written to after unpickling.
        for name, value in state.items():
            setattr(self, name, value)
        self._seal()

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Space):
            return NotImplemented
        return type(self) is type(other) and self.digest == other.digest and self.names == other.names

    def __hash__(self) -> int:
        return hash(self.digest)

    @cached_property
    def digest(self) -> str:
        """A hash of kind, structure and costs, the same in every process. Names are not part of it."""
        digest = hashlib.blake2b(f"{type(self).__qualname__} {self.num_bins}".encode(), digest_size=16)
        for table in self._tables():
            kind = table.dtype.kind
            digest.update(f"{kind}{table.shape}".encode())
            digest.update(np.ascontiguousarray(table, "<f8" if kind == "f" else "<i8").data)
        return digest.hexdigest()

    def _tables(self) -> Iterable[NDArray[Any]]:
        """Return the arrays that this space consists of, besides names: two spaces with the same are equal."""
        return (self.distances().numpy(),)

    @cached_property
    def _derived(self) -> OrderedDict[Any, Any]:
        return OrderedDict()

    @property
    def bin_names(self) -> tuple[str, ...] | None:
        """The names of the bins, in the order of the classes; ``None`` if they have none."""
        return self.names

    def distance(
        self,
        i: Tensor | int,
        j: Tensor | int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Return the distance from bins ``i`` to bins ``j``.

        Args:
            i: Bin indices: a number, or a tensor of any shape.
            j: Bin indices of a shape that broadcasts with that of ``i``.
            device: Where to compute it; by default where the indices are.
            dtype: The type of the result; by default float64.
        """
        i, j = check_indices({"i": i, "j": j}, "bin", self.num_bins, device)
        return self._distance(i, j).to(dtype or widest(i.device))

    @abstractmethod
    def _distance(self, i: Tensor, j: Tensor) -> Tensor:
        """Return the distances between bins on one device, which are in range, at least in float32."""

    def distances(self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Return the full matrix of distances, shape ``[num_bins, num_bins]``, by default in float64 on the CPU."""
        return self._distances().to(dtype or torch.float64).to(device or "cpu")

    def _distances(self) -> Tensor:
        bins = torch.arange(self.num_bins, device="cpu")
        return self._distance(bins[:, None], bins)

    def distances_to(self, labels: Tensor, like: Tensor) -> Tensor:
        """Return the distance from every bin to each label, ``[...]`` to ``[..., num_bins]``, in the type of ``like``.

        The labels are not checked.
        """
        return self._distance(torch.arange(self.num_bins, device=labels.device), labels.unsqueeze(-1)).to(like)

    def nearest(self, allowed: Tensor) -> Tensor:
        """Return for each bin the nearest of the bins where ``allowed[..., num_bins]`` is true.

        Ties are broken arbitrarily. Each row must allow a bin; that is not checked.
        """
        distances = derived(self, distance_matrix, allowed.device, widest(allowed.device))
        if private_api.under_transform():
            # Transforms know no `unique`, whose shape depends on values.
            return distances.masked_fill(~allowed.unsqueeze(-2), math.inf).argmin(-1)
        rows, where = allowed.reshape(-1, self.num_bins).unique(dim=0, return_inverse=True)
        # From every bin (a row of the matrix) to those that are allowed, one set at a time.
        found = torch.empty(rows.shape, dtype=torch.long, device=rows.device)
        for place, row in enumerate(rows):
            found[place] = distances.masked_fill(~row, math.inf).argmin(-1)
        return found[where].view(allowed.shape)

    def expected_distances(self, p: Tensor) -> Tensor:
        """Return for every bin the expected distance to a bin drawn from ``p[..., num_bins]``."""
        # Autocast would compute the product in half precision.
        with torch.autocast(p.device.type, enabled=False):
            return p @ derived(self, distance_matrix, p.device, p.dtype).T

    def diameter(self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Return the largest distance between two bins, a tensor without axes, by default in float64 on the CPU."""
        return self._diameter().to(dtype or torch.float64).to(device or "cpu")

    def _diameter(self) -> Tensor:
        return self._distances().max()

    def _scaled(self, factor: float) -> Self:
        """Return this space with all costs multiplied by ``factor``."""
        raise TypeError(f"space: expected one whose costs can be scaled, got {self}")

    def normalized(self, diameter: float = 1.0) -> Self:
        """Return this space with its costs scaled so that the largest distance between two bins is ``diameter``.

        Example:
            >>> import earthwork as ew
            >>> ew.Chain(5).normalized().costs
            tensor([0.2500, 0.2500, 0.2500, 0.2500], dtype=torch.float64)
        """
        check_number("diameter", diameter)
        largest = float(self.diameter())
        if largest == 0:
            raise ValueError(f"space: expected two bins with a distance > 0 to scale by, got {self}")
        return self._scaled(diameter / largest)

    def bin_order(self) -> Tensor:
        """Return all bins in an order in which neighbours are close: a walk around a tree, else the class order."""
        return torch.arange(self.num_bins, device="cpu")

    def part(self, bounds: Sequence[int], rank: int) -> Part:
        """Return what a process needs of this space if it has only the classes of one shard; see `spaces.parts`."""
        raise TypeError(f"space: expected a Chain or a Tree for classes that are sharded, got {self}")

    def check_rho(self, rho: float) -> None:
        """Raise unless the relaxed distance is defined for the exponent ``rho`` on this space."""
        check_rho(rho)
        if rho != 1:
            raise ValueError(f"rho: expected 1 on {self}, which has no edges whose flow could be relaxed, got {rho}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.num_bins} bins)"


Word = TypeVar("Word")

# What a copy or a pickled space does not take along.
_OWN = ("_sealed", "_derived", "_constants", "digest", "flow_costs")


def space_part(space: Space, bounds: tuple[int, ...], rank: int) -> Part:
    """Return one shard of a space."""
    return space.part(bounds, rank)


def distance_matrix(space: Space, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the matrix of all distances, to be read only."""
    return space.distances().to(dtype).to(device)


def columns(space: Space, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the transposed matrix of all distances, so that a label's distances are contiguous; to be read only."""
    return space.distances().T.to(dtype).to(device).contiguous()


def frozen(values: NDArray[Any]) -> NDArray[Any]:
    """Return a view of an array that cannot be written to."""
    view = values.view()
    view.flags.writeable = False
    return view


def batch_first(info: Any, dims: Sequence[int | None], *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors of a ``vmap`` rule with the axis of the batch first, made if they have none."""
    return tuple(
        x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip(tensors, dims, strict=False)
    )


def widest(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on a device that has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def to_tensor(values: NDArray[Any], device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> Tensor:
    """Return a copy of an array as a tensor."""
    # Converted first: some accelerators have no float64.
    copied = torch.tensor(values, device="cpu")
    return (copied if dtype is None else copied.to(dtype)).to(device)


def fixed_numbers(name: str, values: Any, expected: str) -> NDArray[np.float64]:
    """Return the values of a number, a sequence, an array or a tensor in double precision, as an array of its own."""
    if is_complex(values) or (isinstance(values, Tensor) and values.dtype == torch.bool):
        raise TypeError(f"{name}: expected real numbers, got {values.dtype}")
    if isinstance(values, Tensor):
        if private_api.is_fake(values) and not torch.compiler.is_compiling():
            raise TypeError(f"{name}: expected values to check, got a fake tensor; make spaces before FakeTensorMode")
        if values.requires_grad:
            raise TypeError(
                f"{name}: expected {expected} that are fixed, got a tensor that requires grad; learned costs are an "
                "option of emd and EMDLoss, costs="
            )
        return np.array(values.cpu().double().numpy())
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "fiu" and not (array.size == 0 and array.dtype.kind == "O"):
            raise TypeError
        return np.array(array, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: expected {expected}, got {values!r:.60}") from error


def from_array(values: NDArray[Any]) -> Tensor:
    """Return an array as a tensor: of its memory, or of a copy if that is read-only, of which PyTorch would warn."""
    return torch.from_numpy(np.require(values, requirements=["C", "W"]))


def to_array(values: Tensor) -> NDArray[Any]:
    """Return the values of a tensor as an array; NumPy has no bfloat16."""
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy(force=True)


def dtype_or_type(x: object) -> object:
    """Return what an error calls something of the wrong kind: the type of its numbers, if it has any."""
    return getattr(x, "dtype", type(x).__name__)


def first_true(bad: Tensor) -> tuple[int, ...] | None:
    """Return the index of the first entry that is true; ``None`` if none is."""
    return tuple(bad.nonzero()[0].tolist()) if bad.any() else None


def is_complex(values: object) -> TypeGuard[Tensor | NDArray[Any]]:
    """Return whether a tensor, an array or a number is complex. PyTorch would drop the imaginary part of most."""
    if isinstance(values, Tensor):
        return values.is_complex()
    return isinstance(values, np.ndarray | np.generic) and np.iscomplexobj(values)


def check_space(space: Space) -> None:
    """Raise a ``TypeError`` unless ``space`` is a :class:`Space`."""
    if not isinstance(space, Space):
        raise TypeError(f"space: expected a Chain, Ring, Tree or CostMatrix, got {type(space).__name__}")


def check_number(name: str, number: Any, expected: str = "a finite number > 0", least: float = 0) -> float:
    """Return ``number``, if it is as ``expected``: finite and at least ``least``, which is excluded by ``"… > 0"``."""
    if not isinstance(number, (int, float)) or isinstance(number, bool):
        raise TypeError(f"{name}: expected {expected}, got {number!r}")
    if not least <= number < math.inf or (number == 0 and expected.endswith("> 0")):
        raise ValueError(f"{name}: expected {expected}, got {number}")
    return float(number)


def check_rho(rho: float) -> None:
    """Raise unless ``rho`` is a real number ≥ 1."""
    check_number("rho", rho, "a finite number ≥ 1", 1)


def check_indices(
    indices: dict[str, Tensor | int], what: str, count: int, device: torch.device | str | None = None
) -> tuple[Tensor, Tensor]:
    """Return two indices, given by the names of the arguments, as tensors on one device, if they are in range.

    By default that is the device of the first tensor with an axis.
    """
    tensors = sorted((x for x in indices.values() if isinstance(x, Tensor)), key=lambda x: x.ndim == 0)
    place = device if device is not None else tensors[0].device if tensors else "cpu"
    first, second = (check_index(name, x, what, count, place) for name, x in indices.items())
    return first, second


def check_index(name: str, index: Any, what: str, count: int, device: torch.device | str | None = None) -> Tensor:
    """Return indices of bins, nodes or classes as a tensor, if they are in range."""
    try:
        tensor = torch.as_tensor(index, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name}: expected {what} indices (integers), got {index!r}") from error
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise TypeError(f"{name}: expected {what} indices (integers), got {tensor.dtype}")
    tensor = tensor.long()  # in a smaller type ``count`` would wrap around
    # Values cannot be read inside a functional transform or on the meta device; the compiler cannot trace the question.
    readable = torch.compiler.is_compiling() or not (tensor.is_meta or private_api.is_wrapped(tensor))
    if readable and (bad := tensor[(tensor < 0) | (tensor >= count)]).numel():
        raise ValueError(f"{name}: expected {what} indices from 0 to {count - 1}, got {int(bad[0])}")
    return tensor


def check_ignore_index(ignore_index: int) -> int:
    """Return ``ignore_index`` as a plain integer: the label that does not count, whether it is a class or not."""
    try:
        number = index(ignore_index)
    except TypeError as error:
        raise TypeError(f"ignore_index: expected a class index (an integer), got {ignore_index!r}") from error
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"ignore_index: expected an integer of 64 bits, got {number}")
    return number


def check_word(name: str, word: Word, *words: str) -> Word:
    """Return ``word``, if it is one of the words that option ``name`` takes."""
    if word not in words:
        *others, last = (f'"{word}"' for word in words)
        raise ValueError(f"{name}: expected {', '.join(others)} or {last}, got {word!r}")
    return word


def check_costs(name: str, costs: Tensor, what: str = "numbers", where: str = "") -> None:
    """Raise a ``ValueError`` that says where the first cost is that is negative, not finite or above `MAX_COST`."""
    if (place := first_true(~((costs >= 0) & (costs <= MAX_COST)))) is not None:
        cost = costs[place].item()
        limits = f"{what} up to {MAX_COST:g}" if MAX_COST < cost < math.inf else f"finite {what} ≥ 0"
        at = where.format(*place) if where else f"at {', '.join(map(str, place)) or 0}"
        raise ValueError(f"{name}: expected {limits}, got {cost:g} {at}")


def check_count(name: str, n: int) -> int:
    """Return ``n`` as a plain number of bins, which is at least one."""
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
    """Return ``names`` as a tuple of ``count`` strings, one for each ``what``."""
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
