"""Work in plain PyTorch, one client after the other: any model, any optimiser, any training loop.

Each thread has a bench: a copy of the model whose trainable parameters are windows of one flat vector, so that a
version is loaded with one copy and a delivery is one difference. What is frozen is shared by all benches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kasync.counter import Stream, bits
from kasync.data.federated import scaled
from kasync.errors import UserError
from kasync.work.captured import REPEATABLE, Steps
from kasync.work.layers import Chain
from kasync.work.objective import Inputs, Objective, columns, parts, taken
from kasync.work.protocol import Client, Gradient, Local, Work
from kasync.work.trial import CHANCE, Private, Traits, generators_of, sharing, untouched

NOBODY = 2**32 - 1  # the client that an evaluation draws for
BUFFERS = ("average", "local", "frozen")
SHORT = 2**15  # numbers in an array below which one call for all arrays costs less than a copy of their gradients saves


@dataclass(frozen=True)
class Layout:
    """The arrays that are trained, in the order in which they lie in the flat vector [D]."""

    shapes: Mapping[str, torch.Size]

    @classmethod
    def of(cls, model: nn.Module) -> Layout:
        return cls({name: value.shape for name, value in model.named_parameters() if value.requires_grad})

    @cached_property
    def length(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values())

    def split(self, flat: Tensor) -> list[Tensor]:
        """Windows of a flat vector [D] in the shapes of the arrays."""
        pieces = flat.split([math.prod(shape) for shape in self.shapes.values()])
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes.values(), strict=True)]

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        return dict(zip(self.shapes, self.split(flat), strict=True))


def bytes_of(named: Mapping[str, Tensor]) -> int:
    """What these tensors take."""
    return sum(value.numel() * value.element_size() for value in named.values())


def flat_parameters(model: nn.Module) -> Tensor:
    """[D] all trainable parameters of the model, in the order of model.parameters()."""
    chosen = [parameter.detach().flatten() for parameter in model.parameters() if parameter.requires_grad]
    return torch.cat(chosen) if chosen else torch.empty(0)


class Chance:
    """Hooks on a model that draws: call n of a visit draws from (seed, client, visit, n), whoever computes it.

    The generators that it draws from belong to all threads, so that one draws at a time and leaves them as they were;
    where `private` says so, what is drawn comes from a generator of its own instead, with the same bits.
    """

    def __init__(self, model: nn.Module, seed: int, everywhere: bool = False, private: bool = False) -> None:
        self.seed, self.client, self.visit, self.calls = seed, 0, 0, 0
        self.private = Private(torch.Generator()) if private and not everywhere else None
        self.generators = [] if self.private else generators_of(model, everywhere)
        self.states: list[Any] | None = None
        self.silent = False
        model.register_forward_pre_hook(self._before)
        model.register_forward_hook(self._after, always_call=True)

    def begin(self, client: int, visit: int) -> None:
        self.client, self.visit, self.calls = client, visit, 0

    @contextmanager
    def call(self) -> Iterator[None]:
        """What draws inside draws as the next call of the model does."""
        self._seed()
        try:
            yield
        finally:
            self._restore()

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Calls of the model inside neither seed nor count."""
        self.silent = True
        try:
            yield
        finally:
            self.silent = False

    def _before(self, module: nn.Module, given: Any) -> None:
        if module.training and not self.silent:
            self._seed()

    def _after(self, module: nn.Module, given: Any, outputs: Any) -> None:
        if self.states is not None and not self.silent:
            self._restore()

    def _seed(self) -> None:
        number = int(bits(self.seed, Stream.CHANCE, self.client, self.visit, self.calls)) >> 1
        self.calls += 1
        if self.private is not None:
            self.private.generator.manual_seed(number)
            self.private.__enter__()
        else:
            CHANCE.acquire()
        self.states = [generator.get_state() for generator in self.generators]
        for generator in self.generators:
            generator.manual_seed(number)

    def _restore(self) -> None:
        for generator, state in zip(self.generators, self.states or (), strict=True):
            generator.set_state(state)
        self.states = None
        if self.private is not None:
            self.private.__exit__(None, None, None)
        else:
            CHANCE.release()


@dataclass(frozen=True, eq=False)
class Sent:
    """What the server sends: its parameters [D], statistics by name, and what its work sends beside them."""

    params: Tensor
    statistics: Mapping[str, Tensor] = field(default_factory=dict)
    extras: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(eq=False)
class Visit:
    """One client's piece of work: who, and on which samples."""

    client: int
    number: int
    steps_before: int
    samples: list[Tensor]  # rows of the training set, a mini-batch each
    state: dict[str, Tensor]  # what the client kept


@dataclass(eq=False)
class Brought:
    """What a piece of work brings beside its row."""

    loss: Tensor  # [] the mean over its batches
    statistics: dict[str, Tensor]
    extras: dict[str, Tensor]
    state: dict[str, Tensor]


class Cost(NamedTuple):
    """What a piece of work needs and leaves, in bytes."""

    piece: int  # beside its row, while it is under way
    kept: int  # at the client, for its next visit
    brought: int  # beside its row, until it is delivered
    sample: int = 0  # for each sample of a forward pass


class Bench:
    """One thread's own copy of the model, and everything that a piece of work needs."""

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        work: Work,
        traits: Traits,
        buffers: str,
        seed: int,
        chain: Chain | None = None,
        channels_last: bool = False,
    ) -> None:
        self.objective, self.work, self.buffers, self.chain = objective, work, buffers, chain
        self.channels_last = channels_last
        self.model = sharing(model)
        self.layout = Layout.of(self.model)
        self.params = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.flat = torch.cat([parameter.detach().reshape(-1) for parameter in self.params])
        for parameter, window in zip(self.params, self.layout.split(self.flat), strict=True):
            parameter.data = window
        found = dict(self.model.named_buffers())
        self.statistics = {name: found[name] for name in traits.changed}  # this bench's own tensors
        drawn = traits.draws or traits.judged
        everywhere, private = traits.loose or traits.judged, traits.private and self.flat.is_cpu
        self.chance = Chance(self.model, seed, everywhere, private) if drawn else None
        self.loose, self.judged = traits.loose, traits.judged  # what draws as one call does, and nobody beside it
        self.gradient: Tensor | None = None  # [D] of a flat optimiser
        captured = self.flat.is_cuda and isinstance(work, Gradient | Local) and not self.loose
        self.steps = Steps.of(self) if captured else None
        self.loaded: Tensor | None = None  # the version that the model holds, while nothing was trained on it
        self.mode(True)

    def mode(self, training: bool) -> None:
        """Training mode; layers with statistics stay as they are evaluated where those are frozen."""
        self.model.train(training)
        if training and self.buffers == "frozen":
            owners = {name.rpartition(".")[0] for name in self.statistics}
            for name, module in self.model.named_modules():
                if name in owners:
                    module.eval()

    def load(self, sent: Sent, own: Mapping[str, Tensor] | None = None) -> None:
        """Be the model that was sent; `own` are statistics that the client keeps."""
        if self.loaded is not sent.params:
            self.flat.copy_(sent.params)
            self.loaded = sent.params
        for name, buffer in self.statistics.items():
            kept = None if own is None else own.get(f"buffer.{name}")
            value = kept if kept is not None else sent.statistics.get(name)
            if value is not None:
                buffer.copy_(value)

    def evaluate(self, sent: Sent, inputs: Inputs) -> Any:
        """Outputs of the model in evaluation mode."""
        with self._evaluating(sent):
            return self.objective.outputs(self.model, self._laid(inputs))

    def evaluated_losses(self, sent: Sent, inputs: Inputs, labels: Tensor | None) -> Tensor:
        """The losses of the model in evaluation mode, for a loss of model and batch."""
        with self._evaluating(sent):
            return self.objective.losses(self.model, self._laid(inputs), labels)

    @contextmanager
    def _evaluating(self, sent: Sent) -> Iterator[None]:
        """In evaluation mode; what is drawn then is the same for every batch."""
        self.load(sent)
        self.model.eval()
        if self.chance is not None:
            self.chance.begin(NOBODY, 0)
        try:
            with torch.no_grad(), self._as_one_call(self.judged):
                yield
        finally:
            self.mode(True)

    def do(self, sent: Sent, visit: Visit, inputs: Inputs, labels: Tensor | None, row: Tensor) -> Brought:
        """Write what the client delivers into row [D], and return what it brings beside it."""
        if self.steps is not None:
            with REPEATABLE:
                self.steps.prepare(visit.samples, inputs, labels)
        own = visit.state if self.buffers == "local" else None
        self.load(sent, own)
        if self.chance is not None:
            self.chance.begin(visit.client, visit.number)
        state: dict[str, Tensor] = dict(visit.state)
        extras: dict[str, Tensor] = {}
        with self._as_one_call(self.loose), torch.enable_grad(), REPEATABLE if self.flat.is_cuda else nullcontext():
            if isinstance(self.work, Gradient):
                loss = self._pass(visit, 0, inputs, labels, row)
            else:
                self.loaded = None
                if isinstance(self.work, Local):
                    loss = self._local(self.work, sent.params, visit, inputs, labels, state)
                else:
                    loss, state, extras = self._custom(sent, visit, inputs, labels)
                torch.sub(sent.params, self.flat, out=row)
        told = {name: buffer.detach().clone() for name, buffer in self.statistics.items()}
        if self.buffers == "local":
            state |= {f"buffer.{name}": value for name, value in told.items()}
        return Brought(loss.detach(), told if self.buffers != "frozen" else {}, extras, state)

    def measure(self, sent: Sent, visit: Visit, inputs: Inputs, labels: Tensor | None, rows: Tensor) -> Cost:
        """What a piece of work needs, and what it leaves beside its row.

        A mini-batch of these rows shows what a forward pass saves. A training loop of the user's, of which nothing else
        is known, is run once for the visit. Afterwards the bench is good for nothing else: its statistics have changed.
        """
        vector = self.flat.numel() * self.flat.element_size()
        saved = self.try_on(inputs, labels, rows)
        vectors = 3  # the bench's own, the gradients by array, and one in one piece
        statistics = bytes_of(self.statistics)
        kept = statistics if self.buffers == "local" else 0
        brought = statistics if self.buffers != "frozen" else 0
        if isinstance(self.work, Local):
            vectors += self.work.state_vectors
            kept += self.work.state_vectors * vector if self.work.keep else 0
        elif not isinstance(self.work, Gradient):
            with untouched(self.model):
                left = self.do(sent, visit, inputs, labels, torch.empty_like(self.flat))
            kept, brought = bytes_of(left.state), bytes_of(left.statistics) + bytes_of(left.extras)
        return Cost(int(1.25 * saved) + vectors * vector, kept, brought, int(1.25 * saved) // len(rows))

    def try_on(self, inputs: Inputs, labels: Tensor | None, rows: Tensor) -> int:
        """Bytes that the forward pass of a mini-batch of these rows saves for the way back."""
        saved: dict[int, int] = {}
        own = {parameter.untyped_storage().data_ptr() for parameter in self.model.parameters()}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                saved[storage.data_ptr()] = storage.nbytes()
            return tensor

        if self.chance is not None:
            self.chance.begin(0, 0)
        batch = self._laid(taken(inputs, rows)), None if labels is None else labels[rows]
        keeping = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
        with self._as_one_call(self.loose), torch.enable_grad(), keeping:
            self.objective.mean(self.model, *batch)
        return sum(saved.values())

    def _batch(self, visit: Visit, number: int, inputs: Inputs, labels: Tensor | None) -> tuple[Inputs, Tensor | None]:
        rows = visit.samples[number]
        return self._laid(taken(inputs, rows)), None if labels is None else labels[rows]

    def _laid(self, inputs: Inputs) -> Inputs:
        """Pictures in the order of memory that convolutions of few channels are faster in."""
        if self.channels_last and isinstance(inputs, Tensor):
            return inputs.contiguous(memory_format=torch.channels_last)
        return inputs

    @property
    def calls(self) -> int:
        """Calls of a model that draws, in this visit."""
        return 0 if self.chance is None else self.chance.calls

    @calls.setter
    def calls(self, count: int) -> None:
        if self.chance is not None:
            self.chance.calls = count

    def drawing(self) -> AbstractContextManager[None]:
        """Around what draws as a call of the model does."""
        return nullcontext() if self.chance is None else self.chance.call()

    def undrawn(self) -> AbstractContextManager[None]:
        """Around calls of the model that do not count."""
        return nullcontext() if self.chance is None else self.chance.left_out()

    @contextmanager
    def _as_one_call(self, wanted: bool) -> Iterator[None]:
        """Where it is wanted, everything inside draws as one call of the model does, and nobody beside it."""
        if not wanted:
            yield
            return
        with self.drawing(), self.undrawn():
            yield

    def _pass(self, visit: Visit, number: int, inputs: Inputs, labels: Tensor | None, out: Tensor) -> Tensor:
        """Write the gradient of the mean loss of a mini-batch into out [D]; return the loss."""
        if self.steps is not None:
            loss = self.steps.run(visit.samples[number])
            if loss is not None:
                if out is not self.steps.gradient:
                    out.copy_(self.steps.gradient)
                return loss
        if self.chain is not None:
            return self._chained(*self._batch(visit, number, inputs, labels), out)
        return self.derive(self._batch(visit, number, inputs, labels), self.layout.split(out))

    def derive(self, batch: tuple[Inputs, Tensor | None], places: Sequence[Tensor]) -> Tensor:
        """Write the gradient of the mean loss of a batch into its places; return the loss."""
        loss = self.objective.mean(self.model, *batch)
        found = torch.autograd.grad(loss, self.params, allow_unused=True)
        with torch.no_grad():
            if all(each is not None and not each.is_sparse for each in found):
                torch._foreach_copy_(list(places), found)
            else:
                for place, each in zip(places, found, strict=True):
                    place.zero_() if each is None else place.copy_(each.to_dense() if each.is_sparse else each)
        return loss.detach()

    @torch.no_grad()
    def _chained(self, inputs: Inputs, labels: Tensor | None, out: Tensor) -> Tensor:
        """The same of a chain of known layers."""
        assert self.chain is not None
        assert isinstance(inputs, Tensor)
        assert labels is not None
        shares = torch.full((len(labels),), 1.0 / len(labels))
        x = scaled(inputs, self.objective.scale)
        return self.chain.gradients(self.flat, x, labels, shares, self.objective.loss, out[None])[0]

    def _derived(self, batch: tuple[Inputs, Tensor | None]) -> Tensor:
        """Leave the gradient of the mean loss of a batch where it was made, at each parameter; return the loss."""
        for parameter in self.params:
            parameter.grad = None
        loss = self.objective.mean(self.model, *batch)
        loss.backward()
        for parameter in self.params:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            elif parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()
        return loss.detach()

    def _local(
        self, work: Local, start: Tensor, visit: Visit, inputs: Inputs, labels: Tensor | None, state: dict[str, Tensor]
    ) -> Tensor:
        """Local steps with an optimiser; its state is in `state` where it is kept."""
        whole = bool(work.proximal) or work.clip is not None  # these read all gradients together
        small = work.elementwise and self.flat.numel() < SHORT * len(self.params)
        direct = self.steps is None and self.chain is None and not whole and not small  # gradients stay where made
        moved = [nn.Parameter(self.flat)] if work.elementwise and not direct else self.params
        if not direct:
            if self.gradient is None:
                self.gradient = torch.empty_like(self.flat) if self.steps is None else self.steps.gradient
            places = [self.gradient] if moved is not self.params else self.layout.split(self.gradient)
            for parameter, place in zip(moved, places, strict=True):
                parameter.grad = place
        optimizer = work.made(moved)
        rates = [group["lr"] for group in optimizer.param_groups]
        if work.keep and state:
            _restore(optimizer, moved, state)
        losses = []
        for number in range(len(visit.samples)):
            if direct:
                losses.append(self._derived(self._batch(visit, number, inputs, labels)))
            else:
                assert self.gradient is not None
                losses.append(self._pass(visit, number, inputs, labels, self.gradient))
                with torch.no_grad():
                    if work.proximal:
                        self.gradient.add_(self.flat - start, alpha=work.proximal)
                    if work.clip is not None:
                        self.gradient.mul_((work.clip / self.gradient.norm().clamp(min=1e-30)).clamp(max=1.0))
            if work.schedule is not None:
                factor = float(work.schedule(visit.steps_before + number))
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate * factor
            optimizer.step()
        if work.keep:
            state |= _state(optimizer, moved)
        for parameter in self.params:
            parameter.grad = None
        return torch.stack(losses).mean()

    def _custom(
        self, sent: Sent, visit: Visit, inputs: Inputs, labels: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """A training loop of the user's."""
        batches = [columns(*self._batch(visit, number, inputs, labels)) for number in range(len(visit.samples))]
        loss = lambda model, batch: self.objective.mean(model, *parts(batch))  # noqa: E731
        client = Client(visit.client, visit.number, visit.steps_before, loss, dict(visit.state), sent.extras)
        told = self.work.train(self.model, batches, client)
        self.mode(True)  # whatever the loop left it in: which client comes next on this bench is chance
        for parameter in self.params:
            parameter.grad = None
            parameter.requires_grad_(True)
        if told is None:
            trained, statistics = self.flat.clone(), [buffer.clone() for buffer in self.statistics.values()]
            self.load(sent, visit.state if self.buffers == "local" else None)
            with torch.no_grad():
                told = self.objective.mean(self.model, *self._batch(visit, 0, inputs, labels))
            self.flat.copy_(trained)
            self.loaded = None
            for buffer, value in zip(self.statistics.values(), statistics, strict=True):
                buffer.copy_(value)
        self._check_windows()
        kept, extras = _tensors("state", client.state), _tensors("extras", client.extras)
        return _number(told).to(self.flat.device), kept, extras

    def _check_windows(self) -> None:
        """A loop may replace an array (`p.data = ...`): then the model's numbers are copied back into the vector."""
        for parameter, window in zip(self.params, self.layout.split(self.flat), strict=True):
            if parameter.data_ptr() != window.data_ptr():
                window.copy_(parameter.detach())
                parameter.data = window


def _tensors(what: str, named: Mapping[str, Any]) -> dict[str, Tensor]:
    """What a loop left at its client or delivers, each a tensor of its own."""
    made = {}
    for name, value in named.items():
        try:
            made[name] = torch.as_tensor(value).detach().clone()
        except (TypeError, ValueError, RuntimeError):
            raise UserError(
                f"client.{what}[{name!r}] is a {type(value).__name__}: keep tensors or numbers there, each by a name."
            ) from None
    return made


def _number(told: Any) -> Tensor:
    """[] the loss that a training loop returns."""
    try:
        loss = torch.as_tensor(told, dtype=torch.float32).detach()
    except (TypeError, ValueError, RuntimeError):
        loss = torch.empty(0)
    if loss.numel() != 1:
        kind = f"tensor {list(told.shape)}" if isinstance(told, Tensor) else type(told).__name__
        raise UserError(f"the training loop returns a {kind}: return its mean loss as one number, or None.")
    return loss.reshape(())


def _state(optimizer: torch.optim.Optimizer, params: Sequence[Tensor]) -> dict[str, Tensor]:
    """An optimiser's state by name, to be kept for the client's next visit."""
    kept = {}
    for number, parameter in enumerate(params):
        for name, value in optimizer.state[parameter].items():
            if value is not None:
                kept[f"optimizer.{number}.{name}"] = torch.as_tensor(value).clone()
    return kept


def _restore(optimizer: torch.optim.Optimizer, params: Sequence[Tensor], state: Mapping[str, Tensor]) -> None:
    for number, parameter in enumerate(params):
        prefix = f"optimizer.{number}."
        mine = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        if mine:
            optimizer.state[parameter] = {name: value.clone() for name, value in mine.items()}
