"""How kernels are computed: precision, budgets, flips, normalisation, refusals."""

import math

import pytest
import torch
from brute_force import brute_matrix

from convdkm import (
    ArcCosine,
    AveragePool,
    Flatten,
    GlobalAveragePool,
    Kernel,
    NormalisedGaussian,
    Sequential,
    Skip,
)
from convdkm.errors import InvalidInputError
from convdkm.exact import Convolution
from convdkm.kernels.blocks import Scratch, Side
from convdkm.lab.baselines.kernels import (
    Architecture,
    LocalAverage,
    NNGPKernel,
    myrtle,
    plain,
    residual,
)
from convdkm.lab.baselines.kernels import progress as progress_module
from convdkm.lab.baselines.kernels.progress import Progress, duration, size
from convdkm.lab.baselines.kernels.stream import read_out
from convdkm.lab.baselines.kernels.tiles import mean_over_places
from convdkm.runtime.memory import peak_memory

EACH_KIND = [plain(2, Flatten()), residual(1, LocalAverage(3)), myrtle(5)]
BY_NAME = {"argvalues": EACH_KIND, "ids": [a.name for a in EACH_KIND]}


@pytest.mark.parametrize(("dtype", "off"), [(torch.float32, 2e-7), (torch.float64, 2e-15)])
def test_arccosine_without_inverse_cosines(dtype, off):
    near_one = 1 - torch.logspace(-16, -1, 100, dtype=torch.float64)
    cosines = torch.cat([torch.linspace(-1, 1, 20001, dtype=torch.float64), near_one]).to(dtype)
    exact = cosines.to(torch.float64)
    angle = torch.atan2((1 - exact).mul(1 + exact).sqrt(), exact)
    expected = ((1 - exact).mul(1 + exact).sqrt() + (math.pi - angle) * exact) / math.pi

    def relu(cosines):
        unit = Side.of(torch.ones((), dtype=dtype))
        return ArcCosine().core_(cosines.clone(), unit, unit, Scratch())

    found = relu(cosines)
    assert float((found.to(torch.float64) - expected).abs().max()) < off
    ends = relu(torch.tensor([-1.0, 1.0], dtype=dtype))
    assert ends.tolist() == [0.0, 1.0]
    beyond = relu(torch.tensor([-1 - 1e-6, 1 + 1e-6], dtype=dtype))
    assert beyond[0] == 0
    assert float(beyond[1]) == pytest.approx(1, abs=2e-6)


@pytest.mark.parametrize("top", [GlobalAveragePool(), Flatten(), LocalAverage(1)])
def test_places_are_added_up_in_float64(top):
    # Odd sums above 2²⁴ have no float32.
    count = 16
    slabs = torch.ones(count, count, *(() if isinstance(top, Flatten) else (count, count)), 1)
    slabs.view(-1)[0] = 2.0**25 - 2
    if isinstance(top, Flatten):
        found, ones = mean_over_places(slabs), count**2
    else:
        found, ones = read_out(iter(slabs), top, (count, count)), count**4
    if isinstance(top, LocalAverage):
        ones = count**2
    assert found.tolist() == [(2**25 - 2 + ones - 1) / ones]


@pytest.mark.parametrize("architecture", **BY_NAME)
def test_the_budget_changes_batches_and_not_values(architecture):
    images, others = torch.randn(9, 2, 8, 8), torch.randn(7, 2, 8, 8)
    rich = NNGPKernel(architecture, memory=1 << 28)
    poor = NNGPKernel(architecture, memory=rich.check(images).least + 1000)
    assert poor.check(images).right < 3 < rich.check(images).right
    for arguments in ((images,), (images, others)):
        one, two = rich.matrix(*arguments), poor.matrix(*arguments)
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("architecture", **BY_NAME)
def test_memory_stays_within_the_budget(architecture):
    images = torch.randn(6, 3, 12, 12)
    kernel = NNGPKernel(architecture, memory=2 << 20)
    ready = kernel.prepare(images)
    kept = sum(maps.numel() * 4 for maps in ready.maps) + images.numel() * 4
    assert peak_memory(lambda: kernel.prepare(images)) < kernel.memory + 2 * kept
    result = 8 * len(images) ** 2
    assert peak_memory(lambda: kernel.block(ready, None)) < kernel.memory + 3 * result


def test_a_budget_that_is_too_small_is_refused_with_the_figure():
    kernel = NNGPKernel(myrtle(5), memory=10_000)
    with pytest.raises(InvalidInputError, match=r"needs \d+\.\d MiB of working space for 32×32"):
        kernel.matrix(torch.randn(2, 3, 32, 32))


@pytest.mark.parametrize("architecture", **BY_NAME)
def test_the_matrix_is_exactly_symmetric(architecture):
    kernel = NNGPKernel(architecture, memory=1 << 22)
    found = kernel.matrix(torch.randn(9, 1, 8, 8))
    assert torch.equal(found, found.T)


@pytest.mark.parametrize("architecture", **BY_NAME)
def test_flips_are_averaged(architecture):
    images = torch.randn(3, 1, 4, 4, dtype=torch.float64)
    kernel = NNGPKernel(architecture, flips=True, dtype=torch.float64)
    straight = brute_matrix(architecture, images)
    mirrored = brute_matrix(architecture, images, images.flip(-1))
    expected = 0.5 * (straight + mirrored)
    torch.testing.assert_close(kernel.matrix(images), expected, rtol=1e-11, atol=1e-13)
    cross = kernel.matrix(images[:2], images[2:].flip(-1))
    torch.testing.assert_close(cross, expected[:2, 2:], rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(kernel.variance(images), expected.diagonal(), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("flips", [False, True])
def test_normalised_kernels_have_variance_one(flips):
    images, others = torch.randn(3, 2, 8, 8), torch.randn(2, 2, 8, 8)
    bare = NNGPKernel(myrtle(5), flips=flips, dtype=torch.float64)
    kernel = NNGPKernel(myrtle(5), flips=flips, normalise=True, dtype=torch.float64)
    roots = [bare.variance(x).sqrt() for x in (images, others)]
    expected = bare.matrix(images, others) / (roots[0][:, None] * roots[1])
    torch.testing.assert_close(kernel.matrix(images, others), expected)
    torch.testing.assert_close(kernel.matrix(images).diagonal(), kernel.variance(images))


def test_normalised_inputs_do_not_know_brightness_and_contrast():
    images = torch.randn(3, 2, 4, 4, dtype=torch.float64)
    kernel = NNGPKernel(plain(2), normalise_inputs=True, dtype=torch.float64)
    torch.testing.assert_close(kernel.matrix(images), kernel.matrix(3 * images + 2))
    centred = images - images.mean((1, 2, 3), keepdim=True)
    centred = centred / centred.square().mean((1, 2, 3), keepdim=True).sqrt()
    bare = NNGPKernel(plain(2), dtype=torch.float64)
    torch.testing.assert_close(kernel.matrix(images), bare.matrix(centred))


def test_what_cannot_be_normalised_is_refused():
    images = torch.randn(3, 1, 4, 4)
    images[1] = 0
    with pytest.raises(InvalidInputError, match="1 images have kernel zero with themselves"):
        NNGPKernel(plain(1), normalise=True).matrix(images)
    with pytest.raises(InvalidInputError, match="1 images are of one colour"):
        NNGPKernel(plain(1), normalise_inputs=True).matrix(images)


def test_bad_images_are_refused():
    kernel, good = NNGPKernel(myrtle(5)), torch.randn(2, 3, 8, 8)
    with pytest.raises(InvalidInputError, match=r"pools 9×8 places in squares of 2×2"):
        kernel.matrix(torch.randn(2, 3, 9, 8))
    with pytest.raises(InvalidInputError, match=r"floating-point, \(N, channels, height, width\)"):
        kernel.matrix(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(InvalidInputError, match="hold something"):
        kernel.matrix(good[:0])
    with pytest.raises(InvalidInputError, match="1 values of the images are NaN"):
        kernel.matrix(good.index_fill(0, torch.tensor([1]), 0).index_put(
            tuple(torch.zeros(4, 1, dtype=torch.int64)), torch.tensor(math.nan)))  # fmt: skip
    with pytest.raises(InvalidInputError, match="the same channels and size"):
        kernel.matrix(good, torch.randn(2, 1, 8, 8))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Architecture("", (Convolution(2),), Flatten()), "convolution is odd, got 2"),
        (lambda: Architecture("", (Convolution(3, stride=2),), Flatten()), "stride 1 and padd"),
        (lambda: Convolution(3, weight_variance=0), "weight_variance of a convolution must be a"),
        (lambda: Convolution(3, bias_variance=-1), "bias_variance of a convolution must not be"),
        (lambda: ArcCosine(weight_variance=-1), "weight_variance must be a positive"),
        (lambda: NormalisedGaussian(0), "gamma must be a positive"),
        (lambda: AveragePool(0), "kernel_size must be .* at least 1; got 0"),
        (lambda: Architecture("", (AveragePool(2, stride=1),), Flatten()), "that do not overlap"),
        (lambda: LocalAverage(4), "size of a box blur is odd, got 4"),
        (lambda: Architecture("", (Skip(Sequential()),), Flatten()), "residual sum is empty"),
        (lambda: Architecture("", (Skip(Sequential(AveragePool(2))),), Flatten()),
         "holds convolutions and nonlinearities, got Average"),
        (lambda: Architecture("", (Skip(Convolution(3), weight=1),), Flatten()), "above 0 and"),
        (lambda: Architecture("", (Flatten(),), Flatten()), "made of layers, got Flatten"),
        (lambda: Architecture("", (), Convolution(3)), "top of an architecture is .* got Convol"),
        (lambda: Architecture("", (Kernel(),), Flatten()), "derive it from Angular or Isotropic"),
        (lambda: plain(0), "at least one convolution, got depth=0"),
        (lambda: residual(0), "at least one block, got blocks=0"),
        (lambda: myrtle(6), "Myrtle networks are 5, 7 and 10 deep, got 6"),
        (lambda: NNGPKernel(plain(1), dtype=torch.float16), "or float64, got torch.float16"),
        (lambda: NNGPKernel(plain(1), memory=0), "positive number of bytes, got 0"),
    ],
)  # fmt: skip
def test_architectures_that_make_no_sense_are_refused(make, message):
    with pytest.raises(InvalidInputError, match=message):
        make()


def test_names():
    assert plain(4, Flatten()).name == "conv4-vec"
    assert plain(4, LocalAverage(9)).name == "conv4-lap9"
    assert residual(3).name == "res3-gap"
    assert myrtle(5, nonlinearity=NormalisedGaussian()).name == "myrtle5-gaussian"
    kernel = NNGPKernel(myrtle(10), flips=True, normalise=True)
    assert kernel.name == "myrtle10-flip-normalised"


def test_depths_of_the_myrtle_networks():
    for depth in (5, 7, 10):
        layers = myrtle(depth).layers
        convolutions = [layer for layer in layers if isinstance(layer, Convolution)]
        assert len(convolutions) + 1 == depth  # and the readout
        assert sum(isinstance(layer, AveragePool) for layer in layers) == 2


def test_descriptions_tell_architectures_apart():
    kinds = [plain(2), plain(3), plain(2, Flatten()), plain(2, bias_variance=1), residual(1),
             myrtle(5), myrtle(5, nonlinearity=NormalisedGaussian()), plain(2, LocalAverage(3)),
             plain(2, LocalAverage(5))]  # fmt: skip
    assert len({str(kind.describe()) for kind in kinds}) == len(kinds)


def test_descriptions_are_those_of_folders_that_are_there():
    """A folder of blocks belongs to the architecture that its manifest describes."""
    relu, conv = {"kind": "Relu", "gain": 2.0}, {"kind": "Conv", "size": 3}
    conv = {**conv, "weight_variance": 1.0, "bias_variance": 0.0}
    assert residual(1).describe() == {
        "layers": [
            conv,
            {
                "kind": "Residual",
                "body": [relu, conv, relu, conv],
                "shortcut_weight": 0.5,
                "body_weight": 0.5,
            },
            relu,
        ],
        "top": {"kind": "GlobalAverage"},
    }
    halved = ArcCosine(weight_variance=0.5, learn=False)
    layers = (halved, NormalisedGaussian(0.7), AveragePool(2))
    assert Architecture("", layers, LocalAverage(3)).describe() == {
        "layers": [
            {"kind": "Relu", "gain": 1.0},
            {"kind": "Gaussian", "gamma": 0.7},
            {"kind": "AveragePool", "size": 2},
        ],
        "top": {"kind": "LocalAverage", "size": 3},
    }
    assert plain(1, Flatten()).describe()["top"] == {"kind": "Flatten"}


def test_seconds_per_pair_are_measured():
    kernel = NNGPKernel(myrtle(5))
    assert 0 < kernel.seconds_per_pair(torch.randn(3, 1, 8, 8)) < 10


def test_progress_is_told(monkeypatch):
    monkeypatch.setattr(progress_module, "EVERY", 0.0)
    lines = []
    kernel = NNGPKernel(plain(1), memory=1 << 20)
    kernel.matrix(torch.randn(40, 1, 8, 8), tell=lines.append)
    assert len(lines) > 1
    assert lines[0].startswith("kernel conv1-gap: ")
    assert lines[0].endswith(" left")
    assert lines[-1] == "kernel conv1-gap: 100% of 820 pairs"


def test_progress_is_not_told_all_the_time():
    lines = []
    progress = Progress("work", 100, lines.append)
    for _ in range(100):
        progress.add(1)
    assert lines == ["work: 100% of 100 pairs"]


def test_units():
    assert [duration(s) for s in (0.5, 42, 720, 12600)] == ["0.5 s", "42 s", "12 min", "3.5 h"]
    assert [size(b) for b in (2**20, 3 * 2**30)] == ["1.0 MiB", "3.0 GiB"]
