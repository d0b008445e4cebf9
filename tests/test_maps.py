"""Maps as rows."""

import pytest
import torch

from convdkm.runtime.maps import (
    BLOCK,
    FEWEST_RUNS,
    RUN,
    as_rows,
    channels_last,
    from_rows,
    mean_squares,
    pieces,
    product,
    product_dtype,
    summed_products,
)


def test_rows_of_a_channels_last_map_are_a_view():
    maps = channels_last(torch.arange(24.0).reshape(2, 3, 2, 2))
    rows = as_rows(maps)
    assert rows.shape == (8, 3)
    assert rows.data_ptr() == maps.data_ptr()
    assert rows[1].tolist() == maps[0, :, 0, 1].tolist()
    assert torch.equal(from_rows(rows, 2, (2, 2)), maps)


def test_vectors_are_their_own_rows():
    vectors = torch.randn(4, 3)
    assert torch.equal(as_rows(vectors), vectors)
    assert torch.equal(from_rows(vectors, 4, ()), vectors)
    assert torch.equal(channels_last(vectors), vectors)


def test_pieces_cover_every_row_once():
    rows = torch.zeros(1_000_003, 2)
    covered = [index for piece in pieces(rows) for index in (piece.start, piece.stop)]
    assert covered[0] == 0
    assert covered[-1] == len(rows)
    assert covered[1:-1:2] == covered[2::2]
    assert list(pieces(torch.zeros(0, 2))) == []


def test_products_take_the_precision_of_autocast():
    maps = torch.zeros(1, 2, 3, 3)
    assert product_dtype(maps) == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert product_dtype(maps) == torch.bfloat16


MANY = FEWEST_RUNS * RUN
COUNTS = [0, 1, MANY - RUN, MANY, MANY + 16, MANY + 7, BLOCK, 3 * BLOCK, BLOCK + 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", COUNTS)
def test_products_summed_over_rows(count, dtype):
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(count, 3, generator=generator, dtype=dtype)
    right = torch.randn(count, 5, generator=generator, dtype=dtype)
    expected = (left.double().T @ right.double()).to(dtype)
    found = summed_products(left, right)
    torch.testing.assert_close(
        found, expected, atol=1e-4 if dtype == torch.float32 else 1e-10, rtol=1e-5
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("has_offset", [False, True])
@pytest.mark.parametrize("count", COUNTS)
def test_products_of_rows_with_their_derivatives(count, has_offset, dtype):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(count, 16, generator=generator, dtype=dtype, requires_grad=True)
    matrix = torch.randn(5, 16, generator=generator, dtype=dtype, requires_grad=True)
    offset = torch.randn(5, generator=generator, dtype=dtype, requires_grad=True)
    given = (rows, matrix, offset) if has_offset else (rows, matrix)
    found = product(*given)
    expected = rows @ matrix.T + (offset if has_offset else 0)
    assert found.shape == (count, 5)
    torch.testing.assert_close(found, expected)
    weight = torch.randn(found.shape, generator=generator, dtype=dtype)
    by_found, by_expected = (
        torch.autograd.grad(result, given, weight) for result in (found, expected)
    )
    for one, other in zip(by_found, by_expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("laid_out", [channels_last, torch.Tensor.contiguous])
@pytest.mark.parametrize("shape", [(4, 3, 5, 6), (2, 1, 7), (3, 8, 2, 2, 2), (4, 5)])
def test_mean_squares_in_either_layout(shape, laid_out, dtype):
    maps = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)
    expected = maps.square().mean(1)
    torch.testing.assert_close(mean_squares(laid_out(maps)), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(mean_squares(laid_out(maps)), expected)
