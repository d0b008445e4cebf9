"""Training with sampled Gram matrices: each step draws anew, and a step is one however divided."""

import copy

import pytest
import torch
from parallel import one_step, require_same, trainer_of

import convdkm as dkm
from convdkm.config import RunConfig
from convdkm.training import MemorySink, fit, resume
from convdkm.training.gradients import RecordedGradients

OPTIONS = {"gram_samples": 0.5, "gram_noise": 0.1, "kl": "taylor"}
RECIPE = {"inducing": (6, 8), "blocks": 1, "batch_size": 45, "train_size": 90, "test_size": 40}
RECIPE |= {"epochs": 2, "head_parameterisation": "whitened", "calibrate": 40} | OPTIONS


def machine():
    torch.manual_seed(1)
    model = dkm.resnet(1, 2, (5, 6), (1, 1), head_parameterisation="whitened", **OPTIONS)
    images = torch.randn(8, 1, 6, 6, generator=torch.Generator().manual_seed(3))
    return model.initialise(images, seed=0), images, torch.arange(8) % 2


def grams(model):
    return [each for each in model.modules() if isinstance(each, dkm.GramLayer)]


def test_options_reach_the_layers():
    config = RunConfig().updated(OPTIONS)
    model = dkm.resnet(1, 2, (5, 6), (1, 1), **OPTIONS)
    assert {name: getattr(config.model, name) for name in OPTIONS} == OPTIONS
    assert {tuple(layer.sample.shape) for layer in grams(model)} == {(5, 3), (6, 3)}
    assert {(layer.noise, layer.kl) for layer in grams(model)} == {(0.1, "taylor")}
    assert model.head.kl == "taylor"


def test_the_noise_is_relative_to_the_scale_that_gram_layers_start_at():
    model = dkm.resnet(1, 2, (5, 6), (1, 1), gram_scale=100.0, **OPTIONS)
    assert [layer.noise for layer in grams(model)] == [pytest.approx(10.0)] * len(grams(model))


def test_every_objective_in_training_draws_anew_and_none_in_evaluation():
    model, images, labels = machine()
    for mode, count in ((True, 3), (False, 1)):
        model.train(mode)
        found = {model.objective(images, labels, num_data=8).total.item() for _ in range(3)}
        assert len(found) == count


def test_a_played_step_sees_its_draw():
    model, images, labels = machine()
    other = copy.deepcopy(model)
    gradients, totals = RecordedGradients(model, num_data=8), set()
    for seed in range(4):
        totals.add(gradients(images, labels, torch.Generator().manual_seed(seed)).total.item())
    assert len(totals) == 4
    other.resample(torch.Generator().manual_seed(3))
    plan = other.plan()
    assert other.objective(images, labels, num_data=8, plan=plan).total.item() in totals


def test_calibration_uses_what_evaluation_uses():
    model, images, _ = machine()
    means = []
    for _ in range(2):
        model.resample()
        model.calibrate([images])
        means.append([b.clone() for n, b in model.named_buffers() if "running" in n])
    assert all(torch.equal(*pair) for pair in zip(*means, strict=True))
    assert all(layer.training for layer in grams(model))


@pytest.mark.parametrize("micro_batch", [128, 50])
def test_pieces_share_one_draw(micro_batch):
    whole = one_step(trainer_of("sampled"))
    require_same(one_step(trainer_of("sampled", micro_batch=micro_batch)), whole)


def test_a_step_has_its_own_draw():
    trainer = trainer_of("sampled")
    inputs, targets = next(trainer.batches.epoch(0, 0))
    found = []
    for step in (0, 0, 1):
        trainer.progress.step = step
        found.append(trainer.gradients(inputs, targets).values["objective"])
    assert found[0] == found[1] != found[2]


def test_a_resumed_run_ends_as_one_that_was_never_stopped(tmp_path):
    whole, sink = fit("quick", "digits", **RECIPE), MemorySink()
    stop = {"sinks": [sink], "stop": lambda: len(sink.steps) == 3}
    assert fit("quick", "digits", folder=tmp_path / "run", **stop, **RECIPE).step == 3
    resumed = resume(tmp_path / "run")
    expected = whole.model.state_dict()
    for name, value in resumed.model.state_dict().items():
        assert torch.equal(value, expected[name]), name
    for name in ("test_log_likelihood", "train_log_likelihood"):
        assert resumed.metrics[name] == whole.metrics[name]
