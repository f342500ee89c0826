"""The metrics as functions of one batch: ``mean_emd`` is that of ``MeanEMD``.

All of them take ``preds`` and ``target``, as :meth:`~earthwork.metrics.SpaceMetric.update` does, the space, the options
of the metric, and those of :class:`~earthwork.metrics.SpaceMetric`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, get_type_hints

from torch import Tensor

from earthwork.metrics import curves, measures, scores, selective
from earthwork.metrics.batch import Options
from earthwork.metrics.measure import Measure
from earthwork.metrics.report import standard_measures
from earthwork.spaces import Space
from earthwork.spaces.space import check_space

# Every public measure by its name.
MEASURES: dict[str, type[Measure]] = {
    name: found
    for module in (measures, scores, curves, selective)
    for name, found in vars(module).items()
    if inspect.isclass(found) and issubclass(found, Measure) and found.__module__ == module.__name__ and name[0] != "_"
}
_FUNCTIONS = {measure.function_name(): measure for measure in MEASURES.values()}
_SHORT = {"kappa": "weighted_kappa", "mae": "mean_distance", "severity": "mistake_severity"}


@cache
def function_of(measure: type[Measure], module: str = __name__) -> Callable[..., Tensor]:
    """Return the function of a measure: ``function_of(MeanEMD)(preds, target, space, rho=2)``.

    To be pickled it has to be found in the module, under the measure's function name.
    """

    def function(preds: Tensor, target: Tensor, space: Any, *args: Any, **options: Any) -> Tensor:
        return measure.taken(args, options)(preds, target, space, **options)

    function.__doc__, function.__module__ = measure.__doc__, module
    function.__name__ = function.__qualname__ = measure.function_name()
    function.__signature__ = signature(measure, "preds", "target", "space")  # type: ignore[attr-defined]
    return function


def signature(measure: type[Measure], *first: str) -> inspect.Signature:
    """Return the signature of a measure's function or class: the first parameters, its own, and the common options."""
    kinds = inspect.Parameter
    given = [kinds(name, kinds.POSITIONAL_OR_KEYWORD) for name in first]
    own = [entry for name, entry in inspect.signature(measure).parameters.items() if name in measure.parameters()]
    options = [kinds(name, kinds.KEYWORD_ONLY, default=None) for name in get_type_hints(Options)]
    return inspect.Signature([*given, *own, *options], return_annotation="Tensor")


def measure_named(name: str, space: Space) -> Measure:
    """Return a measure by its name, that of a function, of a line of the report or a short one."""
    check_space(space)
    lines = [line for line in standard_measures(space, inner=True) if not line.is_curve]
    functions = {key: measure() for key, measure in _FUNCTIONS.items() if not measure.is_curve}
    known = {short: functions[long] for short, long in _SHORT.items()}
    # The first line is a proper score; on a tree the ranked probability score is the EMD at ρ = 2.
    known["rps"] = lines[0] if isinstance(lines[0], scores.RankedProbabilityScore) else scores.MeanEMD(2.0)
    known |= {line.label: line for line in lines} | functions
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"name: expected one of {', '.join(known)}, got {name!r}")
    if known[name].higher_is_better is None:
        raise ValueError(f"name: expected a metric whose value says which model is better, got {name!r}")
    return known[name]


def __getattr__(name: str) -> Any:
    if name in _FUNCTIONS:
        return function_of(_FUNCTIONS[name])
    raise AttributeError(f"module 'earthwork.metrics.functional' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*_FUNCTIONS, "function_of"]
