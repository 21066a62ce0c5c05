"""The server's optimiser: any of torch.optim, or one of these, follows the direction of a rule."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kasync import checks, span
from kasync.constants import where

OptimizerFactory = Callable[..., torch.optim.Optimizer]
Layers = tuple[tuple[int, ...], ...]  # the shapes of a model's arrays, in the order they have in the vector [D]
PREFIX = "optimizer."
STEEP = (3.4445, -4.7750, 2.0315)  # the odd polynomial of Jordan et al., steep at zero


def follow(
    optimizer: OptimizerFactory,
    params: Tensor,
    direction: Tensor,
    lr: Tensor,
    memory: Mapping[str, Tensor],
    layers: Layers | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The parameters after what the optimiser makes of the direction, and its new state.

    The optimiser moves with a learning rate of 1, and the rule's own rate, which may depend on staleness, scales its
    move. It moves a vector of zeros, so that its move is exact, unless it reads the parameters, as weight decay does:
    then it moves a copy of them in float64. One that looks at whole arrays, or at the rate itself, as Adafactor does,
    gets the model's arrays and the rate.
    """
    if wants_arrays(optimizer):
        return _follow_arrays(optimizer, params, direction, lr, memory, layers)
    reads = reads_params(optimizer)
    place = params.double() if reads else torch.zeros_like(params)
    before = place.clone() if reads else None
    place.grad = direction.to(place.dtype)
    made = optimizer([place], **_settings(optimizer, params, layers))
    state = {name.removeprefix(PREFIX): value.clone() for name, value in memory.items() if name.startswith(PREFIX)}
    if state:
        made.state[place] = dict(state)
    made.step()
    kept = {PREFIX + name: value for name, value in made.state[place].items() if isinstance(value, Tensor)}
    if before is not None:
        return (before + lr * (place.detach() - before)).to(params.dtype), kept
    return params + lr.to(params.dtype) * place.detach(), kept


def _follow_arrays(
    optimizer: OptimizerFactory,
    params: Tensor,
    direction: Tensor,
    lr: Tensor,
    memory: Mapping[str, Tensor],
    layers: Layers | None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The same on a copy of the model's arrays, one after the other; its state has the array's number in its names."""
    shapes = layers or ((len(params),),)
    sizes = [math.prod(shape) for shape in shapes]
    arrays = [part.view(shape).clone() for part, shape in zip(torch.split(params, sizes), shapes, strict=True)]
    rate = lr if span.unreadable(lr) else float(lr)
    made = optimizer(arrays, **_settings(optimizer, params) | {"lr": rate})
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in memory.items():
        if name.startswith(PREFIX):
            place, _, short = name.removeprefix(PREFIX).partition(".")
            state.setdefault(int(place), {})[short] = value.clone()
    for number, (array, part) in enumerate(zip(arrays, torch.split(direction, sizes), strict=True)):
        array.grad = part.view(array.shape)
        if number in state:
            made.state[array] = state[number]
    made.step()
    kept = {
        f"{PREFIX}{number}.{name}": value
        for number, array in enumerate(arrays)
        for name, value in made.state[array].items()
        if isinstance(value, Tensor)
    }
    return torch.cat([array.detach().flatten() for array in arrays]), kept


def wants_arrays(optimizer: OptimizerFactory) -> bool:
    """Whether its move depends on the shape of an array, or not in proportion on the rate; found out by trying."""
    try:
        return _wants_arrays(optimizer)
    except TypeError:  # a partial with arguments that have no hash
        return _wants_arrays.__wrapped__(optimizer)


@functools.lru_cache(maxsize=256)
def _wants_arrays(optimizer: OptimizerFactory) -> bool:
    if takes_layers(optimizer):
        return False

    def moved(lr: float, *shape: int) -> Tensor:
        """[4] the second move from one place, divided by the rate."""
        start = torch.tensor([1.0, -2.0, 3.0, 0.5], dtype=torch.float64).view(shape)
        place = start.clone()
        made = optimizer([place], **_settings(optimizer, place) | {"lr": lr})
        for slope in (1.0, -0.5):
            place.copy_(start)
            place.grad = slope * torch.tensor([0.5, -0.25, 1.0, 0.125], dtype=torch.float64).view(shape)
            made.step()
        return (place - start).flatten() / lr

    usual = moved(1.0, 4)
    others = (moved(0.25, 4), moved(1.0, 2, 2))
    return not all(torch.allclose(usual, other, rtol=1e-9, atol=1e-12) for other in others)


def reads_params(optimizer: OptimizerFactory) -> bool:
    """Whether its move depends on where the parameters are, found out by letting it move from two places."""
    try:
        return _reads_params(optimizer)
    except TypeError:  # a partial with arguments that have no hash
        return _reads_params.__wrapped__(optimizer)


@functools.lru_cache(maxsize=256)
def _reads_params(optimizer: OptimizerFactory) -> bool:
    moves = []
    for start in (0.0, 3.0):
        place = torch.full((2,), start, dtype=torch.float64)
        place.grad = torch.tensor([0.5, -0.25], dtype=torch.float64)
        made = optimizer([place], **_settings(optimizer, place, ((2,),)))
        made.step()
        moves.append(place.detach() - start)
    return not torch.allclose(moves[0], moves[1], rtol=1e-9, atol=1e-12)


def check(optimizer: OptimizerFactory | None) -> None:
    """Refuse what cannot follow a direction, by letting it take one step."""
    if optimizer is None:
        return
    if "lr" in getattr(optimizer, "keywords", {}):
        raise ValueError(f"optimizer has lr = {optimizer.keywords['lr']!r}: give it to the rule, whose lr is used")  # type: ignore[attr-defined]
    place = torch.zeros(1, requires_grad=True)
    place.grad = torch.zeros(1)
    try:
        optimizer([place], **_settings(optimizer, place)).step()
    except Exception as problem:
        raise ValueError(f"optimizer = {optimizer!r}: cannot follow a direction ({problem})") from problem


def takes_layers(optimizer: OptimizerFactory | None) -> bool:
    """Whether it moves a model layer by layer."""
    return optimizer is not None and "layers" in inspect.signature(optimizer).parameters


def check_layers(layers: Layers | None, length: int) -> None:
    """Refuse shapes of another model's arrays."""
    if layers is not None and (found := sum(map(math.prod, layers))) != length:
        raise ValueError(f"layers hold {found} parameters and params {length}: give the shapes of this model's arrays")


def _settings(optimizer: OptimizerFactory, params: Tensor, layers: Layers | None = None) -> dict[str, Any]:
    """A learning rate of 1, no weight decay, on CUDA the variant that a graph can capture, the layers if it asks."""
    known = inspect.signature(optimizer).parameters
    settings: dict[str, Any] = {"lr": 1.0}
    bound = getattr(optimizer, "keywords", {})
    if "weight_decay" in known and "weight_decay" not in bound:
        settings["weight_decay"] = 0.0
    if params.is_cuda and "capturable" in known:
        settings["capturable"] = True
    if "layers" in known:
        settings["layers"] = layers
    return settings


class Plain(torch.optim.Optimizer):
    """move lr d: a plain step, for a rule that has another optimiser of its own."""

    def __init__(self, params: Any, lr: float = 1.0) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for place in group["params"]:
                place.add_(place.grad, alpha=-group["lr"])


class AMSGrad(torch.optim.Optimizer):
    """m = b1 m + (1-b1) d;  v = b2 v + (1-b2) d^2;  top = max(top, v);  move lr m / (sqrt(top) + eps)

    As FADAS writes it: without Adam's correction of the first steps.
    """

    def __init__(
        self, params: Any, lr: float = 1.0, betas: tuple[float, float] = (0.9, 0.99), eps: float = 1e-8
    ) -> None:
        _check_betas(betas)
        checks.above("eps", eps, 0.0)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            first, second = group["betas"]
            for place in group["params"]:
                zero = torch.zeros_like(place)
                state = self.state[place]
                mean = torch.lerp(place.grad, state.get("mean", zero), first)
                square = torch.lerp(place.grad.square(), state.get("square", zero), second)
                top = torch.maximum(state.get("top", zero), square)
                self.state[place] = {"mean": mean, "square": square, "top": top}
                place.add_(mean / (top.sqrt() + group["eps"]), alpha=-group["lr"])


class FedAdam(torch.optim.Optimizer):
    """m = b1 m + (1-b1) d;  v = b2 v + (1-b2) d^2 from eps^2 on;  move lr m / (sqrt(v) + eps)

    Reddi et al.: Adaptive Federated Optimization (2020), without the corrections of torch's Adam. With `yogi`
    v = v - (1-b2) d^2 sign(v - d^2), which grows and shrinks more slowly.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1.0,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-3,
        yogi: bool = False,
    ) -> None:
        _check_betas(betas)
        checks.above("eps", eps, 0.0)
        checks.flag("yogi", yogi)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "yogi": yogi})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            (first, second), eps = group["betas"], group["eps"]
            for place in group["params"]:
                state, square = self.state[place], place.grad.square()
                mean = torch.lerp(place.grad, state.get("mean", torch.zeros_like(place)), first)
                old = state.get("square", torch.full_like(place, eps**2))
                if group["yogi"]:
                    square = old - (1.0 - second) * square * (old - square).sign()
                else:
                    square = torch.lerp(square, old, second)
                self.state[place] = {"mean": mean, "square": square}
                place.add_(mean / (square.sqrt() + eps), alpha=-group["lr"])


class LookAhead(torch.optim.Optimizer):
    """m = b m + (1-b) d;  move lr (d + b m)   (Momentum Look-Ahead, Ajanthan et al., 2025)

    With `ahead` the parameters are where clients start from, w - lr b m for the model w that moves so, and not w.
    """

    def __init__(self, params: Any, lr: float = 1.0, momentum: float = 0.9, ahead: bool = False) -> None:
        checks.fraction("momentum", momentum)
        checks.flag("ahead", ahead)
        super().__init__(params, {"lr": lr, "momentum": momentum, "ahead": ahead})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for place in group["params"]:
                before = self.state[place].get("mean", torch.zeros_like(place))
                direction = self._direction(place.grad, before, group)
                mean = torch.lerp(direction, before, group["momentum"])
                self.state[place] = {"mean": mean}
                further = 2.0 * mean - before if group["ahead"] else mean
                place.add_(direction + group["momentum"] * further, alpha=-group["lr"])

    def _direction(self, given: Tensor, mean: Tensor, group: Mapping[str, Any]) -> Tensor:
        """[D] what takes the place of the direction that was given."""
        return given


class HeLoCo(LookAhead):
    """The step of Momentum Look-Ahead, with what contradicts m in d corrected layer by layer, times its weight

    Al Asif et al.: HeLoCo (2026). With c = cos(d, m) and q = |d|/(|d| + stiffness |m|) in each layer: d is kept where
    c >= keep; where c < 0, shrink (-c) q of the part of d along m is taken off; between them d is turned towards m,
    to a share turn (keep - c) / (2 keep) q of the way, and stays as long. Without `layers` the model is one layer.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1.0,
        momentum: float = 0.9,
        keep: float = 0.2,
        turn: float = 1.0,
        shrink: float = 0.5,
        stiffness: float = 3.0,
        weight: float = 1.0,
        ahead: bool = True,
        layers: Layers | None = None,
    ) -> None:
        checks.between("keep", keep, 0.0, 1.0)
        checks.at_least("turn", turn, 0.0)
        checks.between("shrink", shrink, 0.0, 1.0)
        checks.at_least("stiffness", stiffness, 0.0)
        checks.above("weight", weight, 0.0)
        super().__init__(params, lr, momentum, ahead)
        own = {"keep": keep, "turn": turn, "shrink": shrink, "stiffness": stiffness, "weight": weight, "layers": layers}
        self.param_groups[0].update(own)

    def _direction(self, given: Tensor, mean: Tensor, group: Mapping[str, Any]) -> Tensor:
        sizes = [math.prod(shape) for shape in group["layers"] or ((len(given),),)]
        pairs = zip(torch.split(given, sizes), torch.split(mean, sizes), strict=True)
        return torch.cat([self._corrected(one, other, group) for one, other in pairs]) * float(group["weight"])

    @staticmethod
    def _corrected(given: Tensor, mean: Tensor, group: Mapping[str, Any]) -> Tensor:
        """[d] one layer's part of the direction, after its correction towards that of the momentum."""
        along, towards = given.double(), mean.double()
        length, other = along.norm(), towards.norm()
        unit, way = along / where(length > 0, length, 1.0), towards / where(other > 0, other, 1.0)
        cosine = unit @ way
        total = length + group["stiffness"] * other
        doubt = length / where(total > 0, total, 1.0)
        taken = unit - group["shrink"] * (-cosine).clamp(min=0.0) * doubt * cosine * way
        missing = (group["keep"] - cosine).clamp(min=0.0) / (2.0 * group["keep"] or 1.0)
        share = (group["turn"] * missing * doubt).clamp(max=1.0)
        turned = (1.0 - share) * unit + share * way
        reached = turned.norm()
        turned = turned / where(reached > 0, reached, 1.0)
        corrected = length * where(cosine < 0, taken, turned)
        return where(cosine < group["keep"], corrected.to(given.dtype), given)


class DelayedNesterov(torch.optim.Optimizer):
    """move lr (c b m + d/N);  in every N-th step m = b m + mean of the last N d, and (1 - c N + c) in the place of c

    Liu et al.: Asynchronous Local-SGD Training for Language Modeling (2024). b is the momentum, N `every`, c `share`.
    With c = 0, N steps move as far as one Nesterov step on their mean.
    """

    def __init__(
        self, params: Any, lr: float = 1.0, momentum: float = 0.9, every: int = 10, share: float = 0.0
    ) -> None:
        checks.fraction("momentum", momentum)
        checks.count("every", every)
        checks.between("share", share, 0.0, 1.0 / every)
        super().__init__(params, {"lr": lr, "momentum": momentum, "every": every, "share": share})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            b, n, c = group["momentum"], group["every"], group["share"]
            for place in group["params"]:
                state, zero = self.state[place], torch.zeros_like(place)
                number = state.get("number", torch.zeros((), dtype=torch.int64, device=place.device)) + 1
                gathered = state.get("gathered", zero) + place.grad
                mean = state.get("mean", zero)
                due = number % n == 0
                mean = where(due, b * mean + gathered / n, mean)
                share = where(due, torch.full_like(number, 1.0 - c * n + c, dtype=place.dtype), c)
                self.state[place] = {"number": number, "gathered": where(due, zero, gathered), "mean": mean}
                place.add_(share * b * mean + place.grad / n, alpha=-group["lr"])


def _check_betas(betas: tuple[float, float]) -> None:
    if not (isinstance(betas, Sequence) and len(betas) == 2 and all(0 <= beta < 1 for beta in betas)):
        raise ValueError(f"betas = {betas!r}: must be two numbers in [0, 1)")


class Muon(torch.optim.Optimizer):
    """m = momentum m + (1-momentum) d;  move lr U V^T,  U S V^T the layer's part of m

    Jordan et al.: Muon (2024): every layer moves equally far in all its directions. An array of several dimensions is
    the matrix of its first one, a vector is a matrix of one row; without `layers` the whole model is one vector.
    """

    def __init__(self, params: Any, lr: float = 1.0, momentum: float = 0.5, layers: Layers | None = None) -> None:
        checks.fraction("momentum", momentum)
        super().__init__(params, {"lr": lr, "momentum": momentum, "layers": layers})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for place in group["params"]:
                before = self.state[place].get("mean", torch.zeros_like(place))
                mean = torch.lerp(place.grad, before, group["momentum"])
                self.state[place] = {"mean": mean}
                place.add_(_evened(mean, group["layers"]), alpha=-group["lr"])


def _evened(vector: Tensor, layers: Layers | None) -> Tensor:
    """[D] every layer's matrix with its singular values set to one."""
    shapes = layers or ((len(vector),),)
    parts = torch.split(vector, [math.prod(shape) for shape in shapes])
    rows = (shape[0] if len(shape) > 1 else 1 for shape in shapes)
    with span.full_precision():
        evened = [_even(part.view(count, -1)) if len(part) else part for part, count in zip(parts, rows, strict=True)]
    return torch.cat([part.flatten() for part in evened])


def _even(matrix: Tensor) -> Tensor:
    """[rows, columns] U V^T of U S V^T, nearly: five products bring the singular values to .7 to 1.2."""
    rows, columns = matrix.shape
    x = matrix.mT if rows > columns else matrix
    length = x.norm()
    x = x / where(length > 0, length, 1.0)
    if min(rows, columns) > 1:
        for _ in range(5):
            gram = x @ x.mT
            bent = torch.addmm(gram, gram, gram, beta=STEEP[1], alpha=STEEP[2])
            x = torch.addmm(x, bent, x, beta=STEEP[0])
    return x.mT if rows > columns else x


NAMED: dict[str, OptimizerFactory | None] = {  # those of settings files and the command line
    "none": None,  # the rule's own
    "plain": Plain,
    "momentum": functools.partial(torch.optim.SGD, momentum=0.9),
    "nesterov": functools.partial(torch.optim.SGD, momentum=0.9, nesterov=True),
    "adam": torch.optim.Adam,
    "adamw": functools.partial(torch.optim.AdamW, weight_decay=0.01),
    "adagrad": torch.optim.Adagrad,
    "adafactor": torch.optim.Adafactor,
    "rmsprop": torch.optim.RMSprop,
    "fedadam": FedAdam,
    "yogi": functools.partial(FedAdam, yogi=True),
    "look_ahead": LookAhead,
    "heloco": HeLoCo,
    "delayed_nesterov": DelayedNesterov,
    "muon": Muon,  # not torch's, which takes matrices only and a decay
}
