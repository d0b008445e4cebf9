"""Machines of every kind, away from their starting values, to be folded."""

import torch

import convdkm as dkm
from oracle.cases import perturb

INDUCING_NORMS, DATA_NORMS = (
    ("none", "batch", "local"),
    ("none", "batch", "image", "location", "local"),
)
DATA_SCALES = ("none", "batch", "location")


def residual(space=(6, 5), **options):
    def build(dtype):
        model = dkm.resnet(2, 3, (5, 6), (1, 1), ndim=len(space), dtype=dtype, **options)
        return model, (2, *space)

    return build


def sequence(*layers, likelihood=None, points=5, space=(6, 5), source=None, head=None):
    def build(dtype):
        made = [layer() for layer in layers]
        model = dkm.DeepKernelMachine(
            dkm.PatchInput(2, 5) if source is None else source(),
            dkm.Sequential(*made),
            head() if head is not None else dkm.GPHead(points, 3),
            likelihood() if likelihood is not None else dkm.Categorical(3),
            dtype=dtype,
        )
        return model, (2, *space)

    return build


def connected(**options):
    def build(dtype):
        return dkm.fully_connected(4, 2, inducing=6, depth=2, dtype=dtype, **options), (4,)

    return build


def kernel(make):
    return residual(kernel=make)


PUBLISHED = {**dkm.PUBLISHED, "statistics": "running", "expectation": "nodes"}


def small(space=(6, 5), **options):
    def build(dtype):
        model = dkm.resnet(2, 3, (5,), (1,), ndim=len(space), dtype=dtype, **options)
        return model, (2, *space)

    return build


MACHINES = {
    "small published": small(**{**PUBLISHED, "strides": (2,)}),
    "small centred": small(centre=True, normalisation=("local", "location"), top="linear+mix"),
    "small 3-D": small(space=(4, 3, 5), likelihood="gaussian", kernel=dkm.Matern(1.5)),
    "plain": residual(),
    "published": residual(**{**PUBLISHED, "strides": (1, 2)}),
    "centred": residual(centre=True, jitter=1e-3),
    "centred by place": residual(centre=True, normalisation=("local", "location")),
    "nngp": residual(nu=float("inf")),
    "whitened": residual(
        gram_parameterisation="whitened",
        head_parameterisation="whitened",
        learn_skip=True,
        skip_weight=0.3,
    ),
    "sampled": residual(
        gram_samples=0.5, gram_noise=0.1, kl="taylor", head_parameterisation="whitened"
    ),
    "noisy and centred": residual(gram_samples=0.5, gram_noise=0.1, centre=True),
    "skip of nothing": residual(skip_weight=1.0),
    "gaussian": residual(likelihood="gaussian", head_covariance="per-output"),
    "own covariances": residual(head_covariance="per-output"),
    "gap+mix": residual(top="gap+mix"),
    "linear": residual(top="linear"),
    "linear+mix": residual(top="linear+mix"),
    "1-D": residual(space=(9,), centre=True, border="inside"),
    "3-D": residual(space=(4, 3, 5), normalisation=("batch", "location")),
    "even filters": residual(kernel_size=2, border="inside"),
    "strided input": residual(input_stride=2, kernel_size=5),
    "arccos 0": kernel(dkm.ArcCosine(0, bias_variance=0.2)),
    "arccos 2": kernel(dkm.ArcCosine(2, weight_variance=0.7)),
    "erf": kernel(dkm.ArcSine(weight_variance=1.2, bias_variance=0.1)),
    "leaky relu": kernel(dkm.LeakyReLU(0.3, weight_variance=1.2, bias_variance=0.1)),
    "sine": kernel(dkm.Sine(0.8, 0.3, weight_variance=1.2, bias_variance=0.1)),
    "linear kernel": kernel(dkm.Linear()),
    "Matern": kernel(dkm.Matern(2.5, 1.3, scale=0.8)),
    "Matern 1.5": kernel(dkm.Matern(1.5)),
    "rational quadratic": kernel(dkm.RationalQuadratic(1.7)),
    "normalised Gaussian": kernel(dkm.NormalisedGaussian(0.6)),
    "normalised polynomial": kernel(dkm.NormalisedPolynomial((1, 2, 1))),
    "sum": kernel(0.4 * dkm.ArcCosine() + dkm.SquaredExponential(0.9)),
    "product": kernel(dkm.ArcCosine() * dkm.SquaredExponential(2.0)),
    "convex": kernel(dkm.ConvexCombination(dkm.ArcCosine(), dkm.Linear(), weights=(1.0, 3.0))),
    "vectors": connected(),
    "vectors, scaled": connected(learn_scales=True),
    "vectors, normalised": connected(normalise=True, head_covariance="per-output"),
    "vector classes": connected(likelihood="categorical", kernel=dkm.Matern(1.5)),
    "pooling": sequence(
        dkm.ArcCosine,
        lambda: dkm.Conv(5, 6, 3, dilation=2, padding="valid"),
        lambda: dkm.GramLayer(6),
        lambda: dkm.AveragePool(2, padding=1, stride=1),
        lambda: dkm.Mix(6, 4),
        lambda: dkm.Noise(0.1, 0.2),
        dkm.GlobalAveragePool,
        points=4,
        likelihood=lambda: dkm.Gaussian(3, noise=0.3),
    ),
    "Gram first": sequence(
        lambda: dkm.GramLayer(5), dkm.Centre, dkm.ArcCosine, dkm.GlobalAveragePool
    ),
    "centre before convolution": sequence(
        dkm.Centre, lambda: dkm.Conv(5, 5, 3), dkm.Norm, dkm.ArcCosine, lambda: dkm.Flatten(5)
    ),
    "jitter, noise and divided weights": sequence(
        lambda: dkm.Jitter(dkm.ArcCosine(weight_variance=1.2, bias_variance=0.1), 0.1, 0.2),
        lambda: dkm.Noise(0.1, 0.2),
        lambda: dkm.Conv(5, 6, 3, divided=True),
        lambda: dkm.GramLayer(6, full=True, learn_scale=True, divided=True),
        dkm.Norm,
        lambda: dkm.Flatten(4, divided=True),
        points=4,
    ),
    "only the head": sequence(dkm.GlobalAveragePool),
    "nothing but a mean": sequence(dkm.Flatten),
}
for _inducing in INDUCING_NORMS:
    for _data in DATA_NORMS:
        MACHINES[f"norm {_inducing} {_data}"] = residual(normalisation=(_inducing, _data))
for _scale in DATA_SCALES:
    MACHINES[f"scale local {_scale}"] = residual(scaling=("local", _scale))


def machine(name, dtype=torch.float32):
    """A machine in evaluation whose every parameter and statistic has been moved, and images."""
    generator = torch.Generator().manual_seed(len(name))
    torch.manual_seed(1)
    model, shape = MACHINES[name](dtype)
    inputs = torch.randn(20, *shape, generator=generator, dtype=torch.float64)
    model.initialise(inputs[:12], seed=0)
    perturb(model, generator, 0.1)
    with torch.no_grad():
        for each in model.modules():
            if isinstance(each, dkm.Norm) and each.running_variance is not None:
                drawn = torch.rand(each.running_variance.shape, generator=generator)
                each.running_variance.mul_(0.8 + 0.4 * drawn)
    return model.eval(), inputs[12:].to(dtype)
