"""Gradients of many clients from one batched pass at shared weights, for chains of known layers.

For a chain of known layers the gradient of each client's weights needs only the layer's input and the gradient of its
output: the batch of all clients goes through once, and per client only the last product is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from kasync.kernel import Block
from kasync.work import compiled
from kasync.work.objective import IGNORED, Loss, cross_entropy


class Held(NamedTuple):
    """The parameters of a layer, as windows of the vector [D]."""

    weight: Tensor
    bias: Tensor | None
    both: Tensor


@dataclass(frozen=True)
class Weighted:
    """A layer with weight and bias, which lie one after the other in the parameters from `start` on."""

    start: int
    shape: torch.Size
    has_bias: bool

    @property
    def stop(self) -> int:
        return self.start + self.shape.numel() + (self.shape[0] if self.has_bias else 0)

    def held(self, params: Tensor) -> Held:
        """Windows of the parameters [D]."""
        size = self.shape.numel()
        both = params[self.start : self.stop]
        return Held(both[:size].view(self.shape), both[size:] if self.has_bias else None, both)

    def put(self, out: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """Write per-client gradients [n, ...] into their columns of this layer's part of out [n, stop - start]."""
        out[:, : self.shape.numel()] = weight.reshape(len(out), -1)
        if bias is not None:
            out[:, self.shape.numel() :] = bias

    def descend(self, held: Held, grad: Tensor, x: Tensor, rate: float, out: Tensor, first: bool) -> Tensor | None:
        """`backward` for one client, and a step of plain SGD: what is held is changed; out [1, D] is written to."""
        before = self.backward(held, grad, x, out, first)  # which reads the weights before they change
        held.both.sub_(out[0, self.start : self.stop], alpha=rate)
        return before

    def backward(self, held: Held, grad: Tensor, x: Tensor, out: Block, first: bool) -> Tensor | None:
        """Write each client's gradient of weight and bias into out [n, D]; the gradient of the input, or None."""
        raise NotImplementedError

    def filled(self, out: Block, write: Callable[[Tensor], None]) -> None:
        """Let `write` fill this layer's columns of out [n, D]; rows that lie apart by way of a block."""
        if isinstance(out, Tensor):
            write(out[:, self.start : self.stop])
        else:
            block = out.table.new_empty(len(out), self.stop - self.start)
            write(block)
            out.table[:, self.start : self.stop].index_copy_(0, torch.tensor(list(out.chosen)), block)


@dataclass(frozen=True)
class Dense(Weighted):
    def forward(self, held: Held, x: Tensor) -> tuple[Tensor, Any]:
        return functional.linear(x, held.weight, held.bias), x

    def backward(self, held: Held, grad: Tensor, x: Tensor, out: Block, first: bool) -> Tensor | None:
        mine, inputs = (value.reshape(len(out), -1, value.shape[-1]) for value in (grad, x))  # [n, m, ...]
        if compiled.takes(mine, inputs):
            compiled.dense(mine, inputs, self.has_bias, out, self.start)
        else:
            self.filled(out, partial(self._products, mine, inputs))
        return None if first else grad @ held.weight

    def descend(self, held: Held, grad: Tensor, x: Tensor, rate: float, out: Tensor, first: bool) -> Tensor | None:
        before = None if first else grad @ held.weight
        mine, inputs = (grad, x) if x.dim() == 2 else (grad.flatten(0, -2), x.flatten(0, -2))
        held.weight.addmm_(mine.T, inputs, alpha=-rate)  # one pass over the weights, and none over a gradient
        if held.bias is not None:
            held.bias.sub_(mine.sum(0), alpha=rate)
        return before

    def _products(self, mine: Tensor, inputs: Tensor, out: Tensor) -> None:
        size = self.shape.numel()
        torch.bmm(mine.mT, inputs, out=out[:, :size].view(len(out), *self.shape))
        if self.has_bias:
            torch.sum(mine, 1, out=out[:, size:])


@dataclass(frozen=True)
class Convolution(Weighted):
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    def forward(self, held: Held, x: Tensor) -> tuple[Tensor, Any]:
        if self._plain and compiled.convolves(x, self.shape, self.padding):
            return compiled.convolve(x, held.weight, held.bias, self.padding), x
        return functional.conv2d(x, held.weight, held.bias, self.stride, self.padding, self.dilation), x

    def backward(self, held: Held, grad: Tensor, x: Tensor, out: Block, first: bool) -> Tensor | None:
        if self._plain and self.shape[3] <= compiled.BROADEST and compiled.takes(grad, x):
            compiled.weights(grad, x, self.shape, self.padding, self.has_bias, out, self.start)
        else:
            self.filled(out, partial(self._unfolded if grad.is_cuda else self._one_by_one, grad, x))
        return None if first else self._derive(grad, x, held.weight, (True, False, False))[0]

    @cached_property
    def _plain(self) -> bool:
        return self.stride == self.dilation == (1, 1)

    def _derive(self, grad: Tensor, x: Tensor, weight: Tensor, mask: tuple[bool, bool, bool]) -> Sequence[Any]:
        bias = [self.shape[0]] if self.has_bias else None
        geometry = (self.stride, self.padding, self.dilation, False, (0, 0), 1)
        return torch.ops.aten.convolution_backward(grad, x, weight, bias, *geometry, mask)

    def _one_by_one(self, grad: Tensor, x: Tensor, out: Tensor) -> None:
        """The convolution's own weight-gradient kernel, client by client."""
        n = len(out)
        shape = x.new_empty(self.shape)  # only its shape is read
        for row, g, inputs in zip(out, grad.chunk(n), x.chunk(n), strict=True):
            _, weight, bias = self._derive(g, inputs, shape, (False, True, self.has_bias))
            self.put(row[None], weight, bias)

    def _unfolded(self, grad: Tensor, x: Tensor, out: Tensor) -> None:
        """As matrix products of the unfolded inputs, all clients at once."""
        n = len(out)
        patches = self._patches(x)  # [N, inputs * kernel, places]
        flat = grad.flatten(2)  # [N, outputs, places]
        weight = torch.bmm(flat, patches.mT).view(n, -1, self.shape.numel()).sum(1)
        self.put(out, weight, flat.sum(2).view(n, -1, self.shape[0]).sum(1) if self.has_bias else None)

    def _patches(self, x: Tensor) -> Tensor:
        """The inputs under the kernel at each place; functional.unfold would launch a kernel for every sample."""
        (above, left), (high, wide) = self.padding, self.shape[2:]
        padded = functional.pad(x, (left, left, above, above)) if above or left else x
        if self.dilation != (1, 1):
            return functional.unfold(padded, (high, wide), self.dilation, 0, self.stride)
        windows = padded.unfold(2, high, self.stride[0]).unfold(3, wide, self.stride[1])  # [N, in, y, x, high, wide]
        return windows.permute(0, 1, 4, 5, 2, 3).reshape(len(x), self.shape[1:].numel(), -1)


@dataclass(frozen=True)
class Rectify:
    def forward(self, held: Any, x: Tensor) -> tuple[Tensor, Any]:
        y = x.clamp(min=0)
        return y, y

    def backward(self, held: Any, grad: Tensor, y: Tensor, out: Block, first: bool) -> Tensor | None:
        return torch.ops.aten.threshold_backward(grad, y, 0)


@dataclass(frozen=True)
class Pool:
    size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    def forward(self, held: Any, x: Tensor) -> tuple[Tensor, Any]:
        if self._halves(x):
            y = compiled.pool(x)
            return y, (x, y, True)
        y, places = torch.ops.aten.max_pool2d_with_indices(
            x, self.size, self.stride, self.padding, self.dilation, False
        )
        return y, (x, places, False)

    def backward(self, held: Any, grad: Tensor, saved: Any, out: Block, first: bool) -> Tensor | None:
        x, kept, halved = saved
        if halved:
            return compiled.unpool(x, kept, grad.contiguous())
        geometry = (self.size, self.stride, self.padding, self.dilation, False)
        return torch.ops.aten.max_pool2d_with_indices_backward(grad, x, *geometry, kept)

    def _halves(self, x: Tensor) -> bool:
        plain = (self.size, self.stride, self.padding, self.dilation) == ((2, 2), (2, 2), (0, 0), (1, 1))
        return plain and x.shape[-1] % 2 == 0 and x.shape[-2] % 2 == 0 and compiled.takes(x)


@dataclass(frozen=True)
class Flat:
    def forward(self, held: Any, x: Tensor) -> tuple[Tensor, Any]:
        return x.flatten(1), x.shape

    def backward(self, held: Any, grad: Tensor, shape: torch.Size, out: Block, first: bool) -> Tensor | None:
        return grad.view(shape)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)  # type: ignore[return-value]


def _read(module: nn.Module, start: int) -> Any | None:
    """The layer of ours that computes what the module does, or None if there is none."""
    if type(module) is nn.Linear:
        return Dense(start, module.weight.shape, module.bias is not None)
    if type(module) is nn.Conv2d and module.groups == 1 and module.padding_mode == "zeros":
        if isinstance(module.padding, str):
            return None
        geometry = (_pair(module.stride), _pair(module.padding), _pair(module.dilation))
        return Convolution(start, module.weight.shape, module.bias is not None, *geometry)
    if type(module) is nn.ReLU:
        return Rectify()
    if type(module) is nn.MaxPool2d and not (module.ceil_mode or module.return_indices):
        stride = module.stride if module.stride is not None else module.kernel_size
        return Pool(*(_pair(v) for v in (module.kernel_size, stride, module.padding, module.dilation)))
    if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        return Flat()
    return None


def _changed(module: nn.Module) -> bool:
    """Whether hooks, or a forward of its own, make a module compute something else than its class does."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks) or "forward" in vars(module)


def _flattened(model: nn.Module) -> list[nn.Module]:
    return [leaf for child in model for leaf in _flattened(child)] if type(model) is nn.Sequential else [model]


@dataclass(frozen=True)
class Chain:
    """A model that is a chain of known layers."""

    layers: tuple[Any, ...]

    @classmethod
    def of(cls, model: nn.Module) -> Chain | None:
        """The chain that computes what the model does, or None if it is of another kind."""
        layers, start = [], 0
        if not all(parameter.requires_grad for parameter in model.parameters()) or any(map(_changed, model.modules())):
            return None
        for module in _flattened(model):
            layer = _read(module, start)
            if layer is None:
                return None
            start = getattr(layer, "stop", start)
            layers.append(layer)
        for i in range(len(layers) - 1):  # a maximum and a rectifier commute, and after the maximum there is less to do
            after = layers[i + 1]
            if isinstance(layers[i], Rectify) and isinstance(after, Pool) and after.padding == (0, 0):
                layers[i : i + 2] = after, layers[i]
        own = sum(parameter.numel() for parameter in model.parameters())  # less than start where weights are shared
        return cls(tuple(layers)) if start == own > 0 else None

    def forward(self, params: Tensor, x: Tensor) -> Tensor:
        """Outputs [N, ...] of the model at params [D]."""
        for layer, held in zip(self.layers, self.held(params), strict=True):
            x, _ = layer.forward(held, x)
        return x

    def held(self, params: Tensor) -> list[Held | None]:
        """The parameters of each layer, where it has some."""
        return [layer.held(params) if isinstance(layer, Weighted) else None for layer in self.layers]

    def gradients(self, params: Tensor, x: Tensor, labels: Tensor, weights: Tensor, loss: Loss, out: Block) -> Tensor:
        """Write the gradient of each client's weighted loss into out [n, D]; return the losses [n].

        x [n * m, ...], labels [n * m] and weights [n * m] hold the clients' batches one after the other.
        """
        held = self.held(params)
        x, saved = self._saving(held, x)
        grad, losses = self.loss_gradient(x, labels, weights, loss)
        first = self.first_weighted
        for number in range(len(self.layers) - 1, first - 1, -1):
            grad = self.layers[number].backward(held[number], grad, saved[number], out, number == first)
        return losses.view(len(out), -1).sum(1)

    def step(
        self, held: list[Held | None], x: Tensor, labels: Tensor, weights: Tensor, loss: Loss, rate: float, out: Tensor
    ) -> Tensor:
        """A step of plain SGD on one client's parameters, in place; the loss [1]. out [1, D] is written to."""
        x, saved = self._saving(held, x)
        grad: Any
        grad, losses = self.loss_gradient(x, labels, weights, loss)
        first = self.first_weighted
        for number in range(len(self.layers) - 1, first - 1, -1):
            layer, mine, kept, last = self.layers[number], held[number], saved[number], number == first
            if mine is not None:
                grad = layer.descend(mine, grad, kept, rate, out, last)
            else:
                grad = layer.backward(None, grad, kept, out, last)
        return losses.sum()[None]

    def _saving(self, held: list[Held | None], x: Tensor) -> tuple[Tensor, list[Any]]:
        """Outputs, and what each layer keeps for the way back."""
        saved = []
        for layer, mine in zip(self.layers, held, strict=True):
            x, kept = layer.forward(mine, x)
            saved.append(kept)
        return x, saved

    @cached_property
    def first_weighted(self) -> int:
        """The number of the first layer that has parameters; nobody needs the gradient of its input."""
        return next(i for i, layer in enumerate(self.layers) if isinstance(layer, Weighted))

    @staticmethod
    def loss_gradient(x: Tensor, labels: Tensor, weights: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
        """The gradient of the weighted losses by the outputs x [N, ...], and the weighted losses [N]."""
        if loss is cross_entropy and labels.dim() == 1 and x.dim() == 2:  # what autograd would call, without autograd
            aten, plain = torch.ops.aten, (labels, None, 0, IGNORED)
            logs = torch.log_softmax(x, 1)
            losses, total = aten.nll_loss_forward(logs, *plain)
            grad = aten.nll_loss_backward(weights, logs, *plain, total)
            return aten._log_softmax_backward_data(grad, logs, 1, x.dtype), losses * weights
        with torch.enable_grad():
            outputs = x.detach().requires_grad_()
            losses = loss(outputs, labels) * weights
            (grad,) = torch.autograd.grad(losses.sum(), outputs)
        return grad, losses.detach()
