"""A folded machine predicts what the machine predicts, by constants alone."""

import copy

import pytest
import torch
from folded_machines import MACHINES, machine

import convdkm as dkm
from convdkm import presets
from convdkm.architectures import build_model
from convdkm.kernels import arccosine, pointwise
from convdkm.kernels.blocks import Side
from convdkm.layers import Layer, Plan
from convdkm.runtime.elementwise import PIECEWISE, diagonal_variance

CLOSE = {torch.float32: 1e-5, torch.float64: 1e-10}


def assert_close(actual, expected, tolerance):
    assert type(actual) is type(expected)
    for name, value in vars(expected).items():
        if value is None:
            assert getattr(actual, name) is None
        else:
            scale = float(value.abs().max()) + 1
            assert float((getattr(actual, name) - value).abs().max()) < tolerance * scale, name


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("name", MACHINES)
def test_it_predicts_the_same(name, dtype):
    model, images = machine(name, dtype)
    predictor = model.folded()
    predictor.require_exportable()
    assert predictor.dtype == dtype
    assert_close(predictor.predict(images), model.predict(images), CLOSE[dtype])


def test_it_is_a_module_of_constants():
    predictor = machine("plain")[0].train().folded()
    assert isinstance(predictor, torch.nn.Module)
    assert not list(predictor.parameters())
    assert not predictor.training
    assert {buffer.dtype for buffer in predictor.buffers()} == {torch.float32}
    layers = [part for part in predictor.modules() if isinstance(part, Layer)]
    assert all(isinstance(layer, dkm.Kernel) for layer in layers)


def test_the_same_input_gives_the_same_bits_and_no_image_depends_on_another():
    model, images = machine("published")
    predictor = model.folded()
    first, second = predictor.predict(images), predictor.predict(images)
    assert torch.equal(first.log_probs, second.log_probs)
    assert_close(predictor.predict(images, batch_size=1), first, 1e-6)
    mixed = torch.cat([images[:2], 100 * images[2:]])
    torch.testing.assert_close(predictor.predict(mixed).mean[:2], first.mean[:2])


def test_images_are_worked_on_in_pieces(monkeypatch):
    model, images = machine("plain")
    predictor = model.folded()
    whole = predictor.predict(images)
    monkeypatch.setattr("convdkm.predicting.predictor.PIECE", 3 * 5 * 30)
    sizes, steps = [], predictor.steps
    monkeypatch.setattr(predictor, "steps", lambda part: sizes.append(len(part)) or steps(part))
    assert_close(predictor.predict(images), whole, 1e-6)
    assert max(sizes) == 3
    assert sum(sizes) == len(images)


def test_plain_tensors_have_names():
    model, images = machine("gaussian")
    predictor = model.folded()
    named = dict(zip(predictor.output_names, predictor(images), strict=True))
    assert torch.equal(named["log_probs"], model.folded().predict(images).log_probs)
    assert set(named) == {"mean", "variance", "log_probs"}


@pytest.mark.parametrize("name", ["plain", "published", "Matern", "linear+mix"])
def test_black_images(name):
    model, images = machine(name)
    assert_close(model.folded().predict(0 * images), model.predict(0 * images), 1e-5)


def test_an_inducing_patch_that_is_zero():
    model, images = machine("plain", torch.float64)
    with torch.no_grad():
        model.input.inducing[2] = 0
    assert_close(model.folded().predict(images), model.predict(images), 1e-10)


@pytest.mark.parametrize("preset", presets.names())
def test_the_machine_of_a_preset_is_evaluated_by_the_engine_that_it_is_trained_by(
    preset, monkeypatch
):
    """Its kernels and Gram layers alike, whatever the kernel."""
    config = presets.preset(preset).config("cifar10", inducing="4,4,4")
    images = torch.randn(9, 3, 16, 16)
    model = build_model(config.model, 3, 10).initialise(images, seed=0)
    monkeypatch.setattr("convdkm.model.compiled_engine", lambda: PIECEWISE)
    by_kernels, by_gram_layers = [], []

    def kernel_asks(kernel, *_):
        by_kernels.append(kernel.compiled)

    def gram_layer_asks(*, compiled):
        by_gram_layers.append(compiled)
        return PIECEWISE

    monkeypatch.setattr(pointwise, "_by_compiler", kernel_asks)
    monkeypatch.setattr("convdkm.ops.gram.engine", gram_layer_asks)
    uncompiled = model.folded(deterministic=True).predict(images)
    assert not any(by_kernels + by_gram_layers)
    by_kernels.clear()
    by_gram_layers.clear()
    assert model.compile_elementwise()
    compiled = model.folded(deterministic=True)
    assert_close(compiled.predict(images), uncompiled, 1e-5)
    kernels, learned = (
        sum(isinstance(part, kind) for part in model.modules())
        for kind in (dkm.Kernel, dkm.GramLayer)
    )
    assert len(by_kernels) == kernels
    # A centring is one operation with the Gram layer or the pooling before it.
    assert len(by_gram_layers) == learned
    assert all(by_kernels + by_gram_layers)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["centred", "normalised polynomial", "normalised Gaussian"])
def test_compiled_functions_are_taken_over(name):
    model, images = machine(name)
    predictor = model.folded().compile_elementwise()
    assert_close(predictor.predict(images), model.predict(images), 1e-5)


# -- what cannot be folded ---------------------------------------------------------------------


def test_statistics_of_the_batch_are_kept_as_they_are():
    model = dkm.resnet(2, 3, (5, 6), (1, 1), centre=True, statistics="batch")
    images = torch.randn(9, 2, 6, 5)
    model.initialise(images, seed=0)
    predictor = model.folded()
    assert_close(predictor.predict(images), model.predict(images), 1e-5)
    with pytest.raises(
        dkm.InvalidInputError, match=r"statistics='batch'.*calibrate.*deterministic"
    ):
        predictor.require_exportable()
    model.folded(deterministic=True).require_exportable()
    running = copy.deepcopy(model)
    for module in running.modules():
        if isinstance(module, (dkm.Norm, dkm.Centre)):
            module.statistics = "running"
    certain = model.folded(deterministic=True).predict(images)
    assert_close(certain, running.predict(images), 1e-5)


def test_samples_are_kept_as_they_are():
    model = dkm.resnet(2, 3, (5,), (1,), expectation="monte-carlo", samples=50)
    images = torch.randn(9, 2, 6, 5)
    predictor = model.initialise(images, seed=0).folded()
    predictions = []
    for each in (model, predictor):
        torch.manual_seed(4)
        predictions.append(each.predict(images))
    assert_close(*predictions, 1e-5)
    with pytest.raises(dkm.InvalidInputError, match="part 'outcome' draws random samples"):
        predictor.require_exportable()
    model.folded(deterministic=True).require_exportable()


class Doubled(Layer):
    """A layer of a user's own."""

    def plan(self, ii):
        return DoubledPlan(4 * ii)


class DoubledPlan(Plan):
    def data(self, it, tt):
        return 4 * it, 4 * tt


def test_layers_of_ones_own_are_folded_as_they_are():
    model = dkm.DeepKernelMachine(
        dkm.PatchInput(2, 5),
        dkm.Sequential(Doubled(), dkm.GlobalAveragePool()),
        dkm.GPHead(5, 3),
        dkm.Categorical(3),
    )
    images = torch.randn(9, 2, 6, 5)
    predictor = model.initialise(images, seed=0).folded()
    assert any(isinstance(part, DoubledPlan) for part in predictor.modules())
    assert_close(predictor.predict(images), model.predict(images), 1e-5)
    predictor.require_exportable()


def test_errors_name_the_layer():
    model, images = machine("norm batch location")
    with pytest.raises(dkm.GramError, match=r"body\.stem.*another size"):
        model.folded().predict(torch.nn.functional.pad(images, (0, 1)))


# -- elementwise functions ---------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-7), (torch.float64, 1e-15)])
def test_the_kernel_without_angles(dtype, tolerance):
    cosine = torch.cat([torch.linspace(-1, 1, 4001), 1 - torch.logspace(-8, -1, 50)]).to(dtype)
    left, right = torch.tensor([2.0], dtype=dtype), torch.tensor(3.0, dtype=dtype)
    cross = (cosine * (left * right).sqrt())[:, None]
    exact = arccosine(cross.double(), left.double(), right.double())
    kernel, sides = dkm.ArcCosine(), (Side.of(left), Side.of(right.expand(len(cross), 1)))
    for value in (kernel.core(cross, *sides), pointwise.value_of_rows(kernel, cross, *sides)):
        assert float((value - exact).abs().max()) < tolerance * 10


def test_the_functions_on_pieces_are_the_plain_ones():
    rows, own = torch.randn(50, 4).double(), 3 * torch.rand(50).double()
    vector, shift = torch.rand(4).double(), torch.randn(4).double()
    own[7] = 0
    rows[7] = 0
    kernel, sides = dkm.ArcCosine(), (Side.of(vector), Side.of(own[:, None]))
    for extra in (None, shift):
        other = pointwise.value_of_rows(kernel, rows, *sides, extra)
        one = kernel.core(rows, *sides)
        torch.testing.assert_close(one if extra is None else one + extra, other)
        (one, left), (other, same) = (
            function(rows, own, vector, extra)
            for function in (diagonal_variance, PIECEWISE.diagonal_variance)
        )
        torch.testing.assert_close(one, other)
        torch.testing.assert_close(left, same)
        assert bool((one >= 0).all())
