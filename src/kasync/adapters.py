"""Low-rank adapters: fine-tuning in which only a few small matrices are trained, delivered and remembered.

    y = W x + b + (alpha / rank) up down x        down [rank, in], up [out, rank] = 0 at first; W and b are frozen

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (ICLR 2022).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn import functional

from kasync.errors import UserError, unknown


class LowRank(nn.Module):
    """A frozen dense layer and its adapter."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float, generator: torch.Generator) -> None:
        super().__init__()
        self.base, self.factor = base, alpha / rank
        bound = base.in_features**-0.5  # as PyTorch draws a dense layer
        down = torch.empty(rank, base.in_features).uniform_(-bound, bound, generator=generator)
        self.down = nn.Parameter(down.to(base.weight))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank).to(base.weight))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + functional.linear(functional.linear(x, self.down), self.up) * self.factor

    @property
    def weight(self) -> Tensor:
        """[out, in] what the layer multiplies by, for modules that read it instead of calling the layer."""
        return self.base.weight + self.up @ self.down * self.factor

    @property
    def bias(self) -> Tensor | None:
        return self.base.bias

    def extra_repr(self) -> str:
        return f"rank={len(self.down)}, factor={self.factor:g}"


def lora(
    model: nn.Module,
    rank: int = 8,
    targets: str | Sequence[str] = ("query", "value"),
    alpha: float = 16.0,
    trainable: str | Sequence[str] = (),
    seed: int = 0,
) -> nn.Module:
    """The model with every parameter frozen and an adapter on each dense layer that is a target.

    A target is the end of a layer's dotted name, "query" or "attention.self.query", and may hold * for any text.
    `trainable` names modules that are trained whole, a new head for example. The frozen weights are shared with the
    model that was given, which itself stays as it is; `merge_lora` makes an ordinary model again.
    """
    if not isinstance(rank, int) or rank < 1:
        raise UserError(f"rank is {rank!r}, but must be a whole number of at least 1: 8, say.")
    if not 0 < alpha < math.inf:
        raise UserError(f"alpha is {alpha!r}, but must be a positive number: 16, say.")
    if any(isinstance(module, LowRank) for module in model.modules()):
        raise UserError("the model has adapters already: merge_lora(model) first.")
    frozen = {id(each): nn.Parameter(each.detach(), requires_grad=False) for each in model.parameters()}
    adapted = copy.deepcopy(model, {**frozen})  # the memory of the weights is shared, not copied
    chosen = _matching(adapted, (targets,) if isinstance(targets, str) else targets)
    generator = torch.Generator().manual_seed(seed)
    for name in chosen:
        layer = adapted.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        if rank > min(layer.in_features, layer.out_features):
            raise UserError(
                f"rank is {rank}, but {name} has {layer.in_features} inputs and {layer.out_features} outputs: lower it."
            )
        _put(adapted, name, LowRank(layer, rank, alpha, generator))
    for pattern in (trainable,) if isinstance(trainable, str) else trainable:
        found = [name for name, _ in adapted.named_modules() if _ends_with(name, pattern)]
        if not found:
            raise unknown("trainable module", pattern, _ends(name for name, _ in model.named_modules() if name))
        for name in found:
            _thaw(adapted, name)
    return adapted


def merge_lora(model: nn.Module) -> nn.Module:
    """The same function as an ordinary model: W + (alpha / rank) up down in place of each adapter, all trainable."""
    merged = copy.deepcopy(model)
    names = [name for name, module in merged.named_modules() if isinstance(module, LowRank)]
    if not names:
        raise UserError("the model has no adapters to merge: make them with kasync.lora(model, rank, targets).")
    for name in names:
        adapter = merged.get_submodule(name)
        assert isinstance(adapter, LowRank)
        adapter.base.weight = nn.Parameter(adapter.weight.detach())
        _put(merged, name, adapter.base)
    return merged.requires_grad_(True)


def _matching(model: nn.Module, targets: Sequence[str]) -> list[str]:
    """The names of the dense layers that end with one of the targets, in the order of the model."""
    dense = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not targets:
        raise UserError(f"targets is empty: name dense layers, {', '.join(_ends(dense)[:4])} for example.")
    if not dense:
        raise UserError(f"{type(model).__name__} has no nn.Linear layer, and adapters need one: train it whole.")
    for target in targets:
        if any(_ends_with(name, target) for name in dense):
            continue
        others = [module for name, module in model.named_modules() if name and _ends_with(name, target)]
        if others:
            kind = type(others[0]).__name__
            raise UserError(f"target {target!r} is no nn.Linear but {kind}: choose from {', '.join(_ends(dense))}.")
        raise unknown("target", target, _ends(dense))
    if dense == [""]:
        raise UserError("the model is a single nn.Linear: put it into a Sequential to give it an adapter.")
    return [name for name in dense if any(_ends_with(name, target) for target in targets)]


def _ends_with(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


def _ends(names: Iterable[str]) -> list[str]:
    """The last words of dotted names, each once; the whole name where the last word is a number."""
    return list(dict.fromkeys(name if name.rpartition(".")[2].isdigit() else name.rpartition(".")[2] for name in names))


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    """Make this the submodule of that name."""
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)


def _thaw(model: nn.Module, name: str) -> None:
    """Make a module's parameters trainable; they are shared with another model, so they are copied first."""
    thawed = model.get_submodule(name)
    if any(isinstance(module, LowRank) for module in thawed.modules()):
        raise UserError(f"trainable {name!r} holds a target: name it in one of the two.")
    copies = {id(each): nn.Parameter(each.detach().clone()) for each in thawed.parameters() if not each.requires_grad}
    for module in model.modules():  # wherever they are tied to
        for own, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) in copies:
                module.register_parameter(own, copies[id(parameter)])
