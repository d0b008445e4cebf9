"""The preset ``published`` trains what was published: a test for each departure from the text."""

import math

import pytest
import torch

import convdkm as dkm
from convdkm.architectures import build_model
from convdkm.config import RunConfig
from convdkm.data.augment import random_crop_flip
from convdkm.data.whitening import make_whitening
from convdkm.presets import preset
from convdkm.training.build import augmented, built, fitted_whitening, initialise, settled
from oracle.adapter import array

CLASSES, SIDE = 3, 8


def config(**changes):
    small = {"inducing": [4, 6, 8], "blocks": 1, "samples": 20, "batch_size": 32}
    small["inducing_per_class"] = 8
    return preset("published").config("cifar10").updated({**small, **changes})


def pictures(count=240, seed=0):
    """Smooth coloured images with values from 0 to 1, brighter in some classes than in others."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 3, 3, generator=generator)
    images = torch.nn.functional.interpolate(coarse, SIDE, mode="bilinear", align_corners=True)
    labels = torch.arange(count) % CLASSES
    return (0.25 + 0.5 * images + 0.1 * labels[:, None, None, None]).clamp(0, 1), labels


def ignored(*message):
    del message


def prepared(setting):
    """A machine that has been initialised by the recipe, and the recipe."""
    images, labels = pictures()
    recipe = settled(setting.training, images, labels, ignored)
    whitening = fitted_whitening(recipe, images, ignored)
    model = built(setting.model, recipe, 3, CLASSES)
    return initialise(model, recipe, images, labels, whitening), recipe


def mixing_weights(model):
    kinds = (dkm.Conv, dkm.Mix, dkm.Flatten)
    found = [m.weight for m in model.modules() if isinstance(m, kinds)]
    return [weight for weight in found if weight is not None]


@pytest.mark.parametrize("top", ["gap", "gap+mix", "linear+mix"])
def test_mixing_weights_are_learned_as_standard_normal_numbers(top):
    setting = config(inducing=[16, 32, 64], top=top)
    published, _ = prepared(setting)
    plain, _ = prepared(setting.updated({"divide_mixing": False}))
    for latent, weight in zip(mixing_weights(published), mixing_weights(plain), strict=True):
        assert float(latent.detach().std()) == pytest.approx(1, abs=0.1)
        torch.testing.assert_close(latent, weight * weight.shape[1] ** 0.5)
    images = torch.randn(5, 3, SIDE, SIDE, dtype=torch.float64)
    for one, other in zip(
        _prediction_state(published, images), _prediction_state(plain, images), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


def _prediction_state(model, images):
    prediction = model.predict(images)
    return prediction.mean, prediction.variance


def test_a_step_of_adam_on_mixing_weights_is_divided_by_the_root_of_the_inducing_points():
    moved = {}
    for divided in (True, False):
        torch.manual_seed(0)
        layer = dkm.Conv(25, 4, 3, divided=divided)
        gram = dkm.Gram(
            torch.eye(25, dtype=torch.float64),
            torch.randn(2, 25, 4, 4, dtype=torch.float64),
            torch.full((2, 4, 4), 40.0, dtype=torch.float64),
        )
        before = layer(gram).it.detach()
        optimiser = torch.optim.Adam(layer.parameters(), lr=0.01, eps=1e-14)
        layer(gram).it.square().sum().backward()
        weights = layer.weight.detach() / layer.divisor
        optimiser.step()
        step = layer.weight.detach() / layer.divisor - weights
        moved[divided] = (before, step)
    torch.testing.assert_close(moved[True][0], moved[False][0])
    torch.testing.assert_close(moved[True][1], moved[False][1] / 5, rtol=1e-5, atol=1e-8)


def test_inducing_patches_are_standardised_augmented_interior_and_of_every_class():
    images, labels = pictures()
    bright = images + 1  # a patch that reaches into the zeros around an image is far from others
    setting = config(inducing=[64, 8, 8], inducing_per_class=10)
    recipe = settled(setting.training, bright, labels, ignored)
    assert recipe.inducing_images == 10 * CLASSES
    seen = []
    model = built(setting.model, recipe, 3, CLASSES)
    whitening = fitted_whitening(recipe, bright, ignored)
    model.input.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    initialise(model, recipe, bright, labels, whitening)
    assert len(seen[0]) == 10 * CLASSES
    standard = make_whitening("standardise").fit(augmented(recipe, bright))
    inside = {
        tuple(array(patch).ravel().round(5))
        for patch in seen[0]
        .double()
        .unfold(2, 3, 1)
        .unfold(3, 3, 1)
        .permute(0, 2, 3, 1, 4, 5)
        .reshape(-1, 3, 3, 3)
    }
    drawn = model.input.inducing.detach()
    assert {tuple(array(patch).ravel().round(5)) for patch in drawn} <= inside
    # The margins that crops brought in are black, which no image is.
    black = standard(torch.zeros(1, 3, 1, 1)).flatten()
    assert bool(torch.isclose(seen[0], black.reshape(1, 3, 1, 1).to(seen[0]), atol=1e-4).any())
    assert not bool(torch.isclose(standard(bright), black.reshape(1, 3, 1, 1), atol=1e-4).any())


def test_standardised_patches_have_no_common_direction():
    images, labels = pictures()
    cosines = {}
    for kind in ("standardised", "raw"):
        setting = config(inducing=[64, 8, 8], inducing_patches=kind, crop=0)
        recipe = settled(setting.training, images, labels, ignored)
        model = built(setting.model, recipe, 3, CLASSES)
        initialise(model, recipe, images, labels, fitted_whitening(recipe, images, ignored))
        flat = model.input.inducing.detach().flatten(1)
        unit = flat / flat.norm(dim=1, keepdim=True)
        cosines[kind] = float((unit @ unit.T).mean())
    assert cosines["standardised"] < 0.3
    assert cosines["raw"] > 0.9


def test_the_gaussian_noise_is_fixed_at_one():
    machine = build_model(config(likelihood="gaussian").model, 3, CLASSES)
    assert float(machine.likelihood.noise) == 1
    assert not list(machine.likelihood.parameters())
    assert list(
        build_model(
            RunConfig().updated({"likelihood": "gaussian"}).model, 3, 3
        ).likelihood.parameters()
    )
    quiet = RunConfig().updated({"likelihood": "gaussian", "noise": 0.25, "learn_noise": False})
    assert float(build_model(quiet.model, 3, 3).likelihood.noise) == pytest.approx(0.25)


def test_jitter_leaves_the_variances_of_images_alone():
    """k_tt = σ_w² g_tt + σ_b² before the noise after the kernel, whatever the noise before it."""
    machine = build_model(config(jitter=0.1).model, 3, CLASSES)
    before, after = machine.get_submodule("body.stem.kernel").named_layers()
    assert isinstance(before[1], dkm.Jitter)
    assert isinstance(after[1], dkm.Noise)
    gram = dkm.Gram(
        torch.tensor([[2.0, 0.5], [0.5, 3.0]], dtype=torch.float64),
        torch.tensor([[0.3, -0.4]], dtype=torch.float64),
        torch.tensor([1.5], dtype=torch.float64),
    )
    found = before[1](gram)
    assert float(found.tt.detach()) == pytest.approx(1.5 + 0.1)
    assert found.ii.detach().diagonal().tolist() == pytest.approx([2 * 1.1 + 0.2, 3 * 1.1 + 0.2])
    a, b = 2 * 1.1 + 0.1, 1.5 * 1.1 + 0.1
    theta = math.acos(0.3 / math.sqrt(a * b))
    kernel = math.sqrt(a * b) * (math.sin(theta) + (math.pi - theta) * math.cos(theta)) / math.pi
    assert float(found.it.detach()[0, 0]) == pytest.approx(kernel + 0.1)


def test_whitening_is_fitted_to_augmented_images():
    images, labels = pictures()
    recipe = settled(config(crop=2).training, images, labels, ignored)
    assert recipe.whitening == "zca-published"
    again = augmented(recipe, images)
    assert again.shape == images.shape
    assert float((again - images).abs().max()) > 0.1
    whitening = fitted_whitening(recipe, images, ignored)
    torch.testing.assert_close(
        whitening(images), make_whitening("zca-published").fit(again)(images)
    )
    torch.testing.assert_close(again, augmented(recipe, images))
    straight = recipe.model_copy(update={"augment_everywhere": False})
    assert augmented(straight, images) is images


def test_gram_factors_are_square_and_take_larger_steps():
    torch.manual_seed(0)
    factor = torch.randn(16, 24, dtype=torch.float64)
    gram = dkm.Gram(
        factor @ factor.T / 24,
        torch.zeros(1, 16, dtype=torch.float64),
        torch.ones(1, dtype=torch.float64),
    )
    target = torch.randn(16, 16, dtype=torch.float64)
    moved = {}
    for full in (True, False):
        layer = dkm.GramLayer(16, divided=True, full=full)
        start = layer.initialise(gram).ii.detach()
        torch.testing.assert_close(start, gram.ii)
        optimiser = torch.optim.Adam(layer.parameters(), lr=0.01)
        ((layer(gram).ii * target).sum() + layer.plan(gram.ii).kl[""].value).backward()
        assert bool(layer.factor.grad.triu(1).any()) == full
        optimiser.step()
        moved[full] = float((layer(gram).ii.detach() - start).norm() / start.norm())
    assert moved[True] > 1.2 * moved[False]


def test_precision_batches_and_training_figures():
    recipe = preset("published").config("cifar10").training
    assert recipe.precision == "float64"
    assert recipe.evaluation_batch == 256
    assert recipe.augment_everywhere
    images, labels = pictures(120)
    dataset = dkm.data.from_arrays(images, labels, *pictures(60, seed=1))
    setting = config(epochs=1, crop=2, inducing_per_class=5)
    run = dkm.fit(setting, dataset)
    settled_recipe = run.config.training
    scored = run.evaluate(augmented(settled_recipe, dataset.train_images), dataset.train_labels)
    assert run.metrics["train_log_likelihood"] == pytest.approx(scored["log_likelihood"])
    clean = run.evaluate(dataset.train_images, dataset.train_labels)
    assert run.metrics["train_log_likelihood"] != pytest.approx(clean["log_likelihood"])


def test_augmenting_everywhere_needs_images_that_are_not_whitened():
    with pytest.raises(dkm.InvalidInputError, match="augment_everywhere goes with augment="):
        config(augment="after-whitening")


def test_crops_are_what_training_has():
    images, _ = pictures(10)
    recipe = config(crop=2).training
    generator = torch.Generator().manual_seed(0)
    expected = random_crop_flip(images, margin=2, generator=generator)
    assert augmented(recipe, images).shape == expected.shape
    zeros = (augmented(recipe, images) == 0).all(1).flatten(1).any(1)
    assert bool(zeros.any())
