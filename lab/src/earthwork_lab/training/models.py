"""Networks: the paper's AlexNet with batch normalisation, a smaller one, MLPs for features, and your own."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from earthwork.files import check_regular

ModelFactory: TypeAlias = Callable[[int], nn.Module]


def alexnet_bn(num_classes: int) -> nn.Module:
    """AlexNet with batch normalisation after each ReLU, as the paper trains it, for images of 112 × 112.

    The first stride is 2 instead of 4, so that at half AlexNet's input the later maps keep their sizes (27, 13, 6).

    Example:
        >>> from earthwork_lab.training.models import alexnet_bn
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
    """A smaller network of the same kind, for images of 32 to 64 pixels; its first stride is 2, too.

    Example:
        >>> import torch
        >>> from earthwork_lab.training.models import alexnet_bn_small
        >>> alexnet_bn_small(200).eval()(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 200])
    """
    return nn.Sequential(
        *_convolution(3, 16, 5, stride=2),
        nn.MaxPool2d(3, 2, 1),
        *_convolution(16, 32, 5),
        nn.MaxPool2d(3, 2, 1),
        *_convolution(32, 64, 3),
        *_convolution(64, 64, 3),
        *_convolution(64, 32, 3),
        nn.AdaptiveMaxPool2d(4),
        nn.Flatten(),
        nn.Dropout(0.5),
        *_hidden(32 * 4 * 4, 512),
        nn.Linear(512, num_classes),
    )


def mlp(num_classes: int) -> nn.Module:
    """Two hidden layers of 256 units with batch normalisation and light dropout, for features of any length.

    Example:
        >>> import torch
        >>> from earthwork_lab.training.models import mlp
        >>> mlp(10)(torch.zeros(2, 7)).shape
        torch.Size([2, 10])
    """
    return nn.Sequential(
        nn.Flatten(),
        nn.LazyLinear(256),
        nn.BatchNorm1d(256),
        nn.ReLU(inplace=True),
        nn.Dropout(0.1),
        nn.Linear(256, 256),
        nn.BatchNorm1d(256),
        nn.ReLU(inplace=True),
        nn.Dropout(0.1),
        nn.Linear(256, num_classes),
    )


def mlp_wide(num_classes: int) -> nn.Module:
    """Two hidden layers of 1024 units with dropout 0.5, for many classes with few examples each.

    Example:
        >>> import torch
        >>> from earthwork_lab.training.models import mlp_wide
        >>> mlp_wide(1000)(torch.zeros(2, 64)).shape
        torch.Size([2, 1000])
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


MODELS: dict[str, ModelFactory] = {
    "alexnet-bn": alexnet_bn,
    "alexnet-bn-small": alexnet_bn_small,
    "mlp": mlp,
    "mlp-wide": mlp_wide,
}


def choose_model(name: str, *, images: bool) -> str:
    """``auto`` means the paper's network for images and ``mlp`` for features. Other names are returned unchanged.

    Example:
        >>> from earthwork_lab.training.models import choose_model
        >>> choose_model("auto", images=True), choose_model("auto", images=False), choose_model("a.b:c", images=True)
        ('alexnet-bn', 'mlp', 'a.b:c')
    """
    if name != "auto":
        return name
    return "alexnet-bn" if images else "mlp"


def import_object(what: str, name: str) -> Any:
    """Import ``package.module:attribute``; the working folder is searched first.

    Args:
        what: The option, for the message.
        name: The module and the attribute.

    Raises:
        ValueError: If there is no such module or attribute.
    """
    module_name, _, attribute = name.partition(":")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return getattr(import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{what} {name!r}: {error}") from error


def find_model(name: str) -> ModelFactory:
    """A built-in model by its name, or a function of the number of classes as ``package.module:function``.

    Raises:
        ValueError: If it cannot be found.
    """
    if name in MODELS:
        return MODELS[name]
    module_name, _, attribute = name.partition(":")
    if not (module_name and attribute):
        raise ValueError(f"model: expected one of auto, {', '.join(MODELS)} or package.module:function, got {name!r}")
    factory: ModelFactory = import_object("model", name)
    if not callable(factory):
        raise ValueError(f"model {name!r}: expected a function of the number of classes, got {factory!r}")
    return factory


def build_model(name: str, num_classes: int) -> nn.Module:
    """A new network for a number of classes."""
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


class TrainedModel(nn.Module):
    """A network with the normalisation of its inputs: raw inputs to logits.

    Args:
        network: Maps normalised inputs to logits.
        mean: Subtracted from the inputs; one number for each feature or channel.
        std: What they are then divided by.
        name: The name of the network, as `build_model` takes it.
        classes: The names of the classes.

    Shape:
        - input: features ``[N, D]``, or images ``[N, H, W, C]`` of bytes
        - output: logits ``[N, classes]``
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, network: nn.Module, mean: Tensor, std: Tensor, *, name: str = "", classes: tuple[str, ...] = ()
    ) -> None:
        super().__init__()
        self.network = network
        self.name = name
        self.classes = classes
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)

    def normalized(self, x: Tensor) -> Tensor:
        """What the network takes: bytes scaled to [0, 1], then standardised; images with the channels first."""
        if x.ndim != 4:
            return (x - self.mean) / self.std
        # A permuted view of [N, H, W, C] is in the channels-last memory format, the fastest one for convolutions.
        return ((x.float() / 255 - self.mean) / self.std).permute(0, 3, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of raw inputs."""
        logits: Tensor = self.network(self.normalized(x))
        return logits

    def to_bytes(self) -> bytes:
        """The content of a weights file, which `load_model` reads."""
        content = {
            "model": self.name,
            "classes": list(self.classes),
            "mean": self.mean.cpu(),
            "std": self.std.cpu(),
            "network": {name: value.cpu() for name, value in self.network.state_dict().items()},
        }
        buffer = io.BytesIO()
        torch.save(content, buffer)
        return buffer.getvalue()


_CONTENT: dict[str, type | tuple[type, ...]] = {
    "model": str,
    "classes": (list, tuple),
    "mean": Tensor,
    "std": Tensor,
    "network": dict,
}


def load_model(path: str | Path, *, trust: bool = False) -> TrainedModel:
    """A trained model from ``weights-last.pt`` or ``weights-best.pt``, in evaluation mode.

    It takes raw inputs: the normalisation of training is part of it.

    Args:
        path: The file.
        trust: Import and call the function that the file names, if its network is not one of `MODELS`. The name may be
            that of any function that can be imported, so do this only with files of people you trust.

    Raises:
        ValueError: If the file holds something else, or names a function and ``trust`` is false.
    """
    check_regular(Path(path))
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged pickles raise errors of many kinds
        raise ValueError(f"{path}: not a file of weights: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(content, dict) or not all(isinstance(content.get(name), kind) for name, kind in _CONTENT.items()):
        raise ValueError(f"{path}: expected the weights that `earthwork train` writes")
    if content["model"] not in MODELS and not trust:
        raise ValueError(
            f"{path}: its network is made by {content['model']!r}, which would be imported and called; pass trust=True "
            "if you trust the file"
        )
    network = build_model(content["model"], len(content["classes"]))
    try:
        network.load_state_dict(content["network"])
    except RuntimeError as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())[:200]}") from error
    model = TrainedModel(
        network, content["mean"], content["std"], name=content["model"], classes=tuple(content["classes"])
    )
    return model.eval()
