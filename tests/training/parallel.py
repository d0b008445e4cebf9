"""Gradients and records of small machines, by this process or by those that torchrun starts.

As a program, under torchrun: works every case out and writes the results to the folder given.
"""

import copy
import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import convdkm as dkm
from convdkm.config import Recipe
from convdkm.ops.base import IdentityPlan
from convdkm.training.batches import Batches
from convdkm.training.checkpoint import CheckpointStore
from convdkm.training.loop import Trainer
from convdkm.training.sinks import MemorySink, read_layers
from convdkm.training.world import World, joined_world

BATCH = 256


class Idle(dkm.Layer):
    """Has a parameter that nothing depends on."""

    def __init__(self):
        super().__init__()
        self.unused = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))

    def plan(self, ii):
        return IdentityPlan(ii)


def _body(*norm, centre=False, more=(), **gram):
    return dkm.Sequential(
        dkm.ArcCosine(),
        dkm.Conv(6, 7, 3, stride=2),
        dkm.GramLayer(7, nu=0.3, **gram),
        *((dkm.Centre(),) if centre else ()),
        dkm.Norm("batch", *norm),
        *more,
        dkm.ArcCosine(),
        dkm.Conv(7, 8, 3),
        dkm.GramLayer(8, nu=2.0, **gram),
        dkm.Norm("batch", *norm),
        dkm.GlobalAveragePool(),
        dkm.Norm("batch", *norm),
    )


NODES = dkm.Categorical(4, samples=16)
CASES = {
    "batch": {"body": _body("batch")},
    "location": {"body": _body("location", "batch", "location")},
    "image": {"body": _body("image")},
    "local": {"body": _body("local")},
    "none": {"body": _body("none")},
    "centre": {"body": _body("batch", centre=True)},
    "monte-carlo": {
        "body": _body("batch"),
        "likelihood": dkm.Categorical(4, expectation="monte-carlo", samples=7),
        "augment": {"crop": 1, "flip": True},
    },
    "gaussian": {
        "body": _body("batch"),
        "likelihood": dkm.Gaussian(4, classes=True, expectation="monte-carlo", samples=7),
    },
    "odd": {"body": _body("batch", centre=True), "images": 2 * BATCH + 33, "step": 2},
    "one image for two processes": {
        "body": _body("batch", centre=True),
        "images": BATCH + 1,
        "step": 1,
        "augment": {"crop": 1},
    },
    "sampled": {"body": _body("image", samples=0.5, noise=0.1, kl="taylor")},
    "idle": {"body": _body("batch", more=(Idle(),))},
}

PIECES = ("image", "local", "none", "sampled", "one image for two processes")


def trainer_of(name, world=None, **options):
    """The trainer of a case, before the step that the case is about."""
    case = CASES[name]
    generator = torch.Generator().manual_seed(3)
    images = torch.randn(case.get("images", BATCH), 2, 6, 6, generator=generator).double()
    labels = torch.randint(4, (len(images),), generator=generator)
    torch.manual_seed(1)
    machine = dkm.DeepKernelMachine(
        dkm.PatchInput(2, 6),
        copy.deepcopy(case["body"]),
        dkm.GPHead(8, 4),
        copy.deepcopy(case.get("likelihood", NODES)),
        dtype=torch.float64,
    ).initialise(images, labels, seed=0)
    options = {"epochs": 2, "schedule": "constant", "batch_size": BATCH, **options}
    batches = Batches(images, labels, BATCH, world=world, **case.get("augment", {}))
    trainer = Trainer(machine, batches, Recipe(**options), sinks=[MemorySink()])
    trainer.progress.step = case.get("step", 0)
    return trainer


def one_step(trainer):
    """Gradients, running statistics and figures of one step on the whole batch."""
    inputs, targets = next(trainer.batches.epoch(0, trainer.progress.step))
    figures = trainer.gradients(inputs, targets)
    named = trainer.model.named_parameters()
    zero = torch.zeros(())
    return {
        "gradients": {n: zero.expand_as(p) if p.grad is None else p.grad for n, p in named},
        "statistics": {n: b.clone() for n, b in trainer.model.named_buffers() if "running" in n},
        "figures": {n: torch.tensor(v, dtype=torch.float64) for n, v in figures.values.items()},
        "images": figures.images,
    }


def deviation(ours, theirs):
    """The largest difference, relative to the largest number of a tensor or a little of all."""
    assert ours.keys() == theirs.keys()
    largest = {name: float(value.abs().max()) for name, value in theirs.items()}
    least = 1e-3 * max(largest.values(), default=1.0)
    differences = {name: float((ours[name] - theirs[name]).abs().max()) for name in ours}
    return max((differences[n] / max(largest[n], least) for n in ours), default=0.0)


def require_same(ours, theirs, tolerance=1e-10):
    assert ours["images"] == theirs["images"]
    for what in ("gradients", "statistics", "figures"):
        assert deviation(ours[what], theirs[what]) < tolerance, what


def torchrun(*arguments, processes=2, **options):
    """A started torchrun on this machine, with output to be read."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **options.pop("env", {})}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--local-addr", "127.0.0.1"]  # where names take long to resolve
    return subprocess.Popen(
        [*command, "--nproc-per-node", str(processes), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        **options,
    )


def finished(process, seconds=120):
    """The output of a process that must succeed."""
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        process.terminate()  # torchrun takes its processes with it
    assert process.returncode == 0, err
    return out, err


def run_with_a_failure(trainer):
    """A short run in which the last process fails once; its records and last state."""
    objective, calls = trainer.model.objective, []

    def sometimes(*args, **kwargs):
        calls.append(None)
        result = objective(*args, **kwargs)
        if trainer.world.rank == trainer.world.size - 1 and len(calls) == 2:
            raise dkm.NotFiniteError("the objective", torch.float64, 1, 1)
        return result

    trainer.model.objective = sometimes
    trainer.run()
    sink = trainer.sinks.sinks[0]
    return {
        "state": trainer.model.state_dict(),
        "messages": [str(message) for message in sink.messages],
        "steps": [record.values for record in sink.steps],
        "epochs": [record.values for record in sink.epochs],
    }


def require_same_records(ours, theirs, tolerance=1e-6):
    from run_figures import CLOCKS  # not found where torchrun starts this file

    for record, expected in zip(ours, theirs, strict=True):
        assert record.keys() == expected.keys()
        for name in expected.keys() - CLOCKS:
            value = pytest.approx(float(expected[name]), rel=tolerance, abs=tolerance)
            assert float(record[name]) == value, name


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def step_of(folder):
    checkpoint, warning = CheckpointStore(folder / "checkpoints").load()
    assert warning is None
    return checkpoint.description["progress"]["step"]


def require_same_runs(folder, whole):
    for name in ("steps.csv", "epochs.csv"):
        require_same_records(rows(folder / name), rows(whole / name))
    ours, theirs = (read_layers(each / "layers.csv") for each in (folder, whole))
    assert list(ours) == list(theirs) == list(range(len(theirs)))
    for epoch, layers in theirs.items():
        assert list(ours[epoch]) == list(layers)
        require_same_records(ours[epoch].values(), layers.values(), 1e-5)
    figures = [json.loads((each / "metrics.json").read_text()) for each in (folder, whole)]
    flops, fewest = (each.pop("flops") for each in figures)
    assert fewest <= flops < 2.1 * fewest  # two processes work out the inducing chain twice
    require_same_records(figures[:1], figures[1:])


RECIPE = [
    *("--train-size=120", "--test-size=40", "--batch-size=18", "--epochs=3", "--seed=2"),
    *("--inducing=8,8", "--blocks=1,1", "--evaluate-every=1", "--precision=float64"),
    *("--crop=1", "--flip", "--whitening=zca", "--calibrate=50", "--validation=0.1"),
    *("--alternate-flips", "--cutout=2", "--lookahead=4", "--nu-start=0.1", "--mixing=identity"),
    "--head-natural-rate=0.05",
    *("--expectation=monte-carlo", "--samples=20", "--checkpoint-minutes=1000", "-q"),
]


def work(world: World, folder: Path) -> None:
    results = {name: one_step(trainer_of(name, world)) for name in CASES}
    for name in PIECES:
        results[f"{name}, in pieces"] = one_step(trainer_of(name, world, micro_batch=50))
    results["failing"] = run_with_a_failure(trainer_of("batch", world, epochs=4))
    torch.save(results, folder / f"{world.rank}.pt")


if __name__ == "__main__":
    with joined_world() as joined:
        work(joined, Path(sys.argv[1]))
    # The results are on disk. PyTorch's own threads have been seen to abort a process that ends
    # while another of its group does, which is not what is tested here.
    sys.stderr.flush()
    os._exit(0)
