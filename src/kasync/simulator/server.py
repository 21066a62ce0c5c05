"""The server's own gradient, on a few samples that it holds itself, for Zeno++, FLTrust and AFLGuard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from kasync import counter
from kasync.data.dataset import Samples
from kasync.data.federated import FederatedData, scaled
from kasync.errors import UserError
from kasync.work.layers import Chain
from kasync.work.loop import Bench, Sent, Visit
from kasync.work.objective import Loss, Objective
from kasync.work.protocol import Gradient
from kasync.work.trial import refuse_empty, sharing, tried

GOLDEN, FIRST, SECOND = (word - (1 << 64) for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def server_gradient(
    model: nn.Module,
    data: FederatedData,
    samples: Samples,
    loss: Loss | None = None,
    device: str = "cpu",
    batch: int | None = None,
    seed: int = 0,
) -> Callable[[Tensor], Tensor] | Callable[[Tensor, Tensor], Tensor]:
    """A function of the parameters [D]: the gradient [D] of the mean loss of these samples.

    `data.server_sample(count, classes)` draws samples for it. With `batch`, a function of the parameters and the
    server's step []: the mean loss is that of so many of the samples, others at random in every step.
    """
    refuse_empty(model)
    count = len(samples) if batch is None else batch
    if not 1 <= count <= len(samples):
        raise UserError(f"batch = {batch}: give 1 to {len(samples)}, the server's samples.")
    gradient = _gradient_of(model, data, samples, Objective.of(data, loss), device)
    everything = torch.arange(len(samples), device=device)
    if batch is None:
        return lambda params: gradient(params, everything)
    keys = counter.bits(seed, counter.Stream.SERVER, np.arange(len(samples))).view(np.int64)
    places = torch.from_numpy(keys).to(device)  # [samples]
    return lambda params, step: gradient(params, _mixed(places + step * GOLDEN).argsort()[:batch])


def _gradient_of(
    model: nn.Module, data: FederatedData, samples: Samples, objective: Objective, device: str
) -> Callable[[Tensor, Tensor], Tensor]:
    """A function of the parameters [D] and of rows of the samples."""
    own = replace(
        data, train=samples, indices=np.arange(len(samples)), offsets=np.array([0, len(samples)]), client_test=None,
        client_names=None,
    )  # fmt: skip
    tensors = own.tensors(device)
    inputs, labels = tensors.inputs, tensors.labels
    chain = Chain.of(model)
    if chain is not None and isinstance(inputs, Tensor) and labels is not None and not objective.whole:

        def by_chain(params: Tensor, rows: Tensor) -> Tensor:
            out = torch.empty(1, len(params), device=params.device, dtype=params.dtype)
            share = torch.full((len(rows),), 1.0 / len(rows), device=params.device)
            with torch.no_grad():
                chosen = scaled(inputs[rows], data.scale)
                chain.gradients(params, chosen, labels[rows], share, objective.loss, out)
            return out[0]

        return by_chain
    template = sharing(model).to(device)
    traits = tried(template, tensors, objective)
    bench = Bench(template, objective, Gradient(len(samples)), traits, "frozen", 0)

    def by_loop(params: Tensor, rows: Tensor) -> Tensor:
        out = torch.empty_like(params)
        with torch.no_grad():
            bench.do(Sent(params), Visit(0, 0, 0, [rows], {}), inputs, labels, out)
        return out

    return by_loop


def _mixed(words: Tensor) -> Tensor:
    """splitmix64's finaliser, as kasync.counter has it, on int64 words of a device."""
    words = (words ^ _shifted(words, 30)) * FIRST
    words = (words ^ _shifted(words, 27)) * SECOND
    return words ^ _shifted(words, 31)


def _shifted(words: Tensor, places: int) -> Tensor:
    """To the right as if they had no sign."""
    return (words >> places) & ((1 << (64 - places)) - 1)
