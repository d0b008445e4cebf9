"""Exact kernels against neural-tangents, and against themselves by other routes."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import convdkm as dkm
from convdkm.exact import Convolution, ExactKernel, GPRegression, SpatialGram, propagate
from convdkm.kernels import arccosine

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "nngp.npz")


class Sign(dkm.Kernel):
    """The kernel of sign features, ``1 - 2θ/π``."""

    def of(self, cross, left, right):
        return 2 * arccosine(cross, left, right, 0) - 1

    def variance(self, own):
        return torch.ones_like(own)


def conv(**options):
    return Convolution(3, **options)


def relu():
    return dkm.ArcCosine()


TRUNKS = {
    "conv1": lambda: [conv()],
    "conv_relu_conv": lambda: [conv(), relu(), conv()],
    "depth3": lambda: [conv(), relu(), conv(), relu(), conv()],
    "stride2_same": lambda: [conv(), relu(), conv(stride=2)],
    "stride2_valid": lambda: [conv(), relu(), conv(stride=2, padding="valid")],
    "avgpool": lambda: [conv(), relu(), dkm.AveragePool(2), conv()],
    "conv_erf_conv": lambda: [conv(), dkm.ArcSine(), conv()],
    "conv_leaky_conv": lambda: [conv(), dkm.LeakyReLU(0.3), conv()],
    "residual": lambda: [conv(), dkm.Skip(dkm.Sequential(relu(), conv(), relu(), conv()))],
}
TOPS = {"flatten": dkm.Flatten, "gap": dkm.GlobalAveragePool}
VECTORS = {
    "vec_linear": lambda: [dkm.Linear()],
    "vec_arccos1": lambda: [relu()],
    "vec_arccos1_depth3": lambda: [relu(), relu(), relu()],
    "vec_arccos0": lambda: [dkm.ArcCosine(0)],
    "vec_sign": lambda: [Sign()],
    "vec_erf": lambda: [dkm.ArcSine()],
    "vec_erf_depth3": lambda: [dkm.ArcSine()] * 3,
    "vec_leaky": lambda: [dkm.LeakyReLU(0.3)],
    "vec_abs": lambda: [dkm.LeakyReLU(-1.0)],
    "vec_rbf": lambda: [dkm.SquaredExponential()],
}


def of_case(name: str) -> ExactKernel:
    if name in VECTORS:
        return ExactKernel(*VECTORS[name]())
    trunk, top = name.rsplit("_", 1)
    return ExactKernel(*TRUNKS[trunk](), TOPS[top]())


def test_every_golden_case_is_tested():
    names = {f"{trunk}_{top}" for trunk in TRUNKS for top in TOPS} | set(VECTORS)
    assert names == set(GOLDEN["cases"].tolist())


@pytest.mark.parametrize("case", GOLDEN["cases"].tolist())
def test_equals_neural_tangents(case):
    x1, x2, k11, k12 = (
        torch.from_numpy(GOLDEN[f"{case}/{key}"]) for key in ("x1", "x2", "k11", "k12")
    )
    kernel = of_case(case)
    with torch.no_grad():
        torch.testing.assert_close(kernel(x1), k11, rtol=1e-8, atol=1e-12)
        torch.testing.assert_close(kernel(x1, x2), k12, rtol=1e-8, atol=1e-12)
        torch.testing.assert_close(kernel.variance(x1), k11.diagonal(), rtol=1e-8, atol=1e-12)


def example(dtype=torch.float64) -> tuple[ExactKernel, torch.Tensor, torch.Tensor]:
    kernel = ExactKernel(
        conv(), dkm.ArcCosine(0), dkm.AveragePool(2), conv(), relu(), dkm.GlobalAveragePool()
    )
    return kernel, torch.randn(5, 2, 4, 6, dtype=dtype), torch.randn(3, 2, 4, 6, dtype=dtype)


@pytest.mark.parametrize("block", [1, 2, 4, 9])
def test_blocks_do_not_change_the_kernel(block):
    kernel, x, z = example()
    whole, cross = kernel.gram(x).cross, kernel.gram(x, z).cross
    exactly = {"rtol": 1e-13, "atol": 1e-15}
    torch.testing.assert_close(kernel(x, block=block), whole, **exactly)
    torch.testing.assert_close(kernel(x, z, block=block), cross, **exactly)
    torch.testing.assert_close(kernel.variance(x, block=block), whole.diagonal(), **exactly)
    assert torch.equal(kernel(x, block=block), kernel(x, block=block).T)


def test_default_blocks_bound_memory(monkeypatch):
    kernel, x, _ = example()
    whole = kernel(x)
    largest = []
    original = SpatialGram.of_images

    def watched(images, others=None):
        gram = original(images, others)
        largest.append(gram.cross.numel())
        return gram

    monkeypatch.setattr("convdkm.exact.conv.BLOCK_ENTRIES", 4 * 24**2)
    monkeypatch.setattr(SpatialGram, "of_images", staticmethod(watched))
    torch.testing.assert_close(kernel(x), whole, rtol=1e-13, atol=0)
    assert len(largest) == 6
    assert max(largest) == 4 * 24**2


def test_single_precision_on_request():
    kernel, x, _ = example(torch.float32)
    assert kernel(x).dtype == torch.float64
    single = ExactKernel(*kernel.layers, dtype=torch.float32)
    assert single(x).dtype == torch.float32
    torch.testing.assert_close(single(x).double(), kernel(x), rtol=1e-3, atol=1e-3)


def test_images_of_one_and_three_axes():
    """A grid with axes of length one gives the kernel of the grid without them."""
    line = torch.randn(3, 2, 5, dtype=torch.float64)
    flat = ExactKernel(
        Convolution(3, ndim=1), relu(), dkm.AveragePool(2, ndim=1), dkm.GlobalAveragePool()
    )
    deep = ExactKernel(
        Convolution((1, 1, 3), ndim=3),
        relu(),
        dkm.AveragePool((1, 1, 2), ndim=3),
        dkm.GlobalAveragePool(),
    )
    torch.testing.assert_close(flat(line), deep(line[:, :, None, None]), rtol=1e-13, atol=0)


def test_a_wide_random_network_has_the_kernel():
    """Monte Carlo: a finite residual network with strides, in one dimension."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 2, 6, dtype=torch.float64, generator=generator)
    width, draws = 512, 60

    def apply(features, stride=1, out=width):
        fan = 3 * features.shape[1]
        weight = torch.randn(out, features.shape[1], 3, dtype=torch.float64, generator=generator)
        return nn.functional.conv1d(features, weight * fan**-0.5, stride=stride, padding=1)

    total = torch.zeros(3, 3, dtype=torch.float64)
    for _ in range(draws):
        hidden = apply(x)
        branch = apply(2**0.5 * hidden.relu())
        hidden = 0.7**0.5 * hidden + 0.3**0.5 * branch
        top = apply(2**0.5 * hidden.relu(), stride=2).mean(2)
        total += top @ top.T / width / draws
    line = {"ndim": 1}
    kernel = ExactKernel(
        Convolution(3, **line),
        dkm.Skip(dkm.Sequential(relu(), Convolution(3, **line)), weight=0.3),
        relu(),
        Convolution(3, stride=2, **line),
        dkm.GlobalAveragePool(),
    )
    torch.testing.assert_close(total, kernel(x), rtol=0.04, atol=0.01)


def test_gradient_of_the_marginal_likelihood_in_a_parameter_of_the_kernel():
    x = torch.randn(4, 2, 3, 3, dtype=torch.float64)
    y = torch.randn(4, 2, dtype=torch.float64)
    nonlinearity = dkm.ArcCosine(weight_variance=1.3, bias_variance=0.2)
    kernel = ExactKernel(conv(), nonlinearity, conv(), dkm.Flatten())

    def value():
        return GPRegression(kernel(x, block=2), y, 0.3).log_marginal_likelihood

    gradients = torch.autograd.grad(value(), list(kernel.parameters()))
    assert len(gradients) == 2
    for parameter, gradient in zip(kernel.parameters(), gradients, strict=True):
        with torch.no_grad():
            parameter.add_(1e-6)
            above = value()
            parameter.sub_(2e-6)
            below = value()
            parameter.add_(1e-6)
        torch.testing.assert_close(gradient, (above - below) / 2e-6, rtol=1e-6, atol=1e-8)


# -- the kernel of a machine -------------------------------------------------------------------


def test_kernel_of_a_machine_is_that_of_its_layers():
    machine = dkm.resnet(
        2,
        3,
        (4, 5),
        (1, 1),
        nu=float("inf"),
        normalisation=("none", "none"),
        scaling=("none", "none"),
        jitter=1e-3,
        top="linear",
    )
    x = torch.randn(3, 2, 6, 6, dtype=torch.float64)

    def layer(stride=1):
        return [dkm.Noise(1e-3, 1e-3), relu(), dkm.Noise(1e-3, 1e-3), conv(stride=stride)]

    expected = ExactKernel(
        conv(),
        *layer(),
        dkm.Skip(dkm.Sequential(*layer(), *layer())),
        dkm.Skip(dkm.Sequential(*layer(2), *layer()), Convolution(1, stride=2)),
        dkm.Flatten(),
    )
    torch.testing.assert_close(ExactKernel(machine)(x), expected(x), rtol=1e-13, atol=0)


def test_normalisation_uses_running_statistics_and_leaves_them():
    x = torch.randn(6, 2, 4, 4, dtype=torch.float64)
    norm = dkm.Norm()
    machine = dkm.DeepKernelMachine(
        dkm.PatchInput(2, 4),
        dkm.Sequential(relu(), norm, dkm.GlobalAveragePool()),
        dkm.GPHead(4, 1),
        dkm.Gaussian(1),
        dtype=torch.float64,
    ).initialise(x, seed=0)
    running = norm.running_variance.clone()
    plain = ExactKernel(conv(), relu(), dkm.GlobalAveragePool())(x)
    torch.testing.assert_close(ExactKernel(machine)(x, block=2), plain / running)
    assert torch.equal(norm.running_variance, running)
    assert norm.training


@pytest.mark.parametrize("data", ["local", "image", "none"])
def test_normalisation_of_each_image_alone(data):
    x = torch.randn(3, 2, 5, dtype=torch.float64)
    kernel = ExactKernel(dkm.Norm("none", data, "none", "none"), dkm.Flatten())
    norm = {
        "local": x.square().mean(1, keepdim=True).sqrt(),
        "image": x.square().mean((1, 2), keepdim=True).sqrt(),
        "none": torch.ones(1, 1, 1),
    }[data]
    flat = (x / norm).flatten(1)
    torch.testing.assert_close(kernel(x), flat @ flat.T / flat.shape[1])


def test_a_layer_of_ones_own():
    class Double(dkm.Layer):
        pass

    x = torch.randn(3, 2, dtype=torch.float64)
    kernel = ExactKernel(dkm.Sequential({"twice": Double()}))
    with pytest.raises(dkm.InvalidInputError, match=r"layers\.0\.twice.*Double has no exact"):
        kernel(x)
    propagate.register(Double, lambda layer, gram: gram.rescale(lambda own: 0 * own + 2**0.5))
    torch.testing.assert_close(kernel(x), x @ x.T)


def test_a_machine_without_exact_kernel_says_why():
    x = torch.randn(2, 2, 6, 6)
    free = {"normalisation": ("none", "none"), "scaling": ("none", "none")}
    learned = dkm.resnet8(2, 3, (4, 4, 4), **free)
    with pytest.raises(dkm.InvalidInputError, match=r"body\.stem\.gram'.*nu=1 .*nu=inf"):
        ExactKernel(learned)(x)
    inside = dkm.resnet8(2, 3, (4, 4, 4), nu=float("inf"), border="inside", **free)
    with pytest.raises(dkm.InvalidInputError, match=r"0\.input'.*border='inside'"):
        ExactKernel(inside)(x)
    batch = dkm.Norm(statistics="batch")
    with pytest.raises(dkm.InvalidInputError, match="statistics='running'"):
        ExactKernel(batch, dkm.Flatten())(x)
    with pytest.raises(dkm.InvalidInputError, match="Centre has no exact"):
        ExactKernel(dkm.Centre(), dkm.Flatten())(x)
    with pytest.raises(dkm.GramError, match=r"shortcut.*same images and places"):
        ExactKernel(dkm.Skip(conv(stride=2)), dkm.Flatten())(x)


def test_errors():
    kernel, x, z = example()
    with pytest.raises(dkm.InvalidInputError, match="floating-point"):
        kernel(x.long())
    with pytest.raises(dkm.InvalidInputError, match="hold something"):
        kernel(x, z[:0])
    with pytest.raises(dkm.InvalidInputError, match="same C and space"):
        kernel(x, z[..., :4])
    with pytest.raises(dkm.InvalidInputError, match="1 values of the images are NaN"):
        kernel(x.index_fill(0, torch.tensor([1]), 0).masked_fill(x == x.max(), float("nan")))
    with pytest.raises(dkm.InvalidInputError, match="block must be a positive integer"):
        kernel(x, block=0)
    with pytest.raises(dkm.GramError, match=r"still have places \(4, 6\)"):
        ExactKernel(conv())(x)
    with pytest.raises(dkm.InvalidInputError, match="takes layers"):
        ExactKernel(torch.relu)
    with pytest.raises(dkm.GramError, match="in a sparse machine use Conv"):
        conv().plan(torch.eye(3, dtype=torch.float64))
    with pytest.raises(dkm.GramError, match=r"layers\.5.*no space left"):
        ExactKernel(*kernel.layers[:5], dkm.Sequential(dkm.Flatten(), dkm.Flatten()))(x)


def test_learned_scales_of_vectors_are_not_left_out():
    machine = dkm.fully_connected(3, 1, inducing=4, nu=math.inf, learn_scales=True)
    with pytest.raises(dkm.InvalidInputError, match=r"scale for every feature.*log_scales\.exp"):
        ExactKernel(machine)(torch.ones(2, 3))
    body = machine.initialise(torch.eye(5, 3), seed=0).body
    assert ExactKernel(body)(torch.eye(2, 3)).shape == (2, 2)
