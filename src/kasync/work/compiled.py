"""The layers that the compiled library computes, and how it is called.

Where it was built it does on a CPU what torch is slow at: a convolution of few channels, its weight gradients client by
client, and the largest of 2 x 2. Each call is one long piece of work without Python's lock.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from kasync import kernel
from kasync.kernel import Block

BROADEST = 7  # kernel whose weight gradients it takes
FEW = 4  # input channels up to which its convolution is faster than torch's
COLUMNS = 8  # of the result that it computes at once

Pair = tuple[int, int]


def takes(*tensors: Tensor) -> bool:
    """Whether these can be given to the library."""
    if not kernel.available():
        return False
    for tensor in tensors:  # noqa: SIM110 - a generator would take longer than all it asks
        if not (tensor.is_cpu and tensor.dtype is torch.float32 and tensor.is_contiguous()):
            return False
    return True


def convolves(x: Tensor, shape: torch.Size, padding: Pair) -> bool:
    """Whether it convolves x [N, inputs, high, wide] with weights of this shape, and is faster at it than torch."""
    return shape[1] <= FEW and _result(x, shape, padding)[1] >= COLUMNS and takes(x)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair) -> Tensor:
    """[N, outputs, up, across] x [N, inputs, high, wide] convolved with weight [outputs, inputs, tall, broad]."""
    y = x.new_empty(len(x), len(weight), *_result(x, weight.shape, padding))
    x = _padded(x, padding)
    added = None if bias is None else bias.data_ptr()
    sizes = _sizes(x, weight.shape)
    kernel.library().convolve(x.data_ptr(), weight.data_ptr(), added, len(x), sizes, y.data_ptr())
    return y


def weights(grad: Tensor, x: Tensor, shape: torch.Size, padding: Pair, has_bias: bool, out: Block, start: int) -> None:
    """Write each client's gradient of weight and bias into its row of out [n, D], from column `start` on.

    grad [N, outputs, up, across] is that of the result of x [N, inputs, high, wide], the clients' samples in order.
    """
    n, x = len(out), _padded(x, padding)
    data = (x.data_ptr(), grad.data_ptr(), n, len(x) // n)
    kernel.library().weights(*data, _sizes(x, shape), has_bias, kernel.places([out], start))


def dense(grad: Tensor, x: Tensor, has_bias: bool, out: Block, start: int) -> None:
    """The same for a dense layer: grad [n, m, outputs], x [n, m, inputs]."""
    data = (x.data_ptr(), grad.data_ptr(), *x.shape, grad.shape[2])
    kernel.library().dense(*data, has_bias, kernel.places([out], start))


def pool(x: Tensor) -> Tensor:
    """[..., high / 2, wide / 2] the largest of every 2 x 2 of x [..., high, wide]."""
    y = x.new_empty(*x.shape[:-2], x.shape[-2] // 2, x.shape[-1] // 2)
    kernel.library().pool(x.data_ptr(), *_lines(x), y.data_ptr())
    return y


def unpool(x: Tensor, y: Tensor, grad: Tensor) -> Tensor:
    """[..., high, wide] the gradient of y = pool(x) at the first of those equal to it, as PyTorch does."""
    back = torch.empty_like(x)
    kernel.library().unpool(x.data_ptr(), y.data_ptr(), grad.data_ptr(), *_lines(x), back.data_ptr())
    return back


def _lines(x: Tensor) -> tuple[int, int]:
    """How many pairs of lines x [..., high, wide] has, and how wide they are."""
    wide = x.shape[-1]
    return x.numel() // (2 * wide) if wide else 0, wide


def _result(x: Tensor, shape: torch.Size, padding: Pair) -> Pair:
    """How high and wide the result of a convolution is."""
    return x.shape[2] + 2 * padding[0] - shape[2] + 1, x.shape[3] + 2 * padding[1] - shape[3] + 1


def _padded(x: Tensor, padding: Pair) -> Tensor:
    above, left = padding
    return functional.pad(x, (left, left, above, above)) if above or left else x


def _sizes(x: Tensor, shape: torch.Size) -> tuple[int, ...]:
    """Outputs, inputs, height and width of the kernel, height and width of a picture."""
    return (*shape, *x.shape[2:])
