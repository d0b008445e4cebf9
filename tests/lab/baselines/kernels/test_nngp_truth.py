"""Kernels against loops over places, golden files, finite networks and convdkm.exact."""

from pathlib import Path

import numpy as np
import pytest
import torch
from brute_force import brute_matrix, finite_kernels

import convdkm as dkm
from convdkm.exact import Convolution
from convdkm.lab.baselines.kernels import (
    Architecture,
    LocalAverage,
    NNGPKernel,
    myrtle,
    plain,
    residual,
)

GOLDEN = Path(__file__).parents[3] / "golden"
Flatten, GlobalAverage, AveragePool = dkm.Flatten, dkm.GlobalAveragePool, dkm.AveragePool
Relu, Gaussian = dkm.ArcCosine, dkm.NormalisedGaussian


def Conv(size=3, **variances):  # noqa: N802
    return Convolution(size, **variances)


BLOCK = dkm.Skip(dkm.Sequential(Relu(), Conv(), Relu(), Conv()))
HALF = dkm.ArcCosine(weight_variance=0.5, learn=False)
HE = (Conv(weight_variance=2.0, bias_variance=0.1), HALF) * 2
SUM = dkm.Skip(dkm.Sequential(Relu(), Conv(bias_variance=0.2)), weight=0.7 / 1.7)

ARCHITECTURES = {
    "conv1-vec": (plain(1, Flatten()), (6, 5)),
    "conv3-vec": (plain(3, Flatten()), (6, 5)),
    "conv2-gap": (plain(2), (6, 5)),
    "conv2-lap3": (plain(2, LocalAverage(3)), (6, 5)),
    "conv1-lap5": (plain(1, LocalAverage(5)), (4, 6)),
    "conv2-bias": (plain(2, bias_variance=0.3), (4, 4)),
    "res1-vec": (residual(1, Flatten()), (5, 4)),
    "res2-gap": (residual(2), (4, 4)),
    "res1-lap3": (residual(1, LocalAverage(3)), (4, 4)),
    "plain-sum": (Architecture("", (Conv(), SUM, 1.7 * dkm.Linear()), GlobalAverage()), (4, 5)),
    "erf-vec": (Architecture("", (Conv(), dkm.ArcSine()) * 2, Flatten()), (4, 5)),
    "erf-then-pool": (
        Architecture("", (Conv(), dkm.ArcSine(), AveragePool(2), Conv(), Relu()), GlobalAverage()),
        (4, 4),
    ),
    "distance": (Architecture("", (Conv(), dkm.SquaredExponential()), GlobalAverage()), (3, 4)),
    "he-vec": (Architecture("", HE, Flatten()), (5, 4)),
    "he-gap": (Architecture("", HE, GlobalAverage()), (5, 4)),
    "myrtle5": (myrtle(5), (8, 4)),
    "myrtle7": (myrtle(7), (4, 4)),
    "myrtle10": (myrtle(10), (4, 8)),
    "myrtle5-gaussian": (myrtle(5, nonlinearity=Gaussian(0.7)), (4, 4)),
    "pool-then-vec": (
        Architecture("", (Conv(), Relu(), AveragePool(2), Conv(), Relu(), Conv()), Flatten()),
        (4, 6),
    ),
    "pool3-lap3": (
        Architecture("", (Conv(), Relu(), AveragePool(3), Conv(), Relu()), LocalAverage(3)),
        (6, 6),
    ),
    "pool-only-vec": (Architecture("", (AveragePool(2),), Flatten()), (4, 4)),
    "conv5-then-1": (Architecture("", (Conv(5), Relu(), Conv(1), Relu()), GlobalAverage()), (4, 3)),
    "relu-first-vec": (Architecture("", (Relu(), Conv()), Flatten()), (3, 4)),
    "relu-first-gap": (Architecture("", (Relu(), Conv(), BLOCK), GlobalAverage()), (3, 3)),
    "wider-than-image": (Architecture("", (Conv(), Relu(), Conv(7)), GlobalAverage()), (2, 3)),
    "nothing-vec": (Architecture("", (), Flatten()), (3, 3)),
    "nothing-gap": (Architecture("", (), GlobalAverage()), (3, 3)),
}  # fmt: skip


@pytest.fixture(params=ARCHITECTURES)
def case(request):
    architecture, (height, width) = ARCHITECTURES[request.param]
    images = torch.randn(3, 2, height, width, dtype=torch.float64)
    return architecture, images[:2], images[2:]


def test_every_architecture_equals_loops_over_places(case):
    architecture, left, right = case
    kernel = NNGPKernel(architecture, dtype=torch.float64)
    own, cross = brute_matrix(architecture, left), brute_matrix(architecture, left, right)
    tight = {"rtol": 1e-11, "atol": 1e-13}
    torch.testing.assert_close(kernel.matrix(left), own, **tight)
    torch.testing.assert_close(kernel.matrix(left, right), cross, **tight)
    torch.testing.assert_close(kernel.variance(left), own.diagonal(), **tight)

    single = NNGPKernel(architecture)
    scale = float(own.abs().max())
    loose = {"rtol": 2e-6, "atol": 1e-6 * scale}
    torch.testing.assert_close(single.matrix(left), own, **loose)
    torch.testing.assert_close(single.matrix(left, right), cross, **loose)
    torch.testing.assert_close(single.variance(left), own.diagonal(), **loose)


GOLDEN_TRUNKS = {
    "conv1": (Conv(),),
    "conv_relu_conv": (Conv(), Relu(), Conv()),
    "depth3": (Conv(), Relu(), Conv(), Relu(), Conv()),
    "avgpool": (Conv(), Relu(), AveragePool(2), Conv()),
    "residual": (Conv(), BLOCK),
}


@pytest.mark.parametrize("trunk", GOLDEN_TRUNKS)
@pytest.mark.parametrize(("top", "name"), [(Flatten(), "flatten"), (GlobalAverage(), "gap")])
def test_kernels_equal_those_of_neural_tangents(trunk, top, name):
    with np.load(GOLDEN / "nngp.npz") as file:
        x1, x2, k11, k12 = (
            torch.tensor(file[f"{trunk}_{name}/{key}"]) for key in ("x1", "x2", "k11", "k12")
        )
    kernel = NNGPKernel(Architecture("", GOLDEN_TRUNKS[trunk], top), dtype=torch.float64)
    torch.testing.assert_close(kernel.matrix(x1), k11, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(kernel.matrix(x1, x2), k12, rtol=1e-11, atol=1e-12)


GOLDEN_BASELINES = {
    "conv2_vec": plain(2, Flatten()),
    "conv2_gap": plain(2),
    "conv2_lap3": plain(2, LocalAverage(3)),
    "conv2_lap5": plain(2, LocalAverage(5)),
    "bias_vec": plain(2, Flatten(), bias_variance=0.3),
    "bias_gap": plain(2, bias_variance=0.3),
    "he_vec": Architecture("", HE, Flatten()),
    "he_gap": Architecture("", HE, GlobalAverage()),
    "res1_vec": residual(1, Flatten()),
    "res1_gap": residual(1),
    "res1_lap3": residual(1, LocalAverage(3)),
    "myrtle5_gap": myrtle(5),
    "myrtle5_gaussian_gap": myrtle(5, nonlinearity=Gaussian()),
    "myrtle7_gap": myrtle(7),
    "myrtle10_gap": myrtle(10),
}


def test_every_golden_baseline_is_tested():
    with np.load(GOLDEN / "baseline_kernels.npz") as file:
        assert sorted(file["cases"]) == sorted(GOLDEN_BASELINES)


@pytest.mark.parametrize("name", GOLDEN_BASELINES)
def test_every_architecture_equals_that_of_neural_tangents(name):
    with np.load(GOLDEN / "baseline_kernels.npz") as file:
        x1, x2 = torch.tensor(file["x1"]), torch.tensor(file["x2"])
        k11, k12 = (torch.tensor(file[f"{name}/{key}"]) for key in ("k11", "k12"))
    kernel = NNGPKernel(GOLDEN_BASELINES[name], dtype=torch.float64)
    torch.testing.assert_close(kernel.matrix(x1), k11, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(kernel.matrix(x1, x2), k12, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    "architecture",
    [
        plain(2, Flatten(), bias_variance=0.2),
        plain(2),
        plain(2, LocalAverage(3)),
        residual(1),
        myrtle(5),
        myrtle(7),
        myrtle(10),
        Architecture("he", HE, GlobalAverage()),
    ],
    ids=lambda architecture: architecture.name,
)
def test_wide_random_networks_come_near_it(architecture):
    images = torch.randn(3, 2, 8, 8)
    exact = NNGPKernel(architecture).matrix(images)
    samples = finite_kernels(architecture, images, width=128, networks=24, seed=1)
    mean, error = samples.mean(0), samples.std(0) / len(samples) ** 0.5
    size = exact.diagonal().sqrt()
    size = size[:, None] * size
    assert float((error / size).max()) < 0.1
    # A network of finite width is off by its depth over its width, beyond the error of the mean.
    assert bool(((mean - exact).abs() < 4 * error + 0.03 * size).all()), (mean - exact) / error


def test_it_is_the_exact_kernel_of_the_same_layers(case):
    architecture, left, right = case
    mine, theirs = NNGPKernel(architecture, dtype=torch.float64), architecture.exact()
    with torch.no_grad():
        torch.testing.assert_close(mine.matrix(left), theirs(left), rtol=1e-11, atol=1e-13)
        expected = theirs(left, right)
    torch.testing.assert_close(mine.matrix(left, right), expected, rtol=1e-11, atol=1e-13)


def test_parts_of_an_image_that_are_black_are_no_trouble():
    images = torch.randn(3, 1, 8, 4, dtype=torch.float64)
    images[:, :, :4] = 0
    images[1] = 0
    for architecture in (myrtle(5), plain(2, Flatten()), myrtle(5, nonlinearity=Gaussian())):
        found = NNGPKernel(architecture, dtype=torch.float64).matrix(images)
        expected = brute_matrix(architecture, images)
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)
        assert float(found[1].abs().max()) == 0
