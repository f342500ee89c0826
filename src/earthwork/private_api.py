"""Every private interface of PyTorch that the library uses, with a fallback where it is missing.

Without them the library still works, more slowly; `tests/test_private_api.py` says which one has changed.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

Function = TypeVar("Function", bound=Callable[..., Any])


def find(path: str) -> Any:
    """Return the attribute of torch at a dotted path, or ``None``."""
    found: Any = torch
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


# ---- PyTorch: what is special about a tensor or a call ---------------------------------------------------------------

# If they are unknown, those of no two tensors are equal.
dispatch_keys: Any = find("_C._dispatch_keys") or (lambda x: SimpleNamespace(raw_repr=object))

# The dispatch keys of ordinary and of inference tensors on the CPU, in whichever mode the library is imported. Other
# devices and layouts, lazy negation, and wrappers of transforms and modes have other keys.
PLAIN_KEYS = frozenset(
    dispatch_keys(torch.inference_mode(mode)(torch.empty)(0, device="cpu")).raw_repr() for mode in (False, True)
)


def is_plain(x: Tensor) -> bool:
    """Return whether a tensor is plain strided memory on the CPU. If torch cannot tell, none is."""
    return dispatch_keys(x).raw_repr() in PLAIN_KEYS


# Not ``None`` while ``torch.jit.trace`` is recording. If it is unknown, assume that it is.
tracing_state: Callable[[], Any] = find("_C._get_tracing_state") or (lambda: True)

# The number of active dispatch modes, such as ``FakeTensorMode``. If it is unknown, assume that there is one.
count_dispatch_modes: Callable[[], int] = find("_C._len_torch_dispatch_stack") or (lambda: 1)

# The level of functional transforms such as ``torch.func.vmap``, or ``None`` outside of them. If it is unknown, assume
# that there is one.
transform_level: Callable[[], int | None] = find("_C._functorch.maybe_current_level") or (lambda: 0)

# Whether a functional transform has wrapped a tensor, so that its values cannot be read.
is_wrapped: Callable[[Tensor], bool] = find("_C._functorch.is_functorch_wrapped_tensor") or (lambda x: True)


_set_tracing_state: Any = find("_C._set_tracing_state")


@contextmanager
def plain_tensors() -> Iterator[None]:
    """Leave transforms, dispatch modes, traces and inference mode for a while: new tensors are plain ones."""
    with ExitStack() as stack:
        for module, name, active in (
            ("torch._functorch.pyfunctorch", "temporarily_clear_interpreter_stack", transform_level() is not None),
            ("torch.utils._python_dispatch", "_disable_current_modes", count_dispatch_modes() > 0),
        ):
            if active:
                stack.enter_context(getattr(import_module(module), name)())
        state = tracing_state()
        if _set_tracing_state is not None and state not in (None, True):
            stack.callback(_set_tracing_state, state)
            _set_tracing_state(None)
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        yield


def is_fake(x: Tensor) -> bool:
    """Return whether a tensor has a shape and no values: one of a ``FakeTensorMode``."""
    return isinstance(x, getattr(sys.modules.get("torch._subclasses.fake_tensor"), "FakeTensor", ()))


def in_fake_mode() -> bool:
    """Return whether a ``FakeTensorMode`` is active, which does not take plain tensors."""
    fake = getattr(sys.modules.get("torch._subclasses.fake_tensor"), "FakeTensorMode", ())
    stack: Any = find("utils._python_dispatch._get_current_dispatch_mode_stack")
    return stack is None or any(isinstance(mode, fake) for mode in stack())


def is_sharded(x: Tensor) -> bool:
    """Return whether a tensor is a ``DTensor``, spread over several processes."""
    return isinstance(x, getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ()))


# Torch keeps the level of forward-mode differentiation in a module variable, -1 outside of it. If it is unknown, assume
# that there is one.
forward_mode: Any = forward_ad if hasattr(forward_ad, "_current_level") else SimpleNamespace(_current_level=0)


def is_forward_mode() -> bool:
    """Return whether forward-mode differentiation is active."""
    return bool(forward_mode._current_level >= 0)


def under_transform() -> bool:
    """Return whether forward-mode differentiation, a trace, a mode or a transform has to see every operation."""
    traced = is_forward_mode() or tracing_state() is not None
    return traced or count_dispatch_modes() > 0 or transform_level() is not None


# ---- PyTorch: its compiler -------------------------------------------------------------------------------------------


def constant_for_compiler(function: Function) -> Function:
    """Have the compiler call ``function`` while it traces, and put the result into its graph as a constant.

    As ``torch.compiler.assume_constant_result``, which would import the whole compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def disable_compiler(function: Function, reason: str) -> Function:
    """Have the compiler call ``function`` as it is; errors show the reason since torch 2.7."""
    try:
        untraced: Function = torch.compiler.disable(function, reason=reason)
    except TypeError:
        untraced = torch.compiler.disable(function)
    return untraced


# Whether constants of the compiler can be made from any object, such as a space.
constants_take_objects = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 12)

# Whether ``torch.export`` is tracing, for ONNX or to run without this library. Available since torch 2.7.
is_exporting: Callable[[], bool] = find("compiler.is_exporting") or (
    lambda: torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()
)


# ---- PyTorch: autograd -----------------------------------------------------------------------------------------------

# Whether the graph that is being differentiated is kept for another backward pass. Available since torch 2.5.
keeps_graph: Callable[[], bool] = find("_C._autograd._get_current_graph_task_keep_graph") or (lambda: True)


_softmax_backward: Any = find("_softmax_backward_data")


def softmax_backward(gradient: Tensor, p: Tensor, result: Tensor) -> None:
    """Compute the gradient with respect to logits from that w.r.t. their softmax ``p``, written to ``result``.

    Autograd's own function for ``softmax``: one pass instead of four. It ignores the strides of ``result``.
    """
    if _softmax_backward is None or not result.is_contiguous():
        torch.sub(gradient, (gradient * p).sum(-1, keepdim=True), out=result).mul_(p)
    else:
        _softmax_backward(gradient, p, -1, p.dtype, grad_input=result)


def fast_apply(function: type[torch.autograd.Function]) -> Any:
    """Return ``function.apply`` without its check for functional transforms, for callers that have made it."""
    parent: Any = super(torch.autograd.Function, function)
    return parent.apply


# ---- PyTorch: its thread pool ----------------------------------------------------------------------------------------

_LIBRARIES = ("libtorch_cpu.so", "libtorch_cpu.dylib", "torch_cpu.dll")


def parallel_for() -> Any:
    """Return ``at::parallel_for`` of the stable ABI, or ``None``: ``(begin, end, grain, callback, context)``."""
    folder = Path(torch.__file__).parent / "lib"
    path = next((folder / name for name in _LIBRARIES if (folder / name).exists()), None)
    return None if path is None else getattr(ctypes.CDLL(str(path)), "torch_parallel_for", None)
