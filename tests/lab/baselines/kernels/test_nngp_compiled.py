"""Kernels whose nonlinearities ``torch.compile`` makes."""

import pytest
import torch

import convdkm as dkm
from convdkm.exact import Convolution
from convdkm.lab.baselines import kernel_regression
from convdkm.lab.baselines.kernel_regression import KernelRegression
from convdkm.lab.baselines.kernels import (
    Architecture,
    LocalAverage,
    NNGPKernel,
    compiled,
    myrtle,
    plain,
    residual,
    stream,
    tiles,
)
from convdkm.lab.baselines.kernels.layers import nonlinearities

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")


@pytest.fixture
def images():
    generator = torch.Generator().manual_seed(0)
    # The last image is black: its places have no variance.
    return torch.cat([torch.randn(6, 2, 8, 8, generator=generator), torch.zeros(1, 2, 8, 8)])


@pytest.fixture
def pairs(monkeypatch):
    """Two right images at a time, so that these few are enough for a compiled function."""
    for name in ("SLAB", "JOINED_SLAB"):
        monkeypatch.setattr(tiles, name, 2 * 8**3)


def needs_a_compiler():
    if compiled.compiled(None, dkm.ArcCosine(), torch.float32) is None:
        pytest.skip("nothing compiles here: there is no C++ compiler")


@pytest.mark.usefixtures("pairs")
@pytest.mark.parametrize(
    ("architecture", "dtype"),
    [
        (residual(1, LocalAverage(3)), torch.float32),
        (
            Architecture("erf", (Convolution(3), dkm.ArcSine()), dkm.GlobalAveragePool()),
            torch.float64,
        ),
        (myrtle(5, nonlinearity=dkm.NormalisedGaussian(2.0)), torch.float64),
    ],
    ids=lambda each: each.name if isinstance(each, Architecture) else str(each)[6:],
)
def test_compiled_kernels_are_the_same(architecture, dtype, images, monkeypatch):
    needs_a_compiler()
    kernel = NNGPKernel(architecture, dtype=dtype, flips=True)
    ours = kernel.matrix(images[:3], images)
    assert kernel.compile() is kernel
    # Only the last of seven images is left to PyTorch's own operations.
    assert kernel.check(images).right == 2
    theirs = kernel.matrix(images[:3], images)
    close = {"rtol": 1e-6, "atol": 1e-7} if dtype == torch.float32 else {"rtol": 1e-13, "atol": 0}
    torch.testing.assert_close(theirs, ours, **close)
    left, right = kernel.prepare(images[:3]), kernel.prepare(images[:6])
    for layer in nonlinearities(architecture.layers):
        monkeypatch.setattr(type(layer), "core_", lambda *_: pytest.fail("that was not compiled"))
    torch.testing.assert_close(kernel.block(left, right), ours[:, :6], **close)


@pytest.mark.parametrize("count", [6, 7])
def test_a_row_that_is_more_than_half_full_is_compiled_too(count, images, monkeypatch):
    needs_a_compiler()
    kernel = NNGPKernel(plain(2))
    ours = kernel.matrix(images[:count])
    monkeypatch.setattr(tiles, "JOINED_SLAB", 4 * 8**3)
    assert kernel.compile().check(images).right == 4
    left, whole = kernel.prepare(images[:count]), dkm.ArcCosine.core_
    rest = []

    def counted(self, slab, *others):
        rest.append(slab)
        return whole(self, slab, *others)

    monkeypatch.setattr(dkm.ArcCosine, "core_", counted)
    torch.testing.assert_close(kernel.block(left, None), ours, rtol=1e-6, atol=1e-7)
    assert bool(rest) is (count == 6), "2 of 4 are too few, 3 are filled up"


@pytest.mark.parametrize("size", [1, 3, 5])
def test_a_convolution_is_a_sum_of_shifted_slabs(size):
    layer = Convolution(size, weight_variance=1.7, bias_variance=0.2)
    slabs = torch.randn(6, 5, 6, 5, 2, generator=torch.Generator().manual_seed(0))
    expected = torch.stack(list(stream.run((layer,), iter(slabs), iter(()))))
    reach = size // 2
    outside = torch.zeros_like(slabs[0])
    for row in range(6):
        rows = [
            slabs[place] if 0 <= place < 6 else outside
            for place in range(row - reach, row + reach + 1)
        ]
        torch.testing.assert_close(compiled.convolved(rows, layer), expected[row])


@pytest.mark.usefixtures("pairs")
def test_the_gain_of_a_relu_counts(images):
    needs_a_compiler()
    whole = plain(1)
    halved = Architecture(
        "halved", (whole.layers[0], dkm.ArcCosine(weight_variance=0.5)), whole.top
    )
    twice = NNGPKernel(halved).compile().matrix(images[:2], images[:6]) * 2
    torch.testing.assert_close(twice, NNGPKernel(whole).matrix(images[:2], images[:6]))


@pytest.mark.usefixtures("pairs")
def test_without_a_compiler_the_kernel_is_the_same(monkeypatch, caplog, images):
    def fails(*_arguments, **_options):
        raise RuntimeError("no C++ compiler was found\nsecond line")

    monkeypatch.setattr(torch, "compile", fails)
    monkeypatch.setattr(compiled, "MADE", {})
    kernel = NNGPKernel(plain(2))
    expected = kernel.matrix(images)
    for _ in range(2):
        assert torch.equal(kernel.compile().matrix(images), expected)
    assert "PyTorch's own operations are used: no C++ compiler was found" in caplog.text
    assert caplog.text.count("no C++ compiler") == 2, "once for each of two functions"


def test_an_architecture_that_is_made_again_needs_no_compiler(monkeypatch):
    needs_a_compiler()
    made = compiled.compiled(None, dkm.ArcCosine(), torch.float32)
    monkeypatch.setattr(torch, "compile", lambda *_, **__: pytest.fail("that was made already"))
    assert compiled.compiled(None, dkm.ArcCosine(), torch.float32) is made
    assert compiled.same(None, dkm.ArcCosine()) != compiled.same(None, dkm.LeakyReLU(0.3))
    assert compiled.same(dkm.LeakyReLU(0.2)) != compiled.same(dkm.LeakyReLU(0.3))
    assert compiled.same(dkm.Matern(1.5, 1.0)) != compiled.same(dkm.Matern(1.5, 2.0))


@pytest.mark.parametrize(
    ("architecture", "given", "expected"),
    [
        (plain(2), None, True),
        (plain(2), False, False),
        (plain(2, dkm.Flatten()), None, False),
        (plain(2, dkm.Flatten()), True, True),
    ],
)
def test_regression_compiles_where_it_is_worth_it(
    monkeypatch, images, architecture, given, expected
):
    timed = []

    def trial(kernel, _images):
        timed.append(kernel.compiled)
        return 1.0 if kernel.compiled else 2.0

    monkeypatch.setattr(NNGPKernel, "seconds_per_pair", trial)
    monkeypatch.setattr(kernel_regression, "WORTH_COMPILING", 55.0)
    machine = KernelRegression(NNGPKernel(architecture), compiled=given)
    assert machine.expected_seconds(images[:2], 1) == ((3, 2) if given else (6, 4))
    assert timed == [bool(given)], "a minute of work is not worth a compiler"
    seconds = 1 if expected else 2
    assert machine.expected_seconds(images, 1) == (28 * seconds, 7 * seconds)
    assert timed[-1] is expected
    assert machine.kernel.compiled is False, "the caller's kernel is left alone"
