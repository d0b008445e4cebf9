"""Activation checkpointing changes memory, and nothing else."""

import pytest
import torch

import convdkm as dkm
from convdkm.runtime.memory import peak_memory


def machine(**options):
    model = dkm.resnet(1, 3, (4, 6), (2, 1), dtype=torch.float64, **options)
    return model.initialise(images(32), torch.arange(32) % 3, seed=0)


def images(count, side=12):
    return torch.randn(count, 1, side, side, generator=torch.Generator().manual_seed(1))


def step(model, count=8):
    model.zero_grad()
    objective = model.train().objective(images(count), torch.arange(count) % 3, num_data=50)
    (-objective.total).backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return objective.total.detach(), gradients, {n: b.clone() for n, b in model.named_buffers()}


@pytest.mark.parametrize("options", [{}, {"centre": True}, {"normalisation": ("local", "image")}])
def test_objective_gradients_and_running_statistics_are_the_same(options):
    plain, lean = machine(**options), machine(**options)
    lean.checkpointing = True
    for _ in range(2):
        expected, actual = step(plain), step(lean)
    torch.testing.assert_close(actual[0], expected[0], rtol=0, atol=0)
    for actual_part, expected_part in zip(actual[1:], expected[1:], strict=True):
        assert actual_part.keys() == expected_part.keys()
        for name, value in expected_part.items():
            torch.testing.assert_close(actual_part[name], value, rtol=1e-12, atol=1e-14)


def test_it_takes_less_memory():
    model = dkm.resnet(1, 3, (8, 8, 8), (3, 3, 3), strides=(1, 1, 1))
    model.initialise(images(32), torch.arange(32) % 3, seed=0)
    plain = peak_memory(lambda: step(model, 24))
    model.checkpointing = True
    assert peak_memory(lambda: step(model, 24)) < 0.6 * plain


def test_prediction_takes_no_notice():
    model = machine()
    before = model.predict(images(5)).probs
    model.checkpointing = True
    torch.testing.assert_close(model.predict(images(5)).probs, before, rtol=0, atol=0)
