"""Which networks does the paper train, and how does one build them from a seed? Every output is a row of logits.

Only Sequential, Conv2d, ReLU, MaxPool2d, Flatten and Linear are used: the simulator has a fast path for exactly these.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import nn

from kasync.errors import UserError, unknown


def emnist_cnn(classes: int = 10, seed: int = 0) -> nn.Sequential:
    """The paper's EMNIST network for 1x28x28: 582,026 parameters with 10 classes, 608,702 with 62."""
    return _initialised(
        lambda: [
            nn.Conv2d(1, 32, 5),  # [B, 32, 24, 24]; no padding, else the parameters do not add up to 582,026
            nn.ReLU(),
            nn.MaxPool2d(2),  # [B, 32, 12, 12]
            nn.Conv2d(32, 64, 5),  # [B, 64, 8, 8]
            nn.ReLU(),
            nn.MaxPool2d(2),  # [B, 64, 4, 4]
            nn.Flatten(),  # [B, 1024]
            nn.Linear(1024, 512),
            nn.ReLU(),
            nn.Linear(512, _positive("classes", classes)),
        ],
        seed,
    )


def lenet(seed: int = 0, classes: int = 10) -> nn.Sequential:
    """LeNet with ReLU for 3x32x32, as the paper trains on CIFAR-10: 62,006 parameters."""
    return _initialised(
        lambda: [
            nn.Conv2d(3, 6, 5),  # [B, 6, 28, 28]
            nn.ReLU(),
            nn.MaxPool2d(2),  # [B, 6, 14, 14]
            nn.Conv2d(6, 16, 5),  # [B, 16, 10, 10]
            nn.ReLU(),
            nn.MaxPool2d(2),  # [B, 16, 5, 5]
            nn.Flatten(),  # [B, 400]
            nn.Linear(400, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, _positive("classes", classes)),
        ],
        seed,
    )


def celeba_cnn(seed: int = 0, classes: int = 2) -> nn.Sequential:
    """The paper's CelebA network for 3x84x84: 1,600,792 parameters, 16,000 values after the pool."""
    return _initialised(
        lambda: [
            nn.Conv2d(3, 10, 4),  # [B, 10, 81, 81]; no padding: only then the pool leaves 10 * 40 * 40 = 16,000 values
            nn.ReLU(),
            nn.MaxPool2d(2),  # [B, 10, 40, 40]
            nn.Flatten(),  # [B, 16000]
            nn.Linear(16000, 100),
            nn.ReLU(),
            nn.Linear(100, _positive("classes", classes)),
        ],
        seed,
    )


def mlp(inputs: int, hidden: int | Sequence[int] = 64, classes: int = 10, seed: int = 0) -> nn.Sequential:
    """Dense layers with ReLU between them; `hidden` is one width or several; images are flattened first."""
    hidden_widths = [hidden] if isinstance(hidden, int) else list(hidden)
    widths = [_positive("inputs", inputs), *(_positive("hidden", width) for width in hidden_widths)]

    def layers() -> list[nn.Module]:
        dense = [(nn.Linear(before, after), nn.ReLU()) for before, after in pairwise(widths)]
        return [nn.Flatten(), *(layer for pair in dense for layer in pair), nn.Linear(widths[-1], classes)]

    _positive("classes", classes)
    return _initialised(layers, seed)


def logistic(inputs: int, classes: int = 10, seed: int = 0) -> nn.Sequential:
    """Multinomial logistic regression: one dense layer; images are flattened first."""
    return mlp(inputs, (), classes, seed)


def names() -> list[str]:
    """The names `build` knows."""
    return sorted(_BUILDERS)


def build(name: str, data: Any, seed: int = 0, classes: int | None = None) -> nn.Sequential:
    """The named network for a data set (or federated data), or for a shape such as (3, 32, 32) with classes=10."""
    if name not in _BUILDERS:
        raise unknown("model", name, names())
    shape = tuple(data.train.inputs.shape[1:]) if hasattr(data, "train") else tuple(data)
    outputs = classes if classes is not None else getattr(data, "classes", None)
    needed = _INPUT_SHAPES.get(name, shape)
    if shape != needed:
        raise UserError(f"model {name!r} takes inputs of shape {needed}, not {shape}: choose 'mlp' or 'logistic'.")
    if outputs is None:
        raise UserError(f"classes is not given for model {name!r} and shape {shape}: pass classes=10, say.")
    return _BUILDERS[name](prod(shape), outputs, seed)


def default_for(dataset: str) -> str:
    """The name of the network the paper uses for a data set (or the usual one, where the paper has none)."""
    if dataset not in _DEFAULTS:
        raise unknown("data set", dataset, _DEFAULTS)
    return _DEFAULTS[dataset]


_BUILDERS: dict[str, Callable[[int, int, int], nn.Sequential]] = {
    "emnist_cnn": lambda inputs, classes, seed: emnist_cnn(classes, seed),
    "lenet": lambda inputs, classes, seed: lenet(seed, classes),
    "celeba_cnn": lambda inputs, classes, seed: celeba_cnn(seed, classes),
    "mlp": lambda inputs, classes, seed: mlp(inputs, 64, classes, seed),
    "logistic": lambda inputs, classes, seed: logistic(inputs, classes, seed),
}
_INPUT_SHAPES = {"emnist_cnn": (1, 28, 28), "lenet": (3, 32, 32), "celeba_cnn": (3, 84, 84)}
_DEFAULTS = {
    "digits": "emnist_cnn",
    "mnist": "emnist_cnn",
    "emnist-mnist": "emnist_cnn",
    "emnist-byclass": "emnist_cnn",
    "femnist": "emnist_cnn",
    "cifar10": "lenet",
    "celeba": "celeba_cnn",
    "synthetic": "logistic",
}


def _initialised(layers: Callable[[], list[nn.Module]], seed: int) -> nn.Sequential:
    """The layers with PyTorch's default distribution, drawn from a generator of their own: no global one is touched."""
    with torch.device("meta"):  # the constructors would otherwise draw from the global generator
        model = nn.Sequential(*layers())
    model.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                bound = layer.weight[0].numel() ** -0.5  # uniform within 1/sqrt(fan in), as reset_parameters does
                layer.weight.uniform_(-bound, bound, generator=generator)
                if layer.bias is not None:
                    layer.bias.uniform_(-bound, bound, generator=generator)
    return model


def _positive(setting: str, value: int) -> int:
    if value < 1:
        raise UserError(f"{setting} is {value}, but a network needs at least 1: pass a positive number.")
    return value
