"""Gradient descent by the machine's recipe, within a time limit."""

import pytest
import torch
from torch import nn

from convdkm.config import Recipe
from convdkm.errors import InvalidInputError, NumericalError
from convdkm.lab.baselines.descent import Budget, descend
from convdkm.training.batches import Batches
from convdkm.training.optimiser import Descent


class FakeClock:
    """Every look at it takes ``tick`` seconds."""

    def __init__(self, tick):
        self.now, self.tick = 0.0, tick

    def __call__(self):
        self.now += self.tick
        return self.now


def quadratic(target):
    weight = nn.Parameter(torch.zeros(()))
    return weight, lambda inputs, targets: (weight - target).square() + 0 * inputs.sum()


def run(weight, loss, *, epochs=20, minutes=None, **more):
    batches = Batches(torch.zeros(10, 1), torch.zeros(10), 5)
    recipe = Recipe(epochs=epochs, learning_rate=0.1, schedule="constant", **more)
    said = []
    optimiser = Descent.adam([weight], recipe, weight.device)
    curve, steps = descend(
        optimiser, batches, recipe, loss, budget=Budget(minutes), tell=said.append
    )
    assert 2 * len(curve) - 1 <= steps <= 2 * len(curve)
    return curve, said


def test_the_loss_falls_and_every_epoch_is_told():
    weight, loss = quadratic(1.0)
    curve, said = run(weight, loss)
    assert len(curve) == len(said) == 20
    assert curve[-1] < 0.05 * curve[0]
    assert said[0].startswith("epoch 1 of 20")


def test_it_stops_when_the_time_is_over(monkeypatch):
    monkeypatch.setattr("time.perf_counter", FakeClock(1.0))
    weight, loss = quadratic(1.0)
    curve, said = run(weight, loss, epochs=1000, minutes=0.2)
    assert 1 <= len(curve) < 12
    assert "the time is over" in said[-1]


def test_one_step_is_made_however_short_the_time():
    weight, loss = quadratic(1.0)
    curve, _ = run(weight, loss, minutes=1e-12)
    assert len(curve) == 1
    assert weight.item() != 0


def test_the_rate_comes_down_with_the_time(monkeypatch):
    monkeypatch.setattr("time.perf_counter", FakeClock(1.0))
    rates = []
    weight, loss = quadratic(1.0)
    step = torch.optim.Adam.step

    def watched(self, closure=None):
        rates.append(self.param_groups[0]["lr"])
        return step(self, closure)

    monkeypatch.setattr(torch.optim.Adam, "step", watched)
    batches = Batches(torch.zeros(10, 1), torch.zeros(10), 5)
    recipe = Recipe(epochs=1000, learning_rate=0.1, schedule="cosine", warmup=0.0)
    optimiser = Descent.adam([weight], recipe, weight.device)
    descend(optimiser, batches, recipe, loss, budget=Budget(1.0), tell=lambda _: None)
    assert len(rates) < 60
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.02 * rates[0]


def test_a_loss_that_is_not_a_number_is_refused():
    weight, loss = quadratic(float("nan"))
    with pytest.raises(NumericalError, match="loss is nan at step 1 of 40; try a smaller"):
        run(weight, loss)
    assert weight.item() == 0


@pytest.mark.parametrize("minutes", [0, -1, float("nan")])
def test_a_time_limit_is_positive(minutes):
    with pytest.raises(InvalidInputError, match="minutes must be a positive"):
        Budget(minutes)


def test_weights_are_averaged_as_the_recipe_says():
    ends = {}
    for steps in (0, 3):
        weight, loss = quadratic(1.0)
        run(weight, loss, epochs=2, lookahead=steps, lookahead_rate=0.5)
        ends[steps] = weight.item()
    assert 0 < ends[3] < ends[0]


def test_images_are_smaller_early_in_training():
    seen = []
    weight = nn.Parameter(torch.zeros(()))

    def loss(inputs, targets):
        seen.append(inputs.shape[-1])
        return weight.square()

    recipe = Recipe(epochs=4, early_scale=0.5, early_share=0.5, schedule="constant")
    batches = Batches(torch.zeros(10, 1, 8, 8), torch.zeros(10), 5)
    optimiser = Descent.adam([weight], recipe, weight.device)
    descend(optimiser, batches, recipe, loss, budget=Budget(None), tell=lambda _: None)
    assert seen == [4] * 4 + [8] * 4
