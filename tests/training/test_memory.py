"""What a run will take of memory: told before it begins, without a trace in the run."""

from dataclasses import replace
from functools import cache

import pytest
import torch

import convdkm as dkm
from convdkm.config import Recipe
from convdkm.presets import preset
from convdkm.runtime import memory
from convdkm.runtime.memory import available_memory, peak_memory
from convdkm.training import MemorySink, build, fit, resume
from convdkm.training import memory as foresight
from convdkm.training.batches import Batches
from convdkm.training.loop import Trainer
from convdkm.training.memory import Demand, Line, estimate, gigabytes, upper_bound
from convdkm.training.passes import Passes
from convdkm.training.world import World
from run_figures import without_clocks

CPU = torch.device("cpu")
TINY = {"inducing": (6, 8), "blocks": 1, "epochs": 1, "batch_size": 30}
TINY |= {"train_size": 60, "test_size": 30}
MACHINES = {
    "paper": ((8, 16), {}, 32, 48),
    "published": ((8, 16), dict(dkm.PUBLISHED) | {"strides": (2, 2)}, 32, 64),
    "large images": ((8, 8), {"input_stride": 2, "expectation": "nodes"}, 96, 12),
    "checkpointed": ((8, 16), {"expectation": "nodes"}, 32, 64),
}


def machine(name):
    inducing, options, side, batch = MACHINES[name]
    torch.manual_seed(0)
    return dkm.resnet(3, 10, inducing, (1, 1), **options), (3, side, side), batch


def measured_step(model, shape, batch):
    images, labels = torch.randn(batch, *shape), torch.arange(batch) % 10
    model.initialise(images[:16], labels[:16], seed=0).train()
    passes = Passes(model, World(), num_data=100)
    return peak_memory(lambda: passes.gradients(images, labels, total=batch, seed=0))


@pytest.mark.parametrize("name", MACHINES)
def test_it_is_what_the_meter_says(name):
    model, shape, batch = machine(name)
    checkpointing = name == "checkpointed"
    demand = Demand(shape, batch, evaluation=2, checkpointing=checkpointing)
    found = estimate(model, demand, CPU, there=10**8)
    model.checkpointing = checkpointing
    peak = measured_step(model, shape, batch)
    assert found.measured
    standing = 5 * sum(parameter.nbytes for parameter in model.parameters())
    assert found.needed - standing == pytest.approx(peak, rel=0.15)
    assert upper_bound(model, demand) > peak


@pytest.mark.parametrize("part", ["evaluation", "initial"])
def test_so_are_the_other_parts(part):
    model, shape, _ = machine("paper")
    demand = Demand(shape, 1, **({"evaluation": 1} | {part: 300}))
    found = estimate(model, demand, CPU, there=10**8)
    images, labels = torch.randn(300, *shape), torch.arange(300) % 10
    peak = peak_memory(lambda: model.initialise(images, labels, seed=0))
    if part == "evaluation":
        peak = peak_memory(lambda: model.folded().predict(images))
    standing = 5 * sum(parameter.nbytes for parameter in model.parameters())
    # A folded machine works on some images at a time, which the estimate does not count on.
    above = 1.4 if part == "evaluation" else 1.15
    assert 0.85 * peak < found.needed - standing < above * peak
    assert upper_bound(model, demand) > peak


def test_a_run_of_the_preset_fast_takes_what_is_estimated():
    """To a tenth, with batches, gradients, the optimiser's averages and the state to go back to."""
    config = preset("fast").config("cifar10", epochs=1, calibrate=0)
    recipe, count = config.training, 3 * config.training.batch_size
    images, labels = torch.randn(count, 3, 32, 32), torch.arange(count) % 10
    model = build.built(config.model, recipe, 3, 10).initialise(images[:64], labels[:64], seed=0)
    demand = Demand.of(recipe, images, World(), CPU, initialises=False)
    found = estimate(model, replace(demand, evaluation=1, held=0), CPU, there=1)
    peak = peak_memory(lambda: Trainer(model, Batches.of(recipe, images, labels), recipe).run())
    assert config.model.inducing == (16, 32, 64)
    assert found.measured
    assert found.needed == pytest.approx(peak, rel=0.1)


def test_the_machine_is_left_as_it_is():
    model, shape, batch = machine("paper")
    images, labels = torch.randn(16, *shape), torch.arange(16) % 10
    model.initialise(images, labels, seed=0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.randn(4)
    torch.manual_seed(3)
    estimate(model, Demand(shape, batch, 2, initial=16), CPU, there=10**8)
    assert torch.equal(torch.randn(4), expected)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.checkpointing


def test_small_runs_are_not_measured(monkeypatch):
    monkeypatch.setattr(foresight, "peak_memory", None)
    model, shape, batch = machine("paper")
    found = estimate(model, Demand(shape, batch, 2), CPU, there=10**11)
    assert not found.measured
    assert str(found).startswith("less than ")
    assert str(found).endswith(" of 100 GB")


def test_layers_of_the_users_own_are_always_measured():
    class Own(dkm.Isotropic):
        def of_squared_distance(self, r2):
            return 1 / (1 + r2)

    body = dkm.Sequential(Own(), dkm.Conv(4, 4, 3), dkm.GlobalAveragePool())
    model = dkm.DeepKernelMachine(
        dkm.PatchInput(1, 4), body, dkm.GPHead(4, 10), dkm.Categorical(10)
    )
    found = estimate(model, Demand((1, 8, 8), 8, 8, initial=8), CPU, there=10**12)
    assert found.measured


def test_where_nothing_is_known_nothing_is_said(monkeypatch):
    monkeypatch.setattr(foresight, "available_memory", lambda device: None)
    model, shape, batch = machine("paper")
    assert estimate(model, Demand(shape, batch, 2), CPU) is None


def test_processes_of_a_machine_share_its_memory(monkeypatch):
    monkeypatch.setattr(foresight, "available_memory", lambda device: 8 * 10**11)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    model, shape, batch = machine("paper")
    assert estimate(model, Demand(shape, batch, 2), CPU).there == 2 * 10**11


# -- warnings --------------------------------------------------------------------------------------


def asked(**more):
    model, shape, batch = machine("paper")
    return model, Demand(shape, batch, 2, **more)


@cache
def needed(checkpointing=False):
    return estimate(*asked(checkpointing=checkpointing), CPU, there=10**8).needed


def test_too_large_a_batch():
    model, demand = asked()
    there = int(needed() / 2)
    found = estimate(model, demand, CPU, there=there)
    assert found.warning.startswith(f"this run will take about {gigabytes(found.needed)} of memory")
    assert f"and {gigabytes(there)} are there" in found.warning
    fits = int(found.warning.split("--micro-batch ")[1].split()[0])
    assert f"--batch-size {fits}" in found.warning
    smaller = Demand(demand.image_shape, fits, 2)
    assert estimate(model, smaller, CPU, there=there).warning is None
    larger = Demand(demand.image_shape, fits + 8, 2)
    assert estimate(model, larger, CPU, there=there).warning is not None


def test_in_pieces_already():
    model, demand = asked(in_pieces=True)
    warning = estimate(model, demand, CPU, there=int(needed() / 2)).warning
    assert "--micro-batch" in warning
    assert "--batch-size" not in warning


def test_several_processes():
    model, demand = asked(processes=4)
    warning = estimate(model, demand, CPU, there=int(needed() / 2)).warning
    fits = int(warning.split("--micro-batch ")[1].split()[0])
    assert f"--batch-size {4 * fits}" in warning


def test_not_even_one_image():
    model, demand = asked()
    warning = estimate(model, demand, CPU, there=10**5).warning
    assert "Not even one image at a time fits: take fewer inducing points (--inducing)" in warning


def test_checkpointing_may_do():
    model, demand = asked()
    plain = needed()
    saving = needed(checkpointing=True)
    assert saving < 0.8 * plain
    warning = estimate(model, demand, CPU, there=int((plain + saving) / 2 / 0.9)).warning
    assert "--checkpointing alone would do" in warning


def test_initialisation_and_evaluation():
    model, shape, _ = machine("paper")
    found = estimate(model, Demand(shape, 1, 400, initial=400), CPU, there=2 * 10**7)
    assert "--evaluation-batch " in found.warning
    assert "--inducing-images " in found.warning
    assert "--batch-size" not in found.warning


def test_a_line():
    line = Line(100.0, 10.0)
    assert line.at(5) == 150
    assert line.images_within(155) == 5
    assert line.images_within(50) == 0
    assert line.images_within(100 + 10 * 47) == 40


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0.01 GB"), (4.2e8, "0.42 GB"), (1.04e9, "1.0 GB"), (22.3e9, "22 GB"), (3e12, "3,000 GB")],
)
def test_gigabytes(size, text):
    assert gigabytes(size) == text


# -- runs ------------------------------------------------------------------------------------------


def test_a_run_is_the_same_with_and_without(monkeypatch, tmp_path):
    def figures(there):
        monkeypatch.setattr(foresight, "available_memory", lambda device: there)
        sink = MemorySink()
        run = fit("quick", "digits", folder=tmp_path / str(there), sinks=[sink], **TINY)
        return without_clocks(run.metrics), sink

    (plain, silent), (measured, sink) = figures(None), figures(10**6)
    assert measured == plain
    assert "memory" not in silent.infos[0].detail
    assert sink.infos[0].detail["memory"].startswith("about 0.01 GB of ")
    assert [level for level, text in sink.messages if "this run will take" in text] == ["warning"]
    assert (tmp_path / str(10**6) / "log.txt").read_text().count("this run will take") == 1


def test_what_a_run_asks_for():
    images = torch.rand(100, 3, 16, 16)
    size, scored = images.nbytes, (images[:50], torch.empty(5, dtype=torch.uint8))
    recipe = Recipe(batch_size=64, micro_batch=10, calibrate=80, crop=2, inducing_images=7)
    demand = Demand.of(recipe, images, World(1, 2), CPU, scored=scored)
    assert demand == Demand((3, 16, 16), 10, 100, True, 7, 2, held=size * 3 // 2 + 5)
    recipe = Recipe(batch_size=300, evaluation_batch=20, augment="after-whitening")
    demand = Demand.of(recipe, images, World(), CPU, initialises=False, scored=scored[:1])
    assert demand == Demand((3, 16, 16), 100, 20, held=size * 3 // 2, copied=size)
    assert Demand.of(recipe, images, World(), CPU).initial == 100
    on_gpu = Demand.of(recipe, images, World(), torch.device("cuda"))
    assert (on_gpu.held, on_gpu.copied) == (0, 2 * size)


def test_checkpointing_is_an_option_and_survives(tmp_path):
    sink = MemorySink()
    folder = tmp_path / "a"
    stopped = fit("quick", "digits", folder=folder, checkpointing=True, stop=lambda: True, **TINY)
    assert stopped.model.checkpointing
    resumed = resume(folder, sinks=[sink])
    assert resumed.model.checkpointing
    plain = fit("quick", "digits", **TINY)
    assert not plain.model.checkpointing
    for name in ("test_log_likelihood", "train_log_likelihood"):
        assert resumed.metrics[name] == pytest.approx(plain.metrics[name], rel=1e-4)


@pytest.mark.parametrize("works", [True, False])
def test_compiling_is_an_option_and_survives(tmp_path, monkeypatch, works):
    made = []

    def compile_elementwise(model):
        made.append(model)
        return works

    monkeypatch.setattr(dkm.DeepKernelMachine, "compile_elementwise", compile_elementwise)
    sinks = MemorySink(), MemorySink()
    folder = tmp_path / "a"
    fit("quick", "digits", folder=folder, compile=True, stop=lambda: True, sinks=sinks[:1], **TINY)
    resume(folder, sinks=sinks[1:])
    assert len(made) == 2
    for sink in sinks:
        assert any("compiling" in text for _, text in sink.messages)
        assert any("install a C++ compiler" in text for _, text in sink.messages) is not works
    build.tuned(made[0], Recipe(), lambda *_: None)
    assert len(made) == 2


# -- what there is ---------------------------------------------------------------------------------


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A machine with 8 GB left, whose control groups a test may fill in."""
    meminfo, own = tmp_path / "meminfo", tmp_path / "cgroup"
    meminfo.write_text("MemTotal: 16000000 kB\nMemAvailable: 8000000 kB\n")
    monkeypatch.setattr(memory, "_MEMINFO", meminfo)
    monkeypatch.setattr(memory, "_OWN_GROUPS", own)
    monkeypatch.setattr(memory, "_GROUPS", tmp_path / "groups")

    def group(membership, place, **files):
        own.write_text(membership)
        folder = tmp_path / "groups" / place
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(text)

    return group


def test_a_machine_without_limits(system):
    assert available_memory() == 8_000_000 * 1024
    system("0::/job\n", "job", memory__max="max\n", memory__current="5\n")
    assert available_memory() == 8_000_000 * 1024


def test_a_limit_of_an_outer_group(system):
    system("0::/job/step\n", "job/step", memory__max="max\n", memory__current="100\n")
    limits = {"memory__max": "5000\n", "memory__current": "1500\n"}
    system("0::/job/step\n", "job", **limits, memory__stat="anon 9\ninactive_file 500\n")
    assert available_memory() == 4000


def test_the_older_control_groups(system):
    system(
        "9:name=systemd:/\n4:cpu,memory:/job\n0::/\n",
        "memory/job",
        memory__limit_in_bytes="700",
        memory__usage_in_bytes="900",
    )
    assert available_memory() == 0


def test_other_devices_do_not_tell():
    assert available_memory(torch.device("meta")) is None
