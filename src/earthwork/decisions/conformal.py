"""Sets of classes that hold the truth with a given probability, in shapes that the arrangement of the classes has."""

from __future__ import annotations

import math
import os
import warnings
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from earthwork.decisions.calibration import mean_passes, p_values
from earthwork.decisions.decide import P, as_given, as_tensor, check_labels
from earthwork.decisions.nested_sets import FAMILIES, maximal_nodes, radius_scores
from earthwork.files import errors_naming, parse_json, read_json, to_json, write_atomically
from earthwork.ops.masses import Normalize, as_distributions
from earthwork.spaces import Space
from earthwork.spaces.space import check_space, check_word
from earthwork.spaces.tree import as_tree
from earthwork.storage.writing import dumps, from_document

Kind: TypeAlias = Literal["interval", "arc", "node", "subtrees", "ball"]

_FORMAT, _VERSION = "earthwork-conformal-predictor", 1
_OPTIONS = ("alpha", "kind", "score", "risk", "confidence", "by_class", "randomized")
# The number of probabilities that are scored at a time: 4 MiB, which fit a cache.
_BLOCK = 2**20


class Threshold(NamedTuple):
    """How far the sets of some rows grow."""

    limit: float  # The largest score in a set
    rows: int  # The number of calibration rows it comes from
    below: float = -math.inf  # The score before `limit` among those of the calibration rows, for randomised sets
    # What a random number U is compared with. A set holds the scores less than `below`, above the first cut those up to
    # `below`, above the second those less than `limit`, above the third those up to `limit`.
    cuts: tuple[float, float, float] = (0.0, 0.0, 0.0)


class ConformalPredictor:
    r"""Predict sets of classes that hold the truth with probability ``1 - alpha``, whatever the model.

    Split conformal prediction: rows that the model was not trained on, with their labels, say how large the sets must
    be. If those rows and a new one are exchangeable, the new row's set holds its label with a probability of at least
    :math:`1 - \alpha` (over the draw of all of them), for any model and any number of rows.

    The sets of a row are nested, and :meth:`fit` chooses how far they grow:

    | kind | default for | a set |
    |---|---|---|
    | `"interval"` | `Chain` | classes in a row, grown from the most probable one to the more probable neighbour |
    | `"arc"` | `Ring` | the same around a circle |
    | `"subtrees"` | `Tree` | a union of subtrees: those with the largest mean mass per class |
    | `"node"` | | all classes below one node, an ancestor of the most probable class |
    | `"ball"` | other spaces | the classes within a distance from that of least expected distance |

    They grow until their mass exceeds a threshold (subtrees: while their density is a given share of the largest one):
    adaptive prediction sets (Romano et al., NeurIPS 2020; for ordered classes Lu et al., MICCAI 2022; for nodes Goren
    et al., NeurIPS 2024, and Mortier et al., 2025).

    Args:
        space: How the classes are arranged.
        alpha: The probability that a set misses the label; with ``risk="distance"`` the expected distance.
        kind: The shape of the sets; by default by the space, see above.
        score: ``"adaptive"``, or ``"distance"`` for balls whose radius is the same for all rows.
        risk: ``"miss"``: how often the label is not in the set. ``"distance"``: how far the label is from the nearest
            class of the set (conformal risk control).
        confidence: ``None``: the guarantee holds on average over calibration rows. A number between 0 and 1: with this
            probability over the calibration rows, the risk on new rows is at most ``alpha``.
        by_class: Guarantee the coverage for the rows of each class. A class with fewer than ``1 / alpha - 1``
            calibration rows is then in every set.
        randomized: Draw the last step of the growth at random, so that the coverage is exactly ``1 - alpha``. A set may
            then be empty.

    Attributes:
        groups: The groups that were fitted, or all classes with ``by_class``; ``None`` for one threshold.
        thresholds: How far the sets grow, for each of the groups.

    Example:
        >>> import numpy as np, earthwork as ew
        >>> rng = np.random.default_rng(0)
        >>> stars = ew.Chain(5, names=["1 star", "2 stars", "3 stars", "4 stars", "5 stars"])
        >>> labels = rng.integers(0, 5, 200)
        >>> p = np.exp(-abs(np.arange(5) - labels[:, None] - rng.normal(0, 0.7, (200, 1))))
        >>> p /= p.sum(-1, keepdims=True)
        >>> predictor = ew.ConformalPredictor(stars, alpha=0.1).fit(p[:100], labels[:100])
        >>> sets = predictor.predict(p[100:])
        >>> sets.shape, float(sets[np.arange(100), labels[100:]].mean())
        ((100, 5), 0.93)
        >>> predictor.describe(sets[:2])
        ['2 stars to 3 stars', '4 stars to 5 stars']
    """

    def __init__(
        self,
        space: Space,
        alpha: float = 0.1,
        kind: Kind | None = None,
        *,
        score: Literal["adaptive", "distance"] = "adaptive",
        risk: Literal["miss", "distance"] = "miss",
        confidence: float | None = None,
        by_class: bool = False,
        randomized: bool = False,
    ) -> None:
        check_space(space)
        self.space = space
        suited = (name for name, (_, needed) in FAMILIES.items() if isinstance(space, needed))
        self.kind: str = next(suited) if kind is None else check_word("kind", kind, *FAMILIES)
        scores, needed = FAMILIES[self.kind]
        if not isinstance(space, needed):
            raise TypeError(f"kind: expected one for {space}, got {kind!r}, which is for a {needed.__name__}")
        self.score = check_word("score", score, "adaptive", "distance")
        if score == "distance" and self.kind != "ball":
            raise ValueError(f'score: expected "adaptive" for kind={self.kind!r}, got "distance", which is for balls')
        self.risk = check_word("risk", risk, "miss", "distance")
        self.bound = 1.0 if risk == "miss" else float(space.diameter())
        self.alpha = _check_share("alpha", alpha, self.bound)
        self.confidence = None if confidence is None else _check_share("confidence", confidence, 1.0)
        self.by_class, self.randomized = bool(by_class), bool(randomized)
        if (risk != "miss" or confidence is not None) and (by_class or randomized):
            raise ValueError('by_class, randomized: expected False unless risk="miss" and confidence=None, got True')
        self.groups: list[Any] | None = None
        self.thresholds: list[Threshold] = []
        self._scores = radius_scores if score == "distance" else scores

    def fit(self, p: Any, labels: Any, groups: Any = None, *, normalize: Normalize = None) -> Self:
        """Choose how large the sets must be, from rows that the model was not trained on.

        Args:
            p: Their probabilities, shape ``[..., num_bins]``: a tensor or an array.
            labels: Their class indices, shape ``[...]``.
            groups: A group for each row, shape ``[...]``: whole numbers, booleans or text. The guarantee then holds in
                each group.
            normalize: What makes ``p`` distributions: ``None``, ``"softmax"`` for logits or ``"l1"``.

        Raises:
            TypeError: If the probabilities are not floating point numbers, or the labels not integers.
            ValueError: If a shape or a label does not fit, or a row is not a distribution.
        """
        rows = self._rows(p, normalize)
        y = check_labels(labels, p.shape[:-1], self.space.num_bins).cpu().reshape(-1)
        if groups is not None and self.by_class:
            raise ValueError("groups: expected None with by_class=True, got groups")
        if self.by_class:
            self.groups, member = list(range(self.space.num_bins)), y.numpy()
        elif groups is None:
            self.groups, member = None, np.zeros(len(y), dtype=np.int64)
        else:
            keys, member = np.unique(_as_groups(groups, p.shape[:-1]), return_inverse=True)
            self.groups = keys.tolist()
        scores, losses = self._steps(rows, y)
        places = [torch.from_numpy(np.flatnonzero(member == place)) for place in range(len(self.groups or [0]))]
        self.thresholds = [self._threshold(scores[place], losses[place]) for place in places]
        self._warn_of_few_rows()
        return self

    def predict(
        self, p: P, groups: Any = None, *, normalize: Normalize = None, generator: torch.Generator | None = None
    ) -> P:
        """Return the sets of new rows: booleans of the shape of ``p``, an array if ``p`` is one.

        Args:
            p: Their probabilities, shape ``[..., num_bins]``: a tensor or an array.
            groups: The group of each row, if the predictor was fitted with groups.
            normalize: What makes ``p`` distributions: ``None``, ``"softmax"`` for logits or ``"l1"``.
            generator: What random numbers are drawn from with ``randomized``; by default PyTorch's own.
        """
        rows = self._rows(p, normalize)
        limits = self._limits(rows, self._members(groups, p.shape[:-1]), generator)
        found = []
        for part, limit in self._blocks(rows, limits.expand(len(rows), -1)):
            scores = self._scores(part, self.space)
            if self.by_class:
                # Up to the last of the classes that are within their own limits.
                limit = torch.where(scores <= limit, scores, -1.0).amax(-1, keepdim=True)
            found.append(scores <= limit)
        return as_given(p, torch.cat(found).view(p.shape))

    def ends(self, sets: P) -> P:
        """Return the first and the last class of each interval or arc, ``[..., num_bins]`` to ``[..., 2]``.

        An arc may end before the class where it starts; a whole ring is 0 to ``num_bins - 1``, an empty set -1 to -1.
        """
        if self.kind not in ("interval", "arc"):
            raise TypeError(f'sets: expected intervals or arcs, got sets of kind "{self.kind}"')
        x, n = _as_sets(sets, self.space), self.space.num_bins
        before = torch.zeros_like(x) if self.kind == "interval" else x.roll(1, -1)
        starts, whole = x & ~before, x.all(-1)
        first = torch.where(whole, 0, starts.int().argmax(-1))
        last = (first + x.sum(-1) - 1) % n
        return as_given(sets, torch.where(x.any(-1, keepdim=True), torch.stack([first, last], -1), -1))

    def nodes(self, sets: P) -> P:
        """Return the fewest nodes of a tree whose classes are those of each set: booleans ``[..., num_nodes]``.

        Of nodes with the same classes it is the lowest.
        """
        tree = as_tree(self.space, "sets", "whose nodes are above classes")
        return as_given(sets, maximal_nodes(_as_sets(sets, tree), tree))

    def describe(self, sets: Any) -> list[str]:
        """Return each of the sets ``[rows, num_bins]`` in words: ``"3 to 5"``, or the names of nodes or classes."""
        x, names = _as_sets(sets, self.space), self.space.bin_names
        if self.space.hierarchical:
            x, names = self.nodes(x), self.space.names
        names = names or tuple(map(str, range(x.shape[-1])))
        if self.kind in ("interval", "arc"):
            pairs = self.ends(x).reshape(-1, 2).tolist()
            return ["none" if a < 0 else names[a] if a == b else f"{names[a]} to {names[b]}" for a, b in pairs]
        rows = (row.nonzero()[:, 0].tolist() for row in x.reshape(-1, x.shape[-1]))
        return [" or ".join(names[place] for place in row) or "none" for row in rows]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted predictor and its space as JSON."""
        self._check_fitted()
        options = {name: getattr(self, name) for name in _OPTIONS}
        thresholds = [threshold._asdict() for threshold in self.thresholds]
        document = {"format": _FORMAT, "version": _VERSION, **options, "groups": self.groups, "thresholds": thresholds}
        write_atomically(Path(path), to_json({**document, "space": parse_json(dumps(self.space))}, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a predictor that :meth:`save` wrote, or raise a ``ValueError`` that says what is wrong with the file."""
        path = Path(path)
        document = read_json(path)
        with errors_naming(path):
            if not isinstance(document, dict) or document.get("format") != _FORMAT:
                raise ValueError(f'expected "format": "{_FORMAT}"')
            if document.get("version") != _VERSION:
                raise ValueError(f"expected version {_VERSION}, got {document.get('version')!r:.60}")
            missing = [name for name in ("space", *_OPTIONS, "groups", "thresholds") if name not in document]
            if missing:
                raise ValueError(f"expected {missing[0]!r}, got none")
            if not isinstance(document["space"], dict) or not {"format", "version"} <= document["space"].keys():
                raise ValueError(f'"space": expected a space, got {document["space"]!r:.60}')
            predictor = cls(from_document(document["space"]), **{name: document[name] for name in _OPTIONS})
            _check_groups(document["groups"])
            predictor.groups, entries = document["groups"], document["thresholds"]
            if not isinstance(entries, list) or len(entries) != len(predictor.groups or [0]):
                raise ValueError("expected a threshold for each group")
            predictor.thresholds = [_read_threshold(entry) for entry in entries]
            if predictor.by_class and predictor.groups != list(range(predictor.space.num_bins)):
                raise ValueError('"groups": expected all classes with by_class')
        return predictor

    def __repr__(self) -> str:
        fitted = f"{sum(t.rows for t in self.thresholds):,} rows" if self.thresholds else "not fitted"
        return f'ConformalPredictor({self.space}, alpha={self.alpha:g}, kind="{self.kind}", {fitted})'

    def _rows(self, p: Any, normalize: Normalize) -> Tensor:
        return as_distributions(as_tensor(p), self.space, normalize).detach().reshape(-1, self.space.num_bins)

    def _blocks(self, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
        return zip(*(x.split(max(1, _BLOCK // self.space.num_bins)) for x in tensors), strict=True)

    def _steps(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores at which the loss of each row falls, ascending, and the loss from each of them on."""
        scores, losses = [], []
        for part, y in self._blocks(rows, labels.to(rows.device)):
            found = self._scores(part, self.space)
            if self.risk == "miss":
                scores.append(found.gather(-1, y.unsqueeze(-1)))
                losses.append(torch.zeros_like(scores[-1]))
            else:
                ordered, order = found.sort(-1)
                scores.append(ordered)
                losses.append(self.space.distances_to(y, ordered).gather(-1, order).cummin(-1).values)
        return torch.cat(scores).cpu().double(), torch.cat(losses).cpu().double()

    def _threshold(self, scores: Tensor, losses: Tensor) -> Threshold:
        rows, level = len(scores), self.alpha / self.bound
        if self.risk == "miss" and self.confidence is None:
            return exact_threshold(scores[:, 0], self.alpha)
        # Before the first score the loss is the largest.
        losses = pad(losses, (1, 0), value=self.bound) / self.bound

        def passes(limit: float) -> bool:
            mean = losses.gather(-1, (scores <= limit).sum(-1, keepdim=True)).mean()
            if self.confidence is None:
                return bool(mean_passes(mean, rows, level))
            return bool(p_values(mean, rows, level, self.risk == "miss") <= 1 - self.confidence)

        limits = np.sort(scores.numpy(), axis=None)
        place = bisect_left(limits, True, key=passes)
        return Threshold(float(limits[place]) if place < len(limits) else math.inf, rows)

    def _warn_of_few_rows(self) -> None:
        few = [threshold.rows for threshold in self.thresholds if threshold.limit == math.inf]
        if not few:
            return
        need = "more" if self.confidence is not None else f"at least {math.ceil(self.bound / self.alpha - 1e-9) - 1}"
        if self.groups is None:
            got = f"{few[0]}: every set holds all classes"
        elif self.by_class:
            got = f"{min(few)} to {max(few)} for {len(few)} of {len(self.groups)} classes: these are in every set"
        else:
            got = f"{min(few)} to {max(few)} in {len(few)} of {len(self.groups)} groups: their sets hold all classes"
        warnings.warn(f"alpha={self.alpha:g}: expected {need} calibration rows, got {got}", stacklevel=3)

    def _check_fitted(self) -> None:
        if not self.thresholds:
            raise ValueError("predictor: expected a fitted one, got one without thresholds; call fit first")

    def _members(self, groups: Any, shape: tuple[int, ...]) -> Tensor:
        """Return the place of the threshold of each row; one for all rows if there are no groups."""
        self._check_fitted()
        if (groups is not None) != (self.groups is not None and not self.by_class):
            raise ValueError(f"groups: expected {'None' if groups is not None else 'groups, as in fit'}, got others")
        if groups is None or self.groups is None:
            return torch.zeros(1, dtype=torch.long, device="cpu")
        places = {group: place for place, group in enumerate(self.groups)}
        given = _as_groups(groups, shape).tolist()
        if unknown := set(given) - set(places):
            raise ValueError(f"groups: expected those of fit, got also {min(unknown)!r}")
        return torch.tensor([places[group] for group in given], dtype=torch.long, device="cpu")

    def _limits(self, rows: Tensor, member: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the largest score in the set of each row: ``[rows or 1, num_bins or 1]``."""
        table = [(each.limit, each.below, *each.cuts) for each in self.thresholds]
        numbers = torch.tensor(table, dtype=torch.float64, device="cpu")
        numbers = numbers.unsqueeze(0) if self.by_class else numbers[member].unsqueeze(1)
        limit, below = numbers[..., :2].to(rows.dtype).to(rows.device).unbind(-1)
        if not self.randomized:
            return limit
        first, second, third = numbers[..., 2:].to(rows.device).unbind(-1)
        u = torch.rand(len(rows), 1, generator=generator, dtype=torch.float64, device=rows.device)
        none = torch.full_like(limit, -math.inf)
        drawn = torch.where(u > first, below, torch.nextafter(below, none))
        return torch.where(u > third, limit, torch.where(u > second, torch.nextafter(limit, none), drawn))


def exact_threshold(scores: Tensor, alpha: float) -> Threshold:
    """Return the threshold whose sets miss the label of a new row with probability ``alpha`` at most.

    Of n scores and a new one, each is as likely to be any of the n + 1 in ascending order. So the new one is above the
    m-th largest of the n with probability m / (n + 1), and α·(n + 1) of them, rounded down, may be above the limit.

    A randomised set is exact: with k scores above that of a class and e equal to it, the class is in the set if
    k + U·(e + 1) > α·(n + 1), with U uniform from 0 to 1. That holds for all scores less than the limit's predecessor
    and for none above the limit; U decides between them.
    """
    n = len(scores)
    # Rounded, so that 0.1 · 30 is 3 and not a little more or less.
    allowed = round(alpha * (n + 1), 9)
    above = min(math.floor(allowed), n)
    ordered = [-math.inf, *scores.sort().values.tolist(), math.inf]
    below, limit = ordered[n - above], ordered[n + 1 - above]
    # At the predecessor, between the two, and at the limit.
    higher = torch.stack([scores > below, scores >= limit, scores > limit]).sum(-1).tolist()
    equal = int((scores == below).sum()), 0, int((scores == limit).sum())
    first, second, third = ((allowed - k) / (e + 1) for k, e in zip(higher, equal, strict=True))
    return Threshold(limit, n, below, (first, second, third))


def _check_groups(groups: Any) -> None:
    kinds = {type(group) for group in groups} if isinstance(groups, list) else {None}
    if groups is not None and (kinds not in ({int}, {str}) or len(set(groups)) < len(groups)):
        raise ValueError(f'"groups": expected different numbers or different texts, got {groups!r:.60}')


def _read_threshold(entry: Any) -> Threshold:
    if not isinstance(entry, dict) or set(entry) != set(Threshold._fields):
        raise ValueError(f'"thresholds": expected objects of {", ".join(Threshold._fields)}, got {entry!r:.60}')
    limit, rows, below, cuts = (entry[name] for name in Threshold._fields)
    limit, below = math.inf if limit is None else limit, -math.inf if below is None else below
    numbers = [limit, rows, below, *(cuts if isinstance(cuts, list) else ())]
    if len(numbers) != 6 or any(isinstance(x, bool) or not isinstance(x, int | float) for x in numbers):
        raise ValueError(f'"thresholds": expected numbers, got {entry!r:.60}')
    return Threshold(float(limit), int(rows), float(below), tuple(cuts))


def _check_share(name: str, value: float, largest: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < largest:
        raise ValueError(f"{name}: expected a number between 0 and {largest:g}, both excluded, got {value!r}")
    return float(value)


def _as_groups(groups: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    given = groups.detach().cpu().numpy() if isinstance(groups, Tensor) else np.asarray(groups)
    if given.dtype.kind == "O" and all(isinstance(group, str) for group in given.flat):
        given = given.astype(str)
    given = given.astype(np.int64) if given.dtype.kind == "b" else given
    if given.shape != tuple(shape) or given.dtype.kind not in "iuU":
        raise ValueError(
            f"groups: expected whole numbers or text for each row, shape {tuple(shape)}, got {given!r:.60}"
        )
    return given.reshape(-1)


def _as_sets(sets: Any, space: Space) -> Tensor:
    x = as_tensor(sets)
    if not isinstance(x, Tensor) or x.dtype != torch.bool or x.ndim == 0 or x.shape[-1] != space.num_bins:
        what = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"sets: expected booleans with a last axis of {space.num_bins}, got {what}")
    return x
