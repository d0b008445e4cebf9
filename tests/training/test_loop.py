"""The loop: learns, records, resumes to the bit, and recovers from failed steps."""

import copy
import math
from dataclasses import asdict

import pytest
import torch

import convdkm as dkm
from convdkm.config import Recipe
from convdkm.errors import NotFiniteError, NotPositiveDefiniteError
from convdkm.insight import gradient_ratios, readings
from convdkm.training.batches import Batches
from convdkm.training.checkpoint import CheckpointStore
from convdkm.training.loop import Trainer, TrainingFailedError
from convdkm.training.sinks import MemorySink
from run_figures import CLOCKS


@pytest.fixture(scope="module")
def images():
    return torch.randn(40, 1, 6, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def labels(images):
    return (images.mean((1, 2, 3)) > 0).long() + 2 * (images[:, 0, 0, 0] > 0).long()


@pytest.fixture
def machine(images, labels):
    return dkm.resnet(
        1,
        4,
        (6, 8),
        (1, 1),
        nu=0.1,
        expectation="monte-carlo",
        samples=10,
        gram_parameterisation="whitened",
        head_parameterisation="whitened",
    ).initialise(images, labels, seed=0)


def trainer_of(machine, images, labels, *, epochs=3, **options):
    names = ("sinks", "store", "evaluate", "score", "stop")
    more = {name: options.pop(name) for name in names if name in options}
    config = Recipe(epochs=epochs, batch_size=12, **options)
    return Trainer(machine, Batches(images, labels, 12, crop=1, flip=True), config, **more)


def same(first, second):
    ours, theirs = first.state_dict(), second.state_dict()
    return all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_it_learns_and_records(machine, images, labels):
    sink = MemorySink()
    trainer = trainer_of(
        machine,
        images,
        labels,
        epochs=8,
        schedule="constant",
        sinks=[sink],
        evaluate=lambda: {"test_accuracy": 0.5},
        evaluate_every=3,
    )
    progress = trainer.run()
    assert progress.step == 32
    assert [record.step for record in sink.steps] == list(range(1, 33))
    assert [record.epoch for record in sink.epochs] == list(range(1, 9))
    first, last = sink.epochs[0].values, sink.epochs[-1].values
    assert last["objective"] > first["objective"] + 0.02
    evaluated = [r.epoch for r in sink.epochs if "test_accuracy" in r.values]
    assert evaluated == [3, 6, 8]
    step = sink.steps[5].values
    parts = step["expected_log_likelihood"] - step["head_kl"] - step["kl"]
    assert math.isclose(step["objective"], parts, rel_tol=1e-9)
    epoch = [record.values for record in sink.steps[:4]]
    weights = [12, 12, 12, 4]
    mean = sum(w * values["objective"] for w, values in zip(weights, epoch, strict=True)) / 40
    assert math.isclose(first["objective"], mean, rel_tol=1e-9)


GRAMS = {"kl", "scale_kl", "shape_kl", "explained", "spread", "gradient"}
SEEN = {"explained", "spread"}


def test_it_notes_the_instruments_at_the_start_and_after_epochs(machine, images, labels):
    fresh, sink = copy.deepcopy(machine), MemorySink()
    trainer = trainer_of(machine, images, labels, sinks=[sink], evaluate_every=2)
    trainer.run()
    assert [record.epoch for record in sink.readings] == [0, 1, 2, 3]
    assert [record.step for record in sink.readings] == [0, 4, 8, 12]
    grams = set(machine.plan().kl)
    learned = [
        name for name, module in machine.named_modules() if [*module.parameters(recurse=False)]
    ]
    zero = {name for name in learned if name.endswith("norm")}  # logarithms of scales, at first
    for record in sink.readings:
        names = [name for name in learned if record.epoch or name not in zero]
        assert list(record.values) == names
        evaluated = record.epoch != 1
        for name, values in record.values.items():
            there = {"gradient"} | ({"kl"} if name in grams else set())
            if evaluated:
                there |= GRAMS if name in grams else SEEN if name == "head" else set()
            assert values.keys() == there
    clean = list(trainer.batches.clean(128, 12))
    for record, state in ((sink.readings[0], fresh), (sink.readings[-1], machine)):
        for name, reading in readings(state, clean).items():
            noted = dict(record.values[name])
            del noted["gradient"]
            assert noted == {key: v for key, v in asdict(reading).items() if v is not None}
    # The first gradient is that of the first step, where the parameters are still the first ones.
    again = trainer_of(fresh, images, labels)
    again.gradients(*next(again.batches.epoch(0)))
    expected = {name: values["gradient"] for name, values in sink.readings[0].values.items()}
    assert gradient_ratios(fresh) == pytest.approx(expected, rel=1e-6)


def test_instruments_change_nothing(machine, images, labels, monkeypatch):
    """A run that notes them ends where one does that has nowhere to note them."""
    other = copy.deepcopy(machine)
    trainer_of(machine, images, labels, sinks=[MemorySink()], evaluate_every=1).run()
    silent = trainer_of(other, images, labels, evaluate_every=1)
    monkeypatch.setattr("convdkm.training.loop.readings", lambda *_: pytest.fail("were read"))
    silent.run()
    assert same(machine, other)


def test_instruments_that_cannot_be_read_do_not_stop_a_run(machine, images, labels, monkeypatch):
    def fails(*_):
        raise NotFiniteError("the kernel matrix K_ii", torch.float64, 6, 1)

    monkeypatch.setattr("convdkm.training.loop.readings", fails)
    sink = MemorySink()
    assert trainer_of(machine, images, labels, epochs=1, sinks=[sink]).run().step == 4
    assert [level for level, _ in sink.messages] == ["warning", "warning"]
    assert "instruments of layers could not be read: the kernel matrix K_ii" in sink.messages[0][1]
    assert all({"kl", "gradient"} >= values.keys() for values in sink.readings[0].values.values())


def test_the_users_random_state_is_left_alone(machine, images, labels):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    trainer_of(machine, images, labels, epochs=1).run()
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("stop_after", [1, 4, 6, 11])
def test_a_stopped_run_goes_on_to_the_bit(machine, images, labels, tmp_path, stop_after):
    fresh = copy.deepcopy(machine)
    whole = MemorySink()
    trainer_of(machine, images, labels, sinks=[whole], calibrate=20).run()

    first, second = MemorySink(), MemorySink()
    stopped = trainer_of(fresh, images, labels, sinks=[first], store=CheckpointStore(tmp_path))
    stopped.stop = lambda: stopped.progress.step >= stop_after
    stopped.config = stopped.config.model_copy(update={"calibrate": 20})
    assert stopped.run().interrupted
    other = copy.deepcopy(machine)  # in any state: all comes from the checkpoint
    resumed = trainer_of(
        other, images, labels, sinks=[second], store=CheckpointStore(tmp_path), calibrate=20
    )
    checkpoint, warning = CheckpointStore(tmp_path).load()
    assert warning is None
    resumed.restore(checkpoint)
    assert resumed.progress.step == stop_after
    assert not resumed.run().interrupted

    assert same(machine, other)
    for kind in ("steps", "epochs"):
        joined = [*getattr(first, kind), *getattr(second, kind)]
        for expected, record in zip(getattr(whole, kind), joined, strict=True):
            assert record.step == expected.step
            for name in expected.values.keys() - CLOCKS:
                assert record.values[name] == expected.values[name], name


def test_best_is_the_epoch_with_the_highest_score(machine, images, labels, tmp_path):
    scores = iter([0.1, 0.9, 0.3])
    store = CheckpointStore(tmp_path)
    trainer_of(
        machine,
        images,
        labels,
        store=store,
        evaluate=lambda: {"validation_log_likelihood": next(scores)},
        score="validation_log_likelihood",
    ).run()
    assert store.load("best")[0].description["progress"]["step"] == 8
    assert store.load("last")[0].description["progress"]["step"] == 12


def failing(trainer, at, times, error):
    """Make the objective fail on the given calls."""
    objective, calls = trainer.model.objective, {"count": 0, "failed": 0}

    def sometimes(*args, **kwargs):
        calls["count"] += 1
        if calls["count"] >= at and calls["failed"] < times:
            calls["failed"] += 1
            raise error
        return objective(*args, **kwargs)

    trainer.model.objective = sometimes
    return calls


def lost_layer():
    error = NotPositiveDefiniteError("K_ii", torch.float64, 8, 1e-6, 1e-8)
    error.path = ("body", "stage1", "gram")
    return error


def test_a_failed_step_is_taken_back_and_retried(machine, images, labels):
    sink = MemorySink()
    trainer = trainer_of(machine, images, labels, sinks=[sink], schedule="constant")
    calls = failing(trainer, at=5, times=2, error=lost_layer())
    progress = trainer.run()
    assert calls["failed"] == 2
    assert progress.step == 12
    assert [record.step for record in sink.steps] == list(range(1, 13))
    rates = [record.values["learning_rate"] for record in sink.steps]
    assert rates[:4] == [0.01] * 4
    assert math.isclose(rates[4], 0.01 / 4)
    assert rates[4] < rates[5] < rates[11] < 0.01
    assert len(sink.messages) == 2
    text = str(sink.messages[0])
    assert "step 5" in text
    assert "body.stage1.gram" in text


def test_a_failure_goes_back_before_the_step_that_caused_it(machine, images, labels):
    trainer = trainer_of(machine, images, labels, schedule="constant")
    inputs, targets = next(trainer.batches.epoch(0))
    trainer.step(inputs, targets)
    good = copy.deepcopy(machine.state_dict())
    optimiser = copy.deepcopy(trainer.optimiser.state_dict())
    trainer.progress.step += 1
    trainer.step(inputs, targets)
    with torch.no_grad():
        machine.head.mean.fill_(math.nan)
    trainer.snapshot.restore()
    for name, value in machine.state_dict().items():
        if "running" not in name:
            assert torch.equal(value, good[name]), name
    for index, entry in trainer.optimiser.state_dict()["state"].items():
        for key, value in entry.items():
            assert torch.equal(value, optimiser["state"][index][key])


def test_parameters_gone_bad_are_recovered(machine, images, labels):
    """A parameter that became NaN by an update: the next step fails, names it, and goes back."""
    sink = MemorySink()
    trainer = trainer_of(machine, images, labels, sinks=[sink], schedule="constant")
    step, poisoned = trainer.optimiser.step, []

    def poison(*args, **kwargs):
        step(*args, **kwargs)
        if trainer.progress.step == 3 and not poisoned:
            poisoned.append(True)
            with torch.no_grad():
                machine.head.mean[0, 0] = math.nan

    trainer.optimiser.step = poison
    assert trainer.run().step == 12
    assert len(sink.messages) == 1
    assert "head.mean" in str(sink.messages[0])
    assert all(bool(torch.isfinite(value).all()) for value in machine.state_dict().values())


def test_bad_gradients_are_not_applied(machine, images, labels):
    sink = MemorySink()
    trainer = trainer_of(machine, images, labels, sinks=[sink], epochs=1)
    done = []

    def spoil(gradient):
        if trainer.progress.step == 2 and not done:
            done.append(True)
            return gradient * math.inf
        return gradient

    machine.head.mean.register_hook(spoil)
    assert trainer.run().step == 4
    assert "the gradient of head.mean" in str(sink.messages[0])


def test_after_too_many_failures_the_good_state_is_saved(machine, images, labels, tmp_path):
    sink, store = MemorySink(), CheckpointStore(tmp_path)
    trainer = trainer_of(machine, images, labels, sinks=[sink], store=store, retries=3)
    failing(trainer, at=6, times=99, error=NotFiniteError("the objective", torch.float32, 1, 1))
    with pytest.raises(TrainingFailedError, match=r"step 6 after 3 tries.*smaller learning_rate"):
        trainer.run()
    assert len(sink.messages) == 4
    checkpoint, _ = store.load()
    assert checkpoint.description["progress"]["step"] == 5
    assert all(bool(torch.isfinite(value).all()) for value in checkpoint.tensors.values())


def test_a_failed_evaluation_goes_back_once(machine, images, labels):
    results = iter([NotFiniteError("the prediction", torch.float32, 1, 1), {"test_accuracy": 0.7}])

    def evaluate():
        result = next(results)
        if isinstance(result, Exception):
            raise result
        return result

    sink = MemorySink()
    trainer_of(machine, images, labels, sinks=[sink], epochs=1, evaluate=evaluate).run()
    assert sink.epochs[0].values["test_accuracy"] == 0.7
    assert "evaluation failed" in str(sink.messages[0])
