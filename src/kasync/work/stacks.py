"""Gradients of the clients of several runs at once, where each run has parameters of its own.

The same chain of layers as in kasync.work.layers, with one more dimension: R sets of parameters, each with the batches
of its n clients. A convolution becomes a product with a band matrix for each run, since a library's convolution with R
sets of weights would launch R kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, singledispatch
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kasync.work.layers import Chain, Convolution, Dense, Weighted
from kasync.work.objective import Loss

SMALL = 200_000  # places in a band matrix up to which every client's gradient is taken with one


@dataclass(frozen=True)
class StackedChain:
    """A chain that is computed at R sets of parameters at once."""

    chain: Chain

    def gradients(self, params: Tensor, x: Tensor, labels: Tensor, weights: Tensor, loss: Loss, out: Tensor) -> Tensor:
        """Write the gradient of each client's weighted loss into out [R * n, D]; return the losses [R * n].

        params [R, D]; x [R * n * m, ...], labels and weights [R * n * m] hold the batches of run after run.
        """
        saved = []
        for layer in self.chain.layers:
            x, kept = forward(layer, params, x)
            saved.append(kept)
        grad, losses = self.chain.loss_gradient(x, labels, weights, loss)
        first = self.chain.first_weighted
        for number in range(len(self.chain.layers) - 1, first - 1, -1):
            grad = backward(self.chain.layers[number], params, grad, saved[number], out, number == first)
        return losses.view(len(out), -1).sum(1)

    def outputs(self, params: Tensor, x: Tensor) -> Tensor:
        """What each run's model makes of the same samples x [n, ...]: [R * n, ...], run after run."""
        shared = True  # until the first layer with parameters
        for layer in self.chain.layers:
            x, _ = forward(layer, params, x, shared)
            shared = shared and not isinstance(layer, Weighted)
        return x


@singledispatch
def forward(layer: Any, params: Tensor, x: Tensor, shared: bool = False) -> tuple[Tensor, Any]:
    """Outputs of a layer, and what its backward pass needs; `shared` inputs are one batch for all runs."""
    return layer.forward(params, x)


@singledispatch
def backward(layer: Any, params: Tensor, grad: Tensor, saved: Any, out: Tensor, first: bool) -> Any:
    return layer.backward(params, grad, saved, out, first)


@forward.register
def _(layer: Dense, params: Tensor, x: Tensor, shared: bool = False) -> tuple[Tensor, Any]:
    weight = _slice(layer, params).unflatten(1, layer.shape)  # [R, outputs, inputs]
    rows = _of_each(params, x, shared)
    if layer.has_bias:
        return torch.baddbmm(_bias(layer, params)[:, None], rows, weight.mT).flatten(0, 1), x
    return torch.bmm(rows, weight.mT).flatten(0, 1), x


@backward.register
def _(layer: Dense, params: Tensor, grad: Tensor, saved: Tensor, out: Tensor, first: bool) -> Tensor | None:
    n = len(out)
    mine = grad.reshape(n, -1, grad.shape[-1])  # [R * n, m, outputs]
    place = out[:, layer.start : layer.start + layer.shape.numel()].view(n, *layer.shape)
    torch.bmm(mine.mT, saved.reshape(n, -1, saved.shape[-1]), out=place)
    if layer.has_bias:
        torch.sum(mine, 1, out=out[:, layer.stop - layer.shape[0] : layer.stop])
    if first:
        return None
    weight = _slice(layer, params).unflatten(1, layer.shape)
    return torch.bmm(grad.view(len(params), -1, grad.shape[-1]), weight).flatten(0, 1)


@forward.register
def _(layer: Convolution, params: Tensor, x: Tensor, shared: bool = False) -> tuple[Tensor, Any]:
    band = Band.of(layer, x.shape)
    inputs = functional.pad(x, (*(band.padding[1],) * 2, *(band.padding[0],) * 2)).permute(0, 2, 3, 1).contiguous()
    rows = band.rows(inputs)  # [N, tall, under]
    weight = band.spread(_slice(layer, params))  # [R, under, across]
    y = torch.bmm(_of_each(params, rows, shared), weight).view(-1, band.tall, band.wide, layer.shape[0])
    if layer.has_bias:
        y.unflatten(0, (len(params), -1)).add_(_bias(layer, params)[:, None, None, None])
    return y.permute(0, 3, 1, 2), (band, inputs, rows, weight)


@backward.register
def _(layer: Convolution, params: Tensor, grad: Tensor, saved: Any, out: Tensor, first: bool) -> Tensor | None:
    band, inputs, rows, weight = saved
    flat = grad.permute(0, 2, 3, 1).contiguous()  # [N, tall, wide, outputs]
    n, size = len(out), layer.shape.numel()
    if band.under * band.across <= SMALL:
        mine = torch.bmm(rows.view(n, -1, band.under).mT, flat.view(n, -1, band.across))  # [R * n, under, across]
        out[:, layer.start : layer.start + size] = band.gathered(mine)
    else:
        patches = band.patches(inputs).view(n, -1, band.kernel[0] * band.kernel[1] * band.inputs)
        mine = torch.bmm(flat.view(n, -1, layer.shape[0]).mT, patches)  # [R * n, outputs, kernel * inputs]
        turned = mine.unflatten(-1, (*band.kernel, band.inputs)).permute(0, 1, 4, 2, 3)
        out[:, layer.start : layer.start + size].view(n, *layer.shape).copy_(turned)
    if layer.has_bias:
        torch.sum(flat.view(n, -1, layer.shape[0]), 1, out=out[:, layer.stop - layer.shape[0] : layer.stop])
    if first:
        return None
    back = torch.bmm(flat.view(len(params), -1, band.across), weight.mT).view(rows.shape)
    return band.folded(back, inputs.shape)


@dataclass(frozen=True)
class Band:
    """A convolution as a product: each output row depends on a few whole input rows through a band matrix.

    Unfolding only the rows copies a fifth of what unfolding every place would, and the products are large enough to
    be fast. `under` counts the inputs below one output row (row, column, channel), `across` its outputs.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    inputs: int
    outputs: int
    width: int  # of the padded input
    tall: int  # output rows
    wide: int  # output columns

    @classmethod
    def of(cls, layer: Convolution, shape: torch.Size) -> Band:
        (high, broad), (down, right), (above, left) = layer.shape[2:], layer.stride, layer.padding
        tall, wide = (shape[2] + 2 * above - high) // down + 1, (shape[3] + 2 * left - broad) // right + 1
        kernel, width = (high, broad), shape[3] + 2 * left
        return cls(kernel, layer.stride, layer.padding, shape[1], layer.shape[0], width, tall, wide)

    @property
    def under(self) -> int:
        return self.kernel[0] * self.width * self.inputs

    @property
    def across(self) -> int:
        return self.wide * self.outputs

    def rows(self, x: Tensor) -> Tensor:
        """x [N, height, width, inputs] -> [N, tall, under]"""
        return x.flatten(2).unfold(1, self.kernel[0], self.stride[0]).mT.contiguous().flatten(2)

    def patches(self, x: Tensor) -> Tensor:
        """x [N, height, width, inputs] -> [N, tall, wide, kernel * inputs]"""
        windows = x.unfold(1, self.kernel[0], self.stride[0]).unfold(2, self.kernel[1], self.stride[1])
        return windows.permute(0, 1, 2, 4, 5, 3).reshape(len(x), self.tall, self.wide, -1)

    def spread(self, weight: Tensor) -> Tensor:
        """The weights [R, outputs * inputs * kernel] in their places in the band matrix [R, under, across]."""
        places, _ = _places(self, weight.device)
        return functional.pad(weight, (0, 1)).index_select(1, places).view(len(weight), self.under, self.across)

    def gathered(self, mine: Tensor) -> Tensor:
        """The opposite for gradients [n, under, across]: every weight takes those of all its places."""
        _, origins = _places(self, mine.device)
        return mine.flatten(1).index_select(1, origins).view(len(mine), -1, self.wide).sum(-1)

    def folded(self, back: Tensor, shape: torch.Size) -> Tensor:
        """Gradients of the unfolded rows [N, tall, under] -> of the inputs [N, inputs, height, width], padding off."""
        x = back.new_zeros(shape[0], shape[1], self.width * self.inputs)
        parts = back.unflatten(2, (self.kernel[0], -1))
        for row in range(self.kernel[0]):
            last = row + self.stride[0] * (self.tall - 1) + 1
            x[:, row : last : self.stride[0]] += parts[:, :, row]
        above, left = self.padding
        inner = x.view(shape)[:, above : shape[1] - above, left : shape[2] - left]
        return inner.permute(0, 3, 1, 2)


@lru_cache(maxsize=64)
def _places(band: Band, device: torch.device) -> tuple[Tensor, Tensor]:
    """Which weight each place of the band matrix holds (one past the last: none), and the places of each weight."""
    (high, broad), right = band.kernel, band.stride[1]
    row, column, channel, x, output = torch.meshgrid(
        *(torch.arange(n) for n in (high, band.width, band.inputs, band.wide, band.outputs)), indexing="ij"
    )
    offset = column - right * x
    weight = ((output * band.inputs + channel) * high + row) * broad + offset
    none = band.outputs * band.inputs * high * broad
    places = torch.where((offset >= 0) & (offset < broad), weight, none).flatten()  # [under * across]
    origins = places.argsort(stable=True)[: none * band.wide]  # [weights * wide]: each weight has one place a column
    return places.to(device), origins.to(device)


def _of_each(params: Tensor, x: Tensor, shared: bool) -> Tensor:
    """[R, rows, c] the rows of each run; those that all of them share are not copied."""
    runs = len(params)
    return x.reshape(-1, x.shape[-1]).expand(runs, -1, -1) if shared else x.reshape(runs, -1, x.shape[-1])


def _slice(layer: Weighted, params: Tensor) -> Tensor:
    """[R, weights]"""
    return params[:, layer.start : layer.start + layer.shape.numel()]


def _bias(layer: Weighted, params: Tensor) -> Tensor:
    """[R, outputs]"""
    return params[:, layer.stop - layer.shape[0] : layer.stop]
