"""Random deliveries of K clients for the tests of the rules, from gentle to wild."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kasync import Arrivals

LENGTH = 24  # D, the length of a gradient
LAYERS = ((2, 3, 2), (4, 2), (4,))  # of a model of this length: broad, tall, a vector
CLIENTS = 12  # clients of the rules that keep a table


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def deliver(
    random: torch.Generator,
    k: int = 4,
    length: int = LENGTH,
    dtype: torch.dtype = torch.float64,
    norms: tuple[float, float] = (1e-1, 1e1),
    oldest: float = 20,
    clients: int = CLIENTS,
    agreement: float = 1.0,
) -> Arrivals:
    """K distinct clients with gradients that share a direction, more so with more agreement.

    Norms and staleness are drawn evenly on a logarithmic scale.
    """

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=random, dtype=torch.float64)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    rows = normal(k, length) + agreement * normal(length)
    low, high = (torch.tensor(norm, dtype=torch.float64).log10() for norm in norms)
    lengths = 10 ** (low + (high - low) * uniform(k))
    rows = rows / rows.norm(dim=1, keepdim=True) * lengths[:, None]
    staleness = ((1.0 + oldest) ** uniform(k) - 1.0).floor()
    return Arrivals(
        gradients=rows.to(dtype),
        staleness=staleness,
        losses=uniform(k) + 0.5,
        batch_sizes=torch.randint(1, 20, (k,), generator=random).double(),
        clients=torch.randperm(clients, generator=random)[:k],
        starts=normal(k, length).to(dtype),
    )


def taken(arrivals: Arrivals, index: Tensor) -> Arrivals:
    """The arrivals of this index [n], in its order."""
    fields = ("gradients", "staleness", "losses", "batch_sizes", "clients", "starts")
    values = {name: getattr(arrivals, name) for name in fields}
    return replace(arrivals, **{name: None if value is None else value[index] for name, value in values.items()})


def own_gradient(params: Tensor) -> Tensor:
    """[D] the gradient a server sees on a few samples of its own: here, of a bowl."""
    return 0.5 * params + torch.linspace(-1.0, 1.5, len(params), dtype=params.dtype, device=params.device)


def drawn_gradient(params: Tensor, step: Tensor) -> Tensor:
    """[D] the same on samples that are others in every step."""
    return own_gradient(params) * (1.5 + torch.sin(1.0 + step.to(params) * torch.arange(len(params)).to(params)))
