"""The same numbers in every form: a `Form` is a value too, and `outcome` is what a case gives in that form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cases import Case
from earthwork.kernels.cpu import without_kernels
from earthwork.targets import AnyOf, any_of
from measures import SUBJECTS
from subjects import Subject


class Outcome(NamedTuple):
    """A value, ``[rows, …]`` or without axes, and what is known of its derivative, given the case's upstream gradient.

    Attributes:
        value: The value.
        gradient: By the input, ``[rows, width]``.
        along: The gradient times the direction, one number for each row or for all.
        second: The Hessian times the direction, ``[rows, width]``.
    """

    value: Tensor
    gradient: Tensor | None = None
    along: Tensor | None = None
    second: Tensor | None = None


@dataclass(frozen=True)
class Form:
    """How a case is called.

    Attributes:
        axes: How its rows are arranged on axes.
        layout: How the tensors lie in memory.
        target: How the target is written.
        run: How the value and the gradient are computed.
        setting: What is switched on or off meanwhile.
    """

    axes: str = "rows"
    layout: str = "contiguous"
    target: str = "given"
    run: str = "backward"
    setting: str = "default"


def as_given(target: Tensor) -> Tensor | AnyOf:
    """A target as a loss takes it: masks, which are arranged like other tensors, are sets."""
    return any_of(target) if target.dtype == torch.bool else target


class Call(NamedTuple):
    """A function of tensors ``[*batch, width]`` whose axes are arranged by ``arrange`` before the call."""

    case: Case
    function: Callable[..., Tensor]
    batch: tuple[int, ...]
    axis: int
    """Of the classes, from the front."""
    layout: Callable[[Tensor], Tensor]
    x: Tensor
    """As it is passed to the function."""
    target: Tensor
    mask: Tensor | None
    class_dim: int | None

    def __call__(self, x: Tensor, target: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """The value, of any shape."""
        target, mask = self.target if target is None else target, self.mask if mask is None else mask
        given = as_given(target)
        return self.function(x, given) if mask is None else self.function(x, given, mask)

    def upstream(self, value: Tensor) -> Tensor:
        """The upstream gradient of a value, with the axes of the value."""
        return self.case.upstream(tuple(self.values(value).shape)).reshape(value.shape)

    def rows(self, x: Tensor) -> Tensor:
        """A gradient as ``[rows, width]``."""
        return x.detach().movedim(self.axis, -1).reshape(self.case.rows, -1)

    def values(self, value: Tensor) -> Tensor:
        """A value as ``[rows, …]``, or without axes."""
        value = value.detach()
        if is_reduced(self.case):
            return value
        return value.reshape(self.case.rows, *value.shape[len(self.batch) :])

    def direction(self) -> Tensor:
        """A direction of the input, as the input is arranged."""
        return arranged(torch.from_numpy(self.case.direction).to(self.case.type), self.batch, self.axis)


def is_reduced(case: Case) -> bool:
    """Whether there is one value for all rows."""
    subject = SUBJECTS[case.subject]
    return subject.reduced or case.option("reduction", "mean" if subject.contract else "none") != "none"


def arranged(x: Tensor, batch: tuple[int, ...], axis: int) -> Tensor:
    """``[rows, width]`` with the batch's axes, and the classes on another one."""
    return x.reshape(*batch, x.shape[-1]).movedim(-1, axis)


def split(rows: int) -> tuple[int, int]:
    """Two factors of a number, as equal as they can be."""
    first = next(first for first in range(int(rows**0.5), 0, -1) if rows % first == 0)
    return first, rows // first


# The axes of the batch, and where the classes are among them.
AXES: dict[str, Callable[[int], tuple[tuple[int, ...], int]]] = {
    "rows": lambda rows: ((rows,), 1),
    "row": lambda rows: ((), 0),
    "classes first": lambda rows: ((rows,), 0),
    "sequences": lambda rows: (split(rows), 2),
    "sequence": lambda rows: ((1, rows), 2),
    "signals": lambda rows: (split(rows), 1),
    "signal": lambda rows: ((1, rows), 1),
    "points": lambda rows: ((rows, 1), 1),
    "image": lambda rows: ((1, *split(rows)), 1),
    "images": lambda rows: ((split(rows)[0], 1, split(rows)[1]), 1),
    "image, classes last": lambda rows: ((1, *split(rows)), 3),
}
LAST_AXES = ("rows", "row", "sequences", "sequence", "image, classes last")


def _stepped(x: Tensor, axis: int) -> Tensor:
    axis = axis % x.ndim
    shape = [2 * size + 1 if place == axis else size for place, size in enumerate(x.shape)]
    index = tuple(slice(1, None, 2) if place == axis else slice(None) for place in range(x.ndim))
    # What lies between must not be read.
    buffer = x.new_full(shape, float("nan")) if x.is_floating_point() else x.new_zeros(shape)
    buffer[index] = x
    return buffer[index]


def _narrow(x: Tensor, _: int) -> Tensor:
    wide = x.new_zeros((*x.shape[:-1], x.shape[-1] + 3))
    wide[..., 2:-1] = x
    return wide[..., 2:-1]


def _reversed_axes(x: Tensor, _: int) -> Tensor:
    axes = tuple(reversed(range(x.ndim)))
    return x.permute(axes).contiguous().permute(axes)


def _offset(x: Tensor, _: int) -> Tensor:
    return torch.cat([x.new_zeros(1), x.reshape(-1)])[1:].view(x.shape)


def _expanded(x: Tensor, axis: int) -> Tensor:
    # Only where all rows are equal. Labels, which have one axis less, are not.
    first = x[tuple(slice(None) if place == axis else slice(1) for place in range(x.ndim))]
    equal = not x.requires_grad and torch.equal(first.expand(x.shape), x)
    return first.expand(x.shape) if equal else x


def _channels_last(x: Tensor, _: int) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else _reversed_axes(x, _)


# How a tensor lies in memory, given the axis of its classes.
LAYOUTS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "contiguous": lambda x, axis: x.contiguous(),
    "as rows": lambda x, axis: x.movedim(axis, -1).contiguous().movedim(-1, axis) if x.ndim else x,
    "column-major": _reversed_axes,
    "classes outermost": lambda x, axis: x.movedim(axis, 0).contiguous().movedim(0, axis) if x.ndim else x,
    "every second row": lambda x, axis: _stepped(x, 0) if x.ndim else x,
    "every second class": lambda x, axis: _stepped(x, axis) if x.ndim else x,
    "part of wider rows": lambda x, axis: _narrow(x, axis) if x.ndim else x,
    "offset": _offset,
    "expanded": _expanded,
    "channels last": _channels_last,
}


def _one_hot(case: Case, labels: Tensor) -> Tensor:
    return nn.functional.one_hot(labels, case.bins)


# Other ways to write class indices.
TARGETS: dict[str, Callable[[Case, Tensor], Tensor]] = {
    "given": lambda case, labels: labels,
    "int32": lambda case, labels: labels.int(),
    "int16": lambda case, labels: labels.short(),
    "one-hot": lambda case, labels: _one_hot(case, labels).to(case.type),
    "one-hot float64": lambda case, labels: _one_hot(case, labels).double(),
    "set of one": lambda case, labels: _one_hot(case, labels).bool(),
}


def prepared(case: Case, form: Form) -> Call:
    """The call of a case in a form, with its tensors."""
    subject = SUBJECTS[case.subject]
    batch, axis = AXES[form.axes](case.rows)
    x = torch.from_numpy(case.x).to(case.type)
    if case.target == "labels":
        ignore = case.option("ignored", False)
        target = TARGETS[form.target](case, torch.from_numpy(case.labels))
        if ignore:
            target = torch.where(torch.from_numpy(case.ignored), -100, target)
    elif case.target == "distributions":
        target = torch.from_numpy(case.q).to(case.type)
    else:
        target = torch.from_numpy(case.sets)
    x = arranged(x, batch, axis)
    target = arranged(target, batch, axis) if target.ndim == 2 else target.reshape(batch)
    mask = torch.from_numpy(~case.ignored).reshape(batch) if case.option("mask") else None

    def layout(x: Tensor) -> Tensor:
        return LAYOUTS[form.layout](x, axis if x.ndim == len(batch) + 1 else max(len(batch) - 1, 0))

    # Without an axis where that is the default, and -1 as often as the axis from the front.
    ambiguous = x.ndim > 2 and x.shape[-1] == case.bins
    named = axis - x.ndim if (case.seed & 1 and axis == x.ndim - 1) else axis
    class_dim = None if axis == min(1, x.ndim - 1) and not ambiguous and case.subject != "MixedLoss" else named
    if case.subject == "MixedLoss" and form.axes in ("rows", "row"):
        class_dim = None
    functions = case.__dict__.setdefault("_functions", {})
    if class_dim not in functions:
        functions[class_dim] = subject.call(case, class_dim)
    function = functions[class_dim]
    mask = None if mask is None else layout(mask)
    return Call(case, function, batch, axis, layout, layout(x), layout(target), mask, class_dim)


def outcome(case: Case, form: Form) -> Outcome:
    """What a case gives in a form."""
    with SETTINGS[form.setting]():
        call = prepared(case, form)
        run = _value_only if not SUBJECTS[case.subject].differentiable and form.run == "backward" else RUNS[form.run]
        before = call.x.clone(), call.target.clone()
        found = run(call)
        assert all(map(torch.equal, before, (call.x, call.target))), "the call changed its input or target"
        return found


def _leaf(call: Call) -> Tensor:
    # `detach` keeps the strides, and the result is a leaf.
    return call.x.detach().requires_grad_()


def _value_only(call: Call) -> Outcome:
    return Outcome(call.values(call(call.x)))


def _backward(call: Call) -> Outcome:
    x = _leaf(call)
    value = call(x)
    value.backward(call.upstream(value))
    assert x.grad is not None
    return Outcome(call.values(value), call.rows(x.grad))


def _scaled(call: Call) -> Outcome:
    x = _leaf(call)
    value = call(x)
    # The gradient of a product arrives as an expanded or a fresh tensor, and by a power of 2 it is exact.
    ((value * call.upstream(value)).sum() * 4).backward()
    assert x.grad is not None
    return Outcome(call.values(value), call.rows(x.grad) / 4)


def _accumulated(call: Call) -> Outcome:
    x = _leaf(call)
    value = call(x)
    upstream = call.upstream(value)
    value.backward(upstream, retain_graph=True)
    value.backward(upstream)
    assert x.grad is not None
    return Outcome(call.values(value), call.rows(x.grad) / 2)


def _through_a_layer(call: Call) -> Outcome:
    leaf = _leaf(call)
    x = call.layout(leaf * 1)
    value = call(x)
    (gradient,) = torch.autograd.grad(value, leaf, call.upstream(value))
    return Outcome(call.values(value), call.rows(gradient))


def _create_graph(call: Call) -> Outcome:
    x = _leaf(call)
    value = call(x)
    (gradient,) = torch.autograd.grad(value, x, call.upstream(value), create_graph=True)
    return Outcome(call.values(value), call.rows(gradient))


def _twice(call: Call) -> Outcome:
    x = _leaf(call)
    value = call(x)
    (gradient,) = torch.autograd.grad(value, x, call.upstream(value), create_graph=True)
    second = torch.zeros_like(x)
    if gradient.requires_grad:
        (second,) = torch.autograd.grad(gradient, x, call.direction())
    return Outcome(call.values(value), call.rows(gradient), second=call.rows(second))


def _func_vjp(call: Call) -> Outcome:
    value, pull = torch.func.vjp(lambda x: call(x), call.x)
    (gradient,) = pull(call.upstream(value))
    return Outcome(call.values(value), call.rows(gradient))


def _func_jvp(call: Call) -> Outcome:
    value, slope = torch.func.jvp(lambda x: call(x), (call.x,), (call.direction(),))
    along = call.values(slope * call.upstream(value))
    return Outcome(call.values(value), along=along.reshape(len(along), -1).sum(-1) if along.ndim else along)


def _func_hvp(call: Call) -> Outcome:
    def gradient(x: Tensor) -> tuple[Tensor, Tensor]:
        value, pull = torch.func.vjp(lambda x: call(x), x)
        return pull(call.upstream(value))[0], value

    (slope, value), (second, _) = torch.func.jvp(gradient, (call.x,), (call.direction(),))
    return Outcome(call.values(value), call.rows(slope), second=call.rows(second))


def _over_rows(call: Call, function: Callable[..., Any]) -> Any:
    """A function of single rows, mapped over them by ``vmap``."""
    x = call.x.movedim(call.axis, -1).reshape(call.case.rows, -1)
    target, mask = call.target, call.mask
    soft = target.ndim == call.x.ndim
    target = target.movedim(call.axis, -1).reshape(call.case.rows, -1) if soft else target.reshape(-1)
    if mask is None:
        return torch.func.vmap(lambda x, t: function(x, t, None))(x, target)
    return torch.func.vmap(function)(x, target, mask.reshape(-1))


def _vmap_grad(call: Call) -> Outcome:
    def value(x: Tensor, target: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        value = call(x, target, mask)
        return value, value

    def both(x: Tensor, target: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        gradient, value_ = torch.func.grad(value, has_aux=True)(x, target, mask)
        return value_, gradient

    values, gradient = _over_rows(call, both)
    return Outcome(values, gradient.detach() * call.case.upstream((call.case.rows,)).unsqueeze(-1))


def _vmap(call: Call) -> Outcome:
    def value(x: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
        return call(x, target, mask)

    x = _leaf(call)
    values = _over_rows(call._replace(x=x), value)
    values.backward(call.case.upstream(tuple(values.shape)))
    assert x.grad is not None
    return Outcome(values.detach(), call.rows(x.grad))


def _functional_call(call: Call) -> Outcome:
    module = call.function
    assert isinstance(module, nn.Module)
    state = {name: value.clone() for name, value in (*module.named_parameters(), *module.named_buffers())}
    return _backward(call._replace(function=lambda *args: torch.func.functional_call(module, state, args)))


def _checkpointed(call: Call) -> Outcome:
    function = call.function
    return _backward(call._replace(function=lambda *args: checkpoint(function, *args, use_reentrant=False)))


def _compiled(call: Call) -> Outcome:
    try:
        return _backward(call._replace(function=torch.compile(call.function, backend="aot_eager")))
    finally:
        torch._dynamo.reset()


def _without_grad(call: Call) -> Outcome:
    with torch.no_grad():
        return Outcome(call.values(call(_leaf(call))))


def _inference(call: Call) -> Outcome:
    with torch.inference_mode():
        x, target = call.layout(call.x.clone()), call.layout(call.target.clone())
        return Outcome(call.values(call(x, target)).clone())


def _autocast(call: Call) -> Outcome:
    function = call.function

    def forward(*args: Any) -> Tensor:
        with torch.autocast("cpu"):
            return function(*args)

    return _backward(call._replace(function=forward))


class _Subclass(Tensor):
    pass


def _of_a_subclass(call: Call) -> Outcome:
    x = call.x.detach().as_subclass(_Subclass).requires_grad_()
    value = call(x)
    (gradient,) = torch.autograd.grad(value, x, call.upstream(value))
    value, gradient = value.as_subclass(Tensor), gradient.as_subclass(Tensor)
    return Outcome(call.values(value), call.rows(gradient))


def _picked(call: Call, index: Tensor, x: Tensor) -> Tensor:
    """The values of some rows, which are the first axis of the batch."""
    at = call.axis == 0
    target, mask = call.target, call.mask
    chosen = x.index_select(1 if at else 0, index)
    target = target.index_select(1 if at and target.ndim == x.ndim else 0, index)
    return call(call.layout(chosen), target, None if mask is None else mask.index_select(0, index))


def _gathered(call: Call, parts: list[Tensor]) -> Outcome:
    x = _leaf(call)
    values = torch.cat([_picked(call, index, x) for index in parts])
    values = values.index_select(0, torch.cat(parts).argsort())
    values.backward(call.upstream(values))
    assert x.grad is not None
    return Outcome(call.values(values), call.rows(x.grad))


def _first_axis(call: Call) -> Tensor:
    return torch.arange(call.batch[0])


def _repeated(call: Call) -> Outcome:
    x, index = _leaf(call), _first_axis(call)
    values = _picked(call, torch.cat([index, index.flip(0)]), x)
    first, again = values.chunk(2)
    value = (first + again.flip(0)) / 2
    value.backward(call.upstream(value))
    assert x.grad is not None
    return Outcome(call.values(value), call.rows(x.grad))


def _from_hidden(call: Call) -> Outcome:
    # Each logit is twice another hidden number, which is exact. So the gradients by weight and bias follow from it.
    module, width = call.function, call.case.width
    weight = 2 * torch.eye(width, dtype=call.x.dtype).roll(1, 0)
    weight = (weight.T.contiguous().T if call.case.seed & 4 else weight).requires_grad_()
    bias = torch.zeros(width, dtype=call.x.dtype, requires_grad=True) if call.case.seed & 2 else None
    hidden = call.layout(call.x.roll(-1, -1) / 2).requires_grad_()
    mask = {} if call.mask is None else {"mask": call.mask}
    chunk = (None, 1 + call.case.rows // 4, call.case.rows)[call.case.seed % 3]
    value = module.from_hidden(hidden, weight, as_given(call.target), bias, chunk_rows=chunk, **mask)
    value.backward(call.upstream(value))
    assert hidden.grad is not None
    gradient, by_row = hidden.grad.roll(1, -1) / 2, hidden.detach().double().reshape(-1, width)
    slopes = gradient.double().reshape(-1, width)
    # Matrix products add up rows one after the other, and errors of equal rows have the same sign.
    size = max(64, len(slopes) / 16) * torch.finfo(call.x.dtype).eps * slopes.abs().amax() * len(slopes)
    for found, expected, largest in ((weight, slopes.T @ by_row, by_row.abs().amax()), (bias, slopes.sum(0), 1.0)):
        if found is not None:
            assert found.grad is not None
            assert not ((found.grad.double() - expected).abs() > size * largest).any(), "gradient by weight or bias"
    return Outcome(call.values(value), call.rows(gradient))


def _in_batches(call: Call) -> Outcome:
    whole = SUBJECTS[call.case.subject].metric
    assert whole is not None
    metric = whole(call.case, call.class_dim)
    step, axis = max(1, call.batch[0] // 3), int(call.axis == 0)
    for x, target in zip(call.x.split(step, axis), call.target.split(step), strict=True):
        metric.update(x, target)
    value = metric.compute()
    # A curve; torchmetrics drops the axis of a single number.
    return Outcome(value.reshape(-1) if call.case.subject == "accuracy_at_depth" else value)


RUNS: dict[str, Callable[[Call], Outcome]] = {
    "backward": _backward,
    "value only": _value_only,
    "scaled": _scaled,
    "accumulated": _accumulated,
    "through a layer": _through_a_layer,
    "create_graph": _create_graph,
    "twice": _twice,
    "func.vjp": _func_vjp,
    "func.jvp": _func_jvp,
    "func.jvp of vjp": _func_hvp,
    "vmap(grad)": _vmap_grad,
    "vmap": _vmap,
    "functional_call": _functional_call,
    "checkpoint": _checkpointed,
    "compile": _compiled,
    "no_grad": _without_grad,
    "inference_mode": _inference,
    "autocast": _autocast,
    "subclass": _of_a_subclass,
    "row by row": lambda call: _gathered(call, list(_first_axis(call).split(1))),
    "reversed": lambda call: _gathered(call, [_first_axis(call).flip(0)]),
    "two parts": lambda call: _gathered(call, list(_first_axis(call).split(call.batch[0] // 3 + 1))),
    "repeated": _repeated,
    "in batches": _in_batches,
    "from_hidden": _from_hidden,
}
SECOND_ORDER = ("create_graph", "twice", "func.jvp", "func.jvp of vjp")
BY_ROW = ("vmap(grad)", "vmap", "row by row", "reversed", "two parts", "repeated")
MOST_ROWS_ONE_BY_ONE = 40


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


SETTINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "default": nullcontext,
    "kernels off": without_kernels,
    "2 threads": lambda: _threads(2),
    "saved tensors copied": torch.autograd.graph.save_on_cpu,
    "default dtype float64": _default_dtype,
}


def fits(case: Case, form: Form) -> bool:
    """Whether the library has this form of this case."""
    subject = SUBJECTS[case.subject]
    return (
        (subject.axes or form.axes in LAST_AXES)
        and (form.axes != "row" or case.rows == 1)
        and (form.layout != "expanded" or case.input == "same")
        # Starting threads takes long, and small batches are computed by one.
        and (form.setting != "2 threads" or case.rows * case.width >= 2**14)
        and _has_target(case, form)
        and _has_run(case, form, subject)
    )


def _has_target(case: Case, form: Form) -> bool:
    if form.target == "given":
        return True
    if case.target != "labels" or case.subject in ("expected_distance", "decide"):
        return False
    if form.target.startswith("int"):
        # Cross entropy takes no other integers.
        return case.subject != "MixedLoss"
    if case.subject == "TokenEMDLoss" or SUBJECTS[case.subject].metric is not None:
        return False
    # Ignored rows are written as class indices; the mean is over the weights of labels, but over rows of others.
    if case.option("ignored") or (case.option("weight") and case.option("reduction") == "mean"):
        return False
    # Weighted and smoothed, a distribution has the weights of all classes.
    if case.option("weight") and case.option("label_smoothing"):
        return False
    if form.target == "set of one":
        return case.subject not in ("SinkhornLoss", "MixedLoss")
    if form.target == "one-hot float64" and case.type != torch.float32:
        return False
    return case.subject != "SoftLabelLoss" and case.kind != "matrix"


def _has_run(case: Case, form: Form, subject: Subject) -> bool:
    run = form.run
    # Transforms do not support hooks, and forward mode no memory that overlaps.
    if "func" in run or "vmap" in run:
        if form.setting == "saved tensors copied" or form.layout == "expanded":
            return False
        if case.subject == "TokenEMDLoss" or case.kind == "matrix":
            return False
        # What is nearest by costs that are given is found outside of transforms only.
        if case.option("given_costs") and (case.target == "sets" or form.target == "set of one"):
            return False
    if not subject.differentiable:
        batches = run == "in batches" and subject.metric is not None and form.axes != "row"
        return batches or run in ("backward", "value only", "no_grad", "inference_mode")
    if run == "in batches":
        return False
    if run in SECOND_ORDER and (
        subject.order < 2 or (case.kind == "matrix" and case.subject in ("EMDLoss", "emd", "MixedLoss"))
    ):
        return False
    if run in BY_ROW:
        if is_reduced(case) or form.axes == "row":
            return False
        if run in ("vmap", "vmap(grad)", "row by row") and case.rows > MOST_ROWS_ONE_BY_ONE:
            return False
    if run.startswith("vmap"):
        # The linear programme, and selecting tokens, depend on values.
        return form.axes == "rows" and subject.contract
    if run == "functional_call":
        return subject.contract
    if run == "from_hidden":
        return subject.contract and case.takes_logits and form.axes in LAST_AXES
    if run == "autocast":
        # A loss of half precision is then float32, as cross entropy's is.
        return case.dtype in ("float32", "float64") or (subject.contract and case.subject != "MixedLoss")
    if run == "compile":
        return case.kind != "matrix" and case.subject != "TokenEMDLoss"
    return True
