"""Gradients by a ν that changes, and figures by the machine's own."""

import pytest
import torch
from counted_passes import passes_of
from parallel import deviation, trainer_of

import convdkm as dkm
from convdkm.training.schedule import nu_factor

RECIPE = {"epochs": 5, "nu_start": 0.01, "nu_warmup": 0.75}


def moved(name, **options):
    """The trainer of a case, with parameters away from their start, where all KLs are zero."""
    trainer = trainer_of(name, **options)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.1 * noise)
    return trainer


def step_at(trainer, step):
    """The gradients and the figures of a step on the images of the first."""
    trainer.progress.step = step
    figures = trainer.gradients(*next(trainer.batches.epoch(0)))
    named = trainer.model.named_parameters()
    return {name: p.grad.clone() for name, p in named}, figures.values


def gram_layers(model):
    return [module for module in model.modules() if isinstance(module, dkm.GramLayer)]


@pytest.mark.parametrize("options", [{}, {"micro_batch": 100}, {"compile": True}])
def test_gradients_are_those_of_machines_with_other_weights(options):
    trainer, plain, other = moved("image", **RECIPE, **options), moved("image"), moved("image")
    weights = [layer.nu for layer in gram_layers(other.model)]
    usual, of_the_machine = step_at(plain, 0)
    for step in range(5):
        factor = nu_factor(trainer.config, step, trainer.total_steps)
        assert (factor == 1) == (step >= 3)
        for layer, nu in zip(gram_layers(other.model), weights, strict=True):
            layer.nu = factor * nu
        (ours, figures), passes = passes_of(trainer.model, step_at, trainer, step)
        assert deviation(ours, step_at(other, step)[0]) < 1e-10
        assert (deviation(ours, usual) < 1e-10) == (factor == 1)
        assert figures == pytest.approx(of_the_machine, rel=1e-10)
        if "compile" in options:
            assert passes == (1 if step < 2 else 0)


def test_the_objective_by_other_weights():
    trainer = moved("batch")
    objective = trainer.model.objective(*next(trainer.batches.epoch(0)), num_data=50)
    assert objective.weighted(1.0).item() == objective.total.item()
    changed = objective.total - objective.weighted(3.0)
    assert changed.item() == pytest.approx(2 * objective.regulariser.item() / 50, rel=1e-9)
    assert objective.regulariser > 0.1
