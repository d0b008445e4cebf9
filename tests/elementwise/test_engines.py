"""The engines that work on maps: right values, right gradients, the same from both."""

import math

import pytest
import torch

from convdkm import maps
from convdkm.elementwise import PIECEWISE, compiled, compiled_engine, engine
from convdkm.kernels.arccos import arccosine
from convdkm.kernels.gaussian import GaussianPointwise
from convdkm.kernels.pointwise import pointwise_convolution
from convdkm.kernels.polynomial import NormalisedPolynomial, PolynomialPointwise
from convdkm.kernels.relu_conv import relu_convolution
from convdkm.layers.predicted import Number, predicted
from convdkm.layers.window import Window
from convdkm.numerics import safe_sqrt

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
DTYPES = [torch.float32, torch.float64]
CLOSE = {torch.float32: 3e-6, torch.float64: 1e-12}


def the_compiled_engine():
    made = compiled_engine()
    if made is None:
        pytest.skip("nothing compiles here: there is no C++ compiler")
    return made


def blocks(dtype, *, count=3, points=5, side=4, seed=0, collinear=True):
    """``it``, the diagonal of ``ii`` and ``tt`` of features, with degenerate pixels among them."""
    generator = torch.Generator().manual_seed(seed)
    inducing = torch.randn(points, 7, generator=generator, dtype=torch.float64)
    pixels = torch.randn(count, side, side, 7, generator=generator, dtype=torch.float64)
    pixels[0, 0, 0] = 0
    if collinear:
        pixels[0, 0, 1] = inducing[0]
        pixels[0, 0, 2] = -2 * inducing[1]
    it = torch.einsum("pm,nhwm->nphw", inducing, pixels) / 7
    ii, tt = inducing.square().mean(1), pixels.square().mean(-1)
    return [maps.channels_last(it).to(dtype), ii.to(dtype), tt.to(dtype)]


def gradients(result, inputs):
    weights = torch.randn(
        result.shape, generator=torch.Generator().manual_seed(9), dtype=result.dtype
    )
    return torch.autograd.grad((result * weights).sum(), inputs)


def require_close(actual, expected, dtype, *, loosely=False):
    tolerance = torch.finfo(dtype).eps ** 0.5 if loosely else CLOSE[dtype] * 10
    for one, other in zip(actual, expected, strict=True):
        scale = float(other.detach().abs().max()) or 1.0
        assert float((one - other).detach().abs().max()) < tolerance * scale


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("with_offset", [True, False])
def test_kernel_and_convolution_are_the_two_one_by_one(dtype, stride, with_offset):
    check_kernel_and_convolution(PIECEWISE, dtype, stride, with_offset)


def check_kernel_and_convolution(
    each_engine, dtype, stride, with_offset, *, collinear=True, loosely=False
):
    window = Window.of(3, stride, "same", 1, 2)
    it, ii, tt = (block.requires_grad_() for block in blocks(dtype, collinear=collinear))
    weight = torch.randn(6, 5, 3, 3, generator=torch.Generator().manual_seed(1), dtype=dtype)
    weight.requires_grad_()
    slope, offset = (
        torch.tensor(value, dtype=torch.float64, requires_grad=True) if with_offset else None
        for value in (1.4, 0.3)
    )
    inputs = [x for x in (it, ii, tt, weight, slope, offset) if x is not None]

    together = relu_convolution(
        it, ii, tt, weight, slope=slope, offset=offset, window=window, engine=each_engine
    )
    kernel = math.pi * arccosine(it, ii[:, None, None], tt[:, None])
    if with_offset:
        kernel = kernel + (math.pi * offset / slope).to(dtype)
    apart = window.convolve(kernel, weight)

    require_close([together], [apart], dtype)
    found, expected = gradients(together, inputs), gradients(apart, inputs)
    require_close(found, expected, dtype, loosely=loosely)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gamma", [0.7, 3.0])
def test_gaussian_and_convolution_are_the_two_one_by_one(dtype, gamma):
    check_gaussian_and_convolution(PIECEWISE, dtype, gamma)


def check_gaussian_and_convolution(each_engine, dtype, gamma):
    window = Window.of(3, 2, "same", 1, 2)
    it, ii, tt = (block.requires_grad_() for block in blocks(dtype))
    weight = torch.randn(6, 5, 3, 3, generator=torch.Generator().manual_seed(1), dtype=dtype)
    exponent = torch.tensor(gamma, dtype=torch.float64, requires_grad=True)
    inputs = [it, ii, tt, weight.requires_grad_(), exponent]
    together = pointwise_convolution(
        GaussianPointwise(exponent, each_engine), it, ii, tt, weight, window=window
    )
    norm = safe_sqrt(ii[:, None, None]) * safe_sqrt(tt[:, None])
    cosine = it / norm.masked_fill(norm == 0, 1)
    kernel = norm * torch.exp(exponent.to(dtype) * (cosine - 1))
    apart = window.convolve(kernel, weight)
    require_close([together], [apart], dtype)
    require_close(gradients(together, inputs), gradients(apart, inputs), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weights", [(0.25, 0.75), (0.0, 1.0), (0.2, 0.0, 0.5, 0.3)])
def test_polynomial_and_convolution_are_the_two_one_by_one(dtype, weights):
    check_polynomial_and_convolution(PIECEWISE, dtype, weights)


def check_polynomial_and_convolution(each_engine, dtype, weights):
    window = Window.of(3, 2, "same", 1, 2)
    it, ii, tt = (block.requires_grad_() for block in blocks(dtype))
    weight = torch.randn(6, 5, 3, 3, generator=torch.Generator().manual_seed(1), dtype=dtype)
    inputs = [it, ii, tt, weight.requires_grad_()]
    together = pointwise_convolution(
        PolynomialPointwise(weights, each_engine), it, ii, tt, weight, window=window
    )
    kernel = NormalisedPolynomial(weights).of(it, ii[:, None, None], tt[:, None])
    apart = window.convolve(kernel, weight)
    require_close([together], [apart], dtype)
    require_close(gradients(together, inputs), gradients(apart, inputs), dtype)


def test_a_polynomial_of_degree_one_is_the_identity():
    it, ii, tt = (block.requires_grad_() for block in blocks(torch.float64))
    window = Window.of(3, 1, "same", 1, 2)
    weight = torch.randn(6, 5, 3, 3, dtype=torch.float64)
    together = pointwise_convolution(PolynomialPointwise((1.0,)), it, ii, tt, weight, window=window)
    require_close([together], [window.convolve(it, weight)], torch.float64)
    assert not any(each.any() for each in gradients(together, [ii, tt]))


def test_a_gaussian_of_points_that_are_zero_is_zero():
    window = Window.of(3, 1, "same", 1, 2)
    it, ii, tt = blocks(torch.float64)
    it[:, 0], ii[0] = 0, 0
    it[0, :, 1], tt[0, 1] = 0, 0
    weight = torch.ones(2, 5, 3, 3, dtype=torch.float64)
    inputs = [block.requires_grad_() for block in (it, ii, tt, weight)]
    pointwise = GaussianPointwise(torch.tensor(2.0, dtype=torch.float64))
    value = pointwise_convolution(pointwise, it, ii, tt, weight, window=window)
    by = gradients(value, inputs)
    assert all(bool(torch.isfinite(each).all()) for each in (value, *by))
    assert not by[0][:, 0].any()
    assert not by[2][0, 1].any()
    assert by[1][0] == 0


@pytest.mark.parametrize("ndim", [1, 3])
def test_kernel_and_convolution_in_other_dimensions(ndim):
    window = Window.of(3, 1, "same", 1, ndim)
    generator = torch.Generator().manual_seed(0)
    it = 0.3 * torch.randn(2, 4, *(5,) * ndim, generator=generator, dtype=torch.float64)
    ii, tt = torch.full((4,), 2.0).double(), torch.full((2, *(5,) * ndim), 3.0).double()
    weight = torch.randn(3, 4, *(3,) * ndim, generator=generator, dtype=torch.float64)
    inputs = [x.requires_grad_() for x in (it, ii, tt, weight)]
    together = relu_convolution(it, ii, tt, weight, window=window)
    shape = (4, *(1,) * ndim)
    apart = window.convolve(math.pi * arccosine(it, ii.reshape(shape), tt[:, None]), weight)
    require_close([together], [apart], torch.float64)
    require_close(gradients(together, inputs), gradients(apart, inputs), torch.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shifted", [True, False])
@pytest.mark.parametrize("number", ["none", "scale", "mean", "scale and mean", "fixed"])
@pytest.mark.parametrize("orthogonal", [True, False])
def test_the_predicted_blocks_are_their_formula(dtype, shifted, number, orthogonal):
    check_predicted(PIECEWISE, dtype, shifted, number, orthogonal)


def test_the_compiled_engine_does_the_same():
    made = the_compiled_engine()
    check_kernel_and_convolution(made, torch.float64, 1, True)
    check_kernel_and_convolution(made, torch.float32, 1, True, collinear=False)
    check_kernel_and_convolution(made, torch.float32, 2, False, collinear=False)
    # An angle of zero or π is known to the root of the rounding, and engines round differently.
    check_kernel_and_convolution(made, torch.float32, 2, False, loosely=True)
    check_gaussian_and_convolution(made, torch.float32, 3.0)
    check_polynomial_and_convolution(made, torch.float32, (0.25, 0.75))
    for orthogonal in (True, False):
        check_predicted(made, torch.float32, True, "scale and mean", orthogonal)
        check_predicted(made, torch.float32, False, "none", orthogonal)


def check_predicted(each_engine, dtype, shifted, number, orthogonal):
    generator = torch.Generator().manual_seed(2)
    white = torch.randn(3, 4, 5, 5, generator=generator, dtype=dtype)
    own = 2 + 4 * torch.rand(3, 5, 5, generator=generator, dtype=dtype)
    spread = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    if orthogonal:
        spread = torch.linalg.eigh(spread @ spread.T)[1].T @ spread
    factor = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    shift = torch.randn(4, generator=generator, dtype=dtype) if shifted else None
    scale = torch.tensor(0.3, dtype=torch.float64) if "scale" in number else None
    fixed = torch.tensor(1.7, dtype=dtype) if number == "fixed" else None
    parts = (white, own, spread, factor, shift, scale)
    inputs = [x.requires_grad_() for x in parts if x is not None]

    it, tt, mean = predicted(
        white,
        own,
        spread,
        factor,
        orthogonal=orthogonal,
        shift=shift,
        number=Number(scale, "mean" in number, fixed),
        engine=each_engine,
    )
    inner = torch.einsum("pm,nphw->nmhw", spread.to(dtype), white)
    if shift is not None:
        inner = inner - shift[:, None, None]
    residual = (own - white.square().sum(1)).clamp(min=0)
    assert 0 < int((residual == 0).sum()) < residual.numel()
    variance = residual + inner.square().sum(1)
    n = torch.ones((), dtype=dtype) if scale is None else scale.exp().to(dtype)
    if "mean" in number:
        n = n * variance.mean().rsqrt()
        torch.testing.assert_close(mean, variance.mean().detach())
    else:
        assert mean is None
    if fixed is not None:
        n = n * fixed.rsqrt()
    expected_it = n * torch.einsum("qm,nmhw->nqhw", factor.to(dtype), inner)
    expected_tt = n.square() * variance

    require_close([it, tt], [expected_it, expected_tt], dtype)
    together = torch.cat([it.flatten(), tt.flatten()])
    apart = torch.cat([expected_it.flatten(), expected_tt.flatten()])
    require_close(gradients(together, inputs), gradients(apart, inputs), dtype)


def test_pieces_make_no_difference(monkeypatch):
    def results():
        it, ii, tt = (block.requires_grad_() for block in blocks(torch.float64))
        weight = torch.ones(2, 5, 3, 3, dtype=torch.float64)
        window = Window.of(3, 1, "same", 1, 2)
        value = relu_convolution(it, ii, tt, weight, window=window)
        eye = torch.eye(5, dtype=torch.float64)
        predicted_it, variance, _ = predicted(it, tt, eye, 2 * eye, number=Number(by_mean=True))
        total = value.sum() + variance.sum() + predicted_it.square().sum()
        return total, *torch.autograd.grad(total, [it, ii, tt])

    whole = results()
    monkeypatch.setattr(maps, "PIECE", 35)
    require_close(results(), whole, torch.float64)


def test_polynomials_stand_for_angle_and_kernel():
    cosine, one = torch.linspace(-1, 1, 2001), compiled.Roots.of(torch.ones(()))
    wide = cosine.double()
    angle, sine = wide.arccos(), (1 - wide.square()).sqrt()
    kernel = sine + (math.pi - angle) * wide
    found = compiled._sine_and_supplement(cosine, one, one)
    assert float((found[0] - sine)[1:-1].abs().max()) < 4e-6
    assert float((found[1] - (math.pi - angle))[1:-1].abs().max()) < 4e-6
    value = compiled._relu(cosine, one, one, torch.zeros(()))
    assert float((value - kernel).abs().max()) < 6e-7


def test_roots_of_no_variance_give_nothing():
    roots = compiled.Roots.of(torch.tensor([4.0, 0.0]))
    assert roots.root.tolist() == [2.0, 0.0]
    assert (torch.tensor([3.0, 0.0]) * roots.inverse).tolist() == [1.5, 0.0]
    assert roots.inverse.square().isfinite().all()
    assert roots.by_variances(torch.tensor([8.0, 0.0])).tolist() == [1.0, 0.0]


def test_without_a_compiler_torchs_operations_are_used(monkeypatch, caplog):
    def fails(*_arguments, **_options):
        raise RuntimeError("no C++ compiler was found\nsecond line")

    monkeypatch.setattr(compiled.Compiled, "relu", fails)
    compiled_engine.cache_clear()
    try:
        assert engine(compiled=True) is PIECEWISE
        assert "PyTorch's own operations are used: no C++ compiler was found" in caplog.text
    finally:
        compiled_engine.cache_clear()
