"""Convolutions and inputs: how they start, what happens at borders, what they refuse."""

import numpy as np
import pytest
import torch

import convdkm as dkm
import oracle
from convdkm.numerics import standard_normal
from convdkm.ops.inducing import gram_of_weights, mixed, weights_of_data
from oracle.adapter import array
from oracle.cases import generator_of, normal, random_gram

SPACES = {1: (9,), 2: (5, 6), 3: (4, 3, 4)}


# -- borders -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_border_changes_the_variance_at_the_border_only(ndim):
    gram = random_gram(generator_of("border"), 4, 2, SPACES[ndim])
    zero, inside = (dkm.Conv(4, 4, 3, border=b, ndim=ndim) for b in ("zero", "inside"))
    inside.load_state_dict(zero.state_dict())
    with torch.no_grad():
        one, other = zero(gram), inside(gram)
    assert torch.equal(one.ii, other.ii)
    assert torch.equal(one.it, other.it)
    interior = (slice(None), *(slice(1, -1),) * ndim)
    assert oracle.deviation(array(one.tt[interior]), array(other.tt[interior])) < 1e-14
    corner = (slice(None), *(0,) * ndim)
    ratio = array(other.tt[corner] / one.tt[corner])
    assert ratio == pytest.approx(np.full(2, 1.5**ndim), rel=1e-12)


@pytest.mark.parametrize(
    ("space", "size", "options"),
    [
        ((5, 5), 1, {"padding": 2}),
        ((5, 5), 2, {"padding": 2}),
        ((5, 5), 3, {"padding": 4}),
        ((2, 2), 2, {"dilation": 3}),
    ],
)
def test_filters_wholly_outside_the_image_give_no_nan(space, size, options):
    """``border="inside"`` has nothing to average there: zero or an error, not 0/0."""
    generator = generator_of("outside")
    gram, images = random_gram(generator, 4, 2, space), normal(generator, 3, 2, *space)
    for result in (
        lambda: dkm.Conv(4, 4, size, border="inside", **options)(gram),
        lambda: dkm.PatchInput(2, 4, size, border="inside", **options).initialise(images),
    ):
        try:
            variance = result().tt
        except (dkm.InvalidInputError, dkm.GramError):
            continue
        assert torch.isfinite(variance).all()


# -- mixing weights ----------------------------------------------------------------------------


def test_random_weights_have_the_variance_of_the_paper():
    conv = dkm.Conv(50, 60, 3)
    weights = conv.weight.detach()
    assert weights.shape == (60, 50, 3, 3)
    assert float(weights.var()) * 50 == pytest.approx(1, abs=0.05)
    assert abs(float(weights.mean())) < 5 * 50**-0.5 * weights.numel() ** -0.5


def test_weights_depend_on_the_generator_alone():
    drawn = []
    for noise in (0, 1):
        torch.manual_seed(noise)
        conv = dkm.Conv(4, 5, 3)
        gram = random_gram(generator_of("same"), 4, 3, (5, 5))
        conv.initialise(gram, torch.Generator().manual_seed(7))
        drawn.append(conv.weight.detach().clone())
    assert torch.equal(*drawn)


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_real_patches_are_exact_where_inducing_points_span_the_features(ndim):
    """Then each new inducing point is a patch: its rows of the Gram are those of that patch."""
    generator = generator_of(f"real patches {ndim}")
    points, after = 6, 5
    space = SPACES[ndim]
    inducing, images = normal(generator, points, points), normal(generator, 3, points, *space)
    gram = dkm.Gram.from_features(inducing, images)
    conv = dkm.Conv(points, after, 2, mixing="patches", ndim=ndim)
    with torch.no_grad():
        outgoing = conv.initialise(gram, generator)
    places = int(np.prod(conv.window.output_space(space)))
    which = torch.arange(3 * places)
    patches = conv.window.patches(images, which // places, which % places).flatten(1)
    joint = patches @ patches.T / patches.shape[1]
    rows = outgoing.it.movedim(1, 0).flatten(1)
    for point in range(after):
        distance = (joint - rows[point]).abs().amax(1)
        found = int(distance.argmin())
        assert distance[found] < 1e-9 * joint.abs().max()
        assert outgoing.ii[point, point] == pytest.approx(float(joint[found, found]), rel=1e-9)


def test_real_patches_explain_more_than_random_ones():
    generator = generator_of("explain")
    gram = random_gram(generator, 6, 6, (6, 6))
    left = []
    for mixing in ("random", "patches"):
        conv = dkm.Conv(6, 8, 3, mixing=mixing)
        with torch.no_grad():
            outgoing = conv.initialise(gram, generator)
            white = torch.linalg.solve(outgoing.ii, outgoing.it.movedim(1, 0).flatten(1))
        explained = (outgoing.it.movedim(1, 0).flatten(1) * white).sum(0)
        left.append(float((outgoing.tt.flatten() - explained).mean()))
    assert 0 < left[1] < left[0]


@pytest.mark.parametrize("mixing", ["random", "patches", "identity"])
@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_whitened_weights_make_the_same_machine(mixing, ndim):
    """C = C̃ L⁻¹: other coordinates of the weights, and real patches are the same patches."""
    gram = random_gram(generator_of(f"whitened {ndim}"), 6, 4, SPACES[ndim])
    options = {"mixing": mixing, "ndim": ndim}
    direct = dkm.Conv(6, 5, 2, **options)
    whitened = dkm.Conv(6, 5, 2, parameterisation="whitened", **options)
    with torch.no_grad():
        for conv in (direct, whitened):
            conv.initialise(gram, torch.Generator().manual_seed(3))
        if mixing == "random":
            factor = torch.linalg.cholesky(gram.ii)
            weight = direct.weight.movedim(1, -1) @ factor
            whitened.weight.copy_(weight.movedim(-1, 1))
        one, other = whitened(gram), direct(gram)
    for name in ("ii", "it", "tt"):
        assert oracle.deviation(array(getattr(one, name)), array(getattr(other, name))) < 1e-10
    assert not torch.allclose(whitened.weight, direct.weight)


def test_too_few_patches_for_the_inducing_points():
    gram = random_gram(generator_of("few"), 4, 1, (2, 2))
    with pytest.raises(dkm.InvalidInputError, match="only 4 patches"):
        dkm.Conv(4, 5, 3, mixing="patches").initialise(gram)


@pytest.mark.parametrize("side", [1, 3])
@pytest.mark.parametrize(
    "function",
    [
        mixed,
        lambda weight, _: gram_of_weights(weight),
        lambda weight, ii: weights_of_data(None, weight, ii, None, 1.0, torch.float32),
    ],
)
def test_gradients_of_weights_lie_in_memory_as_they_do(function, side):
    # Else DistributedDataParallel copies, and warns.
    weight = torch.randn(4, 3, side, side, dtype=torch.float64, requires_grad=True)
    function(weight, torch.eye(3, dtype=torch.float64)).sum().backward()
    assert weight.grad.stride() == weight.stride()


def test_mix_starts_at_the_identity_on_request():
    gram = random_gram(generator_of("mix"), 4, 2, (3,))
    outgoing = dkm.Mix(4, 4, identity=True)(gram)
    assert torch.equal(outgoing.it, gram.it)
    assert torch.equal(outgoing.ii, gram.ii)
    with pytest.raises(dkm.InvalidInputError, match="4 → 5"):
        dkm.Mix(4, 5, identity=True)


@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("parameterisation", ["direct", "whitened"])
@pytest.mark.parametrize("after", [3, 5, 8])
@pytest.mark.parametrize(("ndim", "size"), [(1, 2), (2, 3), (3, 1)])
def test_identity_passes_inducing_points_on(ndim, size, after, parameterisation, divided):
    """The outgoing Gram of the points passed on is the incoming one, of centres of patches."""
    gram = random_gram(generator_of(f"identity {ndim} {after}"), 5, 2, SPACES[ndim])
    options = {"parameterisation": parameterisation, "divided": divided, "ndim": ndim}
    conv = dkm.Conv(5, after, size, mixing="identity", **options)
    with torch.no_grad():
        outgoing = conv.initialise(gram, torch.Generator().manual_seed(3))
    passed = min(5, after)
    kept = gram.ii[:passed, :passed]
    torch.testing.assert_close(outgoing.ii[:passed, :passed], kept, rtol=1e-9, atol=1e-12)
    expected = gram.it[:, :passed] / conv.window.count**0.5
    torch.testing.assert_close(outgoing.it[:, :passed], expected, rtol=1e-9, atol=1e-12)
    scale = gram.ii.trace() / 5 if parameterisation == "whitened" else torch.tensor(1.0)
    rest = conv.weight[passed:] / scale.sqrt()
    drawn = standard_normal(rest.shape, torch.Generator().manual_seed(3))
    torch.testing.assert_close(rest.detach(), drawn if divided else drawn / 5**0.5)


@pytest.mark.parametrize("parameterisation", ["direct", "whitened"])
def test_more_points_than_are_passed_on_are_as_well_conditioned(parameterisation):
    """A Gram of real features: new points are of the size of the others, and unlike them."""
    generator = generator_of("conditioned")
    gram = dkm.Gram.from_features(3 + normal(generator, 16, 40), 3 + normal(generator, 2, 40, 4, 4))
    with torch.no_grad():
        conv = dkm.Conv(16, 32, 3, mixing="identity", parameterisation=parameterisation)
        outgoing = conv.initialise(gram, generator).ii
    sizes = outgoing.diagonal()
    assert 0.3 < sizes[16:].mean() / sizes[:16].mean() < 3
    assert torch.linalg.cond(outgoing) < 10 * torch.linalg.cond(gram.ii)


def test_identity_draws_nothing_where_no_point_is_random():
    generator = torch.Generator().manual_seed(0)
    dkm.Conv(5, 4, 3, mixing="identity").draw_weights(generator)
    assert torch.equal(generator.get_state(), torch.Generator().manual_seed(0).get_state())


def test_mixing_identity_of_a_machine_starts_the_mixing_after_pooling_too():
    machine = dkm.resnet(1, 2, (4, 6), (1, 1), mixing="identity", top="gap+mix")
    assert all(m.mixing == "identity" for m in machine.modules() if isinstance(m, dkm.Conv))
    assert torch.equal(machine.body.mix.weight, torch.eye(6).double())


def test_a_gram_with_other_inducing_points_is_refused():
    gram = random_gram(generator_of("other"), 4, 2, (3, 3))
    for layer in (dkm.Conv(5, 4, 3), dkm.Mix(5, 4), dkm.GramLayer(5)):
        with pytest.raises(dkm.GramError, match=r"5 inducing points, got one with 4"):
            layer(gram)


def test_a_gram_of_other_dimension_is_refused():
    gram = random_gram(generator_of("dimension"), 4, 2, (3, 3))
    with pytest.raises(dkm.GramError, match="1-D data"):
        dkm.Conv(4, 4, 3, ndim=1)(gram)


@pytest.mark.parametrize(
    "build",
    [
        lambda: dkm.Conv(0, 4, 3),
        lambda: dkm.Conv(4, 4.0, 3),
        lambda: dkm.Conv(4, 4, 3, border="reflect"),
        lambda: dkm.Conv(4, 4, 3, mixing="zero"),
        lambda: dkm.Mix(4, 0),
        lambda: dkm.PatchInput(0, 4),
        lambda: dkm.PatchInput(1, 4, border="wrap"),
        lambda: dkm.VectorInput(3, 0),
        lambda: dkm.Noise(-1e-3),
        lambda: dkm.Skip(dkm.Linear(), weight=1.1),
        lambda: dkm.Skip(dkm.Linear(), weight=1.0, learn=True),
        lambda: dkm.Flatten(0),
        lambda: dkm.AveragePool(2, padding=2),
        lambda: dkm.Sequential(dkm.Linear(), torch.nn.ReLU()),
    ],
)
def test_invalid_options_are_refused(build):
    with pytest.raises(dkm.InvalidInputError):
        build()


# -- inputs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_inducing_patches_are_patches_of_the_images(ndim):
    images = normal(generator_of("candidates"), 3, 2, *SPACES[ndim])
    layer = dkm.PatchInput(2, 7, 3, ndim=ndim)
    layer.initialise(images, generator_of("draw"))
    places = int(np.prod(SPACES[ndim]))
    which = torch.arange(3 * places)
    patches = layer.window.patches(images, which // places, which % places).flatten(1)
    distance = torch.cdist(layer.inducing.detach().flatten(1), patches)
    nearest = distance.min(1)
    assert nearest.values.max() < 1e-6
    assert len(nearest.indices.unique()) == 7
    assert (nearest.indices // places).unique().tolist() == [0, 1, 2]


def test_inducing_vectors_are_among_the_inputs():
    inputs = normal(generator_of("vectors"), 9, 4)
    layer = dkm.VectorInput(4, 5)
    gram = layer.initialise(inputs, generator_of("draw"))
    matches = (layer.inducing.detach()[:, None] == inputs).all(2)
    assert matches.sum(1).tolist() == [1] * 5
    assert gram.space == ()


def test_inputs_must_be_initialised():
    with pytest.raises(dkm.NotInitialisedError):
        dkm.PatchInput(1, 4)(torch.zeros(2, 1, 5, 5))


def test_too_few_inputs_for_the_inducing_points():
    with pytest.raises(dkm.InvalidInputError, match="only 9 patches"):
        dkm.PatchInput(1, 10).initialise(torch.zeros(1, 1, 3, 3))
    with pytest.raises(dkm.InvalidInputError, match="only 3 vectors"):
        dkm.VectorInput(2, 4).initialise(torch.zeros(3, 2))
    with pytest.raises(dkm.GramError, match="spans 3 places"):
        dkm.PatchInput(1, 1, padding="valid").initialise(torch.zeros(1, 1, 2, 5))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (np.zeros((2, 1, 5, 5)), "must be a torch.Tensor"),
        (torch.zeros(2, 1, 5, 5, dtype=torch.uint8), "floating-point"),
        (torch.zeros(2, 3, 5, 5), r"\(N, 1, any, any\)"),
        (torch.zeros(1, 5, 5), r"\(N, 1, any, any\)"),
        (torch.zeros(0, 1, 5, 5), "empty"),
        (torch.full((2, 1, 5, 5), torch.nan), "samples 0, 1"),
    ],
)
def test_inputs_are_checked(inputs, message):
    with pytest.raises(dkm.InvalidInputError, match=message):
        dkm.PatchInput(1, 4).check(inputs)


def test_a_conv_of_a_pixel_gram_is_a_patch_gram():
    """Pixels as points, mixed into patches by C, give the Gram of patches: Γ is a convolution."""
    generator = generator_of("pixels")
    channels, points = 3, 4
    images = normal(generator, 2, channels, 5, 6)
    pixels = dkm.Gram.from_features(torch.eye(channels, dtype=torch.float64), images)
    conv, patch = dkm.Conv(channels, points, 3), dkm.PatchInput(channels, points, 3)
    patch.initialise(images, generator)
    with torch.no_grad():
        conv.weight.copy_(patch.inducing)
        found, expected = conv(pixels), patch(images)
    for block in ("ii", "it", "tt"):
        assert (
            oracle.deviation(array(getattr(found, block)), array(getattr(expected, block))) < 1e-13
        )


# -- the choice of inducing patches ------------------------------------------------------------


def test_distinct_patches_are_not_blank_and_not_alike():
    """Images that are blank but for a few strokes: few patches at random show any of it."""
    generator = generator_of("blank")
    images = torch.zeros(40, 1, 12, 12, dtype=torch.float64)
    images[:, :, 5:7, 5:7] = normal(generator, 40, 1, 2, 2).abs()
    chosen = {}
    for choice in ("random", "distinct"):
        input_layer = dkm.PatchInput(1, 12, choice=choice)
        input_layer.initialise(images, torch.Generator().manual_seed(0))
        patches = input_layer.inducing.detach().flatten(1)
        unit = patches / patches.norm(dim=1, keepdim=True).clamp(min=1e-9)
        cosines = (unit @ unit.T).fill_diagonal_(0)
        chosen[choice] = int((patches != 0).any(1).sum()), float(cosines.max())
    assert chosen["random"][0] < 6
    assert chosen["distinct"][0] == 12
    assert chosen["distinct"][1] < 0.999


def test_distinct_patches_are_patches_of_the_images():
    generator = generator_of("distinct")
    images = normal(generator, 3, 2, 5, 5)
    input_layer = dkm.PatchInput(2, 8, padding="valid", choice="distinct")
    input_layer.initialise(images, generator)
    every = images.unfold(2, 3, 1).unfold(3, 3, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 18)
    distances = torch.cdist(input_layer.inducing.detach().flatten(1), every)
    assert bool((distances.amin(1) < 1e-6).all())
    assert distances.argmin(1).unique().numel() == 8


def test_distinct_patches_where_all_is_blank():
    input_layer = dkm.PatchInput(1, 4, choice="distinct")
    input_layer.initialise(torch.zeros(3, 1, 4, 4, dtype=torch.float64))
    assert not input_layer.inducing.any()


@pytest.mark.parametrize("count", [1, 6, 7, 18, 25])
def test_eigenvector_patches_are_the_leading_directions_and_their_opposites(count):
    generator = generator_of("eigenvectors")
    images = normal(generator, 30, 1, 6, 6).cumsum(3)
    input_layer = dkm.PatchInput(1, count, padding="valid", choice="eigenvectors")
    input_layer.initialise(images, generator)
    found = array(input_layer.inducing.flatten(1))
    every = array(images.unfold(2, 3, 1).unfold(3, 3, 1).reshape(-1, 9))
    leading = np.linalg.svd(every)[2]
    half = min(9, -(-count // 2))
    opposite = min(count - half, 9)
    assert np.allclose(np.abs((found[:half] * leading[:half]).sum(1)), 1)
    assert np.allclose(found[half : half + opposite], -found[:opposite])
    assert np.allclose(np.linalg.norm(found, axis=1), 1)
    rest, unit = found[half + opposite :], every / np.linalg.norm(every, axis=1, keepdims=True)
    assert np.allclose((rest @ unit.T).max(1, initial=0), 1)


def test_eigenvector_patches_where_all_is_blank():
    input_layer = dkm.PatchInput(1, 20, choice="eigenvectors")
    gram = input_layer.initialise(torch.zeros(3, 1, 4, 4, dtype=torch.float64))
    assert bool(gram.ii.isfinite().all())
