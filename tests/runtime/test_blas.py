"""Products by NumPy's BLAS are those of PyTorch, whatever the layout and the size."""

import pytest
import torch

from convdkm.runtime import blas
from convdkm.runtime.program import recorded


@pytest.fixture
def taken(monkeypatch):
    """Let every product be taken by NumPy."""
    monkeypatch.setattr(blas, "LARGE", 1)
    monkeypatch.setattr("convdkm.runtime.program.numpy_is_faster", lambda: True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_products(taken, dtype):
    generator = torch.Generator().manual_seed(0)
    left, right, start = (
        torch.randn(shape, generator=generator, dtype=dtype) for shape in ((5, 7), (7, 3), (5, 3))
    )
    left.requires_grad_()
    with torch.no_grad():
        for a, b in ((left, right), (left.T.contiguous().T, right.T.contiguous().T)):
            torch.testing.assert_close(blas.product(a, b), left @ right)
            torch.testing.assert_close(blas.added_product(start, a, b), start + left @ right)
        expected = 2 * start[0] - 3 * left @ right
        found = blas.added_product(start[0], left, right, beta=2, alpha=-3)
        torch.testing.assert_close(found, expected)


def test_programs_take_them(taken):
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    before = matrix.clone()
    play = recorded(lambda: [torch.addmm(matrix, matrix, matrix.T), matrix @ matrix], [matrix])
    for found, expected in zip(
        play(matrix), (matrix + matrix @ matrix.T, matrix @ matrix), strict=True
    ):
        torch.testing.assert_close(found, expected)
    assert torch.equal(matrix, before)


def test_where_it_is_not_known_what_the_processor_is_pytorch_multiplies(monkeypatch, tmp_path):
    monkeypatch.setattr(blas, "_CPUINFO", tmp_path / "missing")
    blas.numpy_is_faster.cache_clear()
    try:
        assert not blas.numpy_is_faster()
    finally:
        blas.numpy_is_faster.cache_clear()
