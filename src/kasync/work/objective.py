"""What a model is trained for: how a batch goes in, the loss of each sample, and how good the outputs are."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from kasync.data.federated import FederatedData, scaled
from kasync.errors import UserError
from kasync.work.protocol import Batch

Loss = Callable[..., Tensor]  # (outputs, labels) -> losses [n], or (model, batch) -> losses [n] or their mean
Inputs = Tensor | Mapping[str, Tensor]
IGNORED = -100  # a label that does not count, as in torch


@dataclass(frozen=True, eq=False)
class Objective:
    """A loss, the scale of the pixels, and what the labels mean."""

    loss: Loss
    scale: str
    classes: int
    metrics: Mapping[str, Callable[..., Any]]
    precision: str = "float32"  # or bfloat16: autocast around the model

    @classmethod
    def of(
        cls,
        data: FederatedData,
        loss: Loss | None,
        metrics: Mapping[str, Callable[..., Any]] | None = None,
        precision: str = "float32",
    ) -> Objective:
        return cls(loss or default_loss(data), data.scale, data.classes, dict(metrics or {}), precision)

    @cached_property
    def whole(self) -> bool:
        """Whether the loss is a function of model and batch."""
        try:
            known = list(inspect.signature(self.loss).parameters)
        except (TypeError, ValueError):
            return False
        return bool(known) and known[0] == "model"

    def outputs(self, model: nn.Module, inputs: Inputs) -> Any:
        """What the model makes of the inputs, as it returns it."""
        with torch.autocast(_device(inputs), torch.bfloat16, enabled=self.precision == "bfloat16"):
            if isinstance(inputs, Tensor):
                return model(scaled(inputs, self.scale))
            return model(**{name: scaled(column, self.scale) for name, column in inputs.items()})

    def losses(self, model: nn.Module, inputs: Inputs, labels: Tensor | None) -> Tensor:
        """The loss of each sample [n], or their mean []."""
        if not self.whole:
            return self.loss(plain(self.outputs(model, inputs)), labels)
        batch = {name: scaled(column, self.scale) for name, column in columns(inputs, labels).items()}
        with torch.autocast(_device(inputs), torch.bfloat16, enabled=self.precision == "bfloat16"):
            return self.loss(model, batch)

    def mean(self, model: nn.Module, inputs: Inputs, labels: Tensor | None) -> Tensor:
        """The mean loss of a batch []."""
        losses = self.losses(model, inputs, labels)
        return losses.mean() if losses.dim() else losses


def columns(inputs: Inputs, labels: Tensor | None) -> Batch:
    """A batch by the names of its columns."""
    named: Batch = {"inputs": inputs} if isinstance(inputs, Tensor) else dict(inputs)
    return named if labels is None else named | {"labels": labels}


def parts(batch: Batch) -> tuple[Inputs, Tensor | None]:
    """The inputs and the labels of a batch."""
    named = {name: column for name, column in batch.items() if name != "labels"}
    return (named["inputs"] if list(named) == ["inputs"] else named), batch.get("labels")


def taken(inputs: Inputs, rows: Any) -> Inputs:
    """These rows of every column."""
    return inputs[rows] if isinstance(inputs, Tensor) else {name: column[rows] for name, column in inputs.items()}


def copied(inputs: Inputs, rows: slice) -> Inputs:
    """A copy of these rows of every column: a model may write into what it is given."""
    if isinstance(inputs, Tensor):
        return inputs[rows].clone()
    return {name: column[rows].clone() for name, column in inputs.items()}


def tensor_in(outputs: Any) -> Tensor | None:
    """The tensor that a loss reads: the output itself, or the logits of a model that names its outputs."""
    if isinstance(outputs, Tensor):
        return outputs
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    return logits if isinstance(logits, Tensor) else None


def plain(outputs: Any) -> Tensor:
    """The tensor that a loss reads; refuse outputs that have none."""
    found = tensor_in(outputs)
    if found is not None:
        return found
    raise UserError(
        f"the model returns a {type(outputs).__name__}, which no loss of outputs and labels reads: return a tensor or "
        "a dict with 'logits', or give loss=f with f(model, batch)."
    )


def default_loss(data: FederatedData) -> Loss:
    """By the labels: cross-entropy for classes, binary cross-entropy for booleans, squared error for numbers."""
    labels = data.train.labels
    if labels is None:
        raise UserError("the data have no labels: give loss=f with f(model, batch).")
    if labels.dtype == bool:
        return binary_cross_entropy
    return cross_entropy if data.classes else squared_error


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """[n] of the scores of each class against labels [n, ...], meaned over a sample's labels that are not -100.

    Outputs are [n, ..., classes], or [n, classes, ...] as PyTorch's own cross-entropy has them.
    """
    if labels.dim() == 1:
        return functional.cross_entropy(outputs, labels, reduction="none")
    scores = scores_in(outputs, labels)
    if scores is None:
        marks = ", or pass the labels as bool if each is a mark of its own" if outputs.shape == labels.shape else ""
        raise UserError(
            f"the model gives outputs of shape {tuple(outputs.shape[1:])} for labels of shape "
            f"{tuple(labels.shape[1:])}, a class each: give {tuple(labels.shape[1:])} and one more for the "
            f"classes{marks}."
        )
    losses = functional.cross_entropy(scores.flatten(0, -2), labels.flatten(), reduction="none").view(len(labels), -1)
    counted = (labels != IGNORED).flatten(1).sum(1)
    return losses.sum(1) / counted.clamp(min=1)


def binary_cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """[n] of logits against booleans of the same shape, meaned over a sample's labels."""
    losses = functional.binary_cross_entropy_with_logits(
        _same(outputs, labels), labels.to(outputs.dtype), reduction="none"
    )
    return losses.reshape(len(labels), -1).mean(1)


def squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """[n] of outputs against numbers of the same shape, meaned over a sample's numbers."""
    return (_same(outputs, labels) - labels).square().reshape(len(labels), -1).mean(1)


def scores_in(outputs: Tensor, labels: Tensor) -> Tensor | None:
    """The outputs as [n, ..., classes] for labels [n, ...]; None where they are no scores of classes."""
    if outputs.shape[:-1] == labels.shape:
        return outputs
    if outputs.dim() == labels.dim() + 1 and (outputs.shape[0], *outputs.shape[2:]) == tuple(labels.shape):
        return outputs.movedim(1, -1)
    return None


def _same(outputs: Tensor, labels: Tensor) -> Tensor:
    """The outputs in the shape of the labels, where one is missing at the end."""
    if outputs.shape == labels.shape:
        return outputs
    if outputs.shape == (*labels.shape, 1):
        return outputs.squeeze(-1)
    raise UserError(
        f"the model gives outputs of shape {tuple(outputs.shape[1:])} for labels of shape {tuple(labels.shape[1:])}: "
        "they must be the same, or give a loss of your own."
    )


def correct(outputs: Tensor, labels: Tensor | None, classes: int) -> Tensor:
    """[n] float64, the share of each sample's labels that are right.

    NaN where nothing is a class (in one sample: where all its labels are -100), or where the outputs are no scores: one
    for each class, or for each mark.
    """
    nothing = torch.full((len(outputs),), torch.nan, dtype=torch.float64, device=outputs.device)
    if labels is None or labels.is_floating_point() or (labels.dtype != torch.bool and not classes):
        return nothing
    if labels.dtype == torch.bool:
        if outputs.shape not in (labels.shape, (*labels.shape, 1)):
            return nothing
        return ((_same(outputs, labels) > 0) == labels).double().reshape(len(labels), -1).mean(1)
    scores = scores_in(outputs, labels)
    if scores is None or scores.shape[-1] < classes:
        return nothing
    counted = labels != IGNORED
    if labels.dim() == 1:
        return (scores.argmax(1) == labels).double().masked_fill(~counted, torch.nan)
    right = ((scores.argmax(-1) == labels) & counted).flatten(1).sum(1)
    return right.double() / counted.flatten(1).sum(1)  # 0 / 0 is NaN


def _device(inputs: Inputs) -> str:
    first = inputs if isinstance(inputs, Tensor) else next(iter(inputs.values()))
    return first.device.type
