"""How are the gradients of several runs' clients taken at once, where each run has parameters of its own?

The same chain of layers as in kasync.work.layers, with one more dimension: R sets of parameters, each with the batches
of its n clients. A convolution becomes one product of the unfolded inputs for each run, since a library's convolution
with R sets of weights would launch R kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kasync.work.layers import Chain, Convolution, Dense, Loss, Weighted


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


@singledispatch
def forward(layer: Any, params: Tensor, x: Tensor) -> tuple[Tensor, Any]:
    """Outputs of a layer without parameters, and what its backward pass needs."""
    return layer.forward(params, x)


@singledispatch
def backward(layer: Any, params: Tensor, grad: Tensor, saved: Any, out: Tensor, first: bool) -> Tensor | None:
    return layer.backward(params, grad, saved, out, first)


@forward.register
def _(layer: Dense, params: Tensor, x: Tensor) -> tuple[Tensor, Any]:
    runs = len(params)
    y = _affine(x.reshape(runs, -1, x.shape[-1]), layer, params)
    return y.view(-1, layer.shape[0]), x


@backward.register
def _(layer: Dense, params: Tensor, grad: Tensor, saved: Tensor, out: Tensor, first: bool) -> Tensor | None:
    _own_gradients(layer, grad, saved, out)
    if first:
        return None
    return torch.bmm(grad.view(len(params), -1, grad.shape[-1]), _weight(layer, params)).view(len(grad), -1)


@forward.register
def _(layer: Convolution, params: Tensor, x: Tensor) -> tuple[Tensor, Any]:
    patches, (high, wide) = _patches(layer, x)  # [N, places, inputs * kernel]
    y = _affine(patches.view(len(params), -1, patches.shape[-1]), layer, params)
    return y.view(len(x), high, wide, -1).permute(0, 3, 1, 2), (patches, x.shape[2:])


@backward.register
def _(layer: Convolution, params: Tensor, grad: Tensor, saved: Any, out: Tensor, first: bool) -> Tensor | None:
    patches, size = saved
    flat = grad.permute(0, 2, 3, 1).reshape(-1, grad.shape[1])  # [N * places, outputs]
    _own_gradients(layer, flat, patches.view(-1, patches.shape[-1]), out)
    if first:
        return None
    back = torch.bmm(flat.view(len(params), -1, flat.shape[-1]), _weight(layer, params)).view(patches.shape)
    return functional.fold(back.mT, size, layer.shape[2:], layer.dilation, layer.padding, layer.stride)


def _patches(layer: Convolution, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """[N, places, inputs * kernel] the inputs under the kernel at each place, and how many places there are."""
    (above, left), (high, wide) = layer.padding, layer.shape[2:]
    padded = functional.pad(x, (left, left, above, above)) if above or left else x
    tall, broad = (layer.dilation[0] * (high - 1) + 1, layer.dilation[1] * (wide - 1) + 1)
    windows = padded.unfold(2, tall, layer.stride[0]).unfold(3, broad, layer.stride[1])  # [N, in, y, x, tall, broad]
    windows = windows[..., :: layer.dilation[0], :: layer.dilation[1]]
    places = (windows.shape[2], windows.shape[3])
    return windows.permute(0, 2, 3, 1, 4, 5).reshape(len(x), places[0] * places[1], -1), places


def _weight(layer: Weighted, params: Tensor) -> Tensor:
    """[R, outputs, inputs]"""
    return params[:, layer.start : layer.start + layer.shape.numel()].view(len(params), layer.shape[0], -1)


def _affine(x: Tensor, layer: Weighted, params: Tensor) -> Tensor:
    """x [R, rows, inputs] -> [R, rows, outputs]"""
    if not layer.has_bias:
        return torch.bmm(x, _weight(layer, params).mT)
    return torch.baddbmm(params[:, None, layer.stop - layer.shape[0] : layer.stop], x, _weight(layer, params).mT)


def _own_gradients(layer: Weighted, grad: Tensor, x: Tensor, out: Tensor) -> None:
    """Write each client's gradient of weight and bias, from the rows of its own samples."""
    n, size = len(out), layer.shape.numel()
    mine = grad.reshape(n, -1, grad.shape[-1])  # [R * n, rows, outputs]
    place = out[:, layer.start : layer.start + size].view(n, layer.shape[0], -1)
    torch.bmm(mine.mT, x.reshape(n, -1, x.shape[-1]), out=place)
    if layer.has_bias:
        torch.sum(mine, 1, out=out[:, layer.stop - layer.shape[0] : layer.stop])
