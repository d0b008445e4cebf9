"""NNGP and NTK of networks against neural-tangents, finite networks, and closed forms."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import convdkm as dkm
from convdkm.exact import (
    Convolution,
    Dense,
    ExactKernel,
    GlobalSumPool,
    GPRegression,
    LayerNorm,
    Pooling,
    Residual,
    SpatialGram,
    propagate,
)
from oracle.stax import LAYERS, NETWORKS, Network


@pytest.mark.parametrize("name", NETWORKS)
def test_equals_neural_tangents(name):
    network = Network.named(name)
    for kind in ("nngp", "ntk"):
        apart, same = network.deviations(kind)
        assert apart < 1e-13
        # neural-tangents has the angle of a place with itself from √(ab − c²), which is rounding.
        assert same < (1e-13 if kind == "nngp" else 1e-8)


def test_every_layer_is_in_a_network():
    used = {type(m) for name in NETWORKS for m in Network.named(name).kernel.modules()}
    for kind in (Convolution, Dense, Pooling, GlobalSumPool, LayerNorm, Residual, dkm.Sine):
        assert kind in used
    assert len(LAYERS) == 16


def wide(*layers: dkm.Layer) -> ExactKernel:
    return ExactKernel(Convolution(3), *layers, dkm.GlobalAveragePool(), Dense())


# -- the NTK by other routes -------------------------------------------------------------------


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_ntk_of_an_image_with_itself_is_exact(layers):
    """Each layer of weights adds the kernel, where all keep the variance."""
    conv = [Convolution(3, padding="circular"), dkm.ArcCosine()]
    kernel = ExactKernel(*conv * layers, dkm.Flatten(), Dense())
    x = torch.randn(3, 2, 5, 4, dtype=torch.float64)
    expected = (layers + 1) * x.square().flatten(1).mean(1)
    torch.testing.assert_close(kernel.ntk(x).diagonal(), expected, rtol=1e-13, atol=0)
    torch.testing.assert_close(kernel.ntk(x, x.clone()), kernel.ntk(x), rtol=1e-13, atol=1e-14)


def test_ntk_of_a_linear_network():
    """f = v·Wx of standard normal numbers: |x·x′| from each of the two layers, times variances."""
    x, z = torch.randn(2, 4, 3, dtype=torch.float64)
    kernel = ExactKernel(Dense(2.0, 0.3), dkm.Linear(), Dense(1.5, 0.1))
    gram = x @ z.T / 3
    first = 2 * gram + 0.3
    torch.testing.assert_close(kernel(x, z), 1.5 * first + 0.1)
    torch.testing.assert_close(kernel.ntk(x, z), 2 * 1.5 * first + 0.1)


class FiniteNetwork(nn.Module):
    """A residual network of finite width with standard normal weights, biases and deviations."""

    def __init__(self, width: int, generator: torch.Generator) -> None:
        super().__init__()
        shapes = {
            "first": (width, 2, 3, 3),
            "first_bias": (width, 1, 1),
            "second": (width, width, 3, 3),
            "shortcut": (width, width, 1, 1),
            "top": (width,),
        }
        for name, shape in shapes.items():
            drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
            self.register_parameter(name, nn.Parameter(drawn))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        width = len(self.top)
        # TensorFlow's padding of even sizes with stride 2: at the end alone.
        hidden = (1.4 / 18) ** 0.5 * F.conv2d(x, self.first, padding=1) + 0.2**0.5 * self.first_bias
        bent = torch.sin(1.2 * hidden + 0.3)
        body = (1.5 / (9 * width)) ** 0.5 * F.conv2d(
            F.pad(bent, (0, 1, 0, 1)), self.second, stride=2
        )
        short = (0.8 / width) ** 0.5 * F.conv2d(hidden, self.shortcut, stride=2)
        pooled = (2**0.5 * torch.relu(body + short)).mean((2, 3))
        return pooled @ self.top / width**0.5


def test_wide_networks_have_the_ntk():
    """The empirical NTK J Jᵀ of finite networks, J their Jacobian by weights."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(3, 2, 4, 4, dtype=torch.float64, generator=generator)
    draws = 60
    empirical = torch.zeros(3, 3, dtype=torch.float64)
    for _ in range(draws):
        network = FiniteNetwork(128, generator)
        values = dict(network.named_parameters())

        def outputs(values, network=network):
            return torch.func.functional_call(network, values, (x,))

        jacobian = torch.func.jacrev(outputs)(values)
        rows = torch.cat([part.detach().flatten(1) for part in jacobian.values()], 1)
        empirical += rows @ rows.T / draws
    kernel = ExactKernel(
        Convolution(3, weight_variance=1.4, bias_variance=0.2),
        Residual(
            dkm.Sequential(
                dkm.Sine(1.2, 0.3),
                Convolution(3, stride=2, padding="tf-same", weight_variance=1.5),
            ),
            Convolution(1, stride=2, weight_variance=0.8),
        ),
        dkm.ArcCosine(),
        dkm.GlobalAveragePool(),
        Dense(),
    )
    ntk = kernel.ntk(x)
    torch.testing.assert_close(empirical, ntk, rtol=0.03, atol=0.02)
    assert (ntk - kernel(x)).abs().min() > 0.09  # it is told from the NNGP


@pytest.mark.parametrize("block", [1, 2, 9])
def test_blocks_do_not_change_the_ntk(block):
    kernel = wide(dkm.ArcCosine(), Convolution(3, stride=2, padding="tf-same"), dkm.ArcSine())
    x, z = torch.randn(4, 2, 4, 5, dtype=torch.float64), torch.randn(3, 2, 4, 5)
    z = z.double()
    whole = kernel.gram(x, z, ntk=True)
    assert whole.ntk is not None
    torch.testing.assert_close(kernel.ntk(x, z, block=block), whole.ntk, rtol=1e-13, atol=1e-15)
    found = kernel.ntk(x, block=block)
    assert torch.equal(found, found.T)
    torch.testing.assert_close(found, kernel.ntk(x, x), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(kernel.gram(x, z).cross, whole.cross, rtol=0, atol=0)
    assert kernel.gram(x, z).ntk is None


def test_ntk_of_a_machine_counts_the_weights_of_its_convolutions():
    machine = dkm.resnet(
        2,
        3,
        (4, 5),
        (1, 1),
        nu=float("inf"),
        normalisation=("none", "local"),
        scaling=("none", "none"),
        top="linear",
    )
    x = torch.randn(3, 2, 6, 6, dtype=torch.float64)

    def layer(stride=1):
        return [dkm.ArcCosine(), Convolution(3, stride=stride), LayerNorm(eps=0)]

    def skip(body, shortcut=None):
        return dkm.Skip(dkm.Sequential(*body), shortcut)

    short = dkm.Sequential(Convolution(1, stride=2), LayerNorm(eps=0))
    expected = ExactKernel(
        Convolution(3),
        *layer(),
        skip([*layer(), *layer()]),
        skip([*layer(2), *layer()], short),
        dkm.Flatten(),
        dkm.Norm("none", "local", "none", "none"),
    )
    torch.testing.assert_close(ExactKernel(machine).ntk(x), expected.ntk(x), rtol=1e-12, atol=0)


def test_regression_with_the_ntk():
    """The mean of infinitely wide networks after training; it meets the targets without noise."""
    x, y = torch.randn(6, 3, dtype=torch.float64), torch.randn(6, 1, dtype=torch.float64)
    kernel = ExactKernel(Dense(1, 0.1), dkm.ArcCosine(), Dense())
    theta = kernel.ntk(x)
    mean = GPRegression(theta, y, 1e-10).predict(theta, theta.diagonal()).mean
    torch.testing.assert_close(mean, y, rtol=1e-6, atol=1e-6)


def test_ntk_carries_no_gradient_and_works_in_single_precision():
    layers = [dkm.ArcCosine(weight_variance=1.3), Convolution(3), dkm.Sine(bias_variance=0.2)]
    x = torch.randn(3, 2, 4, 4)
    double = wide(*layers).ntk(x)
    assert not double.requires_grad
    single = ExactKernel(*wide(*layers).layers, dtype=torch.float32).ntk(x)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), double, rtol=2e-3, atol=2e-3)


# -- geometry ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "stride"), [(3, 1), (3, 2), (2, 2), (5, 2), (1, 2), (4, 3), (7, 3)]
)
@pytest.mark.parametrize("length", [4, 5, 6, 7])
@pytest.mark.parametrize("padding", ["tf-same", "circular"])
def test_padding_against_a_convolution_of_features(size, stride, length, padding):
    """A linear network of one layer: features convolved with random weights, on average."""
    places = math.ceil(length / stride)
    total = max((places - 1) * stride + size - length, 0)
    x = torch.randn(2, 1, length, dtype=torch.float64)
    before = total // 2
    index = torch.arange(-before, length + total - before)
    padded = x[:, :, index % length]
    if padding == "tf-same":
        padded = torch.where((index >= 0) & (index < length), padded, 0.0)
    patches = padded.unfold(2, size, stride)[:, 0, :places]
    expected = torch.einsum("irk,jsk->ijrs", patches, patches) / size
    layer = Convolution(size, stride=stride, padding=padding, ndim=1)
    torch.testing.assert_close(ExactKernel(layer).gram(x).cross, expected)
    assert ExactKernel(layer).gram(x).space == (places,)


def test_paddings_that_are_the_same():
    assert Convolution(3, padding="tf-same").window == Convolution(3).window
    x = torch.randn(2, 2, 7, 5, dtype=torch.float64)
    ours, theirs = (
        ExactKernel(Convolution(3, stride=2, padding=padding)).gram(x).cross
        for padding in ("same", "tf-same")
    )
    assert torch.equal(ours, theirs)  # on odd sizes
    x = x[:, :, :6]
    ours, theirs = (
        ExactKernel(Convolution(3, stride=2, padding=padding)).gram(x).cross
        for padding in ("same", "tf-same")
    )
    assert not torch.allclose(ours, theirs)


def test_circular_convolution_does_not_know_where_the_border_is():
    kernel = ExactKernel(
        Convolution(3, padding="circular"),
        dkm.ArcCosine(),
        Convolution((2, 3), padding="circular"),
        dkm.Flatten(),
    )
    x = torch.randn(3, 2, 5, 4, dtype=torch.float64)
    moved = x.roll((2, 1), (2, 3))
    torch.testing.assert_close(kernel(moved), kernel(x), rtol=1e-12, atol=1e-14)
    assert not torch.allclose(kernel(moved, x), kernel(x))


def test_pooling_is_average_pooling():
    x = torch.randn(3, 2, 6, 5, dtype=torch.float64)
    start = SpatialGram.of_images(x)
    one, other = (
        dkm.AveragePool(3, stride=2, padding=1),
        Pooling(3, stride=2, padding=1, reduction="inside"),
    )
    torch.testing.assert_close(propagate(other, start).cross, propagate(one, start).cross)
    pooled = F.avg_pool2d(x, 3, 2, 1)
    mean = propagate(Pooling(3, stride=2, padding=1), start)
    torch.testing.assert_close(mean.cross, SpatialGram.of_images(pooled).cross)
    total = propagate(Pooling(3, stride=2, padding=1, reduction="sum"), start)
    torch.testing.assert_close(total.left, 81 * mean.left)
    whole = propagate(GlobalSumPool(), start)
    torch.testing.assert_close(whole.cross, SpatialGram.of_images(x.sum((2, 3))).cross)


# -- bad input ---------------------------------------------------------------------------------


class Root(dkm.Kernel):
    """Its derivative by the covariance is infinite where points are orthogonal."""

    def of(self, cross, left, right):
        return cross.abs().sqrt() + 0 * (left + right)

    def variance(self, own):
        return own.sqrt()


def test_compositions_that_are_no_network():
    x = torch.randn(2, 2, 4, 4)
    with pytest.raises(dkm.GramError, match=r"layers\.0.*none before ArcCosine.*Dense"):
        ExactKernel(dkm.ArcCosine(), dkm.Flatten(), Dense()).ntk(x)
    with pytest.raises(dkm.GramError, match=r"layers\.2.*none before ArcSine"):
        ExactKernel(Convolution(3), dkm.ArcCosine(), dkm.ArcSine(), dkm.Flatten()).ntk(x)
    with pytest.raises(dkm.GramError, match=r"layers\.2.*none before ArcSine"):
        ExactKernel(Convolution(3), dkm.Flatten(), dkm.ArcSine()).ntk(x)
    with pytest.raises(dkm.GramError, match=r"layers\.0.*sum of features.*Gaussian with mean zero"):
        ExactKernel(Residual(Convolution(3)), dkm.Flatten())(x)
    with pytest.raises(dkm.GramError, match=r"sum of features.*Gaussian with mean zero"):
        wide(Residual(dkm.ArcCosine()))(x)
    with pytest.raises(dkm.GramError, match=r"layers\.2.*LayerNorm subtracts a mean of features"):
        wide(dkm.ArcCosine(), LayerNorm())(x)
    with pytest.raises(dkm.GramError, match=r"branches\.0.*same images and places|same images"):
        wide(Residual(Convolution(3, stride=2)))(x)
    with pytest.raises(dkm.GramError, match=r"still have places \(4, 4\)"):
        ExactKernel(Convolution(3)).ntk(x)
    with pytest.raises(dkm.GramError, match=r"derivative of Root .* not finite.*define tangent"):
        ExactKernel(Dense(), Root()).ntk(torch.eye(2))
    with pytest.raises(dkm.InvalidInputError, match=r"layers\.1.*smoothness 0\.5"):
        ExactKernel(Dense(), dkm.Matern(0.5)).ntk(torch.eye(2))


def test_a_layer_of_ones_own_that_forgets_the_ntk():
    class Forgetful(dkm.Layer):
        pass

    propagate.register(Forgetful, lambda _, g: SpatialGram(g.cross, g.left, g.right, g.same))
    with pytest.raises(dkm.GramError, match="made a SpatialGram without ntk"):
        ExactKernel(Dense(), Forgetful()).ntk(torch.eye(2))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Convolution(3, padding="SAME"), "'same', 'valid', 'tf-same', 'circular' or integ"),
        (lambda: Convolution(0, padding="circular"), "kernel_size must be an integer"),
        (lambda: Dense(0.0), "weight_variance of a dense layer must be a positive number, got 0"),
        (lambda: Dense(1.0, -1.0), "bias_variance of a dense layer must not be negative, got -1"),
        (lambda: Pooling(2, reduction="max"), "reduction must be one of 'sum', 'mean', 'inside'"),
        (lambda: Pooling(2, padding=2), "padding 2 leaves windows of size 2 wholly outside"),
        (lambda: LayerNorm((-1,)), "axes of space, integers from 0 on, or 'all'; got"),
        (lambda: LayerNorm("image"), "axes of a LayerNorm must be one of 'all'; got 'image'"),
        (lambda: LayerNorm(eps=-1), "eps of a LayerNorm must not be negative, got -1"),
        (Residual, "needs at least one branch"),
        (lambda: Residual(torch.nn.ReLU()), "branch of a Residual is a layer, got a ReLU"),
    ],
)
def test_bad_options(build, message):
    with pytest.raises(dkm.InvalidInputError, match=message):
        build()


def test_images_that_do_not_fit():
    x = torch.randn(2, 2, 4, 4)
    with pytest.raises(dkm.GramError, match="works on 1-D data, got a grid of shape"):
        ExactKernel(Convolution(3, padding="circular", ndim=1)).gram(x)
    with pytest.raises(
        dkm.GramError, match=r"LayerNorm over axes \(2,\) of a grid of shape \(4, 4\)"
    ):
        ExactKernel(Convolution(3), LayerNorm((2,))).gram(x)
    gram = SpatialGram.of_images(x)
    with pytest.raises(dkm.GramError, match=r"SpatialGram\.ntk must be as SpatialGram\.cross"):
        SpatialGram(gram.cross, gram.left, gram.right, ntk=gram.left)


@pytest.mark.parametrize(
    ("layer", "instead"),
    [
        (Dense(), "Mix"),
        (Pooling(2), "AveragePool"),
        (GlobalSumPool(), "GlobalAveragePool"),
        (LayerNorm(), "Norm"),
        (Residual(Dense()), "Skip"),
    ],
)
def test_in_a_sparse_machine(layer, instead):
    with pytest.raises(dkm.GramError, match=f"exact kernels.*in a sparse machine use {instead}"):
        layer.plan(torch.eye(3, dtype=torch.float64))


def test_what_layers_say_of_themselves():
    shown = [
        (Convolution(3, stride=2, padding="circular"), "stride=(2, 2), circular"),
        (Dense(2.0, 0.5), "Dense(2, 0.5)"),
        (Pooling(2, reduction="sum"), "reduction='sum'"),
        (LayerNorm("all", eps=0.1), "axes='all', eps=0.1"),
        (dkm.Sine(2.0, 0.5), "frequency=2, phase=0.5"),
    ]
    for layer, text in shown:
        assert text in repr(layer)
