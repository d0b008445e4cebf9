"""Learning rates, weights of the KL and batches are functions of the step alone."""

import math
import signal

import pytest
import torch

from convdkm.config import Recipe, RunConfig
from convdkm.data.whitening import Standardise
from convdkm.errors import InvalidInputError
from convdkm.training.batches import Batches, generator_of, seed_of
from convdkm.training.schedule import image_scale, learning_rate, nu_factor
from convdkm.training.world import (
    ProcessLostError,
    World,
    deferred_termination,
    noticing_losses,
    parts,
)


def rates(total, **options):
    config = Recipe(**options)
    return [learning_rate(config, step, total) for step in range(total)]


def test_the_papers_steps():
    """Divided by 10 after epochs 40 and 80 of 100, with 196 steps each."""
    config = Recipe()
    total = 100 * 196
    for epoch, rate in ((0, 0.01), (39, 0.01), (40, 0.001), (79, 0.001), (80, 1e-4), (99, 1e-4)):
        for step in (0, 195):
            assert math.isclose(learning_rate(config, epoch * 196 + step, total), rate)


def test_one_cycle_is_torchs():
    total = 50
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([parameter], lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.1, total_steps=total)
    expected = []
    for _ in range(total):
        expected.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    ours = rates(total, schedule="one-cycle", learning_rate=0.1)
    assert ours[0] == pytest.approx(0.004)
    assert ours == pytest.approx(expected, rel=1e-9)


def test_cosine_and_constant():
    ours = rates(100, schedule="cosine", learning_rate=1.0, warmup=0.1)
    assert ours[:10] == sorted(ours[:10])
    assert ours[10:] == sorted(ours[10:], reverse=True)
    assert 0 < ours[-1] < 1e-3 < max(ours) <= 1
    assert rates(5, schedule="constant", learning_rate=0.3) == [0.3] * 5


@pytest.mark.parametrize("schedule", ["steps", "one-cycle", "cosine", "constant"])
@pytest.mark.parametrize("total", [1, 2, 3])
def test_short_runs_have_rates(schedule, total):
    for rate in rates(total, schedule=schedule, learning_rate=0.1, warmup=0.0):
        assert 0 < rate <= 0.1


@pytest.mark.parametrize("start", [0.01, 30.0])
@pytest.mark.parametrize("warmup", [1.0, 0.25])
def test_the_weight_of_the_kl_is_log_linear_and_ends_at_one(start, warmup):
    config, total = Recipe(nu_start=start, nu_warmup=warmup), 101
    factors = [nu_factor(config, step, total) for step in range(total)]
    moving = round(warmup * 100)
    for step, factor in enumerate(factors):
        assert math.log(factor) == pytest.approx(math.log(start) * max(0, 1 - step / moving))
    assert factors[-1] == 1
    assert nu_factor(config, 0, 1) == 1
    assert {nu_factor(Recipe(), step, 9) for step in range(9)} == {1.0}


def test_images_are_small_early():
    recipe = Recipe(early_scale=0.75, early_share=0.4)
    assert [image_scale(recipe, step, 5) for step in range(5)] == [0.75, 0.75, 1, 1, 1]
    assert {image_scale(Recipe(), step, 5) for step in range(5)} == {1.0}
    for name, value in {"top": "linear", "data_scale": "location"}.items():
        with pytest.raises(InvalidInputError, match=f"early_scale is for .* but {name}='{value}'"):
            RunConfig.of({"early_scale": 0.5, name: value})


def test_options_of_the_weight_of_the_kl_are_checked():
    for name, value in (("nu_start", 0), ("nu_start", math.inf), ("nu_warmup", 0)):
        with pytest.raises(InvalidInputError, match=f"{name} must be"):
            Recipe.checked({name: value})


@pytest.fixture
def images():
    return torch.rand(23, 2, 6, 6)


def all_of(batches, epoch, start=0):
    pairs = list(batches.epoch(epoch, start))
    return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])


def test_an_epoch_has_every_image_once(images):
    batches = Batches(images, torch.arange(23), 5)
    assert batches.steps == 5
    inputs, labels = all_of(batches, 0)
    assert sorted(labels.tolist()) == list(range(23))
    assert torch.equal(inputs, images[labels])
    assert not torch.equal(all_of(batches, 1)[1], labels)


@pytest.mark.parametrize("more", [{}, {"alternate_flips": True, "cutout": 3}])
def test_an_epoch_can_begin_anywhere(images, more):
    options = {"crop": 1, "flip": True, "seed": 3, **more}
    batches = Batches(images, torch.arange(23), 5, **options)
    inputs, labels = all_of(batches, 4)
    later, rest = all_of(Batches(images, torch.arange(23), 5, **options), 4, start=2)
    assert torch.equal(rest, labels[10:])
    assert torch.equal(later, inputs[10:])


def mirrored(batches, epoch):
    """Which images an epoch mirrors, in the order of the training set."""
    inputs, labels = all_of(batches, epoch)
    straight = (inputs == batches.images[labels]).flatten(1).all(1)
    assert torch.equal(inputs[~straight], batches.images[labels[~straight]].flip(3))
    return ~straight[labels.argsort()]


def test_alternating_flips_show_both_sides_in_two_epochs(images):
    labels = torch.arange(23)
    first, *rest = (
        mirrored(Batches(images, labels, 5, flip=True, alternate_flips=True, seed=3), epoch)
        for epoch in range(4)
    )
    assert 0 < first.sum() < 23
    for epoch, found in enumerate(rest, 1):
        assert torch.equal(found, first ^ bool(epoch % 2))
    other_size = Batches(images, labels, 7, flip=True, alternate_flips=True, seed=3)
    assert torch.equal(mirrored(other_size, 0), first)
    other_seed = Batches(images, labels, 5, flip=True, alternate_flips=True, seed=4)
    assert not torch.equal(mirrored(other_seed, 0), first)
    drawn = Batches(images, labels, 5, flip=True, seed=3)
    assert not torch.equal(mirrored(drawn, 1), ~mirrored(drawn, 0))


def test_a_recipe_alternates_flips():
    images, labels = torch.rand(23, 1, 4, 4), torch.arange(23)
    recipe = Recipe(crop=0, batch_size=6, alternate_flips=True)
    batches = Batches.of(recipe, images, labels)
    assert torch.equal(mirrored(batches, 1), ~mirrored(batches, 0))
    without = Batches.of(recipe.model_copy(update={"flip": False}), images, labels)
    assert not mirrored(without, 0).any()


def test_whitening_before_and_after_augmentation(images):
    whitening = Standardise().fit(images)
    labels = torch.arange(23)
    plain = Batches(images, labels, 23, whitening=whitening)
    inputs, order = all_of(plain, 0)
    torch.testing.assert_close(inputs, whitening(images)[order])
    before = Batches(images, labels, 23, whitening=whitening, crop=2)
    after = Batches(images, labels, 23, whitening=whitening, crop=2, augment="after-whitening")
    (early, _), (late, _) = all_of(before, 0), all_of(after, 0)
    # The margin is black before whitening, and the mean after it.
    assert not torch.equal(early, late)
    margin = late == 0
    assert margin.any()
    torch.testing.assert_close(early[~margin], late[~margin])


@pytest.mark.parametrize("augment", ["before-whitening", "after-whitening"])
def test_cutout_is_zero_where_images_are_augmented(images, augment):
    labels, whitening = torch.arange(23), Standardise().fit(images)
    options = {"whitening": whitening, "augment": augment}
    ((inputs, order),) = Batches(images, labels, 23, cutout=3, **options).epoch(0)
    plain = whitening(images)[order]
    zero = whitening(torch.zeros_like(images))[order]
    hidden = zero if augment == "before-whitening" else torch.zeros_like(plain)
    cut = ~torch.isclose(inputs, plain)
    assert cut.flatten(1).any(1).all()
    torch.testing.assert_close(inputs[cut], hidden[cut])
    assert Recipe(cutout=3).cutout == Batches.of(Recipe(cutout=3), images, labels).cutout == 3


def test_clean_images(images):
    whitening = Standardise().fit(images)
    batches = Batches(images, torch.arange(23), 5, whitening=whitening, crop=2, flip=True)
    first, again = torch.cat(list(batches.clean(12))), torch.cat(list(batches.clean(12)))
    assert torch.equal(first, again)
    whole = whitening(images)
    for image in first:
        assert (whole - image).flatten(1).abs().max(1).values.min() < 1e-6


def test_processes_share_a_batch(images):
    labels = torch.arange(23)
    alone = Batches(images, labels, 6)
    shares = [Batches(images, labels, 6, world=World(rank, 2)) for rank in (0, 1)]
    for whole, left, right in zip(alone.epoch(0), *(s.epoch(0) for s in shares), strict=True):
        together = torch.cat([left[1], right[1]])
        assert torch.equal(together, whole[1])


def test_seeds_are_mixed_well():
    seeds = {seed_of(a, b) for a in range(30) for b in range(30)}
    assert len(seeds) == 900
    first = torch.rand(3, generator=generator_of(1, 2))
    assert torch.equal(first, torch.rand(3, generator=generator_of(1, 2)))
    assert not torch.equal(first, torch.rand(3, generator=generator_of(2, 1)))


def test_parts_are_those_of_tensor_split():
    for length in (0, 1, 7, 12):
        for count in (1, 2, 5, 9):
            expected = torch.arange(3, 3 + length).tensor_split(count)
            found = parts(range(3, 3 + length), count)
            assert [list(part) for part in found] == [part.tolist() for part in expected]


@pytest.mark.parametrize("more", [{}, {"alternate_flips": True, "cutout": 3}])
@pytest.mark.parametrize("total", [23, 6, 2])
def test_augmentation_does_not_depend_on_the_processes(images, total, more):
    options = {"crop": 2, "flip": True, "seed": 4, **more}
    images, labels = images[:total], torch.arange(total)
    alone = Batches(images, labels, 6, **options)
    shares = [Batches(images, labels, 6, world=World(rank, 3), **options) for rank in range(3)]
    for step, (whole, *each) in enumerate(
        zip(alone.epoch(1), *(s.epoch(1) for s in shares), strict=True)
    ):
        counted = [len(share) for share in World(0, 3).shares(alone.size(step))]
        together = torch.cat([x[:n] for (x, _), n in zip(each, counted, strict=True)])
        assert torch.equal(together, whole[0])
        assert all(len(x) for x, _ in each), "a process without a share borrows an image"


def test_only_lost_processes_are_reported_as_such():
    with pytest.raises(RuntimeError, match="timed out") as error, noticing_losses():
        raise RuntimeError("the download timed out")
    assert not isinstance(error.value, ProcessLostError)


def test_termination_waits_for_the_step_where_several_train():
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with deferred_termination(World()) as terminated:
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        with deferred_termination(World(0, 2)) as terminated:
            assert not terminated()
            signal.raise_signal(signal.SIGTERM)
            assert terminated()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with deferred_termination(World(0, 2)) as terminated:
            signal.raise_signal(signal.SIGTERM)
            assert not terminated()
    finally:
        signal.signal(signal.SIGTERM, before)
