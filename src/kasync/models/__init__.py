"""Networks by name, built from a seed: those of the papers, and the usual ones of today."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import signature
from math import prod
from typing import Any

from torch import nn

from kasync.errors import UserError, unknown
from kasync.models.attention import GPT, ViT, gpt, vit
from kasync.models.convolutional import (
    celeba_cnn,
    emnist_cnn,
    fedast_cnn,
    fedbuff_cnn,
    femnist_cnn,
    lenet,
    logistic,
    mlp,
    resnet8,
    resnet18,
)
from kasync.models.recurrent import lstm, word_bag

__all__ = [
    "GPT",
    "ViT",
    "build",
    "celeba_cnn",
    "default_for",
    "emnist_cnn",
    "fedast_cnn",
    "fedbuff_cnn",
    "femnist_cnn",
    "gpt",
    "lenet",
    "logistic",
    "lstm",
    "mlp",
    "names",
    "resnet8",
    "resnet18",
    "vit",
    "word_bag",
]


def names() -> list[str]:
    """The names `build` knows."""
    return sorted(_BUILDERS)


def build(name: str, data: Any, seed: int = 0, classes: int | None = None, **settings: Any) -> nn.Module:
    """The named network for a data set (or federated data), or for a shape such as (3, 32, 32) with classes=10.

    `settings` are arguments of its function, layers=2 of `gpt` for example.
    """
    if name not in _BUILDERS:
        raise unknown("model", name, names())
    fitting = _BUILDERS[name](_Task.of(name, data, classes))
    fixed = fitting.keywords.keys() - DEFAULTS_OF_OURS
    known = [each for each in signature(fitting.func).parameters if each != "seed" and each not in fixed]
    for setting in settings:
        if setting not in known:
            raise unknown(f"setting of model {name!r}", setting, known)
    return fitting(seed=seed, **settings)


def default_for(dataset: str) -> str:
    """The name of the network the paper uses for a data set (or the usual one, where the paper has none)."""
    if dataset not in _DEFAULTS:
        raise unknown("data set", dataset, _DEFAULTS)
    return _DEFAULTS[dataset]


@dataclass(frozen=True)
class _Task:
    """What a network must fit."""

    shape: tuple[int, ...]  # of one input
    outputs: int  # numbers for each label
    vocabulary: int  # of tokens, where the inputs are some
    last: bool  # whether a sample has one label, and not one for each token

    @classmethod
    def of(cls, name: str, data: Any, classes: int | None) -> _Task:
        if not hasattr(data, "train"):
            return _checked(name, cls(tuple(data), classes or 0, classes or 0, last=False))
        train, labels = data.train, data.train.labels
        if isinstance(train.inputs, dict):
            raise UserError(f"model {name!r} takes one input, the data has {', '.join(train.inputs)}: pass your own.")
        targets = prod(labels.shape[1:]) if labels is not None and labels.dtype.kind != "i" else 0
        outputs = classes if classes is not None else data.classes or targets
        pixels = train.inputs.dtype == "uint8" and getattr(data, "scale", "unit") != "none"
        tokens = train.inputs.dtype.kind in "iu" and not pixels
        largest = max(int(part.inputs.max(initial=-1)) for part in (train, data.test)) if tokens else -1
        last = labels is None or labels.ndim == 1
        vocabulary = 1 + largest if last else max(outputs, 1 + largest)
        return _checked(name, cls(train.inputs.shape[1:], outputs, vocabulary if tokens else 0, last))


def _checked(name: str, task: _Task) -> _Task:
    """The task, if the network is one for it."""
    needed = _INPUT_SHAPES.get(name, task.shape)
    if task.shape != needed:
        raise UserError(f"model {name!r} takes inputs of shape {needed}, not {task.shape}: choose 'mlp' or 'logistic'.")
    if not task.outputs:
        raise UserError(f"classes is not given for model {name!r} and shape {task.shape}: pass classes=10, say.")
    if name in _FOR_TOKENS and (len(task.shape) != 1 or not task.vocabulary):
        raise UserError(f"model {name!r} takes tokens [N, T], whole numbers, not inputs {task.shape}: choose 'mlp'.")
    if name == "vit" and (len(task.shape) != 3 or task.shape[1] != task.shape[2] or task.shape[1] % 4):
        raise UserError(f"model 'vit' takes square pictures in patches of 4x4, not {task.shape}: choose 'mlp'.")
    if name == "gpt" and task.last and task.outputs != task.vocabulary:
        raise UserError("model 'gpt' predicts the token after each one, not one label for a text: choose 'lstm'.")
    return task


DEFAULTS_OF_OURS = {"hidden", "norm"}  # that a name stands for and settings may change
_BUILDERS: dict[str, Callable[[_Task], partial[Any]]] = {
    "celeba_cnn": lambda task: partial(celeba_cnn, classes=task.outputs),
    "emnist_cnn": lambda task: partial(emnist_cnn, classes=task.outputs),
    "fedast_cnn": lambda task: partial(fedast_cnn, classes=task.outputs),
    "fedbuff_cnn": lambda task: partial(fedbuff_cnn, classes=task.outputs),
    "femnist_cnn": lambda task: partial(femnist_cnn, classes=task.outputs),
    "gpt": lambda task: partial(gpt, context=task.shape[0], vocabulary=task.vocabulary),
    "lenet": lambda task: partial(lenet, classes=task.outputs),
    "logistic": lambda task: partial(logistic, inputs=prod(task.shape), classes=task.outputs),
    "lstm": lambda task: partial(lstm, vocabulary=task.vocabulary, classes=task.outputs, last=task.last),
    "mlp": lambda task: partial(mlp, inputs=prod(task.shape), hidden=64, classes=task.outputs),
    "resnet18": lambda task: partial(resnet18, classes=task.outputs),
    "resnet18_batch": lambda task: partial(resnet18, classes=task.outputs, norm="batch"),
    "resnet8": lambda task: partial(resnet8, classes=task.outputs),
    "resnet8_batch": lambda task: partial(resnet8, classes=task.outputs, norm="batch"),
    "vit": lambda task: partial(vit, classes=task.outputs, size=task.shape[1], channels=task.shape[0]),
    "word_bag": lambda task: partial(word_bag, vocabulary=task.vocabulary, classes=task.outputs),
}
_FOR_TOKENS = {"gpt", "lstm", "word_bag"}
_CIFAR = (3, 32, 32)
_INPUT_SHAPES = {
    "celeba_cnn": (3, 84, 84),
    "emnist_cnn": (1, 28, 28),
    "fedast_cnn": _CIFAR,
    "fedbuff_cnn": _CIFAR,
    "femnist_cnn": (1, 28, 28),
    "lenet": _CIFAR,
    "resnet18": _CIFAR,
    "resnet18_batch": _CIFAR,
    "resnet8": _CIFAR,
    "resnet8_batch": _CIFAR,
}
_DEFAULTS = {
    "digits": "emnist_cnn",
    "mnist": "emnist_cnn",
    "emnist-mnist": "emnist_cnn",
    "emnist-byclass": "emnist_cnn",
    "femnist": "emnist_cnn",
    "cifar10": "lenet",
    "celeba": "celeba_cnn",
    "synthetic": "logistic",
    "mixture": "mlp",
    "shakespeare": "lstm",
    "newsgroups": "word_bag",
}
