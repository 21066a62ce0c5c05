"""How are inner products and linear combinations of long rows computed in one pass each?

A rule sees the rows that arrived and the rows it remembers as a list of blocks [n, D]. `gram` reads them once,
`combine` reads them once more; everything between the two is arithmetic on a few numbers. On the CPU the compiled
kernel does both where it was built; what it does not take, and everything on CUDA, is done here in a few torch calls
that never wait for the device.
"""

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from kasync import kernel
from kasync.kernel import Block

_is_one_of_many = torch._C._functorch.is_batchedtensor  # inside torch.vmap

ROWS = 16  # a GPU's products work on so many rows at a time
CHUNK = 2048  # columns summed in the rows' own precision before the float64 sum over chunks


def blind(tensor: Tensor) -> bool:
    """Whether its values cannot be asked for in between: on CUDA, or where one tensor stands for many runs'."""
    return tensor.is_cuda or _is_one_of_many(tensor)


@contextmanager
def full_precision() -> Iterator[None]:
    """Products of float32 as such, whatever torch.set_float32_matmul_precision allows the clients' gradients.

    A parameter that is rounded in every step no longer learns from small steps.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def possible(condition: Tensor) -> bool:
    """Whether it may hold: anything may in a CUDA graph, or where a tensor stands for many runs'."""
    return blind(condition) or bool(condition)


def matrix(block: Block) -> Tensor:
    """[n, D] a block in one piece."""
    return block if isinstance(block, Tensor) else block.gathered()


def gram(given: Sequence[Block]) -> Tensor:
    """R R^T in float64 for the rows R of all blocks, stacked.  [n, D] ... -> [B, B]"""
    if _compiled(given):
        return kernel.gram(given)
    blocks: Sequence[Tensor] = [matrix(block) for block in given]
    if blind(blocks[0]):
        with full_precision():
            return _gram_at_once(blocks)
    inner = {(i, j): _inner(a, b) for j, b in enumerate(blocks) for i, a in enumerate(blocks[: j + 1])}
    every = range(len(blocks))
    return torch.cat([torch.cat([inner[i, j] if i <= j else inner[j, i].mT for j in every], dim=1) for i in every])


def combine(coefficients: Tensor, given: Sequence[Block]) -> Tensor:
    """coefficients @ R for the rows R of all blocks, stacked.  [n, B] -> [n, D], in the precision of the rows"""
    if _compiled(given):
        return kernel.combine(coefficients, given)
    blocks = [matrix(block) for block in given]
    table = coefficients.to(blocks[0].dtype)  # [n, B]
    parts = table.split([len(block) for block in blocks], dim=1)
    if not blind(blocks[0]):
        return functools.reduce(torch.add, map(_product, parts, blocks))
    with full_precision():
        total = parts[0] @ blocks[0]  # no row is copied
        for part, block in zip(parts[1:], blocks[1:], strict=True):
            total = torch.addcmul(total, part, block) if len(block) == 1 else total + part @ block
    return total


def _gram_at_once(blocks: Sequence[Tensor]) -> Tensor:
    """The same in few launches: all rows in one copy, chunk by chunk, up to a size that products are fast for."""
    chunks, rests = zip(*(_cut(block) for block in blocks), strict=True)
    rows = sum(len(rest) for rest in rests)
    empty = chunks[0].new_zeros(len(chunks[0]), -rows % ROWS, CHUNK)
    whole, rest = torch.cat([*chunks, empty], dim=1), torch.cat(rests)  # [chunks, rows + empty, CHUNK], [rows, left]
    return torch.bmm(whole, whole.mT).sum(0, dtype=torch.float64)[:rows, :rows] + (rest @ rest.mT).double()


def _compiled(blocks: Sequence[Block]) -> bool:
    first = blocks[0]
    return not (isinstance(first, Tensor) and blind(first)) and kernel.fits(blocks)


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """a [n, D] @ b [m, D]^T in float64, summed chunk by chunk."""
    (left, left_over), (right, right_over) = _cut(a), _cut(b)
    return torch.bmm(left, right.mT).sum(0, dtype=torch.float64) + (left_over @ right_over.mT).double()


def _product(part: Tensor, block: Tensor) -> Tensor:
    """part [n, m] @ block [m, D]: on a CPU a product this flat is faster as many small ones."""
    chunks, rest = _cut(block)
    small = torch.bmm(part.expand(len(chunks), *part.shape), chunks)  # [chunks, n, CHUNK]
    return torch.cat([small.transpose(0, 1).flatten(1), part @ rest], dim=1)


def _cut(rows: Tensor) -> tuple[Tensor, Tensor]:
    """[n, D] -> chunks of columns [chunks, n, CHUNK] and the columns left over [n, D - chunks * CHUNK]"""
    count = rows.shape[1] // CHUNK
    return rows[:, : count * CHUNK].unflatten(1, (count, CHUNK)).transpose(0, 1), rows[:, count * CHUNK :]
