"""How are inner products and linear combinations of long rows computed in one pass each?

A rule sees the rows that arrived and the rows it remembers as a list of blocks [n, D]. `gram` reads them once,
`combine` reads them once more; everything between the two is arithmetic on a few numbers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kasync import kernel

CHUNK = 4096  # columns summed in the rows' own precision before the float64 sum over chunks


def gram(blocks: Sequence[Tensor]) -> Tensor:
    """R R^T in float64 for the rows R of all blocks, stacked.  [n, D] ... -> [B, B]"""
    if kernel.fits(blocks):
        return kernel.gram(blocks)
    rows = torch.cat(list(blocks))  # [B, D]
    length = rows.shape[1] // CHUNK * CHUNK
    chunks = rows[:, :length].unflatten(1, (-1, CHUNK)).transpose(0, 1)  # [chunks, B, CHUNK]
    rest = rows[:, length:]  # [B, D - length]
    return torch.bmm(chunks, chunks.mT).double().sum(0) + (rest @ rest.mT).double()


def combine(coefficients: Tensor, blocks: Sequence[Tensor]) -> Tensor:
    """coefficients @ R for the rows R of all blocks, stacked.  [n, B] -> [n, D], in the precision of the rows"""
    if kernel.fits(blocks):
        return kernel.combine(coefficients, blocks)
    sizes = [len(block) for block in blocks]
    parts = coefficients.to(blocks[0].dtype).split(sizes, dim=1)
    return sum((part @ block for part, block in zip(parts, blocks, strict=True)), start=torch.zeros(()))
