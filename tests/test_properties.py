"""What must hold for any machine and any data: laws tried on random examples."""

import copy
import math
from functools import reduce

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import convdkm as dkm
from convdkm.gram import INDUCING_DTYPE
from convdkm.numerics import cholesky, gaussian_kl, whiten, whitened_kl
from convdkm.testing import degenerate_gram, random_gram

settings.register_profile(
    "reproducible", deadline=None, derandomize=True, max_examples=25, database=None
)
reproducible = settings(settings.get_profile("reproducible"))

SEEDS = st.integers(0, 10_000)
DTYPES = st.sampled_from([torch.float32, torch.float64])
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}
"""Relative to the largest entry."""


# -- random examples -------------------------------------------------------------------------------


@st.composite
def grams(draw, spaces=((), (4,), (4, 3), (2, 3, 2)), least_inducing=1):
    """A Gram of random features of any size, some of whose images are zero or twins."""
    gram = random_gram(
        draw(st.integers(least_inducing, 6)),
        draw(st.sampled_from(spaces)),
        num_images=draw(st.integers(1, 4)),
        seed=draw(SEEDS),
    )
    it, tt = gram.it.clone(), gram.tt.clone()
    odd = draw(st.sampled_from(["nothing", "zero image", "zero places", "twins"]))
    if odd == "zero image":
        it[0], tt[0] = 0, 0
    elif odd == "zero places" and gram.space:
        it[..., 0], tt[..., 0] = 0, 0
    elif odd == "twins":
        it[-1], tt[-1] = it[0], tt[0]
    size = 10.0 ** draw(st.integers(-3, 3))
    return (size * dkm.Gram(gram.ii, it, tt)).to(draw(DTYPES))


KERNELS = {
    "relu": dkm.ArcCosine,
    "relu with bias": lambda: dkm.ArcCosine(weight_variance=1.5, bias_variance=0.2),
    "erf": dkm.ArcSine,
    "leaky relu": lambda: dkm.LeakyReLU(0.2),
    "sine": lambda: dkm.Sine(0.7, 0.2),
    "squared exponential": dkm.SquaredExponential,
    "matern": lambda: dkm.Matern(1.5),
    "normalised gaussian": dkm.NormalisedGaussian,
    "normalised polynomial": dkm.NormalisedPolynomial,
    "linear": dkm.Linear,
}


@st.composite
def bodies(draw, num_inducing: int, space: tuple[int, ...], most: int = 5):
    """A random Sequential that takes Grams of this size."""
    layers: list[dkm.Layer] = []
    count = num_inducing
    for _ in range(draw(st.integers(1, most))):
        steps = ["kernel", "gram", "norm", "centre", "noise", "mix", "skip"]
        if space:
            steps += ["conv", "pool"] if min(space) >= 2 else ["conv"]
        step = draw(st.sampled_from(steps))
        if step == "kernel":
            layers.append(KERNELS[draw(st.sampled_from(sorted(KERNELS)))]())
        elif step == "gram":
            kind = draw(st.sampled_from(["direct", "whitened"]))
            scale = draw(st.sampled_from([0.1, 1.0, 30.0]))
            layers.append(dkm.GramLayer(count, parameterisation=kind, initial_scale=scale))
        elif step == "norm":
            inducing = draw(st.sampled_from(["none", "batch", "local"]))
            data = draw(st.sampled_from(["none", "batch", "image", "location", "local"]))
            layers.append(dkm.Norm(inducing, data))
        elif step == "centre":
            layers.append(dkm.Centre())
        elif step == "noise":
            layers.append(dkm.Noise(0.01, 0.01))
        elif step == "mix":
            after = draw(st.integers(1, 6))
            layers.append(dkm.Mix(count, after))
            count = after
        elif step == "conv":
            after, stride = draw(st.integers(1, 6)), draw(st.integers(1, 2))
            conv = dkm.Conv(count, after, 3, stride=stride, ndim=len(space))
            space, count = conv.window.output_space(space), after
            layers.append(conv)
        elif step == "pool":
            pool = dkm.AveragePool(2, ndim=len(space))
            space = pool.window.output_space(space)
            layers.append(pool)
        else:
            inner = dkm.Sequential(dkm.ArcCosine(), dkm.GramLayer(count), dkm.Norm())
            layers.append(dkm.Skip(inner, weight=draw(st.floats(0.0, 1.0))))
    return dkm.Sequential(*layers)


@st.composite
def initialised(draw):
    """A Gram, and a random body that was initialised with it, its parameters moved at random."""
    gram = draw(grams())
    body = draw(bodies(gram.num_inducing, gram.space))
    generator = torch.Generator().manual_seed(draw(SEEDS))
    body.initialise(gram, generator)
    with torch.no_grad():
        for parameter in body.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(0.05 * parameter.abs().mean() * noise)
    return gram, body.eval()


def assert_close(actual, expected, tolerance, scale=None):
    """Equal up to ``tolerance`` times ``scale``, by default the largest entry expected."""
    scale = float(expected.detach().abs().max()) if scale is None else scale
    allowed = tolerance * scale + 1e-300
    torch.testing.assert_close(actual.detach(), expected.detach(), rtol=0, atol=allowed)


def assert_same_gram(actual, expected, whole=None):
    """Equal up to rounding, relative to the size of ``whole`` (a Gram), by default ``expected``."""
    whole = expected if whole is None else whole
    tolerance = TOLERANCE[expected.dtype]
    inducing, own = float(whole.ii.detach().diagonal().max()), float(whole.tt.detach().max())
    assert_close(actual.ii, expected.ii, 1e-9)
    assert_close(actual.it, expected.it, tolerance, math.sqrt(inducing * own))
    assert_close(actual.tt, expected.tt, tolerance, own)


def assert_valid(gram):
    """Symmetric, positive semi-definite, and its blocks those of one covariance matrix."""
    ii, it, tt = gram.ii.detach(), gram.it.detach().double(), gram.tt.detach().double()
    assert_close(ii, ii.T, 1e-12)
    eigenvalues = torch.linalg.eigvalsh(ii)
    assert eigenvalues.min() >= -1e-10 * eigenvalues.abs().max()
    assert tt.min() >= 0
    exact = gram.dtype == torch.float64
    bound = ii.diagonal().reshape(-1, *(1,) * len(gram.space)) * tt.unsqueeze(1)
    assert (it.square() <= bound + (1e-9 if exact else 1e-4) * bound.max()).all()
    ridge = (1e-10 if exact else 1e-4) * ii.diagonal().mean() * torch.eye(len(ii))
    factor = cholesky(ii + ridge, "ii")
    columns = it.movedim(1, 0).flatten(1)
    explained = whiten(factor, columns).square().sum(0).reshape(tt.shape)
    assert (explained <= tt + (1e-7 if exact else 1e-3) * tt.max()).all()


# -- Grams and layers ------------------------------------------------------------------------------


@reproducible
@given(initialised())
def test_every_body_gives_a_covariance_matrix(example):
    gram, body = example
    assert_valid(body(gram))
    assert_valid(body.train()(gram))


@reproducible
@given(initialised(), SEEDS)
def test_images_in_another_order_give_the_output_in_that_order(example, seed):
    gram, body = example
    order = torch.randperm(len(gram), generator=torch.Generator().manual_seed(seed))
    assert_same_gram(body(gram[order]), body(gram)[order])


@reproducible
@given(initialised())
def test_an_image_alone_gives_what_it_gives_in_a_batch(example):
    gram, body = example
    together = body(gram)
    for index in range(len(gram)):
        assert_same_gram(body(gram[index]), together[index], together)


@reproducible
@given(initialised())
def test_one_plan_is_its_layers_one_after_the_other(example):
    gram, body = example
    assert_same_gram(body(gram), reduce(lambda value, layer: layer(value), body, gram))


@reproducible
@given(grams(), st.floats(0.0, 1.0))
def test_convex_combinations_and_multiples_are_covariance_matrices(gram, weight):
    other = dkm.ArcCosine()(gram)
    assert_valid(gram.combine(other, weight))
    assert_valid(gram * 3.5)
    assert_same_gram(gram.combine(gram, weight), gram)
    assert_same_gram(gram.combine(other, 0.0), gram)
    assert_same_gram(gram.combine(other, 1.0), other)


# -- the order of inducing points ------------------------------------------------------------------


def permuted(gram, order):
    return dkm.Gram(gram.ii[order][:, order], gram.it[:, order], gram.tt)


@torch.no_grad()
def permute_gram_layer(layer, kernel, order):
    """The same learned G_ii, for inducing points in another order (``kernel`` is K_ii before)."""
    wanted = layer.plan(kernel).ii[order][:, order]
    other = copy.deepcopy(layer)
    factor = cholesky(wanted, "G_ii")
    if layer.parameterisation == "whitened":
        below = cholesky(kernel[order][:, order], "K_ii")
        factor = cholesky(whiten(below, whiten(below, wanted).T), "L⁻¹ G_ii L⁻ᵀ")
    other.factor.copy_(factor)
    return other


@reproducible
@given(grams(least_inducing=2), SEEDS, st.sampled_from(["direct", "whitened"]))
def test_layers_follow_the_order_of_inducing_points(gram, seed, parameterisation):
    generator = torch.Generator().manual_seed(seed)
    size = gram.num_inducing
    order = torch.randperm(size, generator=generator)
    learned = dkm.GramLayer(size, parameterisation=parameterisation)
    norm = dkm.Norm("local", "batch", "local")
    centre = dkm.Centre()
    for layer in (learned, norm, centre):
        layer.initialise(gram)
        layer.eval()
    with torch.no_grad():
        learned.factor += 0.2 * torch.randn(size, size, generator=generator) * learned.factor.diag()
        norm.log_inducing_scale += torch.randn(size, generator=generator)

    other = permute_gram_layer(learned, gram.ii, order)
    assert_same_gram(other(permuted(gram, order)), permuted(learned(gram), order))
    before, after = learned.plan(gram.ii).kl[""], other.plan(gram.ii[order][:, order]).kl[""]
    assert_close(after.value, before.value, 1e-8)

    other = copy.deepcopy(norm)
    other.log_inducing_scale.data = norm.log_inducing_scale.data[order]
    assert_same_gram(other(permuted(gram, order)), permuted(norm(gram), order))

    other = dkm.Centre().eval()
    other.initialise(permuted(gram, order))
    unseen = dkm.Gram(gram.ii, -0.5 * gram.it, gram.tt)
    assert_same_gram(other(permuted(unseen, order)), permuted(centre(unseen), order), gram)

    free = [dkm.ArcCosine(), dkm.Matern(2.5), dkm.Noise(), dkm.Norm()]
    if gram.space:
        free += [dkm.GlobalAveragePool(), dkm.Flatten(), dkm.AveragePool(2, ndim=len(gram.space))]
    for layer in free:
        assert_same_gram(layer(permuted(gram, order)), permuted(layer(gram), order))


@reproducible
@given(SEEDS, st.sampled_from(["direct", "whitened"]), st.sampled_from(["shared", "per-output"]))
def test_a_machine_does_not_care_for_the_order_of_its_inducing_points(seed, gram_kind, covariance):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(6, 2, 4, 4, generator=generator, dtype=torch.float64)
    model = dkm.DeepKernelMachine(
        dkm.PatchInput(2, 5),
        dkm.Sequential(
            {
                "kernel": dkm.ArcCosine(),
                "gram": dkm.GramLayer(5, parameterisation=gram_kind, initial_scale=4.0),
                "norm": dkm.Norm(),
                "pool": dkm.GlobalAveragePool(),
            }
        ),
        dkm.GPHead(5, 3, covariance=covariance),
        dkm.Categorical(3),
        dtype=torch.float64,
    ).initialise(images, seed=seed)
    order = torch.randperm(5, generator=generator)
    other = copy.deepcopy(model)
    with torch.no_grad():
        kernel = model.body[0].plan(model.input.inducing_block()).ii
        other.input.inducing.copy_(model.input.inducing[order])
        other.body.gram = permute_gram_layer(model.body.gram, kernel, order)
        other.head.mean.copy_(model.head.mean[:, order])
        other.head.factor.copy_(model.head.factor[..., order, :])
    expected, actual = model.predict(images), other.predict(images)
    assert_close(actual.mean, expected.mean, 1e-8)
    assert_close(actual.variance, expected.variance, 1e-8)
    labels = torch.arange(6) % 3
    expected, actual = (machine.objective(images, labels, num_data=6) for machine in (model, other))
    assert_close(actual.total, expected.total, 1e-8)


# -- scaling laws ----------------------------------------------------------------------------------

SCALES = st.floats(1e-2, 1e2)

HOMOGENEOUS = [
    (dkm.Linear(), 1),
    (dkm.ArcCosine(), 1),
    (dkm.ArcCosine(2), 2),
    (dkm.ArcCosine(weight_variance=2.0), 1),
    (dkm.LeakyReLU(-0.4), 1),
    (dkm.NormalisedGaussian(), 1),
    (dkm.NormalisedPolynomial((1, 2, 3)), 1),
    (dkm.ArcCosine() + 3 * dkm.Linear(), 1),
    (dkm.ArcCosine() * dkm.Linear(), 2),
]


@reproducible
@given(grams(), SCALES, st.sampled_from(HOMOGENEOUS))
def test_kernels_are_homogeneous_of_their_degree(gram, scale, kernel_and_degree):
    kernel, degree = kernel_and_degree
    gram = gram.to(torch.float64)
    assert_same_gram(kernel(gram * scale), kernel(gram) * scale**degree)


@reproducible
@given(grams(), SCALES)
def test_the_length_scale_is_the_unit_of_distance(gram, scale):
    gram = gram.to(torch.float64)
    for kind in (dkm.SquaredExponential, dkm.RationalQuadratic):
        near = kind(lengthscale=2.0)(gram)
        assert_same_gram(kind(lengthscale=2.0 * scale)(gram * scale**2), near)


@reproducible
@given(grams(spaces=((4,), (4, 3))), SCALES, SEEDS)
def test_linear_layers_are_linear_and_normalisers_invariant(gram, scale, seed):
    gram = gram.to(torch.float64)
    ndim, size = len(gram.space), gram.num_inducing
    generator = torch.Generator().manual_seed(seed)
    linear = [
        dkm.Conv(size, 3, 3, ndim=ndim),
        dkm.Mix(size, 4),
        dkm.Flatten(3),
        dkm.Flatten(),
        dkm.GlobalAveragePool(),
        dkm.AveragePool(2, ndim=ndim),
        dkm.Centre(),
        dkm.GramLayer(size, parameterisation="whitened", initial_scale=3.0),
        dkm.Skip(dkm.ArcCosine(), weight=0.3),
    ]
    for layer in linear:
        expected = layer.initialise(gram, generator) * scale
        assert_same_gram(layer(gram * scale), expected)
    for data in ("batch", "image", "location", "local"):
        for inducing in ("batch", "local"):
            norm = dkm.Norm(inducing, data)
            expected = norm.initialise(gram)
            assert_same_gram(norm(gram * scale), expected)


@reproducible
@given(SEEDS, st.floats(0.05, 20.0))
def test_a_normalised_machine_does_not_care_for_the_unit_of_its_images(seed, scale):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(8, 1, 5, 5, generator=generator, dtype=torch.float64)
    predictions = []
    for factor in (1.0, scale):
        model = dkm.resnet(1, 3, (4,), (1,), dtype=torch.float64)
        model.initialise(images * factor, seed=seed)
        predictions.append(model.predict(images * factor).log_probs)
    assert_close(predictions[1], predictions[0], 1e-6)


# -- divergences -----------------------------------------------------------------------------------


def random_covariance(size, generator):
    factor = torch.randn(size, size + 2, generator=generator, dtype=INDUCING_DTYPE)
    return factor @ factor.T / size


@reproducible
@given(st.integers(1, 7), SEEDS, st.floats(0.01, 3.0))
def test_the_divergence_is_positive_and_zero_only_for_equal_matrices(size, seed, apart):
    generator = torch.Generator().manual_seed(seed)
    one, other = random_covariance(size, generator), random_covariance(size, generator)
    assert abs(float(gaussian_kl(one, one))) < 1e-9
    assert float(gaussian_kl(one, other)) > 0
    assert float(gaussian_kl(other, one)) > 0
    nearby = one + apart * torch.diag(one.diagonal())
    assert float(gaussian_kl(nearby, one)) > 1e-6
    scaled = 0.5 * size * (apart - 1 - math.log(apart))
    assert float(gaussian_kl(apart * one, one)) == pytest.approx(scaled, rel=1e-8, abs=1e-9)


@reproducible
@given(st.integers(1, 6), SEEDS)
def test_the_divergence_is_that_of_the_textbook(size, seed):
    generator = torch.Generator().manual_seed(seed)
    spread = torch.randn(size, size, generator=generator, dtype=INDUCING_DTYPE)
    spread += 3 * torch.eye(size)
    mean = torch.randn(size, generator=generator, dtype=INDUCING_DTYPE)
    posterior = torch.distributions.MultivariateNormal(mean, spread @ spread.T)
    prior = torch.distributions.MultivariateNormal(torch.zeros_like(mean), torch.eye(size).double())
    expected = torch.distributions.kl_divergence(posterior, prior)
    assert float(whitened_kl(spread, mean)) == pytest.approx(float(expected), rel=1e-9)


@reproducible
@given(
    grams(), SEEDS, st.sampled_from(["direct", "whitened"]), st.sampled_from([0.0, 0.5, 1.0, 20.0])
)
def test_a_gram_layer_pays_for_leaving_the_kernel(gram, seed, parameterisation, nu):
    layer = dkm.GramLayer(gram.num_inducing, nu, parameterisation=parameterisation)
    layer.initialise(gram)
    term = layer.plan(gram.ii).kl[""]
    assert abs(float(term.value.detach())) < 1e-8
    assert_close(layer.plan(gram.ii).ii, gram.ii, 1e-9)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        move = torch.randn(layer.factor.shape, generator=generator, dtype=INDUCING_DTYPE)
        layer.factor += 0.1 * layer.factor.abs().mean() * move
    term = layer.plan(gram.ii).kl[""]
    assert float(term.value.detach()) > 1e-8
    assert float(term.weighted.detach()) == pytest.approx(nu * float(term.value.detach()))


@reproducible
@given(SEEDS, st.sampled_from(["shared", "per-output"]))
def test_the_head_never_gives_a_negative_variance(seed, covariance):
    """Not even where the inducing points explain all and nothing but rounding is left."""
    gram = degenerate_gram(5, dtype=torch.float32, seed=seed)
    head = dkm.GPHead(5, 3, covariance=covariance, parameterisation="whitened")
    with torch.no_grad():
        head.factor.mul_(1e-8)
        assert head(gram).variance.min() >= 0


# -- whole machines --------------------------------------------------------------------------------

LIKELIHOODS = {
    "categorical": {},
    "gaussian": {"likelihood": "gaussian"},
    "gaussian by samples": {"likelihood": "gaussian", "expectation": "monte-carlo", "samples": 20},
    "categorical by samples": {"expectation": "monte-carlo", "samples": 20},
}
DETERMINISTIC = ("categorical", "gaussian")


@st.composite
def resnet_options(draw, likelihoods=tuple(LIKELIHOODS), kernels=tuple(KERNELS)):
    """Options of a small residual machine: every switch that changes how data flows."""
    pick = st.sampled_from
    parameterisations = pick(["direct", "whitened"])
    return {
        "centre": draw(st.booleans()),
        "mixing": draw(pick(["random", "patches", "identity"])),
        "mixing_parameterisation": draw(parameterisations),
        "gram_parameterisation": draw(parameterisations),
        "head_parameterisation": draw(parameterisations),
        "head_covariance": draw(pick(["shared", "per-output"])),
        "gram_scale": draw(pick([1.0, 30.0])),
        "learn_gram_scale": draw(st.booleans()),
        "learn_skip": draw(st.booleans()),
        "top": draw(pick(["gap", "linear", "gap+mix", "linear+mix"])),
        "normalisation": draw(
            pick([("batch", "batch"), ("local", "image"), ("local", "location"), ("none", "local")])
        ),
        "scaling": draw(pick([("batch", "batch"), ("local", "location"), ("none", "none")])),
        "border": draw(pick(["zero", "inside"])),
        "nu": draw(pick([0.0, 1.0, math.inf])),
        "jitter": draw(pick([0.0, 1e-4])),
        "kernel": KERNELS[draw(pick(sorted(kernels)))](),
        **LIKELIHOODS[draw(pick(sorted(likelihoods)))],
    }


def small_resnet(options, seed, **more):
    images = torch.randn(10, 1, 6, 6, generator=torch.Generator().manual_seed(seed))
    model = dkm.resnet(1, 3, (4, 6), (1, 1), **options, **more)
    return model.initialise(images, torch.arange(10) % 3, seed=seed), images


@reproducible
@given(resnet_options(likelihoods=DETERMINISTIC), SEEDS)
def test_a_prediction_does_not_depend_on_its_neighbours(options, seed):
    model, images = small_resnet(options, seed)
    together = model.predict(images)
    largest = float(together.mean.abs().max()) + 1
    for batch_size in (1, 3):
        apart = model.predict(images, batch_size=batch_size)
        assert_close(apart.probs, together.probs, 1e-5 * largest, 1.0)
        assert_close(apart.mean, together.mean, 2e-5 * largest, 1.0)
    for index in (0, 7):
        alone = model.predict(images[index : index + 1])
        assert_close(alone.probs[0], together.probs[index], 1e-5 * largest, 1.0)


@reproducible
@given(resnet_options(), SEEDS)
def test_predictions_are_distributions(options, seed):
    model, images = small_resnet(options, seed)
    predicted = model.predict(images)
    assert torch.isfinite(predicted.log_probs).all()
    assert_close(predicted.probs.sum(1), torch.ones(10), 1e-5)
    assert (predicted.log_probs <= 1e-6).all()
    assert (predicted.variance >= 0).all()
    assert (predicted.entropy >= -1e-6).all()
    assert (predicted.entropy <= math.log(3) + 1e-5).all()
    assert torch.equal(predicted.labels, predicted.probs.argmax(1))
    if predicted.expected_entropy is not None:
        assert (predicted.mutual_information >= 0).all()
        assert (predicted.expected_entropy <= predicted.entropy + 1e-5).all()


@reproducible
@given(resnet_options(), SEEDS, st.integers(1, 1000))
def test_the_objective_is_what_its_parts_say(options, seed, num_data):
    model, images = small_resnet(options, seed)
    with torch.no_grad():
        objective = model.eval().objective(images, torch.arange(10) % 3, num_data=num_data)
    weighted = sum(float(term.weighted) for term in objective.kl.values())
    assert float(objective.regulariser) == pytest.approx(weighted, abs=1e-9)
    assert all(float(term.value) > -1e-8 for term in objective.kl.values())
    assert float(objective.head_kl) > -1e-8
    parts = (
        float(objective.expected_log_likelihood)
        - (float(objective.head_kl) + float(objective.regulariser)) / num_data
    )
    assert float(objective.total) == pytest.approx(parts, rel=1e-9)
    learned = 0 if math.isinf(options["nu"]) else 5
    assert len(objective.kl) == learned


def degenerate_batches(images):
    twins = images[:1].expand_as(images).clone()
    some_constant = images.clone()
    some_constant[::2] = 0.7
    some_zero = images.clone()
    some_zero[3] = 0
    half_zero = images.clone()
    half_zero[:, :, :, :3] = 0
    return {
        "all constant": torch.full_like(images, -1.3),
        "some constant": some_constant,
        "all the same": twins,
        "half of every image zero": half_zero,
        "faint": 1e-6 * images,
        "one image zero": some_zero,
        "all images zero": torch.zeros_like(images),
    }


def assert_trainable(model, images):
    """The objective and its gradient by every parameter are finite, in both modes."""
    labels = torch.arange(len(images)) % 3
    for training in (True, False):
        model.train(training).zero_grad()
        objective = model.objective(images, labels, num_data=len(images))
        assert torch.isfinite(objective.total)
        objective.total.backward()
        bad = [
            name
            for name, parameter in model.named_parameters()
            if parameter.grad is not None and not torch.isfinite(parameter.grad).all()
        ]
        assert not bad, f"gradients that are not finite: {bad}"
    prediction = model.predict(images)
    assert torch.isfinite(prediction.log_probs).all()


@pytest.mark.parametrize("batch", sorted(degenerate_batches(torch.zeros(4, 1, 6, 6))))
@settings(reproducible, max_examples=12)
@given(resnet_options(), SEEDS)
def test_degenerate_images_can_be_trained_on(batch, options, seed):
    model, images = small_resnet(options, seed)
    assert_trainable(model, degenerate_batches(images)[batch])


@pytest.mark.parametrize("batch", ["some constant", "all the same", "half of every image zero"])
@settings(reproducible, max_examples=8)
@given(resnet_options(), SEEDS)
def test_machines_can_start_from_degenerate_images(batch, options, seed):
    model, images = small_resnet(options, seed)
    images = degenerate_batches(images)[batch]
    model.initialise(images, torch.arange(10) % 3, seed=seed)
    assert_trainable(model, images)
