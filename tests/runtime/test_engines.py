"""The engines that work on maps: right values, right gradients, the same from both."""

import math

import pytest
import torch

import convdkm as dkm
from convdkm.kernels.arccos import arccosine, relu, step
from convdkm.kernels.blocks import Side
from convdkm.kernels.pointwise import convolved, value_of_rows
from convdkm.numerics import safe_sqrt
from convdkm.ops.chain import Chain
from convdkm.ops.predicted import Scale, predicted
from convdkm.ops.window import Window
from convdkm.runtime import compiled, elementwise, maps
from convdkm.runtime.elementwise import PIECEWISE, compiled_engine, engine

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


KERNELS = {
    "arc-cosine": dkm.ArcCosine,
    "arc-cosine, variances": lambda: dkm.ArcCosine(weight_variance=1.4, bias_variance=0.3),
    "arc-cosine, order 0": lambda: dkm.ArcCosine(0),
    "arc-cosine, order 2": lambda: dkm.ArcCosine(2, weight_variance=0.7),
    "erf": dkm.ArcSine,
    "erf, variances": lambda: dkm.ArcSine(weight_variance=1.4, bias_variance=0.3),
    "leaky relu": lambda: dkm.LeakyReLU(0.3),
    "absolute value": lambda: dkm.LeakyReLU(-1.0, weight_variance=1.4, bias_variance=0.3),
    "sine": dkm.Sine,
    "sine, variances": lambda: dkm.Sine(1.3, 0.4, weight_variance=1.4, bias_variance=0.3),
    "gaussian": lambda: dkm.NormalisedGaussian(0.7),
    "gaussian, learned": lambda: dkm.NormalisedGaussian(3.0, learn=True),
    "polynomial": lambda: dkm.NormalisedPolynomial((0.25, 0.75)),
    "square": lambda: dkm.NormalisedPolynomial((0.0, 1.0)),
    "polynomial of degree 4": lambda: dkm.NormalisedPolynomial((0.2, 0.0, 0.5, 0.3)),
    "squared exponential": lambda: dkm.SquaredExponential(1.3, scale=0.7, learn=True),
    "matern": lambda: dkm.Matern(1.5, 2.0, learn=True),
    "sum": lambda: dkm.ArcCosine(bias_variance=0.2) + 0.5 * dkm.Linear(),
    "product": lambda: dkm.NormalisedGaussian() * dkm.ArcCosine(0, weight_variance=2.0),
    "convex": lambda: dkm.ConvexCombination(dkm.ArcCosine(), dkm.Matern(), learn=True),
}
each_kernel = pytest.mark.parametrize("name", KERNELS)


@pytest.mark.parametrize("dtype", DTYPES)
@each_kernel
def test_kernel_and_convolution_are_the_two_one_by_one(name, dtype):
    check_kernel_and_convolution(KERNELS[name](), dtype)


def check_kernel_and_convolution(kernel, dtype, stride=2, *, collinear=True, loosely=False):
    """The plan of both together against autograd through the kernel, and then the convolution."""
    it, ii, tt = blocks(dtype, collinear=collinear)
    if kernel_is_singular(kernel):
        it, ii, tt = blocks(dtype, collinear=False)
    conv = dkm.Conv(5, 6, 3, stride=stride)
    inducing = torch.diag(ii.double()).requires_grad_()
    inputs = [it.requires_grad_(), inducing, tt.requires_grad_(), conv.weight]
    inputs += kernel.parameters()

    front = kernel.plan(inducing)
    after = conv.plan(front.ii.detach())
    plan = Chain([("kernel", front), ("conv", after)], after.ii, {})
    assert len(plan.steps) == 1, "they are one operation"
    together = plan.data(it, tt)
    own = inducing.diagonal().to(dtype)[:, None, None]
    apart = conv.plan(front.ii.detach()).data(kernel.of(it, own, tt[:, None]), kernel.variance(tt))

    require_close(together, apart, dtype)
    joined = [torch.cat([each.flatten() for each in pair]) for pair in (together, apart)]
    found, expected = (gradients(each, inputs) for each in joined)
    require_close(found, expected, dtype, loosely=loosely)


def kernel_is_singular(kernel):
    """Whether a slope is infinite where points coincide, so that it is a matter of rounding."""
    parts = [part for part in kernel.modules() if isinstance(part, dkm.Kernel)]
    return any(getattr(part, "order", 1) == 0 or isinstance(part, dkm.Matern) for part in parts)


def test_a_polynomial_of_degree_one_is_the_identity():
    it, ii, tt = (block.requires_grad_() for block in blocks(torch.float64))
    window = Window.of(3, 1, "same", 1, 2)
    weight = torch.randn(6, 5, 3, 3, dtype=torch.float64)
    kernel = dkm.NormalisedPolynomial((1.0,))
    together = convolved(kernel, window, (it, ii, tt), weight)
    require_close([together], [window.convolve(it, weight)], torch.float64)
    assert all(float(each.abs().max()) < 1e-14 for each in gradients(together, [ii, tt]))


@each_kernel
def test_points_that_are_zero_have_finite_gradients(name):
    window = Window.of(3, 1, "same", 1, 2)
    it, ii, tt = blocks(torch.float64)
    it[:, 0], ii[0] = 0, 0
    it[0, :, 1], tt[0, 1] = 0, 0
    weight = torch.ones(2, 5, 3, 3, dtype=torch.float64)
    inputs = [block.requires_grad_() for block in (it, ii, tt, weight)]
    value = convolved(KERNELS[name](), window, (it, ii, tt), weight)
    assert all(bool(torch.isfinite(each).all()) for each in (value, *gradients(value, inputs)))


@pytest.mark.parametrize("ndim", [1, 3])
def test_kernel_and_convolution_in_other_dimensions(ndim):
    window = Window.of(3, 1, "same", 1, ndim)
    generator = torch.Generator().manual_seed(0)
    it = 0.3 * torch.randn(2, 4, *(5,) * ndim, generator=generator, dtype=torch.float64)
    ii, tt = torch.full((4,), 2.0).double(), torch.full((2, *(5,) * ndim), 3.0).double()
    weight = torch.randn(3, 4, *(3,) * ndim, generator=generator, dtype=torch.float64)
    inputs = [x.requires_grad_() for x in (it, ii, tt, weight)]
    together = convolved(dkm.ArcCosine(), window, (it, ii, tt), weight)
    shape = (4, *(1,) * ndim)
    apart = window.convolve(arccosine(it, ii.reshape(shape), tt[:, None]), weight)
    require_close([together], [apart], torch.float64)
    require_close(gradients(together, inputs), gradients(apart, inputs), torch.float64)


class OldFormula(dkm.Kernel):
    """The arc-cosine kernel by its sine and its angle, with autograd's derivatives."""

    def of(self, cross, left, right):
        sine = safe_sqrt(left * right - cross.square())
        return (sine + (math.pi / 2 + torch.atan2(cross, sine)) * cross) / math.pi

    def variance(self, own):
        return own


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_arc_cosine_kernel_is_its_formula(dtype):
    """What is tested above against :meth:`of` is also what the formula says."""
    blocks_of = blocks(dtype, collinear=False)
    it, ii, tt = (block.requires_grad_() for block in blocks_of)
    left, right = ii[:, None, None], tt[:, None]
    images = it[1:], left, right[1:]
    pairs = [kernel.of(*images) for kernel in (dkm.ArcCosine(), OldFormula())]
    require_close(pairs[:1], pairs[1:], dtype)
    found, expected = (gradients(each, [it, ii]) for each in pairs)
    require_close(found, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shifted", ["given", "mean", "none"])
@pytest.mark.parametrize("number", ["none", "scale", "mean", "scale and mean", "fixed"])
@pytest.mark.parametrize("orthogonal", [True, False])
def test_the_predicted_blocks_are_their_formula(dtype, shifted, number, orthogonal):
    check_predicted(PIECEWISE, dtype, shifted, number, orthogonal)


def test_the_compiled_engine_does_the_same():
    made = the_compiled_engine()
    for orthogonal in (True, False):
        check_predicted(made, torch.float32, "given", "scale and mean", orthogonal)
        check_predicted(made, torch.float32, "mean", "mean", orthogonal)
        check_predicted(made, torch.float32, "none", "none", orthogonal)


def test_a_torch_without_limits_of_its_own_compiles_all_the_same(monkeypatch):
    assert compiled.apart(3) in ({}, {"recompile_limit": 3, "isolate_recompiles": True})
    monkeypatch.setattr(torch, "compile", lambda function, *, dynamic, backend: function)
    doubled = compiled.compiled_for_rows(lambda rows: 2 * rows)
    assert torch.equal(doubled(torch.ones(3, 2)), torch.full((3, 2), 2.0))


@pytest.mark.parametrize("name", ["arc-cosine", "gaussian, learned", "polynomial", "sum", "matern"])
def test_compiled_kernels_do_the_same(name):
    the_compiled_engine()
    kernel = KERNELS[name]()
    kernel.compiled = True
    check_kernel_and_convolution(kernel, torch.float32, collinear=False)
    # An angle of zero or π is known to the root of the rounding, and engines round differently.
    check_kernel_and_convolution(kernel, torch.float32, loosely=True)
    if name == "arc-cosine":
        check_kernel_and_convolution(kernel, torch.float64, 1)


def test_kernels_of_one_kind_share_a_program(monkeypatch):
    the_compiled_engine()
    seen = []
    make = compiled.compile_fx
    monkeypatch.setattr(compiled, "compile_fx", lambda *a, **k: seen.append(a) or make(*a, **k))
    it, ii, tt = blocks(torch.float32, points=3, seed=5)
    rows = maps.as_rows(it), Side.of(ii), Side.of(tt.reshape(-1, 1))

    class NewKind(dkm.NormalisedGaussian):
        """A kind for which no other test has made a program."""

    made = []
    for gamma in (0.3, 0.4, 0.5):
        kernel = NewKind(gamma)
        kernel.compiled = True
        value = value_of_rows(kernel, *rows)
        torch.testing.assert_close(value, kernel.core(*rows), rtol=1e-5, atol=1e-6)
        made.append(len(seen))
    # PyTorch may try more than once before it has a program; for the kernels after it there is one.
    assert made[0] > 0
    assert made[1:] == made[:1] * 2


def check_predicted(each_engine, dtype, shifted, number, orthogonal):
    generator = torch.Generator().manual_seed(2)
    white = torch.randn(3, 4, 5, 5, generator=generator, dtype=dtype)
    own = 2 + 4 * torch.rand(3, 5, 5, generator=generator, dtype=dtype)
    spread = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    if orthogonal:
        spread = torch.linalg.eigh(spread @ spread.T)[1].T @ spread
    factor = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    shift = torch.randn(4, generator=generator, dtype=dtype) if shifted == "given" else None
    scale = torch.tensor(0.3, dtype=torch.float64) if "scale" in number else None
    fixed = torch.tensor(1.7, dtype=dtype) if number == "fixed" else None
    parts = (white, own, spread, factor, shift, scale)
    inputs = [x.requires_grad_() for x in parts if x is not None]

    it, tt, centre, mean = predicted(
        white,
        own,
        spread,
        factor,
        orthogonal=orthogonal,
        shift=shift,
        centred=shifted == "mean",
        scale=Scale(scale, "mean" in number, fixed),
        engine=each_engine,
    )
    inner = torch.einsum("pm,nphw->nmhw", spread.to(dtype), white)
    if shifted == "mean":
        shift = inner.mean((0, 2, 3))
        torch.testing.assert_close(centre, shift.detach())
    else:
        assert centre is None
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


@pytest.mark.parametrize("compiling", [False, True])
def test_maps_of_lower_precision_are_worked_on_in_that_of_the_variances(compiling):
    made = the_compiled_engine() if compiling else PIECEWISE
    kernel = dkm.NormalisedPolynomial((1, 3))
    kernel.compiled = compiling
    it, ii, tt = blocks(torch.float32, collinear=False)
    low = it.bfloat16()
    weight = torch.randn(5, 5, 3, 3, generator=torch.Generator().manual_seed(4))
    window, turn = Window.of(3, 1, "same", 1, 2), torch.eye(5, dtype=torch.float64)
    results = []
    for mixed in (False, True):
        inputs = [x.detach().requires_grad_() for x in (low if mixed else low.float(), tt, weight)]
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            white = convolved(kernel, window, (inputs[0], ii, inputs[1]), inputs[2])
            after = predicted(
                white, 9 * inputs[1], turn, 2 * turn, orthogonal=True, centred=True, engine=made
            )
        assert {white.dtype, after.it.dtype} == {torch.bfloat16 if mixed else torch.float32}
        assert after.tt.dtype == after.shift.dtype == torch.float32
        together = torch.cat([after.it.float().flatten(), after.tt.flatten()])
        results.append([together, *(each.float() for each in gradients(together, inputs))])
    for exact, rounded in zip(*results, strict=True):
        assert 1e-5 < (rounded - exact).norm() / exact.norm() < 0.02


def test_pieces_make_no_difference(monkeypatch):
    def results():
        it, ii, tt = (block.requires_grad_() for block in blocks(torch.float64))
        weight = torch.ones(2, 5, 3, 3, dtype=torch.float64)
        window = Window.of(3, 1, "same", 1, 2)
        value = convolved(dkm.ArcCosine(), window, (it, ii, tt), weight)
        eye = torch.eye(5, dtype=torch.float64)
        made = predicted(it, tt, eye, 2 * eye, scale=Scale(by_mean=True))
        total = value.sum() + made.tt.sum() + made.it.square().sum()
        return total, *torch.autograd.grad(total, [it, ii, tt])

    whole = results()
    monkeypatch.setattr(maps, "PIECE", 35)
    require_close(results(), whole, torch.float64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_polynomials_stand_for_angle_and_kernel(dtype, monkeypatch):
    cosine = torch.linspace(-1, 1, 2001, dtype=dtype)
    wide = cosine.double()
    angle, sine = wide.arccos(), (1 - wide.square()).sqrt()
    kernel = (sine + (math.pi - angle) * wide) / math.pi
    bounds = {torch.float32: (2e-7, 1.5e-6), torch.float64: (1e-15, 1e-15)}[dtype]
    for compiling in (False, True):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda now=compiling: now)
        assert float((relu(cosine) - kernel).abs().max()) < bounds[0]
        assert float((step(cosine) - (1 - angle / math.pi)).abs().max()) < bounds[1]


def test_roots_of_no_variance_give_nothing():
    side = Side.of(torch.tensor([4.0, 0.0]))
    assert side.root.tolist() == [2.0, 0.0]
    assert (torch.tensor([3.0, 0.0]) * side.inverse).tolist() == [1.5, 0.0]
    assert side.inverse.square().isfinite().all()


def test_without_a_compiler_torchs_operations_are_used(monkeypatch, caplog):
    def fails(*_arguments, **_options):
        raise RuntimeError("no C++ compiler was found\nsecond line")

    monkeypatch.setattr(elementwise, "compiled_for_rows", lambda *_, **__: fails)
    compiled_engine.cache_clear()
    try:
        assert engine(compiled=True) is PIECEWISE
        assert "PyTorch's own operations are used: no C++ compiler was found" in caplog.text
    finally:
        compiled_engine.cache_clear()
