"""Inner products and linear combinations of long rows, one pass each.

A rule sees the rows that arrived and the rows it remembers as a list of blocks [n, D]. `gram` reads them once, where a
part asks for it, `combine` reads them once more; everything between the two is arithmetic on a few numbers. On the CPU
the compiled kernel does both where it was built; what it does not take, and everything on CUDA, is done here in a few
torch calls that never wait for the device.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property

import torch
from torch import Tensor

from kasync import kernel
from kasync.constants import eye, where
from kasync.kernel import Block, NotFinite, length

ROWS = 16  # a GPU's products work on so many rows at a time
CHUNK = 2048  # columns summed in the rows' own precision before the float64 sum over chunks
EXACT, EXACT_UNREADABLE = 1 << 13, 1 << 20  # columns at a time where the products are in float64
LARGE = 1e15  # entries whose squares float32 may not hold, nor their sums


def unreadable(tensor: Tensor) -> bool:
    """Whether its values cannot be read in the middle of a step: on CUDA, or where one tensor stands for many runs'."""
    return tensor.is_cuda or kernel.is_one_of_many(tensor)


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
    """Whether it may hold, or a number be other than 0: in a CUDA graph, or where a tensor is many runs', all may."""
    return unreadable(condition) or bool(condition)


def surely_above(value: Tensor, bound: float = 0.0) -> bool:
    """Whether a number [] is above the bound, where it can be read."""
    return not unreadable(value) and float(value) > bound


def how_many(conditions: Tensor) -> int:
    """How many of some conditions [K] hold; 0 where they cannot be read."""
    return 0 if unreadable(conditions) else sum(conditions.tolist())


def matrix(block: Block) -> Tensor:
    """[n, D] a block in one piece."""
    return block if isinstance(block, Tensor) else block.gathered()


def finite(rows: Tensor) -> Tensor:
    """[n] whether every entry of a row [n, D] is a number and not an infinity."""
    if not unreadable(rows):
        sums = rows.sum(1).isfinite()  # four times as fast, and a sum that is finite is of finite numbers
        if bool(sums.all()):
            return sums
    return _largest(rows) < torch.inf


def _largest(rows: Tensor) -> Tensor:
    """[n] the largest absolute value of each row [n, D], NaN where there is one."""
    if not rows.shape[1]:
        return rows.new_zeros(rows.shape[0])
    return torch.linalg.vector_norm(rows, math.inf, dim=1) if unreadable(rows) else rows.abs().amax(1)


def gram(given: Sequence[Block]) -> Tensor:
    """R R^T in float64 for the rows R of all blocks, stacked.  [n, D] ... -> [B, B]"""
    if kernel.fits(given):
        return kernel.gram(given)
    blocks: Sequence[Tensor] = [matrix(block) for block in given]
    if unreadable(blocks[0]):
        with full_precision():
            return _gram_at_once(blocks)
    inner = {(i, j): _inner(a, b) for j, b in enumerate(blocks) for i, a in enumerate(blocks[: j + 1])}
    every = range(len(blocks))
    return torch.cat([torch.cat([inner[i, j] if i <= j else inner[j, i].mT for j in every], dim=1) for i in every])


def combine(
    coefficients: Tensor,
    given: Sequence[Block],
    start: Tensor | None = None,
    rate: Tensor | float = 1.0,
    doubtful: int = 0,
) -> Tensor:
    """coefficients @ R for the rows R of all blocks, stacked.  [n, B] -> [n, D], or [B] -> [D], precise as the rows are

    With a start [D] the first of them is start - rate * (coefficients @ R) instead. Raises NotFinite where one of the
    first `doubtful` rows, of which nobody knows yet, is not finite.
    """
    known = not unreadable(coefficients) and (isinstance(rate, float) or not unreadable(rate))
    if known and kernel.fits(given, start):
        return kernel.combine(coefficients, given, start, float(rate), doubtful)
    table = coefficients if coefficients.dim() == 2 else coefficients[None]
    if start is not None:  # joins as one more row
        table = torch.cat([-(rate * table[:1]), table[1:]]) if len(table) > 1 else -(rate * table)
        table = torch.cat([table, eye(len(table), 1, table.device)], dim=1)
        given = [*given, start[None]]
    made = _sums(table, [matrix(block) for block in given])
    if doubtful:
        _check(table, given, made, doubtful)
    return made if coefficients.dim() == 2 else made[0]


def _sums(coefficients: Tensor, blocks: Sequence[Tensor]) -> Tensor:
    """[n, D] coefficients [n, B] @ R, by torch."""
    table = coefficients.to(blocks[0].dtype)
    parts = torch.split(table, [len(block) for block in blocks], dim=1)
    if not unreadable(blocks[0]):
        total = _product(parts[0], blocks[0])
        for part, block in zip(parts[1:], blocks[1:], strict=True):
            total = total + _product(part, block)
        return total
    with full_precision():
        total = parts[0] @ blocks[0]  # no row is copied
        for part, block in zip(parts[1:], blocks[1:], strict=True):
            total = torch.addcmul(total, part, block) if len(block) == 1 else total + part @ block
    return total


def _check(table: Tensor, blocks: Sequence[Block], made: Tensor, doubtful: int) -> None:
    """Raise NotFinite unless what was made [n, D] with a table [n, B] shows that the first rows are finite."""
    read = table[:, :doubtful].any(0).tolist()
    unread = [place for place, coefficient in enumerate(read) if not coefficient]
    if not all(_sum_is_finite(row) for row in _rows(blocks, unread)) or not _sum_is_finite(made):
        raise NotFinite


def _gram_at_once(blocks: Sequence[Tensor]) -> Tensor:
    """The same in few launches: all rows in one copy, chunk by chunk, up to a size that products are fast for."""
    chunks, rests = zip(*(_cut(block) for block in blocks), strict=True)
    rows = sum(len(rest) for rest in rests)
    empty = chunks[0].new_zeros(len(chunks[0]), -rows % ROWS, CHUNK)
    whole, rest = torch.cat([*chunks, empty], dim=1), torch.cat(rests)  # [chunks, rows + empty, CHUNK], [rows, left]
    return torch.bmm(whole, whole.mT).sum(0, dtype=torch.float64)[:rows, :rows] + (rest @ rest.mT).double()


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
    return torch.unflatten(rows[:, : count * CHUNK], 1, (count, CHUNK)).transpose(0, 1), rows[:, count * CHUNK :]


def exact_gram(given: Sequence[Block]) -> Tensor:
    """The same as `gram`, with every product and sum in float64.  [n, D] ... -> [B, B]"""
    blocks = [matrix(block) for block in given]
    total = torch.zeros((), dtype=torch.float64, device=blocks[0].device)
    for piece in _pieces(blocks):
        total = total + piece @ piece.mT
    return total


def combine_exactly(coefficients: Tensor, given: Sequence[Block]) -> Tensor:
    """The same as `combine`, in float64, of blocks in any precision.  [n, B] -> [n, D]"""
    return torch.cat([coefficients @ piece for piece in _pieces([matrix(block) for block in given])], dim=1)


def _pieces(blocks: Sequence[Tensor]) -> Iterator[Tensor]:
    """[B, some columns] float64 of all rows, at least one piece."""
    size = EXACT_UNREADABLE if unreadable(blocks[0]) else EXACT
    for start in range(0, max(blocks[0].shape[1], 1), size):
        yield torch.cat([block[:, start : start + size].double() for block in blocks])


class Basis:
    """The rows of one step under their names; inner products are taken when they are first asked for."""

    def __init__(self, blocks: Mapping[str, Block], dtype: torch.dtype, doubt: bool) -> None:
        """With doubt nobody has looked whether the rows are finite: who finds one that is not raises NotFinite."""
        self.blocks: dict[str, Block] = {}
        self.wider: dict[str, Tensor] = {}  # rows in float64 where parameters are in float32
        self.layout: dict[str, slice] = {}
        self.size, self.doubt = 0, doubt
        for name, block in blocks.items():
            if isinstance(block, Tensor) and block.dtype != dtype:
                if block.dtype == torch.float64:
                    self.wider[name] = block
                block = block.to(dtype)
            self.blocks[name] = block
            start, self.size = self.size, self.size + length(block)
            self.layout[name] = slice(start, self.size)
        first, rows = self.blocks["gradients"], self.layout["gradients"]
        self.k = rows.stop - rows.start
        self.device = (first if isinstance(first, Tensor) else first.table).device

    @cached_property
    def gram(self) -> Tensor:
        """[B, B] float64; of rows too long for float32 to square as well."""
        if "exact_gram" in self.__dict__:
            return self.exact_gram
        blocks = list(self.blocks.values())
        first = blocks[0]
        if isinstance(first, Tensor) and unreadable(first):
            largest = torch.cat([_largest(matrix(block)) for block in blocks])
            return self._scaled_gram(where(largest > LARGE, largest, 1.0))
        found = gram(blocks)
        if not math.isfinite(float(found.trace())):
            largest = torch.cat([_largest(matrix(block)) for block in blocks])
            if self.doubt and not bool((largest < torch.inf).all()):
                raise NotFinite
            return self._scaled_gram(where(largest > LARGE, largest, 1.0))
        self.doubt = False
        return found

    def _scaled_gram(self, largest: Tensor) -> Tensor:
        """[B, B] of the rows, each of which is divided by about its largest entry [B] for as long as that takes."""
        scale = torch.exp2(torch.log2(largest.double()).floor())  # a power of two: nothing is rounded
        parts = torch.split(1.0 / scale, [length(block) for block in self.blocks.values()])
        blocks = [matrix(block) for block in self.blocks.values()]
        found = gram([rows * part[:, None].to(rows.dtype) for rows, part in zip(blocks, parts, strict=True)])
        return found * scale[:, None] * scale[None, :]

    @cached_property
    def exact_gram(self) -> Tensor:
        """[B, B] with products in float64, for differences of rows that are nearly equal."""
        blocks = list(self.blocks.values())
        if matrix(blocks[0]).dtype == torch.float64:
            return self.gram
        found = exact_gram(blocks)
        if self.doubt and not math.isfinite(float(found.trace())):
            raise NotFinite
        self.doubt = False
        return found

    def others_finite(self) -> Tensor:
        """[] whether all rows but the gradients are finite."""
        others = [matrix(block) for name, block in self.blocks.items() if name != "gradients"]
        if not others:
            return torch.ones((), dtype=torch.bool, device=self.device)
        return torch.cat([finite(rows) for rows in others]).all()

    def combined(self, table: Tensor, start: Tensor | None = None, rate: Tensor | float = 1.0) -> Tensor:
        """[n, D] combinations of the rows with a table [n, B], or [D] with one row [B]; as `combine` has them."""
        made = combine(table, list(self.blocks.values()), start, rate, self.k if self.doubt else 0)
        self.doubt = False
        return made

    def combined_exactly(self, table: Tensor) -> Tensor:
        """[n, D] float64 combinations of the rows, those in float64 taken as they are."""
        narrow = [block for name, block in self.blocks.items() if name not in self.wider]
        if unreadable(table) or not kernel.fits_sum(narrow):
            return combine_exactly(table, [self.wider.get(name, block) for name, block in self.blocks.items()])
        of_narrow = torch.cat([table[:, self.layout[name]] for name in self.blocks if name not in self.wider], dim=1)
        made = table.new_zeros(table.shape[0], kernel.width(narrow))
        for name, rows in self.wider.items():
            made += table[:, self.layout[name]] @ rows
        for coefficients, out in zip(of_narrow, made, strict=True):
            kernel.add_rows(coefficients, narrow, out)
        return made


def _rows(blocks: Sequence[Block], places: Sequence[int]) -> Iterator[Tensor]:
    """[D] each, the rows at these places of the first block."""
    first = blocks[0]
    for place in places:
        yield first[place] if isinstance(first, Tensor) else first.table[first.chosen[place]]


def _sum_is_finite(rows: Tensor) -> bool:
    """Whether the sum of all entries is a number, which shows that every one is."""
    return math.isfinite(float(rows.sum()))
