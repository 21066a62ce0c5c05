"""Networks drawn from a seed of their own: no global generator is read or moved.

Constructors draw from PyTorch's global generator, so a network is first built without memory (the meta device) and then
filled, module after module, with the distributions that PyTorch's constructors use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from kasync.errors import UserError

Network = TypeVar("Network", bound=nn.Module)
Draw = Callable[[nn.Module, torch.Generator], bool]  # draws a module's own parameters; False: it draws as PyTorch does


def seeded(make: Callable[[], Network], seed: int, draw: Draw | None = None) -> Network:
    """The network that `make` builds, its parameters drawn from the seed by `draw` or as PyTorch draws them."""
    with torch.device("meta"):
        model = make()
    model.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if draw is None or not draw(module, generator):
                _as_pytorch(module, generator)
    return model


def positive(setting: str, value: int) -> int:
    """The value, if a network can have so many of it."""
    if value < 1:
        raise UserError(f"{setting} is {value}, but a network needs at least 1: pass a positive number.")
    return value


def _as_pytorch(module: nn.Module, generator: torch.Generator) -> None:
    """Fill a module's own parameters with the distribution of its reset_parameters."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        bound = module.weight[0].numel() ** -0.5  # uniform within 1/sqrt(fan in)
        module.weight.uniform_(-bound, bound, generator=generator)
        if module.bias is not None:
            module.bias.uniform_(-bound, bound, generator=generator)
    elif isinstance(module, nn.Embedding):
        module.weight.normal_(generator=generator)
        if module.padding_idx is not None:
            module.weight[module.padding_idx].zero_()
    elif isinstance(module, nn.RNNBase):
        for parameter in module.parameters(recurse=False):
            parameter.uniform_(-(module.hidden_size**-0.5), module.hidden_size**-0.5, generator=generator)
    elif isinstance(module, nn.GroupNorm | nn.LayerNorm | nn.BatchNorm2d):
        module.reset_parameters()  # draws nothing: ones, zeros, and fresh statistics
    elif next(module.parameters(recurse=False), None) is not None:
        raise TypeError(f"{type(module).__name__} has parameters and no distribution: pass draw= for it")
