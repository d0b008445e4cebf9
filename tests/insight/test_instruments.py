"""The instruments say what their equations say."""

import math

import numpy as np
import pytest
import torch

import convdkm as dkm
from convdkm.insight import gradient_ratios, look_into, readings
from convdkm.insight.instruments import Meter, scale_part, whitening_of
from convdkm.model import in_mode
from convdkm.numerics import whitened_kl

KERNELS = {"arccos": dkm.ArcCosine, "squared exponential": dkm.SquaredExponential}


def machine(kernel=dkm.ArcCosine, nu=0.5, **options):
    """Two Gram layers, away from where they start; and images for it."""
    images = torch.randn(20, 2, 5, 4, generator=torch.Generator().manual_seed(1)).double()
    body = dkm.Sequential(
        kernel(),
        dkm.Conv(5, 6, 3),
        dkm.GramLayer(6, nu=nu, **options),
        dkm.Centre(),
        dkm.Norm(),
        kernel(),
        dkm.Conv(6, 4, 3, stride=2),
        dkm.GramLayer(4, nu=nu, **options),
        dkm.Norm(),
        dkm.GlobalAveragePool(),
    )
    model = dkm.DeepKernelMachine(
        dkm.PatchInput(2, 5), body, dkm.GPHead(4, 3), dkm.Categorical(3), dtype=torch.float64
    )
    model.initialise(images, torch.arange(20) % 3, seed=0)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, dkm.GramLayer) and not layer.is_nngp:
                noise = torch.randn(layer.factor.shape, generator=generator, dtype=torch.float64)
                layer.factor.add_(0.3 * layer.factor.diagonal().mean() * noise.tril())
    return model, images


@torch.no_grad()
def by_hand(model, images):
    """Explained variance and spread of every Gram layer, place by place and pair by pair."""
    model.eval()
    gram, found = model.input(images), {}
    for name, layer in model.body.named_layers():
        before, gram = gram, layer(gram)
        if isinstance(layer, dkm.GramLayer):
            kernel, it, tt = before.ii.numpy(), before.it.flatten(2).numpy(), before.tt.flatten(1)
            shares = []
            for image in range(len(it)):
                for place in range(it.shape[2]):
                    cross, own = it[image, :, place], float(tt[image, place])
                    rest = own - cross @ np.linalg.solve(kernel, cross)
                    shares.append(1 - rest / own)
            ii, it, tt = gram.ii.numpy(), gram.it.flatten(2).numpy(), gram.tt.flatten(1).numpy()
            squares = []
            for point in range(len(ii)):
                for place in range(it.shape[2]):
                    scale = np.sqrt(ii[point, point] * tt[:, place])
                    squares.append(np.std(it[:, point, place] / scale) ** 2)
            found[f"body.{name}"] = np.mean(shares), math.sqrt(np.mean(squares))
    return found


@pytest.mark.parametrize("parameterisation", ["direct", "whitened"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_explained_and_spread_are_those_of_brute_force(kernel, parameterisation):
    model, images = machine(KERNELS[kernel], parameterisation=parameterisation)
    expected = by_hand(model, images)
    for size in (20, 7):
        found = readings(model, images.split(size))
        assert list(found) == [*expected, "head"] == ["body.2", "body.7", "head"]
        for name, (explained, spread) in expected.items():
            assert found[name].explained == pytest.approx(explained, rel=1e-7)
            assert found[name].spread == pytest.approx(spread, rel=1e-7)
    insight = look_into(model, images, batch_size=6)
    for layer in insight.layers:
        explained, spread = expected[layer.name]
        assert layer.explained == pytest.approx(explained, rel=1e-7)
        assert layer.spread == pytest.approx(spread, rel=1e-7)


def test_the_head_sees_the_last_gram():
    model, images = machine()
    with torch.no_grad(), in_mode(model, training=False):
        gram = model.gram(images)
    inverse = np.linalg.inv(gram.ii.numpy())
    it, tt = gram.it.double().numpy(), gram.tt.double().numpy()
    shares = [row @ inverse @ row / own for row, own in zip(it, tt, strict=True)]
    deviations = np.sqrt(np.outer(tt, gram.ii.diagonal().numpy()))
    head = readings(model, images.split(6))["head"]
    assert head.explained == pytest.approx(np.mean(shares), rel=1e-5)
    assert head.spread == pytest.approx(np.sqrt((it / deviations).var(0).mean()), rel=1e-5)
    assert (head.kl, head.scale_kl, head.shape_kl) == (None, None, None)


def test_an_infinite_nu_has_no_divergence_but_the_rest():
    model, images = machine(nu=math.inf)
    for name, (explained, spread) in by_hand(model, images).items():
        reading = readings(model, [images])[name]
        assert (reading.kl, reading.scale_kl, reading.shape_kl) == (None, None, None)
        assert reading.explained == pytest.approx(explained, rel=1e-7)
        assert reading.spread == pytest.approx(spread, rel=1e-7)


@pytest.mark.parametrize("options", [{}, {"learn_scale": True, "divided": True}])
def test_divergences_are_those_of_a_thorough_look(options):
    model, _ = machine(**options)
    layers = {layer.name: layer for layer in look_into(model).layers}
    found = readings(model)
    assert found.pop("head").kl is None
    for name, reading in found.items():
        assert reading.kl == pytest.approx(layers[name].kl, rel=1e-9)
        assert reading.scale_kl == pytest.approx(layers[name].scale_kl, rel=1e-6)
        assert reading.shape_kl == pytest.approx(layers[name].shape_kl, rel=1e-6)
        assert reading.shape_kl > 0.01
        assert (reading.explained, reading.spread) == (None, None)


def test_a_multiple_of_the_kernel_costs_scale_alone():
    model, images = machine(parameterisation="whitened", initial_scale=100.0)
    model.initialise(images, seed=0)
    for reading in list(readings(model).values())[:-1]:
        assert reading.scale_kl == pytest.approx(reading.kl)
        assert reading.shape_kl == pytest.approx(0, abs=1e-6)
    assert scale_part(torch.full((6,), 100.0)) == pytest.approx(3 * (99 - math.log(100)))
    assert scale_part(torch.ones(6)) == scale_part(torch.ones(6), taylor=True) == 0


def test_noise_and_the_second_order_leave_scale_and_shape_apart():
    stretches = torch.linspace(0.5, 3, 6, dtype=torch.float64)
    spread = torch.linalg.qr(torch.randn(6, 6).double())[0] * stretches.sqrt()
    taylor = whitened_kl(spread, taylor=True)
    multiples = torch.linspace(0.2, 5, 4001).double().sqrt()
    least = min(float(whitened_kl(m * spread, taylor=True)) for m in multiples)
    found = scale_part(stretches, taylor=True)
    assert float(taylor) - found == pytest.approx(least, rel=1e-4)

    model, images = machine(parameterisation="whitened", initial_scale=4.0, noise=0.1, kl="taylor")
    model.initialise(images, seed=0)
    for reading in list(readings(model).values())[:-1]:
        assert reading.scale_kl == pytest.approx(reading.kl)
        assert reading.shape_kl == pytest.approx(0, abs=1e-6)


def test_vectors_and_float32():
    torch.manual_seed(0)
    x = torch.randn(30, 4)
    body = dkm.Sequential(dkm.ArcCosine(), dkm.GramLayer(5))
    model = dkm.DeepKernelMachine(dkm.VectorInput(4, 5), body, dkm.GPHead(5, 2), dkm.Categorical(2))
    model.initialise(x, torch.arange(30) % 2, seed=0)
    gram = model.body(model.input(x))
    deviations = gram.ii.diagonal().sqrt() * gram.tt.double().sqrt()[:, None]
    correlations = (gram.it.double() / deviations).detach()
    spread = correlations.var(0, correction=0).mean().sqrt()
    assert readings(model, x.split(9))["body.1"].spread == pytest.approx(float(spread), rel=1e-4)


def test_a_shift_common_to_all_images_is_no_spread():
    ii = torch.eye(3, dtype=torch.float64)
    it = torch.full((40, 3, 2), 0.7) + 1e-6 * torch.arange(40).double()[:, None, None]
    meter = Meter(ii, ii)
    blocks = it, torch.ones(40, 2, dtype=torch.float64)
    meter.see(blocks, blocks)
    expected = 1e-6 * np.std(np.arange(40))
    assert meter.spread == pytest.approx(expected, rel=1e-6)


def test_places_and_points_without_variance():
    ii = torch.diag(torch.tensor([0.0, 4.0], dtype=torch.float64))
    it = torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    tt = torch.tensor([1.0, 0.0], dtype=torch.float64)
    meter = Meter(whitening_of(ii), ii)
    meter.see((it, tt), (it, tt))
    assert meter.explained == pytest.approx(0.25)  # of the one place that has a variance
    assert meter.spread == pytest.approx(math.sqrt((0 + 0.25**2) / 2))  # 0; and 0.5 beside 0
    empty = Meter(ii, ii)
    assert (empty.explained, empty.spread) == (None, None)


def test_a_kernel_that_is_no_number_is_named():
    with pytest.raises(dkm.NotFiniteError, match="kernel matrix K_ii"):
        whitening_of(torch.full((3, 3), torch.nan, dtype=torch.float64))


def test_images_of_another_shape_are_an_error():
    model, _ = machine()
    with pytest.raises(dkm.InvalidInputError, match=r"\(N, 2, any, any\), got \(4, 3"):
        readings(model, [torch.zeros(4, 3, 5, 4)])


def test_the_machine_is_left_as_it_was():
    model, images = machine()
    for layer in model.modules():
        if isinstance(layer, (dkm.GramLayer, dkm.ArcCosine)):
            layer.compiled = True
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    readings(model, images.split(8))
    assert model.training
    assert model.body[2].compiled
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())


# -- gradients -------------------------------------------------------------------------------------


def test_gradients_beside_parameters():
    model, images = machine(learn_scale=True)
    labels = torch.arange(20) % 3
    with torch.no_grad():
        model.body[4].log_data_scale.fill_(0.3)
    (-model.objective(images, labels, num_data=50).total).backward()
    found = gradient_ratios(model)

    def ratio(*parameters):
        total = model.objective(images, labels, num_data=50).total
        gradients = torch.autograd.grad(total, parameters)
        size = sum(float((p.detach() ** 2).sum()) for p in parameters)
        return math.sqrt(sum(float((g**2).sum()) for g in gradients) / size)

    body = model.body
    by_autograd = {
        "input": ratio(model.input.inducing),
        "body.1": ratio(body[1].weight),
        "body.2": ratio(body[2].factor, body[2].log_scale),
        "body.4": ratio(*body[4].parameters()),
        "body.6": ratio(body[6].weight),
        "body.7": ratio(body[7].factor, body[7].log_scale),
        "head": ratio(model.head.mean, model.head.factor),
    }
    assert found == pytest.approx(by_autograd, rel=1e-6)  # the last norm's are zero: no ratio


def test_without_gradients_there_are_no_ratios():
    model, _ = machine()
    assert gradient_ratios(model) == {}
