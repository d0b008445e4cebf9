"""Images that break textbook formulas: zero, duplicated, or equal or opposite to inducing points.

Values and gradients must stay finite in both precisions.
"""

import pytest
import torch

import convdkm as dkm
from oracle.cases import DTYPES, KERNELS, generator_of, normal

POINTS, CHANNELS, SIDE = 6, 2, 5
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def _images(scenario, inducing, generator, dtype):
    images = normal(generator, 4, CHANNELS, SIDE, SIDE)
    if scenario == "one zero image":
        images[1] = 0
    elif scenario == "all images zero":
        images.zero_()
    elif scenario == "zero half":
        images[:, :, :, :3] = 0
    elif scenario == "duplicated images":
        images[1:] = images[0]
    elif scenario == "patches equal to inducing patches":
        images[0, :, 1:4, 1:4] = inducing[0]
        images[1, :, 1:4, 1:4] = inducing[1]
    elif scenario == "patches opposite to inducing patches":
        images[0, :, 1:4, 1:4] = -inducing[0]
        images[1] = -images[0]
    elif scenario == "constant images":
        images[:] = torch.arange(4.0)[:, None, None, None]
    elif scenario == "tiny images":
        images *= torch.finfo(dtype).tiny ** 0.2
    elif scenario == "tinier images":
        images *= torch.finfo(dtype).tiny ** 0.4
    return images.to(dtype)


SCENARIOS = [
    "one zero image",
    "all images zero",
    "zero half",
    "duplicated images",
    "patches equal to inducing patches",
    "patches opposite to inducing patches",
    "constant images",
    "tiny images",
    "tinier images",
]
NORMS = [("batch", "batch"), ("local", "local"), ("local", "image"), ("batch", "location")]


class Machine(torch.nn.Module):
    """Input patches and a body, initialised on ordinary images."""

    def __init__(self, body, generator):
        super().__init__()
        self.input, self.body = dkm.PatchInput(CHANNELS, POINTS, 3), body
        ordinary = normal(generator, 6, CHANNELS, SIDE, SIDE)
        self.body.initialise(self.input.initialise(ordinary, generator), generator)

    def forward(self, images):
        return self.body(self.input(images))


def assert_finite(model, images, evaluate):
    images = images.requires_grad_()
    values = evaluate(images)
    sum(value.square().sum() for value in values).backward()
    for value in values:
        assert torch.isfinite(value).all()
    for name, tensor in (("images", images), *model.named_parameters()):
        assert tensor.grad is None or torch.isfinite(tensor.grad).all(), name
    assert images.grad is not None


def _blocks(model):
    def evaluate(images):
        gram = model(images)
        assert (gram.tt >= 0).all()
        return gram.ii, gram.it, gram.tt

    return evaluate


@each_dtype
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_through_a_layer(name, scenario, dtype):
    """kernel → convolution → Gram layer → normalisation → kernel."""
    generator = generator_of(f"{name} {scenario}")
    body = dkm.Sequential(
        KERNELS[name](),
        dkm.Conv(POINTS, POINTS, 3),
        dkm.GramLayer(POINTS),
        dkm.Norm(),
        KERNELS[name](),
    )
    model = Machine(body, generator)
    images = _images(scenario, model.input.inducing.detach(), generator, dtype)
    assert_finite(model, images, _blocks(model))


@each_dtype
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("norm", NORMS, ids="/".join)
def test_every_layer(norm, scenario, dtype):
    generator = generator_of(f"{norm} {scenario}")
    body = dkm.Sequential(
        dkm.ArcCosine(),
        dkm.Conv(POINTS, POINTS, 3),
        dkm.GramLayer(POINTS, parameterisation="whitened", initial_scale=2.0),
        dkm.Norm(*norm),
    )
    model = Machine(body, generator)
    ordinary = model(normal(generator, 6, CHANNELS, SIDE, SIDE)).detach()
    images = _images(scenario, model.input.inducing.detach(), generator, dtype)
    for top in (
        dkm.Centre(),
        dkm.AveragePool(2),
        dkm.GlobalAveragePool(),
        dkm.Flatten(4),
        dkm.Skip(dkm.Sequential(dkm.ArcCosine(), dkm.Norm(*norm))),
    ):
        top.initialise(ordinary, generator)
        model.body = dkm.Sequential(body, top)
        assert_finite(model, images.clone(), _blocks(model))


@each_dtype
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize(
    "likelihood",
    [
        lambda: dkm.Categorical(3),
        lambda: dkm.Categorical(3, expectation="monte-carlo", samples=20),
        lambda: dkm.Gaussian(3, classes=True),
        lambda: dkm.Gaussian(3, classes=True, expectation="monte-carlo", samples=20),
    ],
    ids=["nodes", "monte-carlo", "Gaussian", "Gaussian monte-carlo"],
)
def test_objective(likelihood, scenario, dtype):
    """A zero image leaves the top-layer functions no variance at all."""
    generator = generator_of(scenario)
    model = dkm.DeepKernelMachine(
        dkm.PatchInput(CHANNELS, POINTS, 3),
        dkm.Sequential(
            dkm.ArcCosine(),
            dkm.Conv(POINTS, POINTS, 3),
            dkm.GramLayer(POINTS),
            dkm.Norm(),
            dkm.GlobalAveragePool(),
        ),
        dkm.GPHead(POINTS, 3),
        likelihood(),
        dtype=dtype,
    )
    model.initialise(normal(generator, 6, CHANNELS, SIDE, SIDE), seed=0)
    images = _images(scenario, model.input.inducing.detach(), generator, dtype)
    labels = torch.tensor([0, 1, 2, 0])

    def evaluate(images):
        found = model.objective(images, labels, num_data=len(labels))
        return found.total, found.expected_log_likelihood

    assert_finite(model, images, evaluate)


@each_dtype
def test_a_covariance_never_exceeds_its_variances(dtype):
    """|G_it|² ≤ G_ii g_tt after a Gram layer, whatever rounding does; the next kernel needs it."""
    generator = generator_of("Cauchy-Schwarz")
    inducing = normal(generator, 8, 3)
    inducing = torch.cat([inducing, inducing + 1e-3 * normal(generator, 8, 3)])
    images = torch.cat([inducing, -inducing, normal(generator, 8, 3)])
    gram = dkm.Gram.from_features(inducing, images.to(dtype))
    gram = dkm.Noise(1e-6, 0.0)(dkm.ArcCosine()(gram))
    for scale in (1.0, 100.0, 0.01):
        layer = dkm.GramLayer(16, initial_scale=scale)
        layer.initialise(gram)
        with torch.no_grad():
            outgoing = layer(gram)
        bound = outgoing.ii.diagonal().to(dtype) * outgoing.tt[:, None]
        assert (outgoing.tt >= 0).all()
        assert (outgoing.it.square() <= bound * (1 + 100 * torch.finfo(dtype).eps)).all()
