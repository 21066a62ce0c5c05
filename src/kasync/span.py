"""How are inner products and linear combinations of long rows computed in one pass each?

A rule sees the rows that arrived and the rows it remembers as a list of blocks [n, D]. `gram` reads them once,
`combine` reads them once more; everything between the two is arithmetic on a few numbers. On the CPU the compiled
kernel does both where it was built; what it does not take, and everything on CUDA, is done here in a few torch calls
that never wait for the device.
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
    rows = torch.cat(list(blocks)) if len(blocks) > 1 else blocks[0]  # [B, D]
    chunks, rest = _cut(rows)
    return torch.bmm(chunks, chunks.mT).sum(0, dtype=torch.float64) + (rest @ rest.mT).double()


def combine(coefficients: Tensor, blocks: Sequence[Tensor]) -> Tensor:
    """coefficients @ R for the rows R of all blocks, stacked.  [n, B] -> [n, D], in the precision of the rows"""
    if kernel.fits(blocks):
        return kernel.combine(coefficients, blocks)
    parts = coefficients.to(blocks[0].dtype).split([len(block) for block in blocks], dim=1)
    product = _chunked_product if blocks[0].device.type == "cpu" else torch.mm
    result = product(parts[0], blocks[0])
    for part, block in zip(parts[1:], blocks[1:], strict=True):
        result = result + product(part, block) if product is _chunked_product else torch.addmm(result, part, block)
    return result


def _chunked_product(part: Tensor, block: Tensor) -> Tensor:
    """part [n, m] @ block [m, D]: a product this flat is faster on a CPU as many small ones."""
    chunks, rest = _cut(block)
    small = torch.bmm(part.expand(len(chunks), *part.shape), chunks)  # [chunks, n, CHUNK]
    return torch.cat([small.transpose(0, 1).flatten(1), part @ rest], dim=1)


def _cut(rows: Tensor) -> tuple[Tensor, Tensor]:
    """[B, D] -> [chunks, B, CHUNK] and the columns left over [B, D - chunks * CHUNK]"""
    length = rows.shape[1] // CHUNK * CHUNK
    return rows[:, :length].unflatten(1, (length // CHUNK, CHUNK)).transpose(0, 1), rows[:, length:]
