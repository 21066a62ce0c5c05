"""One trial of model and loss on two samples: refuses what does not fit, and shows what the model does in training."""

from __future__ import annotations

import copy
import pickle
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.utils._python_dispatch import TorchDispatchMode

from kasync.data.federated import FederatedTensors
from kasync.errors import UserError
from kasync.work.objective import Inputs, Objective, copied, cross_entropy, plain, scores_in, taken, tensor_in
from kasync.work.protocol import Gradient, Local, Work

SMALL = 500_000  # parameters; with more, one client's kernels fill a GPU, and moving weights costs more than pictures
PRIVATE = 500_000  # parameters, frozen ones too; with fewer, to look at every operation takes longer than to take turns
CHANCE = threading.Lock()  # PyTorch has one generator for all threads: who draws holds this


@dataclass(frozen=True, eq=False)
class Traits:
    """What one forward pass in training mode shows of a model."""

    changed: tuple[str, ...]  # names of the buffers that it changes
    draws: bool  # random numbers
    loose: bool = False  # some of them outside the model's own calls, or not by PyTorch
    judged: bool = False  # random numbers in evaluation mode too
    answers: bool = True  # whether it makes a tensor of the inputs, which accuracy and metrics read
    private: bool = False  # whether all that it draws can come from a generator of each thread's own

    @property
    def draws_from_all(self) -> bool:
        """Whether it draws in training from the generators that all threads share."""
        return self.draws and (self.loose or self.judged or not self.private)

    @classmethod
    def of(cls, model: nn.Module, run: Callable[[nn.Module], bool]) -> Traits:
        """Run a copy of the model once, so that nothing of the user's is touched."""
        trial = sharing(model)
        trial.train()
        before = {name: buffer.clone() for name, buffer in trial.named_buffers()}
        with CHANCE, untouched(trial) as generators:
            with Watch(trial, generators) as seen:
                answers = run(trial)
            trial.eval()
            with Watch(trial, generators) as judged:
                run(trial)
        changed = tuple(name for name, buffer in trial.named_buffers() if not torch.equal(before[name], buffer))
        return cls(changed, seen.inside or seen.outside, seen.outside, judged.inside or judged.outside, answers)


class Private(TorchDispatchMode):
    """What PyTorch draws inside comes from a generator of one's own, not from the one that all threads share."""

    def __init__(self, generator: torch.Generator, turn: AbstractContextManager[Any] = CHANCE) -> None:
        super().__init__()
        self.generator, self.turn = generator, turn  # around what draws from the shared one all the same
        self.drawn = 0  # operations that drew
        self.alike = True  # whether all of them take a generator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        self.drawn += 1
        if any(each.name == "generator" and each.kwarg_only for each in func._schema.arguments):
            return func(*args, **{**kwargs, "generator": kwargs.get("generator") or self.generator})
        self.alike = False
        with self.turn:  # seldom: a model that has drawn in another way when it was tried
            shared = torch.default_generator
            before = shared.get_state()
            shared.set_state(self.generator.get_state())
            try:
                return func(*args, **kwargs)
            finally:
                self.generator.set_state(shared.get_state())
                shared.set_state(before)


def ways_of_drawing(model: nn.Module, forward: Callable[[nn.Module], Tensor]) -> tuple[bool, bool]:
    """Whether a thread's own generator can stand for the shared one, and whether something is drawn on the way back.

    It cannot where an operation takes no generator, where the model has one of its own, or where something is drawn on
    the way back, as recomputed activations are. It need not where the model is small.
    """
    trial = sharing(model).train()
    large = sum(parameter.numel() for parameter in trial.parameters()) >= PRIVATE
    there, back = (Private(torch.Generator(), nullcontext()) for _ in range(2))
    with CHANCE, untouched(trial) as generators, torch.enable_grad():
        before = torch.get_rng_state()
        try:
            with there:
                loss = forward(trial)
            with back:
                loss.backward()
        except Exception:  # a compiled model for example, or one that takes no two samples
            return False, False
        moved = not torch.equal(before, torch.get_rng_state())
    own = len(generators) > len(generators_of(nn.Module()))
    return large and there.alike and not (back.drawn or moved or own), back.drawn > 0


class Watch:
    """Whether random numbers are drawn inside a model's calls, and whether outside of them or not by PyTorch."""

    def __init__(self, model: nn.Module, generators: Sequence[Any]) -> None:
        self.model, self.generators = model, generators
        self.inside = self.outside = False

    def __enter__(self) -> Watch:
        self.handles = [
            self.model.register_forward_pre_hook(lambda *_: self._look("outside")),
            self.model.register_forward_hook(lambda *_: self._look("inside"), always_call=True),
        ]
        self.states = self._states()
        return self

    def __exit__(self, *error: object) -> None:
        self._look("outside")
        for handle in self.handles:
            handle.remove()

    def _look(self, where: str) -> None:
        now = self._states()
        drawn = [before != after for before, after in zip(self.states, now, strict=True)]
        if any(drawn):
            others = any(
                changed and not isinstance(generator, torch.Generator)
                for changed, generator in zip(drawn, self.generators, strict=True)
            )
            setattr(self, "outside" if others else where, True)
        self.states = now

    def _states(self) -> list[bytes]:
        states = [generator.get_state() for generator in self.generators]
        return [each.numpy().tobytes() if isinstance(each, Tensor) else pickle.dumps(each) for each in states]


class OfNumpy:
    """numpy's generator for everybody, as if it were one of PyTorch's."""

    get_state, set_state = staticmethod(np.random.get_state), staticmethod(np.random.set_state)

    @staticmethod
    def manual_seed(number: int) -> None:
        np.random.seed(number % 2**32)  # noqa: NPY002 - it is the one that is meant


class OfPython:
    """The generator of the module `random`, likewise."""

    get_state, set_state = staticmethod(random.getstate), staticmethod(random.setstate)
    manual_seed = staticmethod(random.seed)


def sharing(model: nn.Module) -> nn.Module:
    """A copy of the model that shares what is frozen, which may be most of it."""
    memo = {id(value): value for value in model.parameters() if not value.requires_grad}
    try:
        made = copy.deepcopy(model, memo)
    except (RuntimeError, TypeError) as problem:
        if out_of_memory(problem):
            raise
        raise UserError(
            f"the model cannot be copied ({first_line(problem)}): keep only parameters, buffers and settings in it, "
            "and use torch.nn.utils.parametrizations for weights that are computed."
        ) from problem
    for parameter in made.parameters():
        parameter.grad = None
    return made


def generators_of(model: nn.Module, everywhere: bool = True) -> list[Any]:
    """PyTorch's generators that a model may draw from, and its own; those of numpy and Python too."""
    found: list[Any] = [torch.default_generator]
    devices = {parameter.device for parameter in model.parameters() if parameter.is_cuda}
    found += [torch.cuda.default_generators[device.index or 0] for device in devices]
    found += [each for part in model.modules() for each in vars(part).values() if isinstance(each, torch.Generator)]
    return [*found, OfNumpy, OfPython] if everywhere else found


@contextmanager
def untouched(model: nn.Module) -> Iterator[list[Any]]:
    """Whatever is drawn inside, the generators are afterwards as they were."""
    generators = generators_of(model)
    states = [generator.get_state() for generator in generators]
    try:
        yield generators
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def out_of_memory(problem: BaseException) -> bool:
    """Whether this error says that memory ran out, on a device or at the host."""
    if isinstance(problem, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(problem, RuntimeError) and any(
        words in str(problem) for words in ("can't allocate memory", "not enough memory", "out of memory")
    )


def first_line(problem: BaseException) -> str:
    """What an error says, in one line."""
    return (str(problem).splitlines() or [type(problem).__name__])[0]


def refuse_empty(model: nn.Module) -> None:
    """Refuse what is no model, and one in which nothing is trained."""
    if not isinstance(model, nn.Module):
        raise UserError(f"model is a {type(model).__name__}: pass a torch.nn.Module, as models.lenet() makes one.")
    if any(isinstance(part, torch.jit.ScriptModule) for part in model.modules()):
        raise UserError("the model is scripted or traced, and cannot be copied with its gradients: pass the plain one.")
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise UserError(f"the model's {name} has no shape yet: call the model once on a batch of the data before.")
    if not list(model.parameters()):
        raise UserError("the model has no parameters: there is nothing to train.")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("every parameter of the model is frozen: set requires_grad to True for what is to be trained.")
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and not parameter.is_floating_point():
            raise UserError(f"the model's parameter {name} is {parameter.dtype}: train floating-point parameters.")
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise UserError(
                f"the model's parameter {name} has a hook, which a copy of the model has not: change the gradient in a "
                "training loop of your own, work=Custom(loop, ...), or in the model's forward."
            )


def tried(model: nn.Module, data: FederatedTensors, objective: Objective) -> Traits:
    """Run model and loss on two samples: refuse what does not fit the data, and see what the model does in training."""
    rows = slice(0, 2)
    inputs = copied(data.test_inputs, rows)
    labels = None if data.test_labels is None else data.test_labels[rows].clone()
    held: list[Tensor] = []

    def run(trial: nn.Module) -> bool:
        with torch.no_grad():
            if objective.whole:
                held.append(_loss_of(lambda: objective.losses(trial, inputs, labels), objective))
                return _answers(trial, objective, inputs)
            outputs = plain(_outputs_of(trial, objective, inputs))
            _check_outputs(outputs, labels, objective)
            held.append(_loss_of(lambda: objective.loss(outputs, labels), objective))
            return True

    traits = Traits.of(model, run)
    count = len(taken(next(iter(inputs.values())) if isinstance(inputs, dict) else inputs, rows))  # type: ignore[arg-type]
    shapes = ((count,), ()) if objective.whole else ((count,),)
    if tuple(held[0].shape) not in shapes:
        raise UserError(
            f"the loss returns shape {tuple(held[0].shape)} for {count} samples: return one each (reduction='none')."
        )
    if objective.metrics and not traits.answers:
        raise UserError(
            f"metrics = {sorted(objective.metrics)}: model(inputs) gives no tensor of outputs that they could read; "
            "leave them out, or let the model return a tensor or a dict with 'logits'."
        )
    if traits.draws and not (traits.loose or traits.judged or next(model.parameters()).is_cuda):

        def mean(trial: nn.Module) -> Tensor:
            return objective.mean(trial, copied(inputs, rows), None if labels is None else labels.clone())

        private, back = ways_of_drawing(model, mean)
        return replace(traits, private=private, loose=back)
    return traits


def trained(model: nn.Module) -> int:
    """How many numbers of it are trained."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def takes_channels_last(model: nn.Module, data: FederatedTensors, work: Work, objective: Objective) -> bool:
    """Whether a small network of convolutions takes pictures whose channels lie last in memory: it is tried on two."""
    layers = sum(isinstance(part, nn.Conv2d) for part in model.modules())
    if layers < 2 or trained(model) > SMALL or not isinstance(work, Gradient | Local):
        return False
    if not isinstance(data.inputs, Tensor) or data.inputs.dim() != 4:
        return False
    trial = sharing(model).train()
    inputs = data.inputs[[0, 0]].contiguous(memory_format=torch.channels_last)
    labels = None if data.labels is None else data.labels[[0, 0]]
    try:
        with CHANCE, untouched(trial), torch.enable_grad():
            objective.mean(trial, inputs, labels).backward()
    except Exception:  # it relies on another order, with .view() for example
        return False
    return True


def refuse_optimizer(model: nn.Module, work: Work) -> None:
    """Refuse an optimiser of local work that does not take this model's parameters."""
    if not isinstance(work, Local) or work.elementwise:
        return
    try:
        work.made([parameter for parameter in model.parameters() if parameter.requires_grad])
    except Exception as problem:
        if out_of_memory(problem):
            raise
        raise UserError(
            f"the optimizer of {work!r} does not take the model's parameters ({first_line(problem)}): choose another."
        ) from problem


def _answers(model: nn.Module, objective: Objective, inputs: Inputs) -> bool:
    """Whether the model, whose loss is a function of model and batch, also makes a tensor of the inputs alone."""
    try:
        return tensor_in(objective.outputs(model, inputs)) is not None
    except Exception as problem:
        if out_of_memory(problem):
            raise
        return False


def _outputs_of(model: nn.Module, objective: Objective, inputs: Inputs) -> Any:
    try:
        return objective.outputs(model, inputs)
    except UserError:
        raise
    except Exception as problem:
        first = inputs if isinstance(inputs, Tensor) else {name: tuple(each.shape[1:]) for name, each in inputs.items()}
        shape = tuple(first.shape[1:]) if isinstance(first, Tensor) else first
        remedy = "choose another"
        if any(each.dtype == torch.uint8 for each in ([inputs] if isinstance(inputs, Tensor) else inputs.values())):
            remedy += ", or give the data scale='none' where bytes are tokens and not pixels"
        if isinstance(inputs, Tensor) and any(isinstance(part, nn.Conv2d) for part in model.modules()):
            if inputs.dim() == 4 and inputs.shape[3] in (1, 3, 4):
                remedy = "put the channels of the pictures first, inputs.transpose(0, 3, 1, 2)"
            elif inputs.dim() == 3:
                remedy = "give each picture a channel, inputs[:, None]"
        raise UserError(
            f"the model does not take the data's inputs of shape {shape} ({first_line(problem)}): {remedy}."
        ) from problem


def _check_outputs(outputs: Tensor, labels: Tensor | None, objective: Objective) -> None:
    classes = objective.classes
    if labels is None or not classes or labels.is_floating_point() or labels.dtype == torch.bool:
        return
    scores = scores_in(outputs, labels)
    if scores is None and (labels.dim() > 1 or objective.loss is not cross_entropy):
        return  # the loss says itself what it takes
    width = 0 if scores is None else scores.shape[-1]
    if width < classes and (objective.loss is cross_entropy or width > 1):  # one score may stand for two classes
        raise UserError(
            f"the model's outputs have shape {tuple(outputs.shape[1:])} for {classes} classes: give one for each."
        )


def _loss_of(call: Callable[[], Any], objective: Objective) -> Tensor:
    try:
        losses = call()
    except UserError:
        raise
    except Exception as problem:
        if out_of_memory(problem):
            raise
        hint = "" if objective.whole else ", or call its first parameter 'model' if it takes model and batch"
        raise UserError(f"the loss fails on two samples ({first_line(problem)}): check it{hint}.") from problem
    if not isinstance(losses, Tensor):
        raise UserError(f"the loss returns a {type(losses).__name__}: return a tensor with the loss of each sample.")
    return losses
