"""The machine, the inducing NNGP and the network of the same shape, as baselines."""

import math
import time

import pytest
import torch

from convdkm.errors import InvalidInputError, NotInitialisedError
from convdkm.lab.baselines.cnn import CNN, build
from convdkm.lab.baselines.machine import InducingNNGP, Machine
from convdkm.lab.bench.cnn import ResNet
from convdkm.presets import preset
from convdkm.training.build import first_draws

TINY = {
    "inducing": [8, 12],
    "blocks": [1],
    "input_stride": 1,
    "crop": 0,
    "epochs": 16,
    "batch_size": 30,
    "flip": False,
    "device": "cpu",
}
BASELINES = [Machine, InducingNNGP, CNN]


@pytest.mark.parametrize("kind", BASELINES)
def test_it_learns(kind, stripes):
    (images, labels), (test_images, test_labels) = stripes
    baseline = kind(**TINY)
    said = []
    baseline.tell = said.append
    assert baseline.fit(images, labels) is baseline
    predicted = baseline.predict(test_images)
    assert float((predicted == test_labels).double().mean()) > 0.7
    chances = baseline.probabilities(test_images)
    assert chances.shape == (60, 3)
    torch.testing.assert_close(chances.sum(1), torch.ones(60, dtype=torch.float64))
    assert torch.equal(chances.argmax(1), predicted)
    assert any("epoch 16" in line for line in said)


@pytest.mark.parametrize("kind", BASELINES)
def test_flops_are_those_of_the_steps_that_were_taken(kind, stripes):
    (images, labels), (test_images, _) = stripes
    short, long = (kind(**{**TINY, "epochs": epochs}).fit(images, labels) for epochs in (1, 3))
    scores = short.scores(test_images)
    assert short.flops(images, labels) > 1e6
    assert long.flops(images, labels) == pytest.approx(3 * short.flops(images, labels))
    assert torch.equal(short.scores(test_images), scores)


@pytest.mark.parametrize("kind", BASELINES)
def test_the_seed_is_all_that_is_random(kind, stripes):
    (images, labels), (test_images, _) = stripes
    first, again, other = (
        kind(**{**TINY, "epochs": 1, "seed": seed}).fit(images, labels).scores(test_images)
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("kind", BASELINES)
def test_it_stops_in_time(kind, stripes):
    (images, labels), _ = stripes
    baseline = kind(**{**TINY, "epochs": 100_000})
    baseline.minutes = 1 / 60
    start = time.process_time()  # of this process: others may keep it waiting
    baseline.fit(images, labels)
    assert time.process_time() - start < 20
    assert baseline.predict(images).shape == (90,)


def test_a_machine_with_time_keeps_its_epochs(stripes):
    (images, labels), (test_images, _) = stripes
    short = {**TINY, "epochs": 2}
    free = Machine(**short).fit(images, labels)
    timed = Machine(**short)
    timed.minutes = 10
    timed.fit(images, labels)
    assert timed.fitted.config.training.epochs == 2
    assert torch.equal(timed.scores(test_images), free.scores(test_images))


def test_a_machine_out_of_time_has_a_shorter_recipe(stripes):
    (images, labels), _ = stripes
    baseline, said = Machine(**{**TINY, "epochs": 100_000}), []
    baseline.minutes, baseline.tell = 1 / 60, said.append
    baseline.fit(images, labels)
    assert baseline.fitted.config.training.epochs < 100_000
    assert any("of 100000 fit into the time" in line for line in said)


def test_the_nngp_learns_no_gram(stripes):
    (images, labels), _ = stripes
    short = {**TINY, "epochs": 1}
    machine, nngp = Machine(**short).fit(images, labels), InducingNNGP(**short).fit(images, labels)
    assert math.isinf(nngp.config.model.nu)
    names = {name for name, _ in nngp.fitted.model.named_parameters()}
    more = [p for n, p in machine.fitted.model.named_parameters() if n not in names]
    assert more
    assert machine.parameters - nngp.parameters == sum(p.numel() for p in more)


def test_an_option_goes_before_what_the_inducing_nngp_is_by_itself():
    asked = InducingNNGP(**TINY, data_scale="batch", kernel="normalised-gaussian").config.model
    assert (asked.kernel, asked.data_scale) == ("normalised-gaussian", "batch")
    assert asked.inducing_scale == "none"


def test_parameters_of_the_network_by_hand(stripes):
    (images, labels), _ = stripes
    cnn = CNN(**{**TINY, "inducing": [4], "epochs": 1}).fit(images, labels)
    convolutions = 9 * 4 + 3 * 9 * 4 * 4
    norms = 4 * 2 * 4
    assert cnn.parameters == convolutions + norms + (4 + 1) * 3


def test_the_network_of_the_paper_is_a_resnet20():
    model = preset("paper").config("cifar10").model
    theirs = ResNet(3, 10, (128, 256, 512), (3, 3, 3), (1, 2, 2))
    ours = build(model, 3, 10)
    assert [tuple(p.shape) for p in ours.parameters()] == [
        tuple(p.shape) for p in theirs.parameters()
    ]
    steps = [m.stride for m in ours.modules() if isinstance(m, torch.nn.Conv2d)]
    assert steps == [m.stride for m in theirs.modules() if isinstance(m, torch.nn.Conv2d)]
    convolutions = [m for m in ours.modules() if isinstance(m, torch.nn.Conv2d)]
    assert sum(m.kernel_size == (3, 3) for m in convolutions) == 20


def test_the_network_has_the_strides_of_the_quick_machine():
    network = build(preset("quick").config("images").model, 3, 10)
    assert network.input[0].stride == (2, 2)
    assert [block.first[0].stride[0] for block in network.stages] == [1, 2, 1, 2, 1]


def test_statistics_are_those_of_the_training_images(stripes):
    (images, labels), _ = stripes
    short = {**TINY, "epochs": 1, "batch_size": 90}
    maps = {}
    for count in (90, 0):
        cnn = CNN(**short, calibrate=count).fit(images, labels)
        with torch.no_grad():
            maps[count] = cnn.network.input[0](images)
            norm = cnn.network.input[1]
        exact = torch.allclose(norm.running_mean, maps[count].mean((0, 2, 3)), atol=1e-5)
        assert exact == (count == 90)
        assert norm.momentum == 0.1
    assert torch.equal(maps[90], maps[0])


def test_the_last_image_of_an_epoch_may_be_alone():
    images, labels = torch.randn(9, 1, 2, 2), torch.arange(9) % 3
    cnn = CNN(**{**TINY, "strides": [2], "batch_size": 4, "epochs": 2}).fit(images, labels)
    assert cnn.scores(images).isfinite().all()


@pytest.mark.parametrize("kind", BASELINES)
def test_bad_use_is_refused(kind):
    with pytest.raises(NotInitialisedError, match="call fit"):
        kind(**TINY).predict(torch.zeros(1, 1, 8, 8))
    with pytest.raises(InvalidInputError, match="whitened already"):
        kind(**TINY, whitening="zca")
    with pytest.raises(InvalidInputError, match="unknown preset 'quik'"):
        kind("quik")
    with pytest.raises(InvalidInputError, match="labels must be 2 integers"):
        kind(**TINY).fit(torch.zeros(2, 1, 8, 8), torch.zeros(3, dtype=torch.long))
    baseline = kind(**TINY)
    baseline.minutes = -1
    with pytest.raises(InvalidInputError, match="minutes must be"):
        baseline.fit(torch.zeros(3, 1, 8, 8), torch.arange(3))


@pytest.mark.parametrize("kind", BASELINES)
def test_images_of_another_shape_are_refused(kind, stripes):
    (images, labels), _ = stripes
    baseline = kind(**{**TINY, "epochs": 1}).fit(images, labels)
    with pytest.raises(InvalidInputError, match=r"\(1, 8, 8\)|\(N, 1, 8, 8\)"):
        baseline.predict(images[..., 1:])
    with pytest.raises(InvalidInputError, match=r"no images|at least one"):
        baseline.predict(images[:0])


def test_options_that_cannot_be_are_refused():
    with pytest.raises(InvalidInputError, match=r"nu = inf, got 0\.1"):
        InducingNNGP(**TINY, nu=0.1)
    with pytest.raises(InvalidInputError, match="3×3, got kernel_size 5"):
        CNN(**TINY, kernel_size=5)
    with pytest.raises(InvalidInputError, match=r"2 stages, .* but 3 blocks"):
        build(preset("quick").config(**{**TINY, "blocks": [1, 1, 1]}).model, 3, 10)


def test_a_machine_that_does_not_fit_is_foreseen(monkeypatch):
    images, labels = torch.randn(64, 1, 8, 8), torch.arange(64) % 3
    baseline = Machine(**TINY)
    baseline.foresee(images, labels)
    monkeypatch.setattr("convdkm.training.memory.available_memory", lambda device: 100_000)
    with pytest.raises(InvalidInputError, match="GB"):
        baseline.foresee(images, labels)


def test_muon_turns_the_networks_convolutions(stripes):
    (images, labels), (test_images, test_labels) = stripes
    recipe = {**TINY, "optimiser": "muon", "muon_rate": 0.05, "learning_rate": 0.01}
    with first_draws(preset("quick").config(**recipe).training):
        start = build(preset("quick").config(**recipe).model, images.shape[1], 3)
    network = CNN(**recipe).fit(images, labels)
    pairs = zip(start.parameters(), network.network.parameters(), strict=True)
    kept = [bool(torch.isclose(a.norm(), b.norm())) for a, b in pairs if a.ndim == 4]
    assert kept
    assert all(kept)
    found = float((network.predict(test_images) == test_labels).double().mean())
    assert found > 0.7


def test_the_network_follows_precision_and_views(stripes):
    (images, labels), (test_images, _) = stripes
    recipe = {**TINY, "epochs": 2, "views": "one"}
    plain = CNN(**recipe).fit(images, labels)
    lower = CNN(**recipe, precision="bfloat16").fit(images, labels)
    assert lower.curve != plain.curve
    assert lower.curve == pytest.approx(plain.curve, rel=0.05)
    mirrored = CNN(**{**recipe, "views": "flip"}).fit(images, labels)
    assert not torch.equal(mirrored.scores(test_images), plain.scores(test_images))
    torch.testing.assert_close(mirrored.scores(test_images), mirrored.scores(test_images.flip(3)))
