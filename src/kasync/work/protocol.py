"""What a client does with the model it received: one gradient, local training, or a training loop of the user's.

A work never sees a clock or a server. It says how many mini-batches a visit takes, and what is done with them.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kasync import checks
from kasync.errors import UserError

Batch = dict[str, Any]  # the columns of one mini-batch by name: inputs, labels, or the names that the data have
OptimizerFactory = Callable[..., torch.optim.Optimizer]
ELEMENTWISE = tuple(  # may step one flat vector instead of many arrays: no number depends on another's
    getattr(torch.optim, name)
    for name in (
        "SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD",
    )
)  # fmt: skip
FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)  # in one pass over memory on a CPU


@dataclass(eq=False)
class Client:
    """What a training loop is told of the client it runs for, and where it leaves what is not in the model."""

    number: int
    visit: int  # how often this client has worked before
    steps_before: int  # mini-batches of its earlier visits
    loss: Callable[[nn.Module, Batch], Tensor]  # the mean loss of a batch
    state: dict[str, Tensor] = field(default_factory=dict)  # kept for this client's next visit
    sent: Mapping[str, Tensor] = field(default_factory=dict)  # what the server sends beside the model
    extras: dict[str, Tensor] = field(default_factory=dict)  # what the client delivers beside its row


@dataclass(frozen=True)
class Work:
    """A piece of work: mini-batches of `batch_size` samples, `steps` of them or as many as `epochs` take.

    Subclasses give `train(model, batches, client)`, a PyTorch training loop over the batches; it returns the mean loss,
    or None to have the loss of the first batch at the received model taken. What the client delivers is the received
    model minus the trained one. Override `sends` and `merge` where the server sends more than the model.
    """

    batch_size: int
    steps: int | None = None
    epochs: int | None = None
    vectorised: ClassVar[bool] = False  # whether chain and vmap backends know it

    def __post_init__(self) -> None:
        checks.count("batch_size", self.batch_size)
        if (self.steps is None) == (self.epochs is None):
            given = "neither" if self.steps is None else "both"
            raise UserError(f"{type(self).__name__} has {given} of steps and epochs: give one of them.")
        for name in ("steps", "epochs"):
            if getattr(self, name) is not None:
                checks.count(name, getattr(self, name))

    def __str__(self) -> str:
        """As it is represented, without addresses in memory, which are others in the next process."""
        return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(self))

    def batches(self, sizes: NDArray[np.integer]) -> NDArray[np.int64]:
        """Mini-batches of one visit, for clients with so many samples."""
        if self.steps is not None:
            return np.full(len(sizes), self.steps, dtype=np.int64)
        assert self.epochs is not None
        return self.epochs * -(-np.asarray(sizes, dtype=np.int64) // self.batch_size)

    def train(self, model: nn.Module, batches: Sequence[Batch], client: Client) -> Tensor | float | None:
        """Train the model, which is the client's own copy, on its batches."""
        raise NotImplementedError(f"{type(self).__name__} has no train(model, batches, client): give it one")

    def sends(self, model: nn.Module) -> Mapping[str, Tensor]:
        """What the server sends beside the model, as it is before the first step."""
        return {}

    def merge(self, sent: Mapping[str, Tensor], extras: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """What the server sends from now on, given the extras [K, ...] of the usable deliveries of a step."""
        return sent


@dataclass(frozen=True)
class Gradient(Work):
    """The gradient of the mean loss of one mini-batch at the model the client received   (the paper)"""

    vectorised: ClassVar[bool] = True
    steps: int | None = field(default=1, init=False, repr=False)
    epochs: int | None = field(default=None, init=False, repr=False)


@dataclass(frozen=True)
class Local(Work):
    """The received model minus the model after local training   (FedAvg, FedBuff and practice)

    optimizer    any torch.optim class or a function of the parameters; `lr` and `options` are passed to it
    proximal     mu of FedProx: adds mu (w - w_received) to every gradient
    clip         the longest that a gradient may be, over all trainable parameters
    schedule     a factor on lr as a function of how many mini-batches this client has worked on in its life
    keep         whether the optimiser's state waits at the client for its next visit, as in DiLoCo
    """

    lr: float | None = None
    optimizer: OptimizerFactory = torch.optim.SGD
    options: Mapping[str, Any] = field(default_factory=dict)
    proximal: float = 0.0
    clip: float | None = None
    schedule: Callable[[int], float] | None = None
    keep: bool = False

    def __init__(
        self,
        batch_size: int,
        steps: int | None = None,
        epochs: int | None = None,
        lr: float | None = None,
        optimizer: OptimizerFactory = torch.optim.SGD,
        proximal: float = 0.0,
        clip: float | None = None,
        schedule: Callable[[int], float] | None = None,
        keep: bool = False,
        **options: Any,
    ) -> None:
        values = (batch_size, steps, epochs, lr, optimizer, options, proximal, clip, schedule, keep)
        names = ["batch_size", "steps", "epochs", "lr", "optimizer", "options", "proximal", "clip", "schedule", "keep"]
        for name, value in zip(names, values, strict=True):
            object.__setattr__(self, name, value)
        self.__post_init__()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lr is not None:
            checks.above("lr", self.lr, 0.0)
            checks.finite("lr", self.lr)
        checks.at_least("proximal", self.proximal, 0.0)
        if isinstance(self.optimizer, torch.optim.Optimizer):
            kind = type(self.optimizer).__name__
            raise UserError(
                f"optimizer is a {kind} that was made already, and each visit makes one of its own: give the class, "
                f"optimizer=torch.optim.{kind}, and its settings to Local."
            )
        if not callable(self.optimizer):
            raise UserError(
                f"optimizer = {self.optimizer!r}: give a class of torch.optim, torch.optim.SGD for example."
            )
        if self.clip is not None:
            checks.above("clip", self.clip, 0.0)
        self.state_vectors  # noqa: B018 - refuses an optimiser that cannot step

    @cached_property
    def state_vectors(self) -> int:
        """Arrays as long as the parameters that the optimiser keeps, seen on a step of a small array."""
        problem: Exception | None = None
        for shape in ((8,), (8, 8)):  # some optimisers take matrices only
            trial = nn.Parameter(torch.zeros(shape))
            trial.grad = torch.zeros(shape)
            try:
                made = self.made([trial])
                if isinstance(made, torch.optim.LBFGS):
                    raise UserError(
                        "optimizer = LBFGS evaluates the loss several times: write it as a training loop of yours."
                    )
                made.step()
            except (MemoryError, UserError):
                raise
            except Exception as found:
                problem = problem or found
                continue
            kept = [value for value in made.state[trial].values() if torch.is_tensor(value)]
            return sum(value.numel() >= trial.numel() for value in kept)
        assert problem is not None
        reason = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise UserError(f"optimizer = {_named(self.optimizer)} cannot be used ({reason}): change it.") from None

    @property
    def vectorised(self) -> bool:  # type: ignore[override]
        """Plain SGD is the same on rows of many clients."""
        plain = self.optimizer is torch.optim.SGD and not self.options and self.lr is not None
        simple = not self.proximal and self.clip is None and self.schedule is None and not self.keep
        return plain and simple and self.steps is not None

    @property
    def elementwise(self) -> bool:
        """Whether the optimiser may work on one flat vector."""
        kind = getattr(self.optimizer, "func", self.optimizer)
        return kind in ELEMENTWISE

    def made(self, params: Sequence[Tensor]) -> torch.optim.Optimizer:
        """A new optimiser of these parameters."""
        rate = {} if self.lr is None else {"lr": self.lr}
        ways = {"fused": True} if self._fused and all(each.is_cpu for each in params) else {}
        return self.optimizer(params, **rate, **ways, **self.options)

    @cached_property
    def _fused(self) -> bool:
        """Whether the optimiser has a fused step and the user chose no other."""
        kind = getattr(self.optimizer, "func", self.optimizer)
        given = {*self.options, *getattr(self.optimizer, "keywords", {})}
        return kind in FUSED and given.isdisjoint(("fused", "foreach", "capturable", "differentiable"))


@dataclass(frozen=True)
class LocalSGD(Local):
    """The received model minus the model after `steps` local steps of SGD   (FedAsync, FedBuff and practice)"""

    def __init__(self, steps: int, lr: float, batch_size: int) -> None:
        super().__init__(batch_size, steps=steps, lr=lr)

    def __repr__(self) -> str:
        return f"LocalSGD(steps={self.steps}, lr={self.lr}, batch_size={self.batch_size})"


@dataclass(frozen=True)
class Custom(Work):
    """A function of the user's as work: `loop(model, batches)` or `loop(model, batches, client)`, plain PyTorch."""

    loop: Callable[..., Any] = None  # type: ignore[assignment]
    sent: Callable[[nn.Module], Mapping[str, Tensor]] | None = None
    merged: Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], Mapping[str, Tensor]] | None = None

    def __init__(
        self,
        loop: Callable[..., Any],
        batch_size: int,
        steps: int | None = None,
        epochs: int | None = None,
        sends: Callable[[nn.Module], Mapping[str, Tensor]] | None = None,
        merge: Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], Mapping[str, Tensor]] | None = None,
    ) -> None:
        values = (loop, batch_size, steps, epochs, sends, merge)
        for name, value in zip(("loop", "batch_size", "steps", "epochs", "sent", "merged"), values, strict=True):
            object.__setattr__(self, name, value)
        self.__post_init__()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.loop):
            raise UserError(f"loop = {self.loop!r}: give a function of (model, batches) or (model, batches, client).")
        if self._takes not in (2, 3):
            raise UserError(
                f"{_named(self.loop)} takes {self._takes} arguments: model, batches and, if wanted, client."
            )

    @property
    def _takes(self) -> int:
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        known = inspect.signature(self.loop).parameters.values()
        if any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in known):
            return 3
        return sum(each.kind in kinds and each.default is inspect.Parameter.empty for each in known)

    def train(self, model: nn.Module, batches: Sequence[Batch], client: Client) -> Tensor | float | None:
        return self.loop(*(model, batches, client)[: self._takes])

    def sends(self, model: nn.Module) -> Mapping[str, Tensor]:
        return {} if self.sent is None else self.sent(model)

    def merge(self, sent: Mapping[str, Tensor], extras: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return sent if self.merged is None else self.merged(sent, extras)


def length_of(shapes: Mapping[str, torch.Size]) -> int:
    """Numbers in arrays of these shapes."""
    return sum(math.prod(shape) for shape in shapes.values())


def _named(thing: Any) -> str:
    return getattr(thing, "__name__", None) or repr(thing)
