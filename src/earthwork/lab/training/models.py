"""Networks: the paper's AlexNet with batch normalisation, a smaller one of its kind, and yours."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TypeAlias

from torch import nn

ModelFactory: TypeAlias = Callable[[int], nn.Module]


def alexnet_bn(num_classes: int) -> nn.Module:
    """AlexNet with batch normalisation after each ReLU, as the paper trains it, for images of 112 × 112.

    The first stride is 2 instead of 4, so that at half AlexNet's input the later maps keep their sizes (27, 13, 6).

    Example:
        >>> from earthwork.lab.training.models import alexnet_bn
        >>> f"{sum(p.numel() for p in alexnet_bn(1000).parameters()):,}"
        '61,119,528'
    """
    return nn.Sequential(
        *_convolution(3, 64, 11, stride=2),
        nn.MaxPool2d(3, 2),
        *_convolution(64, 192, 5),
        nn.MaxPool2d(3, 2),
        *_convolution(192, 384, 3),
        *_convolution(384, 256, 3),
        *_convolution(256, 256, 3),
        nn.AdaptiveMaxPool2d(6),
        nn.Flatten(),
        nn.Dropout(0.5),
        *_hidden(256 * 6 * 6, 4096),
        nn.Dropout(0.5),
        *_hidden(4096, 4096),
        nn.Linear(4096, num_classes),
    )


def alexnet_bn_small(num_classes: int) -> nn.Module:
    """The same kind of network for images of 32 to 64 pixels, small enough for a laptop.

    Example:
        >>> import torch
        >>> from earthwork.lab.training.models import alexnet_bn_small
        >>> alexnet_bn_small(200).eval()(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 200])
    """
    return nn.Sequential(
        *_convolution(3, 32, 5),
        nn.MaxPool2d(3, 2, 1),
        *_convolution(32, 64, 5),
        nn.MaxPool2d(3, 2, 1),
        *_convolution(64, 96, 3),
        *_convolution(96, 96, 3),
        *_convolution(96, 64, 3),
        nn.AdaptiveMaxPool2d(4),
        nn.Flatten(),
        nn.Dropout(0.5),
        *_hidden(64 * 4 * 4, 512),
        nn.Linear(512, num_classes),
    )


def mlp(num_classes: int) -> nn.Module:
    """Two hidden layers over feature vectors of any length.

    Example:
        >>> import torch
        >>> from earthwork.lab.training.models import mlp
        >>> mlp(10)(torch.zeros(2, 7)).shape
        torch.Size([2, 10])
    """
    return nn.Sequential(
        nn.Flatten(),
        nn.LazyLinear(1024),
        nn.ReLU(inplace=True),
        nn.BatchNorm1d(1024),
        nn.Dropout(0.5),
        *_hidden(1024, 1024),
        nn.Dropout(0.5),
        nn.Linear(1024, num_classes),
    )


AUTO = "auto"
MODELS: dict[str, ModelFactory] = {"alexnet-bn": alexnet_bn, "alexnet-bn-small": alexnet_bn_small, "mlp": mlp}


def choose_model(name: str, *, images: bool) -> str:
    """What ``auto`` stands for: the paper's network for images, ``mlp`` for features. Other names stay as they are.

    Example:
        >>> from earthwork.lab.training.models import choose_model
        >>> choose_model("auto", images=True), choose_model("auto", images=False), choose_model("a.b:c", images=True)
        ('alexnet-bn', 'mlp', 'a.b:c')
    """
    if name != AUTO:
        return name
    return "alexnet-bn" if images else "mlp"


def find_model(name: str) -> ModelFactory:
    """A shipped model by its name, or any function of the number of classes as ``package.module:function``.

    Raises:
        ValueError: If there is none, with the reason.
    """
    if name in MODELS:
        return MODELS[name]
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise ValueError(
            f"model: expected one of {', '.join((AUTO, *MODELS))} or package.module:function, got {name!r}"
        )
    try:
        factory = getattr(import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"model {name!r}: {error}") from error
    if not callable(factory):
        raise ValueError(f"model {name!r}: expected a function of the number of classes, got {factory!r}")
    return factory  # type: ignore[no-any-return]


def build_model(name: str, num_classes: int) -> nn.Module:
    """The network that a factory makes for a number of classes."""
    factory = find_model(name)
    try:
        network = factory(num_classes)
    except TypeError as error:
        raise ValueError(f"model {name!r}: expected a function of the number of classes, but: {error}") from error
    if not isinstance(network, nn.Module):
        raise ValueError(f"model {name!r}: expected it to return an nn.Module, got {type(network).__name__}")
    return network


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2)
    return [convolution, nn.ReLU(inplace=True), nn.BatchNorm2d(outputs)]


def _hidden(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Linear(inputs, outputs), nn.ReLU(inplace=True), nn.BatchNorm1d(outputs)]
