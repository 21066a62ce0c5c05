"""One trial of model and loss on two samples: refuses what does not fit, and shows what the model does in training."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kasync.data.federated import FederatedTensors
from kasync.errors import UserError
from kasync.work.objective import Inputs, Objective, plain, taken

CHANCE = threading.Lock()  # PyTorch has one generator for all threads: who draws holds this


@dataclass(frozen=True, eq=False)
class Traits:
    """What one forward pass in training mode shows of a model: buffers that it changes, and whether it draws."""

    changed: tuple[str, ...]  # names of buffers
    draws: bool

    @classmethod
    def of(cls, model: nn.Module, run: Callable[[nn.Module], Any]) -> Traits:
        """Run a copy of the model once, so that nothing of the user's is touched."""
        trial = sharing(model)
        trial.train()
        before = {name: buffer.clone() for name, buffer in trial.named_buffers()}
        with CHANCE, untouched(trial) as generators:
            states = [generator.get_state() for generator in generators]
            run(trial)
            draws = any(
                not torch.equal(state, generator.get_state())
                for state, generator in zip(states, generators, strict=True)
            )
        changed = tuple(name for name, buffer in trial.named_buffers() if not torch.equal(before[name], buffer))
        return cls(changed, draws)


def sharing(model: nn.Module) -> nn.Module:
    """A copy of the model that shares what is frozen, which may be most of it."""
    memo = {id(value): value for value in model.parameters() if not value.requires_grad}
    made = copy.deepcopy(model, memo)
    for parameter in made.parameters():
        parameter.grad = None
    return made


def generators_of(model: nn.Module) -> list[torch.Generator]:
    """PyTorch's own generators that a model may draw from."""
    found = [torch.default_generator]
    devices = {parameter.device for parameter in model.parameters() if parameter.is_cuda}
    return found + [torch.cuda.default_generators[device.index or 0] for device in devices]


@contextmanager
def untouched(model: nn.Module) -> Iterator[list[torch.Generator]]:
    """Whatever is drawn inside, PyTorch's own generators are afterwards as they were."""
    generators = generators_of(model)
    states = [generator.get_state() for generator in generators]
    try:
        yield generators
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def refuse_empty(model: nn.Module) -> None:
    """Refuse a model in which nothing is trained."""
    if not list(model.parameters()):
        raise UserError("the model has no parameters: there is nothing to train.")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("every parameter of the model is frozen: set requires_grad to True for what is to be trained.")
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and not parameter.is_floating_point():
            raise UserError(f"the model's parameter {name} is {parameter.dtype}: train floating-point parameters.")


def tried(model: nn.Module, data: FederatedTensors, objective: Objective) -> Traits:
    """Run model and loss on two samples: refuse what does not fit the data, and see what the model does in training."""
    rows = slice(0, 2)
    inputs = taken(data.test_inputs, rows)
    labels = None if data.test_labels is None else data.test_labels[rows]
    held: list[Tensor] = []

    def run(trial: nn.Module) -> None:
        with torch.no_grad():
            if objective.whole:
                held.append(_loss_of(lambda: objective.losses(trial, inputs, labels)))
                return
            outputs = plain(_outputs_of(trial, objective, inputs))
            _check_outputs(outputs, labels, objective)
            held.append(_loss_of(lambda: objective.loss(outputs, labels)))

    traits = Traits.of(model, run)
    count = len(taken(next(iter(inputs.values())) if isinstance(inputs, dict) else inputs, rows))  # type: ignore[arg-type]
    shapes = ((count,), ()) if objective.whole else ((count,),)
    if tuple(held[0].shape) not in shapes:
        raise UserError(
            f"the loss returns shape {tuple(held[0].shape)} for {count} samples: return one each (reduction='none')."
        )
    return traits


def _outputs_of(model: nn.Module, objective: Objective, inputs: Inputs) -> Any:
    try:
        return objective.outputs(model, inputs)
    except UserError:
        raise
    except Exception as problem:
        first = inputs if isinstance(inputs, Tensor) else {name: tuple(each.shape[1:]) for name, each in inputs.items()}
        shape = tuple(first.shape[1:]) if isinstance(first, Tensor) else first
        reason = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise UserError(
            f"the model does not take the data's inputs of shape {shape} ({reason}): choose another."
        ) from problem


def _check_outputs(outputs: Tensor, labels: Tensor | None, objective: Objective) -> None:
    classes = objective.classes
    if labels is None or not classes or labels.is_floating_point() or labels.dtype == torch.bool:
        return
    axis = 1 if labels.dim() == 1 else -1
    if outputs.dim() < 2 or outputs.shape[axis] < classes:
        raise UserError(
            f"the model's outputs have shape {tuple(outputs.shape[1:])} for {classes} classes: give one for each."
        )


def _loss_of(call: Any) -> Tensor:
    try:
        losses = call()
    except UserError:
        raise
    except Exception as problem:
        reason = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise UserError(f"the loss fails on two samples ({reason}): check it.") from problem
    if not isinstance(losses, Tensor):
        raise UserError(f"the loss returns a {type(losses).__name__}: return a tensor with the loss of each sample.")
    return losses
