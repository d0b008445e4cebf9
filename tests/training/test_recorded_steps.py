"""Training by recorded steps: the same run, from the same failures."""

import logging

import pytest
import torch
from counted_passes import passes_of
from parallel import CASES, one_step, require_same, trainer_of

import convdkm as dkm
from convdkm.training import fit
from run_figures import CLOCKS

SAMPLED = ("monte-carlo", "gaussian")


def step_and_passes(trainer):
    return passes_of(trainer.model, one_step, trainer)


@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_a_run_without_records(name, caplog):
    plain, recorded = trainer_of(name), trainer_of(name, compile=True)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            (ours, played), (theirs, made) = step_and_passes(recorded), step_and_passes(plain)
            require_same(ours, theirs, 1e-12)
    assert made == 1
    assert played == (1 if name in SAMPLED else 0)
    assert ("random generator" in caplog.text) == (name in SAMPLED)


def test_batches_in_pieces_are_not_recorded():
    trainer = trainer_of("image", compile=True, micro_batch=100)
    for _ in range(3):
        result, made = step_and_passes(trainer)
    require_same(result, one_step(trainer_of("image", micro_batch=100)), 1e-12)
    assert made > 1


def test_a_step_that_fails_is_taken_back():
    """A run of records goes on after a failure as one without does."""

    def ran(trainer):
        trainer.config = trainer.config.model_copy(update={"epochs": 6})
        step, calls = trainer.optimiser.step, []

        def spoiled():
            step()
            calls.append(None)
            if len(calls) == 4:
                with torch.no_grad():
                    next(m for m in trainer.model.modules() if isinstance(m, dkm.Conv)).weight.mul_(
                        torch.nan
                    )

        trainer.optimiser.step = spoiled
        trainer.run()
        return trainer.sinks.sinks[0], trainer.model.state_dict()

    (plain, state), (recorded, other) = (ran(trainer_of("batch", compile=c)) for c in (False, True))
    assert [str(m) for m in recorded.messages] == [str(m) for m in plain.messages]
    assert any("body." in str(message) for message in plain.messages)
    for ours, theirs in zip(recorded.steps, plain.steps, strict=True):
        for name in theirs.values.keys() - CLOCKS:
            assert ours.values[name] == pytest.approx(theirs.values[name], rel=1e-9), name
    torch.testing.assert_close(other, state, rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_run_with_compile_plays_records():
    recipe = {"inducing": (6, 8), "blocks": 1, "epochs": 1, "batch_size": 30, "train_size": 100}
    recipe |= {"test_size": 40, "precision": "float64"}
    plain, compiled = (fit("quick", "digits", **recipe, compile=c) for c in (False, True))
    assert compiled.metrics["test_log_likelihood"] == pytest.approx(
        plain.metrics["test_log_likelihood"], rel=1e-6
    )
