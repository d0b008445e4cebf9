"""Everything that is compared with the oracle: one list, for the tests and for the benchmark."""

from __future__ import annotations

import copy
import itertools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

import convdkm as dkm
import oracle
from oracle.adapter import array, blocks, expected_input, head_posterior, push
from oracle.blocks import Array

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
"""Largest deviation allowed, relative to the largest absolute value of the block."""

DTYPES = list(TOLERANCE)

BLOCK_NAMES = ("ii", "it", "tt")

Pairs = dict[str, tuple[Array, Array]]


@dataclass(frozen=True)
class Case:
    """One configuration.

    Attributes:
        row: what the benchmark's table calls it.
        label: its name, unique in the list; also the seed of its random numbers.
        pairs: what the library and the oracle compute, block by block, in a given precision.
    """

    row: str
    label: str
    pairs: Callable[[torch.dtype], Pairs]

    def deviation(self, dtype: torch.dtype) -> float:
        """The largest deviation of any block."""
        return float(np.max([oracle.deviation(*pair) for pair in self.pairs(dtype).values()]))

    def __str__(self) -> str:
        return self.label


def generator_of(label: str) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(label.encode()))


def normal(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def random_gram(
    generator: torch.Generator,
    num_inducing: int,
    num_images: int,
    space: tuple[int, ...],
    dtype: torch.dtype = torch.float64,
) -> dkm.Gram:
    """A well-conditioned Gram, of features four times as many as inducing points."""
    width = 4 * num_inducing
    inducing = normal(generator, num_inducing, width)
    images = normal(generator, num_images, width, *space)
    sizes = 0.5 + torch.rand(num_images, 1, *space, generator=generator, dtype=torch.float64)
    return dkm.Gram.from_features(inducing, (sizes * images).to(dtype))


@torch.no_grad()
def perturb(module: torch.nn.Module, generator: torch.Generator, size: float = 0.25) -> None:
    """Move every parameter away from its starting value."""
    for parameter in module.parameters():
        parameter.add_(size * normal(generator, *parameter.shape))


def gram_pairs(actual: dkm.Gram, expected: oracle.Blocks, dtype: torch.dtype) -> Pairs:
    assert actual.dtype == dtype
    return {name: (array(getattr(actual, name)), getattr(expected, name)) for name in BLOCK_NAMES}


def layer_case(
    row: str,
    label: str,
    build: Callable[[], dkm.Layer],
    space: tuple[int, ...],
    *,
    num_inducing: int = 5,
    num_images: int = 3,
    training_batches: int | None = None,
) -> Case:
    """A layer that is initialised on one Gram, perturbed, and compared on another.

    In training mode by default; ``training_batches`` asks for evaluation after so many of them.
    """

    def pairs(dtype: torch.dtype) -> Pairs:
        generator = generator_of(label)
        layer = build()
        shape = (num_inducing, num_images, space, dtype)
        layer.initialise(random_gram(generator, *shape), generator)
        perturb(layer, generator)
        if training_batches is not None:
            for _ in range(training_batches):
                layer(random_gram(generator, *shape))
            layer.eval()
        gram = random_gram(generator, *shape)
        with torch.no_grad():
            plan = layer.plan(gram.ii)
            outgoing = plan(gram)
        expected, kls = push(layer, blocks(gram))
        found = gram_pairs(outgoing, expected, dtype)
        assert plan.kl.keys() == kls.keys()
        for name, (nu, value) in kls.items():
            assert plan.kl[name].nu == nu
            found[f"KL {name}"] = (array(plan.kl[name].value), np.array(value))
        return found

    return Case(row, label, pairs)


# -- kernels -----------------------------------------------------------------------------------

KERNELS: dict[str, Callable[[], dkm.Kernel]] = {
    "ArcCosine(0)": lambda: dkm.ArcCosine(0),
    "ArcCosine(1)": lambda: dkm.ArcCosine(1),
    "ArcCosine(2)": lambda: dkm.ArcCosine(2),
    "ArcCosine(0, weight, bias)": lambda: dkm.ArcCosine(0, weight_variance=1.7, bias_variance=0.2),
    "ArcCosine(1, weight, bias)": lambda: dkm.ArcCosine(1, weight_variance=1.7, bias_variance=0.2),
    "ArcCosine(2, weight, bias)": lambda: dkm.ArcCosine(2, weight_variance=0.6, bias_variance=0.2),
    "ArcCosine(1, weight)": lambda: dkm.ArcCosine(1, weight_variance=0.4),
    "ArcCosine(1, bias)": lambda: dkm.ArcCosine(1, bias_variance=0.4, learn=False),
    "ArcSine": dkm.ArcSine,
    "ArcSine(weight, bias)": lambda: dkm.ArcSine(weight_variance=1.7, bias_variance=0.2),
    "LeakyReLU": dkm.LeakyReLU,
    "LeakyReLU(0.3, weight, bias)": lambda: dkm.LeakyReLU(
        0.3, weight_variance=1.7, bias_variance=0.2
    ),
    "LeakyReLU(-1)": lambda: dkm.LeakyReLU(-1.0),
    "Sine": dkm.Sine,
    "Sine(1.3, 0.4, weight, bias)": lambda: dkm.Sine(
        1.3, 0.4, weight_variance=1.7, bias_variance=0.2
    ),
    "Sine(cosine)": lambda: dkm.Sine(phase=np.pi / 2),
    "SquaredExponential": lambda: dkm.SquaredExponential(1.3, scale=0.7, learn=True),
    "Matern(0.5)": lambda: dkm.Matern(0.5, 1.3, scale=0.7, learn=True),
    "Matern(1.5)": lambda: dkm.Matern(1.5, 1.3, scale=0.7, learn=True),
    "Matern(2.5)": lambda: dkm.Matern(2.5, 1.3, scale=0.7, learn=True),
    "RationalQuadratic": lambda: dkm.RationalQuadratic(0.8, 1.3, scale=0.7, learn=True),
    "NormalisedGaussian": lambda: dkm.NormalisedGaussian(1.4, learn=True),
    "NormalisedPolynomial": lambda: dkm.NormalisedPolynomial((1, 3)),
    "NormalisedPolynomial(cubic)": lambda: dkm.NormalisedPolynomial((1, 0, 2)),
    "Linear": dkm.Linear,
    "Scaled": lambda: dkm.Scaled(dkm.ArcCosine(), 1.8, learn=True),
    "Sum": lambda: dkm.ArcCosine() + dkm.Linear() + dkm.SquaredExponential(learn=True),
    "Product": lambda: dkm.ArcCosine() * dkm.Matern(1.5, learn=True) * dkm.Linear(),
    "ConvexCombination": lambda: dkm.ConvexCombination(
        dkm.ArcCosine(), dkm.Linear(), dkm.Matern(2.5), weights=(3.0, 1.0, 2.0), learn=True
    ),
    "nested arithmetic": lambda: 0.5 * (dkm.ArcCosine() + dkm.Linear() * 2.0) * dkm.ArcCosine(0),
}


def kernel_cases() -> Iterator[Case]:
    for (name, build), space in itertools.product(KERNELS.items(), [(), (5,), (4, 3), (2, 3, 2)]):
        yield layer_case(name, f"{name} {space}", build, space)


# -- convolution and mixing --------------------------------------------------------------------


def _conv(size, border, before=4, after=5, **window) -> Callable[[], dkm.Layer]:
    return lambda: dkm.Conv(before, after, size, border=border, **window)


def conv_cases() -> Iterator[Case]:
    borders = ("zero", "inside")
    settings: list[tuple] = []
    for size, stride, dilation, padding, border in itertools.product(
        (1, 2, 3, 4, 5), (1, 2, 3), (1, 2), ("same", "valid", 1), borders
    ):
        if size == 1 and padding == 1 and border == "inside":
            continue  # some filters would lie wholly outside the image
        space = (9,) if (size + stride + dilation) % 2 else (10,)
        settings.append((space, size, stride, dilation, padding, border))
    pads_2d = itertools.cycle(["same", "valid", 1, (1, 0)])
    for size, stride, dilation, border in itertools.product(
        (2, 3, 4, (3, 2)), (1, 2, 3, (2, 1)), (1, 2), borders
    ):
        space = [(7, 7), (8, 7), (7, 8), (8, 8)][len(settings) % 4]
        settings.append((space, size, stride, dilation, next(pads_2d), border))
    for stride, border in itertools.product((1, 2, 3), borders):
        settings.append(((5, 6), 1, stride, 1, "same", border))
    settings.append(((7, 8), (5, 3), 1, (1, 2), "same", "zero"))
    pads_3d = itertools.cycle(["same", 1, "valid"])
    for size, stride, border in itertools.product((2, 3, (3, 2, 1)), (1, 2, 3), borders):
        space = [(4, 3, 5), (3, 4, 4)][len(settings) % 2]
        padding = next(pads_3d) if size != (3, 2, 1) else "same"
        settings.append((space, size, stride, 1, padding, border))
    settings.append(((5, 4, 5), 2, 1, 2, "same", "zero"))
    settings.append(((5, 5, 4), 2, (1, 2, 3), (2, 1, 2), (1, 0, 1), "inside"))
    for space, size, stride, dilation, padding, border in settings:
        ndim = len(space)
        label = (
            f"Conv {space} size={size} stride={stride} dilation={dilation} padding={padding}"
            f" {border}"
        )
        build = _conv(size, border, stride=stride, dilation=dilation, padding=padding, ndim=ndim)
        yield layer_case(f"Conv, {ndim}-D", label, build, space, num_inducing=4, num_images=2)
    patches = {"mixing": "patches"}
    for space in ((7,), (5, 4), (3, 4, 3)):
        build = _conv(3, "zero", ndim=len(space), **patches)
        yield layer_case(
            f"Conv, {len(space)}-D", f"Conv {space} real patches", build, space, num_inducing=4
        )
    for mixing in ("random", "patches", "identity"):
        build = _conv(3, "inside", ndim=2, before=4, after=6, mixing=mixing, divided=True)
        yield layer_case("Conv, 2-D", f"Conv divided {mixing}", build, (4, 5), num_inducing=4)


def mix_cases() -> Iterator[Case]:
    for after, identity, space in ((3, False, ()), (7, False, (4,)), (5, True, (3, 4))):
        yield layer_case(
            "Mix",
            f"Mix {after} {identity} {space}",
            lambda after=after, identity=identity: dkm.Mix(5, after, identity=identity),
            space,
        )
    for identity in (False, True):
        yield layer_case(
            "Mix",
            f"Mix divided {identity}",
            lambda identity=identity: dkm.Mix(5, 5, identity=identity, divided=True),
            (3, 4),
        )


# -- Gram layers -------------------------------------------------------------------------------


def gram_layer_cases() -> Iterator[Case]:
    for parameterisation, scale, learn, nu, space in itertools.product(
        ("direct", "whitened"), (1.0, 9.0), (False, True), (1.0, 0.0), ((), (5,), (3, 4), (2, 2, 3))
    ):
        yield layer_case(
            f"GramLayer, {parameterisation}",
            f"GramLayer {parameterisation} scale={scale} learn={learn} nu={nu} {space}",
            lambda p=parameterisation, s=scale, learn=learn, nu=nu: dkm.GramLayer(
                5, nu, parameterisation=p, initial_scale=s, learn_scale=learn
            ),
            space,
        )
    for parameterisation, learn in itertools.product(("direct", "whitened"), (False, True)):
        options = {"parameterisation": parameterisation, "learn_scale": learn, "full": True}
        yield layer_case(
            f"GramLayer, {parameterisation}",
            f"GramLayer {options}",
            lambda options=options: dkm.GramLayer(5, 0.5, divided=True, **options),
            (3, 4),
        )
    yield layer_case(
        "GramLayer, NNGP", "GramLayer NNGP", lambda: dkm.GramLayer(5, float("inf")), (3, 4)
    )


# -- normalisation and centring ----------------------------------------------------------------

NORM_SCHEMES = list(
    itertools.product(
        ("none", "batch", "local"),
        ("none", "batch", "image", "location", "local"),
        ("none", "batch", "local"),
        ("none", "batch", "location"),
    )
)


def norm_cases() -> Iterator[Case]:
    elsewhere = [scheme for scheme in NORM_SCHEMES if scheme[0] == scheme[2] != "none"]
    for batches in (None, 0, 3):
        mode = "training" if batches is None else f"evaluation after {batches} batches"
        row = "Norm, training" if batches is None else "Norm, evaluation"
        settings = [(scheme, (3, 4)) for scheme in NORM_SCHEMES if batches != 0]
        settings += [(s, space) for s in elsewhere for space in ((), (5,), (2, 3, 2))]
        for scheme, space in settings:
            yield layer_case(
                row,
                f"Norm {'/'.join(scheme)} {space} {mode}",
                lambda scheme=scheme: dkm.Norm(*scheme, momentum=0.3),
                space,
                training_batches=batches,
            )
    for data in ("batch", "location"):
        yield layer_case(
            "Norm, evaluation",
            f"Norm {data} statistics of the batch",
            lambda data=data: dkm.Norm("batch", data, statistics="batch"),
            (3, 4),
            training_batches=2,
        )


def centre_cases() -> Iterator[Case]:
    for space, batches in itertools.product(((), (5,), (3, 4), (2, 3, 2)), (None, 0, 3)):
        mode = "training" if batches is None else f"evaluation after {batches} batches"
        yield layer_case(
            "Centre",
            f"Centre {space} {mode}",
            lambda: dkm.Centre(momentum=0.3),
            space,
            training_batches=batches,
        )
    yield layer_case(
        "Centre",
        "Centre statistics of the batch",
        lambda: dkm.Centre(statistics="batch"),
        (3, 4),
        training_batches=2,
    )


# -- composition, noise, pooling ---------------------------------------------------------------


def compose_cases() -> Iterator[Case]:
    for weight, learn in ((0.0, False), (0.3, False), (1.0, False), (0.3, True)):
        yield layer_case(
            "Skip",
            f"Skip weight={weight} learn={learn}",
            lambda weight=weight, learn=learn: dkm.Skip(
                dkm.ArcCosine(), weight=weight, learn=learn
            ),
            (3, 4),
        )
    yield layer_case(
        "Skip",
        "Skip with a strided shortcut",
        lambda: dkm.Skip(
            dkm.Sequential(dkm.ArcCosine(), dkm.Conv(5, 6, 3, stride=2), dkm.GramLayer(6)),
            dkm.Sequential(dkm.Conv(5, 6, 1, stride=2), dkm.Norm()),
            weight=0.6,
        ),
        (5, 4),
    )
    for relative, absolute, space in ((1e-4, 1e-4, (3, 4)), (0.3, 0.0, ()), (0.0, 0.7, (5,))):
        yield layer_case(
            "Noise",
            f"Noise {relative} {absolute} {space}",
            lambda r=relative, a=absolute: dkm.Noise(r, a),
            space,
        )
    for kernel in (
        dkm.ArcCosine(weight_variance=1.2, bias_variance=0.1),
        dkm.SquaredExponential(0.8),
        dkm.Linear(),
    ):
        yield layer_case(
            "Jitter",
            f"Jitter {type(kernel).__name__}",
            lambda kernel=kernel: dkm.Jitter(copy.deepcopy(kernel), 0.2, 0.1),
            (3, 4),
        )


def pool_cases() -> Iterator[Case]:
    for space in ((1,), (6,), (3, 4), (2, 3, 2)):
        yield layer_case(
            "GlobalAveragePool", f"GlobalAveragePool {space}", dkm.GlobalAveragePool, space
        )
    settings = [
        ((7,), 2, None, 0),
        ((8,), 3, 2, 1),
        ((9,), 4, 3, "same"),
        ((7,), 1, 1, 0),
        ((6, 5), 2, None, 0),
        ((5, 6), 3, 1, 1),
        ((5, 6), 3, 2, "same"),
        ((6, 7), (2, 3), (3, 1), "valid"),
        ((5, 5), 4, 2, "same"),
        ((4, 5, 3), 2, None, 0),
        ((3, 4, 5), 3, 2, 1),
        ((4, 3, 4), (2, 1, 3), (1, 2, 3), (1, 0, 2)),
    ]
    for space, size, stride, padding in settings:
        yield layer_case(
            "AveragePool",
            f"AveragePool {space} size={size} stride={stride} padding={padding}",
            lambda size=size, stride=stride, padding=padding, space=space: dkm.AveragePool(
                size, stride=stride, padding=padding, ndim=len(space)
            ),
            space,
        )
    for space, after in itertools.product(((4,), (3, 4), (2, 3, 2)), (None, 3, 8)):
        yield layer_case(
            "Flatten" if after is None else "Flatten, mixing",
            f"Flatten {space} {after}",
            lambda after=after: dkm.Flatten(after),
            space,
        )
    yield layer_case(
        "Flatten, mixing", "Flatten divided", lambda: dkm.Flatten(3, divided=True), (3, 4)
    )


# -- inputs ------------------------------------------------------------------------------------


def _input_case(row: str, label: str, build: Callable[[], dkm.Input], shape: tuple) -> Case:
    def pairs(dtype: torch.dtype) -> Pairs:
        generator = generator_of(label)
        layer = build()
        layer.initialise(normal(generator, *shape), generator)
        perturb(layer, generator)
        inputs = normal(generator, *shape).to(dtype)
        with torch.no_grad():
            gram = layer(inputs)
        return gram_pairs(gram, expected_input(layer, inputs), dtype)

    return Case(row, label, pairs)


def input_cases() -> Iterator[Case]:
    yield _input_case("VectorInput", "VectorInput", lambda: dkm.VectorInput(7, 4), (6, 7))
    scaled = "VectorInput learn_scales"
    yield _input_case(
        "VectorInput", scaled, lambda: dkm.VectorInput(7, 4, learn_scales=True), (6, 7)
    )
    spaces = {1: (9,), 2: (6, 5), 3: (4, 3, 4)}
    for ndim, size, (stride, dilation), border in itertools.product(
        (1, 2, 3), (1, 2, 3), ((1, 1), (2, 1), (1, 2), (3, 1)), ("zero", "inside")
    ):
        if dilation * (size - 1) >= min(spaces[ndim]):
            continue
        label = f"PatchInput {ndim}-D size={size} stride={stride} dilation={dilation} {border}"
        window = {"stride": stride, "dilation": dilation, "border": border, "ndim": ndim}
        yield _input_case(
            "PatchInput",
            label,
            lambda size=size, window=window: dkm.PatchInput(2, 6, size, **window),
            (3, 2, *spaces[ndim]),
        )
    for padding in ("valid", 2):
        yield _input_case(
            "PatchInput",
            f"PatchInput padding={padding}",
            lambda padding=padding: dkm.PatchInput(3, 6, (3, 4), padding=padding),
            (3, 3, 6, 5),
        )


# -- the head ----------------------------------------------------------------------------------


def _head_case(covariance: str, parameterisation: str, outputs: int) -> Case:
    label = f"GPHead {covariance} {parameterisation} outputs={outputs}"

    def pairs(dtype: torch.dtype) -> Pairs:
        generator = generator_of(label)
        head = dkm.GPHead(5, outputs, covariance=covariance, parameterisation=parameterisation)
        head.draw(generator)
        perturb(head, generator)
        gram = random_gram(generator, 5, 4, (), dtype)
        with torch.no_grad():
            plan = head.plan(gram.ii)
            marginals = head(gram)
        assert marginals.mean.dtype == marginals.variance.dtype == dtype
        K = blocks(gram)
        mu, A = head_posterior(head, K.ii)
        mean, variance = oracle.head_marginals(K, mu, A)
        columns = 1 if covariance == "shared" else outputs
        return {
            "mean": (array(marginals.mean), mean),
            "variance": (array(marginals.variance), variance[:, :columns]),
            "KL": (array(plan.kl), oracle.head_kl(K.ii, mu, A)),
        }

    return Case(f"GPHead, {parameterisation}", label, pairs)


def head_cases() -> Iterator[Case]:
    for setting in itertools.product(("shared", "per-output"), ("direct", "whitened"), (1, 3)):
        yield _head_case(*setting)


# -- likelihood and objective ------------------------------------------------------------------


def _gaussian_case(outputs: int, shared: bool) -> Case:
    label = f"Gaussian outputs={outputs} shared={shared}"

    def pairs(dtype: torch.dtype) -> Pairs:
        generator = generator_of(label)
        likelihood = dkm.Gaussian(outputs, noise=0.3)
        mean = normal(generator, 6, outputs)
        variance = normal(generator, 6, 1 if shared else outputs).square()
        targets = normal(generator, 6, outputs)
        marginals = dkm.Marginals(mean.to(dtype), variance.to(dtype))
        with torch.no_grad():
            found = likelihood.expected_log_prob(marginals, targets)
            density = likelihood.predict(marginals).log_prob(targets)
        every = array(variance.expand_as(mean))
        expected = oracle.gaussian_expected_log_likelihood(
            array(mean), every, array(targets), float(likelihood.noise.detach())
        )
        # A log-density is an expected log-likelihood without variance left to average over.
        predictive = [
            sum(
                oracle.gaussian_expected_log_likelihood(
                    np.array([[m]]), np.array([[0.0]]), np.array([[y]]), v + 0.3
                )[0]
                for m, v, y in zip(*row, strict=True)
            )
            for row in zip(array(mean), every, array(targets), strict=True)
        ]
        return {
            "expected log-likelihood": (array(found), expected),
            "predictive density": (array(density), np.array(predictive)),
        }

    return Case("Gaussian", label, pairs)


def likelihood_cases() -> Iterator[Case]:
    for outputs, shared in itertools.product((1, 3), (True, False)):
        yield _gaussian_case(outputs, shared)


# -- chains whose neighbours merge -------------------------------------------------------------

CHAINS: dict[str, Callable[[], dkm.Layer]] = {
    "Jitter, Noise, Conv, GramLayer, Norm": lambda: dkm.Sequential(
        dkm.Jitter(dkm.ArcCosine(), 0.2, 0.1),
        dkm.Noise(0.1, 0.3),
        dkm.Conv(5, 6, 3, divided=True),
        dkm.GramLayer(6, full=True),
        dkm.Norm(),
    ),
    "Conv, GramLayer, Norm": lambda: dkm.Sequential(
        dkm.ArcCosine(), dkm.Conv(5, 6, 3), dkm.GramLayer(6), dkm.Norm("local", "batch", "local")
    ),
    "GramLayer, Centre, Norm": lambda: dkm.Sequential(
        dkm.GramLayer(5, parameterisation="whitened"), dkm.Centre(), dkm.Norm("local", "location")
    ),
    "Conv, Centre, Norm, GramLayer": lambda: dkm.Sequential(
        dkm.Conv(5, 6, 2, stride=2), dkm.Centre(), dkm.Norm(), dkm.GramLayer(6)
    ),
    "Norm, GramLayer, pool": lambda: dkm.Sequential(
        dkm.Norm("local", "image"), dkm.GramLayer(5), dkm.GlobalAveragePool()
    ),
    "Mix, GramLayer, Norm, Centre": lambda: dkm.Sequential(
        dkm.Mix(5, 4), dkm.GramLayer(4), dkm.Norm("local", "local", "local"), dkm.Centre()
    ),
    "Flatten, Norm, GramLayer": lambda: dkm.Sequential(
        dkm.Flatten(6), dkm.Norm("local", "local"), dkm.GramLayer(6)
    ),
    "pool, Mix, Norm": lambda: dkm.Sequential(
        dkm.AveragePool(2), dkm.Norm("batch", "none", "local"), dkm.Mix(5, 4)
    ),
    "nested": lambda: dkm.Sequential(
        dkm.Sequential(dkm.ArcCosine(), dkm.Conv(5, 6, 3)),
        dkm.Sequential(dkm.GramLayer(6), dkm.Centre()),
        dkm.Sequential(dkm.Norm(), dkm.Sequential(dkm.GramLayer(6, 0.5))),
        dkm.GlobalAveragePool(),
    ),
    "residual block": lambda: dkm.Sequential(
        dkm.Skip(
            dkm.Sequential(
                dkm.ArcCosine(),
                dkm.Conv(5, 6, 3, stride=2),
                dkm.GramLayer(6),
                dkm.Norm(),
                dkm.ArcCosine(),
                dkm.Conv(6, 6, 3, border="inside"),
                dkm.GramLayer(6, 0.1),
                dkm.Norm(),
            ),
            dkm.Sequential(dkm.Conv(5, 6, 1, stride=2), dkm.Norm()),
        ),
        dkm.GlobalAveragePool(),
        dkm.Norm(),
    ),
}


def chain_cases() -> Iterator[Case]:
    for (name, build), batches in itertools.product(CHAINS.items(), (None, 2)):
        mode = "training" if batches is None else "evaluation"
        yield layer_case("chains", f"{name} {mode}", build, (4, 6), training_batches=batches)


# -- whole machines ----------------------------------------------------------------------------

MACHINES: dict[str, Callable[[torch.dtype], dkm.DeepKernelMachine]] = {
    "small residual machine": lambda dtype: dkm.DeepKernelMachine(
        dkm.PatchInput(2, 6, 3),
        dkm.Sequential(
            dkm.Skip(
                dkm.Sequential(
                    dkm.ArcCosine(), dkm.Conv(6, 6, 3), dkm.GramLayer(6, 0.7), dkm.Norm()
                )
            ),
            dkm.GlobalAveragePool(),
            dkm.Norm("batch", "batch", "none", "none"),
        ),
        dkm.GPHead(6, 3),
        dkm.Gaussian(3, noise=0.4),
        dtype=dtype,
    ),
    "linear top, own covariances": lambda dtype: dkm.DeepKernelMachine(
        dkm.PatchInput(2, 6, 2, stride=2, border="inside"),
        dkm.Sequential(
            dkm.Norm(),
            dkm.ArcCosine(),
            dkm.Conv(6, 5, 3),
            dkm.GramLayer(5, 0.0, parameterisation="whitened", initial_scale=4.0),
            dkm.Centre(),
            dkm.Flatten(4),
        ),
        dkm.GPHead(4, 3, covariance="per-output", parameterisation="whitened"),
        dkm.Gaussian(3, noise=0.4),
        dtype=dtype,
    ),
}


def _machine_case(name: str, build: Callable[[torch.dtype], dkm.DeepKernelMachine]) -> Case:
    def pairs(dtype: torch.dtype) -> Pairs:
        generator = generator_of(name)
        model = build(dtype)
        model.initialise(normal(generator, 8, 2, 6, 5), seed=0)
        perturb(model, generator, 0.15)
        images = normal(generator, 5, 2, 6, 5).to(dtype)
        targets = normal(generator, 5, 3)
        with torch.no_grad():
            marginals = model.marginals(images)
            found = model.objective(images, targets, num_data=40)
        K, kls = push(model.body, expected_input(model.input, images))
        mu, A = head_posterior(model.head, K.ii)
        mean, variance = oracle.head_marginals(K, mu, A)
        kl = oracle.head_kl(K.ii, mu, A)
        expected = oracle.gaussian_expected_log_likelihood(
            mean, variance, array(targets), float(model.likelihood.noise.detach())
        )
        total = oracle.objective(expected, kl, kls.values(), 40)
        return {
            "mean": (array(marginals.mean), mean),
            "variance": (array(marginals.variance.expand_as(marginals.mean)), variance),
            "objective": (array(found.total), np.array(total)),
            "head KL": (array(found.head_kl), np.array(kl.sum())),
        }

    return Case("whole machines", name, pairs)


def machine_cases() -> Iterator[Case]:
    for name, build in MACHINES.items():
        yield _machine_case(name, build)


GROUPS: dict[str, list[Case]] = {
    "inputs": list(input_cases()),
    "kernels": list(kernel_cases()),
    "conv": list(conv_cases()),
    "mix": list(mix_cases()),
    "gram_layer": list(gram_layer_cases()),
    "norm": list(norm_cases()),
    "centre": list(centre_cases()),
    "compose": list(compose_cases()),
    "pool": list(pool_cases()),
    "head": list(head_cases()),
    "likelihoods": list(likelihood_cases()),
    "chains": list(chain_cases()),
    "machines": list(machine_cases()),
}
"""All cases by what they are about."""


def all_cases() -> list[Case]:
    return [case for group in GROUPS.values() for case in group]
