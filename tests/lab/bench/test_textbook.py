"""The textbook machine and the library's state the same equations."""

import pytest
import torch

import convdkm as dkm
from convdkm.lab.bench.textbook import Textbook

SHAPES = [((4, 6, 8), (1, 1, 1), 8), ((5, 4), (2, 1), 7), ((6,), (3,), 8)]
NU = 0.3


def trained_a_little(widths, blocks, side):
    """A machine in float64 whose parameters have all left their starting values."""
    strides = (2,) * len(widths)
    options = {**dkm.PUBLISHED, "strides": strides, "samples": 64}
    model = dkm.resnet(3, 4, widths, blocks, nu=NU, dtype=torch.float64, **options)
    images, labels = torch.randn(12, 3, side, side, dtype=torch.float64), torch.arange(12) % 4
    model.initialise(images, labels, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model, images, labels, strides


@pytest.mark.parametrize(("widths", "blocks", "side"), SHAPES)
def test_objective_and_gradients_are_those_of_the_machine(widths, blocks, side):
    model, images, labels, strides = trained_a_little(widths, blocks, side)
    torch.manual_seed(1)
    ours = model.objective(images, labels, num_data=50).total
    ours.backward()
    textbook = Textbook(model, strides, NU)
    torch.manual_seed(1)
    noise = torch.randn(len(images), 64, 4, dtype=torch.float64)
    theirs = textbook.objective(images, labels, 50, noise=noise)
    theirs.backward()

    assert abs(float((ours - theirs).detach() / ours.detach())) < 1e-8
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert gradients.keys() == textbook.named.keys()
    for name, expected in gradients.items():
        difference = (textbook.named[name].grad - expected).norm()
        assert difference <= 1e-6 * expected.norm(), name


def test_random_samples_estimate_the_same_objective():
    model, images, labels, strides = trained_a_little((4, 4), (1, 1), 8)
    textbook = Textbook(model, strides, NU)
    fresh = torch.stack([textbook.objective(images, labels, 50).detach() for _ in range(20)])
    exact = textbook.objective(images, labels, 50, noise=torch.randn(200_000, 4).double()).detach()
    assert fresh.std() > 0
    assert abs(fresh.mean() - exact) < 5 * fresh.std() / 20**0.5 + 0.005


def test_the_parameters_are_copies():
    model, *_ = trained_a_little((4,), (1,), 8)
    before = model.head.mean.detach().clone()
    textbook = Textbook(model, (2,), NU)
    with torch.no_grad():
        textbook.named["head.mean"] += 1
    assert torch.equal(model.head.mean, before)
