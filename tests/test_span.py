"""Inner products and combinations, by the kernel at each of its levels and by torch."""

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kasync import kernel, span

WAYS = ["torch", *kernel.LEVELS]
EPS = {torch.float32: 1e-6, torch.float64: 1e-13}
LOOSER = 5  # a matrix product may add up a chunk of columns one by one


@contextmanager
def computed_with(way: str, threads: int | None = None) -> Iterator[None]:
    """span computes with torch alone, or with the kernel up to these instructions, on so many threads."""
    before, fits = torch.get_num_threads(), kernel.fits
    torch.set_num_threads(threads or before)
    if way == "torch":
        kernel.fits = lambda blocks, start=None: False
    elif kernel.instructions(way) != way:
        pytest.skip(f"no kernel with {way} instructions on this machine")
    try:
        yield
    finally:
        kernel.fits = fits
        kernel.instructions(kernel.LEVELS[-1])
        torch.set_num_threads(before)


@st.composite
def some_blocks(draw: st.DrawFn) -> list[Tensor]:
    """One to three blocks, 1 to 40 rows in all, each row of its own size, some with gaps between or inside the rows."""
    columns = draw(st.one_of(st.integers(0, 70), st.integers(1000, 5000)))
    dtype = draw(st.sampled_from(list(EPS)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    counts = draw(st.sampled_from([[1], [1, 1], [4], [10, 1], [20, 20, 0], [7, 5, 1], [38, 2]]))
    blocks = []
    for count in counts:
        gap, stride = draw(st.sampled_from([(0, 1), (3, 1), (0, 2)]))
        wide = torch.randn(count, (columns + gap) * stride, generator=generator, dtype=torch.float64)
        sizes = 10.0 ** (16 * torch.rand(count, 1, generator=generator, dtype=torch.float64) - 8)  # 1e-8 .. 1e8
        blocks.append((wide * sizes).to(dtype)[:, gap * stride :: stride])
    return blocks


def stacked(blocks: list[Tensor]) -> Tensor:
    return torch.cat(blocks).double()  # [B, D]


def assert_gram(result: Tensor, blocks: list[Tensor], by_kernel: bool) -> None:
    rows = stacked(blocks)
    lengths = rows.norm(dim=1)
    assert result.dtype == torch.float64
    assert result.shape == (len(rows), len(rows))
    relative = EPS[blocks[0].dtype] * (1 if by_kernel else LOOSER)
    assert ((result - rows @ rows.T).abs() <= relative * lengths[:, None] * lengths[None, :]).all()


def assert_combined(result: Tensor, coefficients: Tensor, blocks: list[Tensor]) -> None:
    rows = stacked(blocks)
    assert result.dtype == blocks[0].dtype
    assert result.shape == (len(coefficients), rows.shape[1])
    allowed = EPS[blocks[0].dtype] * (coefficients.abs() @ rows.abs())
    assert ((result - coefficients @ rows).abs() <= allowed).all()


@pytest.mark.parametrize("way", WAYS)
@given(blocks=some_blocks())
@settings(max_examples=40, deadline=None)
def test_gram_is_every_inner_product(way: str, blocks: list[Tensor]) -> None:
    with computed_with(way):
        result, by_kernel = span.gram(blocks), kernel.fits(blocks)
    assert_gram(result, blocks, by_kernel)
    assert torch.equal(result, result.T) or not by_kernel


@pytest.mark.parametrize("way", WAYS)
@given(blocks=some_blocks(), n=st.integers(1, 11), seed=st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_combine_is_the_matrix_product(way: str, blocks: list[Tensor], n: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    coefficients = torch.randn(n, sum(map(len, blocks)), generator=generator, dtype=torch.float64)
    coefficients[:, torch.rand(coefficients.shape[1], generator=generator) < 0.3] = 0.0
    with computed_with(way):
        result = span.combine(coefficients, blocks)
    assert_combined(result, coefficients, blocks)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", EPS)
def test_many_rows_are_combined_a_few_at_a_time(way: str, dtype: torch.dtype) -> None:
    rows, one = torch.randn(100, 3000, dtype=dtype), torch.randn(1, 3000, dtype=dtype)
    table = torch.randn(120, 3000, dtype=dtype)
    given = [rows, kernel.Rows(table, range(0, 120, 3)), one] if way != "torch" else [rows, table[::3], one]
    coefficients = torch.randn(3, 141, dtype=torch.float64)
    coefficients[:, 40:60] = 0.0
    with computed_with(way):
        result = span.combine(coefficients, given)
    assert_combined(result, coefficients, [rows, table[::3], one])


@pytest.mark.skipif(not kernel.fits_sum([torch.zeros(1, 1)]), reason="the kernel was not built on this machine")
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_are_added_up_in_float64_to_the_same_bits_whatever_adds_them(threads: int) -> None:
    rows, coefficients = torch.randn(9, 70_001), torch.randn(9, dtype=torch.float64)
    results = []
    for way in kernel.LEVELS:
        with computed_with(way, threads):
            out = torch.ones(70_001, dtype=torch.float64)
            kernel.add_rows(coefficients, [rows], out)
            results.append(out)
    assert all(torch.equal(results[0], other) for other in results)
    torch.testing.assert_close(results[0] - 1.0, coefficients @ rows.double(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", EPS)
def test_rows_longer_than_all_parts_together_are_summed_to_the_end(way: str, dtype: torch.dtype) -> None:
    blocks = [torch.randn(5, 2 * 64 * 1024 + 1027, dtype=dtype), torch.randn(1, 2 * 64 * 1024 + 1027, dtype=dtype)]
    coefficients = torch.randn(3, 6, dtype=torch.float64)
    with computed_with(way):
        assert_gram(span.gram(blocks), blocks, kernel.fits(blocks))
        assert_combined(span.combine(coefficients, blocks), coefficients, blocks)


@pytest.mark.parametrize("way", kernel.LEVELS)
@pytest.mark.parametrize("dtype", EPS)
def test_the_number_of_threads_changes_no_bit(way: str, dtype: torch.dtype) -> None:
    blocks = [torch.randn(11, 50_001, dtype=dtype), torch.randn(2, 50_001, dtype=dtype)]
    coefficients = torch.randn(2, 13, dtype=torch.float64)
    results = []
    for threads in (1, 2, 3, 100):
        with computed_with(way, threads):
            results.append((span.gram(blocks), span.combine(coefficients, blocks)))
    for gram, combined in results[1:]:
        assert torch.equal(gram, results[0][0])
        assert torch.equal(combined, results[0][1])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("column", [0, 1030, 9_000])
def test_what_is_not_finite_shows_in_its_own_row_only(way: str, bad: float, column: int) -> None:
    rows = torch.rand(9, 9_001) + 0.5  # no zero, whose product with an infinity would be NaN and as good
    rows[4, column] = bad
    with computed_with(way):
        finite = span.gram([rows]).isfinite()  # [9, 9]
    mine = torch.arange(9) == 4
    assert torch.equal(finite, ~(mine[:, None] | mine[None, :]))


@pytest.mark.parametrize("way", kernel.LEVELS)
def test_a_row_without_a_coefficient_is_not_read(way: str) -> None:
    rows = torch.randn(3, 100)
    rows[1] = float("nan")
    with computed_with(way):
        result = span.combine(torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.0, -1.0]], dtype=torch.float64), [rows])
    assert torch.equal(result, torch.stack([2 * rows[0], -rows[2]]))


@pytest.mark.parametrize("way", WAYS)
@given(blocks=some_blocks(), n=st.sampled_from([None, 1, 2, 6]), seed=st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_a_combination_may_be_a_move_from_a_start(way: str, blocks: list[Tensor], n: int | None, seed: int) -> None:
    """The first of them, or the only one; widths are no multiple of anything, and rows may have gaps."""
    generator = torch.Generator().manual_seed(seed)
    shape = (sum(map(len, blocks)),) if n is None else (n, sum(map(len, blocks)))
    coefficients = torch.randn(*shape, generator=generator, dtype=torch.float64)
    start = torch.randn(blocks[0].shape[1], generator=generator, dtype=torch.float64).to(blocks[0].dtype)
    rate = torch.tensor(0.3, dtype=torch.float64)
    with computed_with(way):
        result = span.combine(coefficients, blocks, start, rate, len(blocks[0]))
    table = coefficients[None].clone() if n is None else coefficients.clone()
    assert result.shape == (*shape[:-1], len(start))
    table[0] *= -0.3
    with_start = torch.cat([table, torch.eye(len(table), 1, dtype=torch.float64)], dim=1)
    assert_combined(result[None] if n is None else result, with_start, [*blocks, start[None]])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("count", [1, 3, 17, 40])
@pytest.mark.parametrize("columns", [1, 15, 1024, 3001])
def test_what_is_not_finite_is_found_in_every_row_in_doubt(
    way: str, dtype: torch.dtype, count: int, columns: int
) -> None:
    """Whatever its weight, in the first, a middle and the last column; rows after those in doubt are not looked at."""
    table = torch.randn(2 * count + 1, columns + 3, generator=torch.Generator().manual_seed(count), dtype=dtype)
    rows = table[::2, :columns]  # [count + 1, columns] with gaps between them
    weights = torch.ones(count + 1, dtype=torch.float64)
    weights[count // 2], weights[count] = 0.0, 0.0
    start = torch.ones(columns, dtype=dtype)
    with computed_with(way):
        rows[count, 0] = torch.nan
        if way != "torch":  # whose product reads it
            assert span.combine(weights, [rows], start, 0.1, count).isfinite().all()
        rows[count, 0] = 0.0
        assert span.combine(weights, [rows], start, 0.1, count).isfinite().all()
        for bad in (torch.nan, torch.inf, -torch.inf):
            for row in {0, count // 2, count - 1}:
                for column in {0, columns // 2, columns - 1}:
                    before, rows[row, column] = rows[row, column].clone(), bad
                    for given in (weights, torch.stack([weights, weights])):
                        with pytest.raises(kernel.NotFinite):
                            span.combine(given, [rows], start, 0.1, count)
                    rows[row, column] = before


@pytest.mark.parametrize("way", kernel.LEVELS)
@pytest.mark.parametrize("dtype", EPS)
def test_the_number_of_threads_changes_no_bit_of_a_move(way: str, dtype: torch.dtype) -> None:
    rows, start = torch.randn(21, 50_001, dtype=dtype), torch.randn(50_001, dtype=dtype)
    weights, results = torch.randn(21, dtype=torch.float64), []
    rows[20, 50_000] = 1.0
    for threads in (1, 2, 3, 100):
        with computed_with(way, threads):
            results.append(span.combine(weights, [rows], start, 0.1, 21))
            rows[20, 50_000] = torch.inf
            with pytest.raises(kernel.NotFinite):
                span.combine(weights, [rows], start, 0.1, 21)
            rows[20, 50_000] = 1.0
    assert all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("way", WAYS)
def test_the_same_row_may_be_given_twice(way: str) -> None:
    row = torch.randn(1, 77)
    with computed_with(way):
        result = span.combine(torch.tensor([[0.0, 3.0, 1.0]], dtype=torch.float64), [row.expand(2, -1), row])
    torch.testing.assert_close(result, 4 * row)


@pytest.mark.parametrize("way", WAYS)
def test_nothing_given_is_changed(way: str) -> None:
    blocks, coefficients = [torch.randn(4, 3000), torch.randn(1, 3000)], torch.randn(2, 5, dtype=torch.float64)
    before = [block.clone() for block in blocks], coefficients.clone()
    with computed_with(way):
        span.gram(blocks)
        span.combine(coefficients, blocks)
    assert all(torch.equal(block, old) for block, old in zip(blocks, before[0], strict=True))
    assert torch.equal(coefficients, before[1])


def test_the_kernel_leaves_to_torch_what_it_cannot_read() -> None:
    rows = torch.randn(4, 10)
    unfit: list[list[Tensor]] = [
        [],
        [rows.half()],
        [rows, rows.double()],
        [rows[:, ::2]],
        [rows, rows[:, :9]],
        [rows.clone().requires_grad_()],
        [torch.randn(1, 10).expand(kernel.MOST_ROWS + 1, 10)],
        [rows.to("meta")],
    ]
    assert not any(kernel.fits(blocks) for blocks in unfit)
    assert kernel.fits([rows]) == kernel.available()


def test_gradients_flow_through_torch_where_they_are_wanted() -> None:
    rows = torch.randn(3, 5000, requires_grad=True)
    span.combine(torch.ones(1, 3, dtype=torch.float64), [rows]).sum().backward()
    assert rows.grad is not None
    assert torch.equal(rows.grad, torch.ones_like(rows))


@pytest.mark.skipif(not kernel.available(), reason="the kernel was not built on this machine")
def test_coefficients_for_other_rows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"coefficients \[2, 3\]: need one column for each of 4 rows"):
        span.combine(torch.ones(2, 3, dtype=torch.float64), [torch.randn(4, 10)])


@pytest.mark.parametrize("found", [None, types.SimpleNamespace(VERSION=kernel.VERSION - 1)])
def test_without_a_library_torch_does_the_work(found: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kasync._kernel", found)  # None: there is none; or one of another version
    kernel.library.cache_clear()
    try:
        assert not kernel.available()
        assert kernel.instructions() == "none"
        rows = torch.randn(3, 20)
        assert_gram(span.gram([rows]), [rows], by_kernel=False)
    finally:
        kernel.library.cache_clear()


@pytest.mark.parametrize("product", ["gram", "combine"])
def test_a_rules_products_are_in_full_precision_whatever_is_allowed(product, monkeypatch):
    seen = []
    monkeypatch.setattr(
        span, "unreadable", lambda tensor: bool(seen.append(torch.get_float32_matmul_precision())) or True
    )
    monkeypatch.setattr(kernel, "fits", lambda blocks, start=None: False)
    multiply = torch.bmm if product == "gram" else Tensor.__matmul__

    def watched(a, b):
        seen.append(torch.get_float32_matmul_precision())
        return multiply(a, b)

    monkeypatch.setattr(*((torch, "bmm") if product == "gram" else (Tensor, "__matmul__")), watched)
    rows = torch.randn(3, 5000)
    torch.set_float32_matmul_precision("high")
    try:
        found = span.gram([rows]) if product == "gram" else span.combine(torch.eye(3), [rows])
        after = torch.get_float32_matmul_precision()
    finally:
        torch.set_float32_matmul_precision("highest")
    expected = rows.double() @ rows.double().T if product == "gram" else rows
    torch.testing.assert_close(found.double(), expected.double(), rtol=1e-5, atol=1e-3)
    assert after == "high"
    assert set(seen) == {"high", "highest"}
    assert seen[-1] == "highest"
