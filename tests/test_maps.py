"""Maps as rows."""

import pytest
import torch

from convdkm.runtime.maps import (
    BLOCK,
    as_rows,
    channels_last,
    from_rows,
    mean_squares,
    pieces,
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


@pytest.mark.parametrize("count", [1, BLOCK, 3 * BLOCK, BLOCK + 1])
def test_products_summed_over_rows(count):
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    right = torch.randn(count, 5, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(summed_products(left, right), left.T @ right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("laid_out", [channels_last, torch.Tensor.contiguous])
@pytest.mark.parametrize("shape", [(4, 3, 5, 6), (2, 1, 7), (3, 8, 2, 2, 2), (4, 5)])
def test_mean_squares_in_either_layout(shape, laid_out, dtype):
    maps = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)
    expected = maps.square().mean(1)
    torch.testing.assert_close(mean_squares(laid_out(maps)), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(mean_squares(laid_out(maps)), expected)
