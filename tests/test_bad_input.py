"""Bad input gets a typed error that says what was wrong, where, and what was expected."""

import math
import pickle
from functools import partial

import pytest
import torch
from torch import nn

import convdkm as dkm
from convdkm.errors import located
from convdkm.layers.samples import check_samples
from convdkm.numerics import cholesky, pivoted_cholesky_order
from convdkm.testing import random_gram

LABELS = torch.arange(8) % 3


def images(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def small_resnet(**options):
    return dkm.resnet(1, 3, (4, 6), (1, 1), **options)


@pytest.fixture
def model():
    return small_resnet().initialise(images(8, 1, 6, 6), LABELS, seed=0)


def complaint(kind, call, *args, **options):
    """The text of the error that a call raises; it must be of this kind, and survive pickling."""
    with pytest.raises(kind) as caught:
        call(*args, **options)
    error = caught.value
    assert isinstance(error, dkm.ConvDKMError)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.layer == error.layer
    return str(error)


def assert_says(text, *parts):
    for part in parts:
        assert part in text, f"{part!r} is not in {text!r}"


# -- images ----------------------------------------------------------------------------------------

USES = {
    "predict": lambda model, inputs: model.predict(inputs),
    "objective": lambda model, inputs: model.objective(
        inputs, torch.zeros(2, dtype=torch.long), num_data=2
    ),
    "marginals": lambda model, inputs: model(inputs),
    "gram": lambda model, inputs: model.gram(inputs),
    "initialise": lambda model, inputs: model.initialise(inputs),
    "folded": lambda model, inputs: model.folded().predict(inputs),
    "calibrate": lambda model, inputs: model.calibrate([inputs]),
}


def with_value(value):
    inputs = images(9, 1, 6, 6)
    for sample in (1, 4):
        inputs[sample, 0, 2, 3] = value
    return inputs


BAD_IMAGES = {
    "too few axes": (images(6, 6), ["inputs must have shape (N, 1, any, any)", "got (6, 6)"]),
    "no channels": (images(2, 6, 6), ["(N, 1, any, any)", "got (2, 6, 6)"]),
    "too many axes": (images(2, 1, 6, 6, 6), ["(N, 1, any, any)", "got (2, 1, 6, 6, 6)"]),
    "channels": (images(2, 3, 6, 6), ["(N, 1, any, any)", "got (2, 3, 6, 6)"]),
    "integers": (torch.ones(2, 1, 6, 6, dtype=torch.uint8), ["floating-point", "torch.uint8"]),
    "no tensor": ([[1.0]], ["torch.Tensor of shape (N, 1, any, any)", "got list"]),
    "no images": (images(0, 1, 6, 6), ["the batch is empty", "(0, 1, 6, 6)"]),
    "no pixels": (images(2, 1, 0, 6), ["the batch is empty", "(2, 1, 0, 6)"]),
    "NaN": (with_value(math.nan), ["2 input values are NaN or infinite", "in samples 1, 4"]),
    "infinite": (with_value(-math.inf), ["2 input values are NaN or infinite", "samples 1, 4"]),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("bad", BAD_IMAGES)
def test_bad_images(model, use, bad):
    inputs, parts = BAD_IMAGES[bad]
    assert_says(complaint(dkm.InvalidInputError, USES[use], model, inputs), *parts)


def test_values_whose_sum_overflows_are_finite_all_the_same():
    check_samples(torch.full((2, 3), 3e38), (3,))
    with pytest.raises(dkm.InvalidInputError, match="2 input values are NaN or infinite"):
        check_samples(torch.tensor([[math.inf, 1.0], [-math.inf, 1.0]]), (2,))


def test_many_bad_samples_are_not_all_listed(model):
    inputs = torch.full((9, 1, 6, 6), math.nan)
    text = complaint(dkm.InvalidInputError, model.predict, inputs)
    assert_says(text, "324 input values", "in samples 0, 1, 2, 3, 4, …")


def test_values_too_large_for_the_precision_of_the_model(model):
    inputs = images(4, 1, 6, 6).double()
    inputs[2, 0, 0, 0] = 1e300
    text = complaint(dkm.InvalidInputError, model.predict, inputs)
    assert_says(text, "1 input value", "samples 2")


def test_bad_vectors():
    model = dkm.fully_connected(5, 1, inducing=4).initialise(images(9, 5))
    assert_says(
        complaint(dkm.InvalidInputError, model.predict, images(3, 4)), "(N, 5)", "got (3, 4)"
    )
    assert_says(
        complaint(dkm.InvalidInputError, model.initialise, images(3, 5)),
        "in layer 'input'",
        "4 inducing points were asked for, but there are only 3 vectors",
    )


def test_images_smaller_than_the_filter():
    layer = dkm.PatchInput(1, 2, 5, padding="valid")
    head = dkm.DeepKernelMachine(
        layer, dkm.GlobalAveragePool(), dkm.GPHead(2, 3), dkm.Categorical(3)
    )
    text = complaint(dkm.GramError, head.initialise, images(4, 1, 3, 6))
    assert_says(text, "in layer 'input'", "spans 5 places along axis 0", "(3, 6)", "has only 3")


def test_images_smaller_than_a_filter_inside():
    body = dkm.Sequential(
        {"conv": dkm.Conv(4, 4, 5, padding="valid"), "pool": dkm.GlobalAveragePool()}
    )
    model = dkm.DeepKernelMachine(
        dkm.PatchInput(1, 4), body, dkm.GPHead(4, 3), dkm.Categorical(3)
    ).initialise(images(4, 1, 6, 6))
    text = complaint(dkm.GramError, model.predict, images(2, 1, 4, 6))
    assert_says(text, "spans 5 places along axis 0", "(4, 6)", "'body.conv'")


def test_more_inducing_patches_than_exist():
    model = dkm.resnet(1, 3, (40,), (1,))
    text = complaint(dkm.InvalidInputError, model.initialise, images(4, 1, 3, 3))
    assert_says(
        text,
        "in layer 'input'",
        "40 inducing patches were asked for, but 4 images of shape (1, 3, 3) hold only 36",
    )


def test_more_real_patches_than_exist():
    model = dkm.resnet(1, 3, (4, 12), (1, 1), mixing="patches")
    text = complaint(dkm.InvalidInputError, model.initialise, images(2, 1, 3, 3))
    assert_says(text, "in layer 'body.stage2.block1.body.first.conv'", "12 inducing points")
    assert_says(text, "hold only 8 patches at this layer; give more images")


# -- labels and targets ----------------------------------------------------------------------------

BAD_LABELS = {
    "too large": (LABELS + 1, ["between 0 and 2 (3 classes)", "range from 1 to 3"]),
    "negative": (LABELS - 1, ["between 0 and 2 (3 classes)", "range from -1 to 1"]),
    "float": (LABELS.float(), ["labels must be integers", "torch.float32"]),
    "bool": (LABELS > 0, ["labels must be integers", "torch.bool"]),
    "too few": (LABELS[:5], ["8 images need labels of shape (8,)", "got (5,)"]),
    "one-hot": (torch.eye(8).long(), ["8 images need labels of shape (8,)", "got (8, 8)"]),
    "no tensor": ([0] * 8, ["labels must be a torch.Tensor", "got list"]),
}


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian"])
@pytest.mark.parametrize("use", ["objective", "initialise"])
@pytest.mark.parametrize("bad", BAD_LABELS)
def test_bad_labels(use, bad, likelihood):
    model = small_resnet(likelihood=likelihood)
    model.initialise(images(8, 1, 6, 6), LABELS, seed=0)
    labels, parts = BAD_LABELS[bad]
    more = {"num_data": 8} if use == "objective" else {}
    call = partial(getattr(model, use), **more)
    assert_says(complaint(dkm.InvalidInputError, call, images(8, 1, 6, 6), labels), *parts)


BAD_TARGETS = {
    "integers": (LABELS, ["floating-point", "torch.int64", "Gaussian(..., classes=True)"]),
    "shape": (torch.zeros(8, 3), ["8 inputs need targets of shape (8, 2)", "got (8, 3)"]),
    "too few": (torch.zeros(5, 2), ["8 inputs need targets of shape (8, 2)", "got (5, 2)"]),
    "NaN": (torch.full((8, 2), math.nan), ["NaN or infinite"]),
    "no tensor": ([0.0] * 8, ["targets must be a torch.Tensor", "got list"]),
}


@pytest.mark.parametrize("bad", BAD_TARGETS)
def test_bad_regression_targets(bad):
    model = dkm.fully_connected(5, 2, inducing=4).initialise(images(8, 5))
    targets, parts = BAD_TARGETS[bad]
    call = partial(model.objective, num_data=8)
    assert_says(complaint(dkm.InvalidInputError, call, images(8, 5), targets), *parts)


def test_bad_targets_of_a_prediction(model):
    prediction = model.predict(images(8, 1, 6, 6))
    log_prob = prediction.log_prob
    assert_says(
        complaint(dkm.InvalidInputError, log_prob, LABELS[:3]), "8 predictions", "3 targets"
    )
    assert_says(
        complaint(dkm.InvalidInputError, log_prob, LABELS.float()), "integers of shape (8,)"
    )
    assert_says(complaint(dkm.InvalidInputError, log_prob, LABELS + 1), "between 0 and 2")
    assert_says(complaint(dkm.InvalidInputError, prediction.accuracy, LABELS[:3]), "3 targets")
    gaussian = small_resnet(likelihood="gaussian").initialise(images(8, 1, 6, 6), LABELS)
    undefined = gaussian.predict(images(8, 1, 6, 6))
    text = complaint(dkm.InvalidInputError, lambda: undefined.mutual_information)
    assert_says(text, "Categorical likelihood only")


@pytest.mark.parametrize("num_data", [0, -5])
def test_num_data_must_be_positive(model, num_data):
    text = complaint(
        dkm.InvalidInputError, model.objective, images(8, 1, 6, 6), LABELS, num_data=num_data
    )
    assert_says(text, f"num_data must be a positive integer, got {num_data}")


def test_num_data_must_be_given(model):
    text = complaint(dkm.InvalidInputError, model.objective, images(8, 1, 6, 6), LABELS)
    assert_says(text, "objective needs num_data", "whole training set", "num_data=len(")


@pytest.mark.parametrize("batch_size", [0, -1])
def test_batch_size_must_be_positive(model, batch_size):
    for predictor in (model, model.folded()):
        call = predictor.predict
        text = complaint(dkm.InvalidInputError, call, images(8, 1, 6, 6), batch_size=batch_size)
        assert_says(text, f"batch_size must be a positive integer, got {batch_size}")


def test_max_images_must_be_positive(model):
    text = complaint(dkm.InvalidInputError, model.initialise, images(8, 1, 6, 6), max_images=0)
    assert_says(text, "max_images must be a positive integer, got 0")


# -- Grams -----------------------------------------------------------------------------------------

II, IT, TT = torch.eye(3).double(), torch.zeros(2, 3, 4), torch.ones(2, 4)

BAD_GRAMS = {
    "ii not square": ((torch.zeros(3, 4).double(), IT, TT), ["Gram.ii must be square", "(3, 4)"]),
    "ii not a matrix": ((torch.zeros(3).double(), IT, TT), ["Gram.ii must be square", "(3,)"]),
    "it": ((II, IT[:, :2], TT), ["Gram.it must have shape", "P_i = 3", "got shape (2, 2, 4)"]),
    "it without images": ((II, IT[0, :, 0], TT), ["Gram.it must have shape", "got shape (3,)"]),
    "tt": ((II, IT, TT[:, 1:]), ["Gram.tt must have shape", "= (2, 4)", "got shape (2, 3)"]),
    "tt of fewer images": ((II, IT, TT[:1]), ["Gram.tt must have shape", "got shape (1, 4)"]),
    "ii in float32": ((II.float(), IT, TT), ["Gram.ii must be torch.float64", "torch.float32"]),
    "it of integers": ((II, IT.long(), TT), ["Gram.it", "floating-point", "torch.int64"]),
    "tt in another dtype": ((II, IT, TT.double()), ["Gram.tt", "torch.float32", "torch.float64"]),
    "no tensor": ((II, IT, None), ["Gram.tt must be a torch.Tensor", "NoneType"]),
    "devices": ((II, IT.to("meta"), TT), ["Gram.it is on meta, but Gram.ii is on cpu"]),
}


@pytest.mark.parametrize("bad", BAD_GRAMS)
def test_blocks_of_a_gram_must_fit(bad):
    blocks, parts = BAD_GRAMS[bad]
    assert_says(complaint(dkm.GramError, dkm.Gram, *blocks), *parts)


def test_operations_on_grams():
    gram = dkm.Gram(II, IT, TT)
    other = random_gram(3, (5,), num_images=2, dtype=torch.float32)
    assert_says(
        complaint(dkm.GramError, gram.combine, other), "block it", "(2, 3, 4) and (2, 3, 5)"
    )
    fewer = random_gram(2, (4,), num_images=2, dtype=torch.float32)
    assert_says(complaint(dkm.GramError, gram.combine, fewer), "block ii", "(3, 3) and (2, 2)")
    for weight in (-0.1, 1.5, math.nan):
        assert_says(complaint(dkm.GramError, gram.combine, gram, weight), "lies in [0, 1]")
    assert_says(complaint(dkm.GramError, lambda: gram * -2.0), "not negative", "-2.0")
    assert_says(complaint(dkm.GramError, lambda: gram * torch.ones(2)), "one number", "(2,)")
    with pytest.raises(TypeError):
        gram * "two"
    with pytest.raises(IndexError, match="image 7 of a Gram with 2 images"):
        gram[7]
    text = complaint(dkm.GramError, dkm.Gram.from_features, torch.ones(3, 4), torch.ones(2, 5))
    assert_says(text, "the same M", "(3, 4) and (2, 5)")


def narrow_conv_inside(**options):
    """A machine one of whose convolutions is for another number of inducing points."""
    model = small_resnet(**options)
    block = model.body[1][0]
    block.body[0].conv = dkm.Conv(7, 4, 3)
    return model


def test_a_layer_for_another_number_of_inducing_points_is_named():
    model = narrow_conv_inside()
    text = complaint(dkm.GramError, model.initialise, images(8, 1, 6, 6))
    where = "body.stage1.block1.body.first.conv"
    assert_says(text, f"in layer '{where}'", "takes a Gram with 7 inducing points, got one with 4")
    assert where in dict(model.named_modules())


@pytest.mark.parametrize(
    "layer",
    [
        dkm.Conv(4, 4, 1),
        dkm.Mix(4, 4),
        dkm.GramLayer(4),
        dkm.GramLayer(4, parameterisation="whitened"),
        dkm.GramLayer(4, math.inf),
        dkm.Flatten(4),
    ],
    ids=repr,
)
def test_every_layer_checks_the_number_of_inducing_points(layer):
    layer.initialise(random_gram(4, (2, 2)))
    text = complaint(dkm.GramError, layer, random_gram(5, (2, 2)))
    assert_says(text, "takes a Gram with 4 inducing points, got one with 5")


@pytest.mark.parametrize("layer", [dkm.Norm(inducing_scale="local"), dkm.Centre()], ids=repr)
@pytest.mark.parametrize("training", [True, False])
def test_state_of_each_inducing_point_checks_their_number(layer, training):
    layer.initialise(random_gram(4, (2, 2)))
    text = complaint(dkm.GramError, layer.train(training), random_gram(5, (2, 2)))
    assert_says(text, "(4,)", "(5,)")


def test_the_head_checks_what_it_is_given():
    head = dkm.GPHead(4, 3)
    assert_says(complaint(dkm.GramError, head, random_gram(5)), "4 inducing points", "with 5")
    text = complaint(dkm.GramError, head, random_gram(4, (2, 3)))
    assert_says(text, "without space", "places (2, 3)", "GlobalAveragePool() or Flatten()")


def test_a_machine_whose_body_keeps_space_is_told_so():
    model = dkm.DeepKernelMachine(
        dkm.PatchInput(1, 4), dkm.ArcCosine(), dkm.GPHead(4, 3), dkm.Categorical(3)
    )
    text = complaint(dkm.GramError, model.initialise, images(8, 1, 6, 6))
    assert_says(text, "in layer 'head'", "places (6, 6)", "GlobalAveragePool()")


@pytest.mark.parametrize("layer", [dkm.GlobalAveragePool(), dkm.Flatten()], ids=repr)
def test_layers_that_collapse_space_need_some(layer):
    text = complaint(dkm.GramError, layer, random_gram(4))
    assert_says(text, "collapses space", "none left")


@pytest.mark.parametrize("layer", [dkm.Conv(4, 4, 3), dkm.AveragePool(2)], ids=repr)
@pytest.mark.parametrize("space", [(), (5,), (5, 5, 5)], ids=str)
def test_layers_say_which_number_of_axes_they_need(layer, space):
    text = complaint(dkm.GramError, layer, random_gram(4, space))
    assert_says(text, "works on 2-D data", f"a grid of shape {space}")


def test_a_skip_whose_branches_do_not_match():
    wide = dkm.Skip(dkm.Sequential({"conv": dkm.Conv(4, 6, 3)}))
    for call in (wide, wide.initialise):
        text = complaint(dkm.GramError, call, random_gram(4, (4, 4)))
        assert_says(text, "'shortcut'", "maps 4 inducing points to 6, its shortcut to 4")
        assert_says(text, "Conv(4, 6, 1)")
    strided = dkm.Skip(dkm.Conv(4, 4, 3, stride=2))
    for call in (strided, strided.initialise):
        text = complaint(dkm.GramError, call, random_gram(4, (4, 4)))
        assert_says(text, "'shortcut'", "maps places (4, 4) to (2, 2), its shortcut to (4, 4)")
        assert_says(text, "same stride")


# -- state that comes from data --------------------------------------------------------------------

LAZY = {
    "gram layer": (dkm.GramLayer(4), "this Gram layer starts at the kernel of the layer below"),
    "inducing scales": (dkm.Norm(inducing_scale="local"), "scales take their shape from data"),
    "data scales": (dkm.Norm(data_scale="location"), "scales take their shape from data"),
    "statistics by location": (dkm.Norm(data="location"), "needs the running statistics"),
    "centre": (dkm.Centre(), "needs the running statistics"),
    "flatten": (dkm.Flatten(3), "take their shape from the images"),
}


@pytest.mark.parametrize("name", LAZY)
def test_use_before_initialise(name):
    layer, what = LAZY[name]
    text = complaint(dkm.NotInitialisedError, layer.eval(), random_gram(4, (2, 2)))
    assert_says(text, what, "call initialise(images, labels) on the model", "load a state_dict")


@pytest.mark.parametrize("name", LAZY)
def test_use_before_initialise_names_the_layer(name):
    layer, what = LAZY[name]
    steps = {"kernel": dkm.ArcCosine(), "inner": dkm.Sequential({"lazy": layer})}
    text = complaint(dkm.NotInitialisedError, dkm.Sequential(steps).eval(), random_gram(4, (2, 2)))
    assert_says(text, what, "in layer 'inner.lazy'")


@pytest.mark.parametrize(
    "use", ["predict", "objective", "marginals", "gram", "folded", "calibrate"]
)
def test_a_machine_before_initialise(use):
    text = complaint(dkm.NotInitialisedError, USES[use], small_resnet(), images(2, 1, 6, 6))
    assert_says(text, "inducing inputs have not been drawn", "call initialise(images, labels)")
    assert_says(text, "in layer 'input'")


LOCATION_WISE = {
    "statistics": ({"normalisation": ("batch", "location")}, "body.stem.norm"),
    "scales": ({"scaling": ("batch", "location")}, "body.stem.norm"),
    "top": ({"top": "linear+mix"}, "body.flatten"),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", LOCATION_WISE)
def test_images_of_another_size_where_state_belongs_to_places(name, training):
    options, where = LOCATION_WISE[name]
    model = small_resnet(**options).initialise(images(8, 1, 6, 6), LABELS, seed=0)
    other = images(8, 1, 8, 8)
    call = partial(model.train(training).objective, num_data=8)
    text = complaint(dkm.GramError, call, other, LABELS)
    assert_says(text, "were the images of another size?")
    sizes = ("(3, 3)", "(4, 4)") if name == "top" else ("(6, 6)", "(8, 8)")
    assert_says(text, *sizes)
    assert_says(text, f"in layer '{where}'")


def test_a_fully_convolutional_machine_takes_images_of_any_size(model):
    assert len(model.predict(images(3, 1, 9, 7))) == 3


# -- numerical failures ----------------------------------------------------------------------------


class NegativeKernel(dkm.Kernel):
    def of(self, cross, left, right):
        return -cross

    def variance(self, own):
        return -own


class IndefiniteKernel(dkm.Kernel):
    def of(self, cross, left, right):
        return 5 * cross

    def variance(self, own):
        return own


@pytest.mark.parametrize(
    ("model", "inputs", "where"),
    [
        (small_resnet(kernel=NegativeKernel()), images(8, 1, 6, 6), "body.stem.gram"),
        (
            dkm.fully_connected(5, 1, inducing=4, kernel=IndefiniteKernel()),
            images(8, 5),
            "body.layer1.gram",
        ),
    ],
    ids=["negative", "indefinite"],
)
def test_a_kernel_that_is_none_is_reported_with_its_place(model, inputs, where):
    with pytest.raises(dkm.NotPositiveDefiniteError) as caught:
        model.initialise(inputs, seed=0)
    error = caught.value
    assert error.layer == where
    assert (error.dtype, error.size) == (torch.float64, 4)
    assert error.smallest_eigenvalue < 0
    assert error.jitter > 0
    text = str(error)
    assert_says(text, f"in layer '{where}'", "the kernel matrix K_ii (4×4, torch.float64)")
    assert_says(text, "not positive definite", "smallest eigenvalue is -", "adding jitter up to")
    assert_says(text, "is a kernel not a valid kernel?")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == text
    assert again.smallest_eigenvalue == error.smallest_eigenvalue
    assert again.jitter == error.jitter
    assert again.layer == error.layer
    assert isinstance(again, dkm.NumericalError)


def test_a_matrix_of_zeros_is_not_positive_definite():
    model = small_resnet()
    text = complaint(dkm.NotPositiveDefiniteError, model.initialise, torch.zeros(8, 1, 6, 6))
    assert_says(text, "in layer 'body.stem.gram'", "smallest eigenvalue is 0")


def test_bounded_jitter_rescues_duplicated_points_and_no_more():
    singular = torch.ones(3, 3).double()
    factor = cholesky(singular, "a matrix")
    torch.testing.assert_close(factor @ factor.T, singular, rtol=0, atol=2e-4)
    indefinite = singular - 0.1 * torch.eye(3)
    text = complaint(dkm.NotPositiveDefiniteError, cholesky, indefinite, "a matrix")
    assert_says(text, "a matrix (3×3, torch.float64)", "smallest eigenvalue is -0.1")


def test_error_says_which_chain_has_a_nan_parameter(model):
    damaged = {
        "input.inducing": "body.stem.gram",
        "body.stem.conv.weight": "body.stem.gram",
        "body.stem.gram.factor": "body.stage1.block1.body.first.gram",
        "body.stage1.block1.body.first.norm.log_inducing_scale": "body.stage1.block1.body.second",
        "body.stage2.block1.shortcut.conv.weight": "body.pool",
        "body.norm.log_inducing_scale": "head",
    }
    parameters = dict(model.named_parameters())
    for name, found in damaged.items():
        before = parameters[name].detach().clone()
        with torch.no_grad():
            parameters[name].view(-1)[0] = math.nan
        with pytest.raises(dkm.NotFiniteError) as caught:
            model.objective(images(8, 1, 6, 6), LABELS, num_data=8)
        text = str(caught.value)
        assert caught.value.layer.startswith(found)
        assert caught.value.bad > 0
        assert_says(text, f"in layer '{found}", "NaN or infinite entries", "learning rate")
        assert str(pickle.loads(pickle.dumps(caught.value))) == text
        with torch.no_grad():
            parameters[name].copy_(before)
    assert torch.isfinite(model.objective(images(8, 1, 6, 6), LABELS, num_data=8).total)


@pytest.mark.parametrize("name", ["head.mean", "head.factor", "body.norm.log_data_scale"])
def test_a_nan_parameter_that_no_factorisation_sees_is_found_too(model, name):
    with torch.no_grad():
        dict(model.named_parameters())[name].view(-1)[0] = math.nan
    with pytest.raises(dkm.NotFiniteError):
        model.objective(images(8, 1, 6, 6), LABELS, num_data=8)


def test_too_many_inducing_points_to_choose():
    text = complaint(dkm.InvalidInputError, pivoted_cholesky_order, torch.ones(3, 2), 4)
    assert_says(text, "cannot choose 4 inducing points from 3 patches")


# -- options ---------------------------------------------------------------------------------------

LINEAR = dkm.Linear()

BAD_OPTIONS = {
    "arccos order": (lambda: dkm.ArcCosine(3), ["order", "0, 1 or 2", "got 3"]),
    "arccos variance": (lambda: dkm.ArcCosine(weight_variance=-1), ["weight_variance", "-1"]),
    "arccos bias": (lambda: dkm.ArcCosine(bias_variance=0), ["bias_variance", "positive"]),
    "length scale": (lambda: dkm.SquaredExponential(0), ["lengthscale", "positive", "got 0"]),
    "scale": (lambda: dkm.SquaredExponential(scale=math.inf), ["scale", "finite", "got inf"]),
    "NaN length scale": (lambda: dkm.Matern(lengthscale=math.nan), ["lengthscale", "got nan"]),
    "smoothness": (lambda: dkm.Matern(2.0), ["smoothness", "0.5, 1.5 or 2.5", "got 2.0"]),
    "alpha": (lambda: dkm.RationalQuadratic(-1.0), ["alpha", "got -1.0"]),
    "gamma": (lambda: dkm.NormalisedGaussian(0.0), ["gamma", "got 0.0"]),
    "factor": (lambda: -1 * LINEAR, ["factor of a kernel", "positive", "got -1"]),
    "sum": (lambda: dkm.Sum(LINEAR, 3), ["Sum takes kernels", "got a int"]),
    "product": (dkm.Product, ["Product needs at least one kernel"]),
    "weights": (
        lambda: dkm.ConvexCombination(LINEAR, LINEAR, weights=(1.0,)),
        ["2 kernels need 2 positive weights", "(1.0,)"],
    ),
    "negative weights": (
        lambda: dkm.ConvexCombination(LINEAR, LINEAR, weights=(1.0, -1.0)),
        ["2 positive weights", "(1.0, -1.0)"],
    ),
    "infinite weights": (
        lambda: dkm.ConvexCombination(LINEAR, LINEAR, weights=(1.0, math.inf)),
        ["2 positive weights", "inf"],
    ),
    "conv points": (lambda: dkm.Conv(0, 4, 3), ["in_inducing", "positive integer", "got 0"]),
    "conv float": (lambda: dkm.Conv(4, 2.5, 3), ["out_inducing", "positive integer", "got 2.5"]),
    "filter": (lambda: dkm.Conv(4, 4, 0), ["kernel_size", "at least 1", "got 0"]),
    "filter axes": (lambda: dkm.Conv(4, 4, (3, 3, 3)), ["kernel_size", "2 integers"]),
    "stride": (lambda: dkm.Conv(4, 4, 3, stride=0), ["stride", "at least 1", "got 0"]),
    "dilation": (lambda: dkm.Conv(4, 4, 3, dilation=1.5), ["dilation", "got 1.5"]),
    "padding": (lambda: dkm.Conv(4, 4, 3, padding=-1), ["padding", "at least 0", "got -1"]),
    "padding name": (lambda: dkm.Conv(4, 4, 3, padding="full"), ["'same', 'valid'", "'full'"]),
    "border": (lambda: dkm.Conv(4, 4, 3, border="wrap"), ["border", "'zero', 'inside'", "'wrap'"]),
    "choice": (
        lambda: dkm.PatchInput(1, 4, choice="k-means"),
        ["'random', 'distinct', 'eigenvectors'", "'k-means'"],
    ),
    "mixing": (lambda: dkm.Conv(4, 4, 3, mixing="k-means"), ["'random', 'patches'", "'k-means'"]),
    "axes": (lambda: dkm.Conv(4, 4, 3, ndim=4), ["1, 2 or 3 spatial axes", "ndim=4"]),
    "mix": (lambda: dkm.Mix(0, 4), ["in_inducing must be a positive integer"]),
    "mix identity": (lambda: dkm.Mix(3, 4, identity=True), ["square", "3 → 4"]),
    "gram points": (lambda: dkm.GramLayer(0), ["num_inducing", "positive integer", "got 0"]),
    "negative nu": (lambda: dkm.GramLayer(4, -1.0), ["nu must lie between 0 and inf", "-1.0"]),
    "NaN nu": (lambda: dkm.GramLayer(4, math.nan), ["nu must lie between 0 and inf", "nan"]),
    "initial scale": (lambda: dkm.GramLayer(4, initial_scale=0), ["initial_scale", "got 0"]),
    "parameterisation": (
        lambda: dkm.GramLayer(4, parameterisation="cholesky"),
        ["parameterisation", "'direct', 'whitened'", "'cholesky'"],
    ),
    "norm inducing": (
        lambda: dkm.Norm("image"),
        ["inducing must be one of 'none', 'batch', 'local'", "'image'"],
    ),
    "norm data": (
        lambda: dkm.Norm(data="layer"),
        ["data must be one of", "'none', 'batch', 'image', 'location', 'local'", "'layer'"],
    ),
    "norm inducing scale": (
        lambda: dkm.Norm(inducing_scale="x"),
        ["inducing_scale must be one of 'none', 'batch', 'local'"],
    ),
    "norm data scale": (
        lambda: dkm.Norm(data_scale="x"),
        ["data_scale must be one of 'none', 'batch', 'location'"],
    ),
    "statistics": (
        lambda: dkm.Norm(statistics="none"),
        ["statistics must be one of 'running', 'batch'"],
    ),
    "momentum": (lambda: dkm.Norm(momentum=0.0), ["momentum must lie in (0, 1]", "got 0.0"]),
    "centre": (lambda: dkm.Centre(statistics="x"), ["'running', 'batch'", "'x'"]),
    "centre momentum": (lambda: dkm.Centre(momentum=1.5), ["(0, 1]", "got 1.5"]),
    "noise": (lambda: dkm.Noise(-1e-4), ["noise", "not negative", "-0.0001"]),
    "NaN noise": (lambda: dkm.Noise(0.0, math.nan), ["noise", "nan"]),
    "pool": (lambda: dkm.AveragePool(0), ["kernel_size", "got 0"]),
    "pool padding": (lambda: dkm.AveragePool(2, padding=2), ["padding 2", "size 2", "outside"]),
    "flatten": (lambda: dkm.Flatten(0), ["out_inducing must be a positive integer", "got 0"]),
    "patch channels": (lambda: dkm.PatchInput(0, 4), ["in_channels", "got 0"]),
    "patch border": (lambda: dkm.PatchInput(1, 4, border="x"), ["'zero', 'inside'"]),
    "vectors": (
        lambda: dkm.VectorInput(3, 0),
        ["num_inducing must be a positive integer", "got 0"],
    ),
    "skip weight": (lambda: dkm.Skip(LINEAR, weight=1.2), ["skip connection", "[0, 1]", "1.2"]),
    "skip learned": (
        lambda: dkm.Skip(LINEAR, weight=1.0, learn=True),
        ["strictly between 0 and 1", "got 1.0"],
    ),
    "skip body": (lambda: dkm.Skip(nn.ReLU()), ["body", "ReLU"]),
    "skip shortcut": (lambda: dkm.Skip(LINEAR, nn.ReLU()), ["shortcut", "ReLU"]),
    "scaled": (lambda: dkm.Scaled(nn.ReLU()), ["kernel", "ReLU"]),
    "sequential": (
        lambda: dkm.Sequential(LINEAR, nn.ReLU()),
        ["Sequential takes layers", "entry '1' is a ReLU"],
    ),
    "sequential list": (lambda: dkm.Sequential([LINEAR]), ["entry '0' is a list"]),
    "head": (lambda: dkm.GPHead(0, 3), ["num_inducing", "got 0"]),
    "head covariance": (
        lambda: dkm.GPHead(4, 3, covariance="full"),
        ["covariance must be one of 'shared', 'per-output'", "'full'"],
    ),
    "head parameterisation": (
        lambda: dkm.GPHead(4, 3, parameterisation="x"),
        ["'direct', 'whitened'"],
    ),
    "classes": (lambda: dkm.Categorical(1), ["at least 2 classes", "got 1"]),
    "expectation": (
        lambda: dkm.Categorical(3, expectation="exact"),
        ["expectation must be one of 'nodes', 'monte-carlo'", "'exact'"],
    ),
    "samples": (
        lambda: dkm.Categorical(3, samples=0),
        ["samples must be a positive integer", "got 0"],
    ),
    "random samples": (
        lambda: dkm.Categorical(3, expectation="monte-carlo", samples=-7),
        ["samples must be a positive integer", "got -7"],
    ),
    "gaussian": (lambda: dkm.Gaussian(0), ["num_outputs", "positive", "got 0"]),
    "gaussian samples": (lambda: dkm.Gaussian(2, samples=0), ["samples", "got 0"]),
    "gaussian noise": (
        lambda: dkm.Gaussian(2, noise=0.0),
        ["noise must be a positive, finite number", "got 0.0"],
    ),
    "gaussian expectation": (
        lambda: dkm.Gaussian(2, expectation="nodes"),
        ["'closed-form', 'monte-carlo'", "'nodes'"],
    ),
    "no stages": (lambda: dkm.resnet(1, 3, (), ()), ["each stage", "got 0, 0 and"]),
    "stages": (lambda: dkm.resnet(1, 3, (4, 4), (1,)), ["each stage", "got 2, 1 and 1"]),
    "strides": (lambda: dkm.resnet(1, 3, (4,), (1,), strides=(1, 2)), ["got 1, 1 and 2"]),
    "stage points": (lambda: dkm.resnet(1, 3, (0,), (1,)), ["inducing must be above 0", "got 0"]),
    "stage blocks": (lambda: dkm.resnet(1, 3, (4,), (0,)), ["blocks must be above 0", "got 0"]),
    "top": (
        lambda: small_resnet(top="max"),
        ["top must be 'gap', 'linear', 'gap+mix' or 'linear+mix'", "'max'"],
    ),
    "resnet nu": (lambda: small_resnet(nu=-1.0), ["nu must be at least 0", "-1.0"]),
    "resnet kernel": (
        lambda: small_resnet(kernel="relu"),
        ["kernel must be 'arc-cosine'", "'relu'"],
    ),
    "resnet likelihood": (
        lambda: small_resnet(likelihood="poisson"),
        ["likelihood must be 'categorical' or 'gaussian'", "'poisson'"],
    ),
    "resnet expectation": (
        lambda: small_resnet(likelihood=dkm.Categorical(3), samples=10),
        ["go with a likelihood given by name", "Categorical"],
    ),
    "resnet samples": (
        lambda: small_resnet(likelihood="gaussian", samples=0),
        ["samples must be above 0", "got 0"],
    ),
    "resnet normalisation": (
        lambda: small_resnet(normalisation=("batch",)),
        ["normalisation", "('batch',)"],
    ),
    "resnet scaling": (lambda: small_resnet(scaling=("batch",)), ["scaling", "('batch',)"]),
    "resnet precision": (lambda: small_resnet(dtype=torch.int32), ["dtype", "torch.int32"]),
    "head float": (lambda: dkm.GPHead(2.5, 3), ["num_inducing", "positive integer", "got 2.5"]),
    "mix text": (lambda: dkm.Mix("4", 4), ["in_inducing", "positive integer", "got '4'"]),
    "length text": (
        lambda: dkm.SquaredExponential("1"),
        ["lengthscale", "positive, finite number"],
    ),
    "nu text": (lambda: dkm.GramLayer(4, "1"), ["nu must lie between 0 and infinity", "'1'"]),
    "stages without a list": (
        lambda: dkm.resnet(1, 3, 4, 1),
        ["a number for each stage", "4 and 1"],
    ),
    "layer name": (lambda: dkm.Sequential({"a.b": LINEAR}), ["cannot be called 'a.b'"]),
    "head kl": (lambda: small_resnet(head_kl="max"), ["head_kl", "'sum' or 'mean'", "'max'"]),
    "depth": (lambda: dkm.fully_connected(3, 1, depth=-1), ["depth", "got -1"]),
    "points": (lambda: dkm.fully_connected(3, 1, inducing=0), ["positive", "0"]),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_bad_options(name):
    build, parts = BAD_OPTIONS[name]
    assert_says(complaint(dkm.InvalidInputError, build), *parts)


def parts_of_a_machine():
    return {
        "input": dkm.PatchInput(1, 4),
        "body": dkm.GlobalAveragePool(),
        "head": dkm.GPHead(4, 3),
        "likelihood": dkm.Categorical(3),
    }


@pytest.mark.parametrize(
    ("part", "expected"),
    [("input", "Input"), ("body", "Layer"), ("head", "GPHead"), ("likelihood", "Likelihood")],
)
def test_a_part_of_another_kind(part, expected):
    parts = {**parts_of_a_machine(), part: nn.ReLU()}
    text = complaint(dkm.InvalidInputError, dkm.DeepKernelMachine, **parts)
    assert_says(text, f"{part} must be a {expected}, got ReLU()")


def test_a_head_and_a_likelihood_that_differ():
    parts = {**parts_of_a_machine(), "likelihood": dkm.Categorical(4)}
    text = complaint(dkm.InvalidInputError, dkm.DeepKernelMachine, **parts)
    assert_says(text, "the head has 3 outputs, the likelihood 4")


@pytest.mark.parametrize(
    ("base", "method", "args"),
    [
        (dkm.Kernel, "of", [None] * 3),
        (dkm.Kernel, "variance", [None]),
        (dkm.Isotropic, "of_squared_distance", [None]),
        (dkm.Layer, "plan", [None]),
        (dkm.Likelihood, "check_targets", [None, 1]),
        (dkm.Likelihood, "expected_log_prob", [None, None]),
        (dkm.Likelihood, "predict", [None]),
    ],
)
def test_a_subclass_is_told_what_it_must_define(base, method, args):
    mine = type("Mine", (base,), {})()
    with pytest.raises(NotImplementedError, match=f"Mine must define {method}"):
        getattr(mine, method)(*args)


# -- the errors themselves -------------------------------------------------------------------------

ERRORS = [
    dkm.InvalidInputError("bad"),
    dkm.GramError("bad"),
    dkm.NotInitialisedError("bad"),
    dkm.NotFiniteError("K_ii", torch.float64, 3, 2),
    dkm.NotPositiveDefiniteError("K_ii", torch.float64, 3, -0.5, 1e-4),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_cross_process_boundaries(error):
    with pytest.raises(type(error)) as caught, located("body"), located("stage1.block1"):
        raise pickle.loads(pickle.dumps(error))
    assert caught.value.path == ("body", "stage1", "block1")
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is type(error)
    assert again.layer == "body.stage1.block1"
    assert str(again) == f"in layer 'body.stage1.block1': {error.message}"
    assert vars(again) == vars(caught.value)


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (dkm.InvalidInputError, ValueError),
        (dkm.GramError, ValueError),
        (dkm.NotInitialisedError, RuntimeError),
        (dkm.NumericalError, ArithmeticError),
        (dkm.NotFiniteError, dkm.NumericalError),
        (dkm.NotPositiveDefiniteError, dkm.NumericalError),
    ],
)
def test_errors_can_be_caught_by_the_usual_types(kind, builtin):
    assert issubclass(kind, builtin)
    assert issubclass(kind, dkm.ConvDKMError)


def test_other_errors_are_not_touched_on_their_way():
    with pytest.raises(ZeroDivisionError) as caught, located("body"):
        raise ZeroDivisionError("as it was")
    assert str(caught.value) == "as it was"
