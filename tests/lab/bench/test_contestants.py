"""The contestants of the bench do the same work, and the stages of a step are told apart."""

import copy

import pytest
import torch
from torch import nn

import convdkm as dkm
from convdkm.errors import InvalidInputError
from convdkm.insight.summary import summarise
from convdkm.lab.bench import compare, profiling
from convdkm.lab.bench.cnn import ResNet
from convdkm.lab.bench.contestants import Workload, cnn, machine, networks, ours, textbook
from convdkm.lab.bench.scaling import axes
from convdkm.ops.base import Plan
from convdkm.runtime.compiled import compilable
from convdkm.training.cost import flops

TINY = Workload((4, 5, 6), batch=6, side=8)


@pytest.fixture(scope="module")
def model():
    return machine(TINY)


def shapes_of_machine(model):
    convolutions = [each for each in model.modules() if isinstance(each, dkm.Conv)]
    own = [(each.weight.shape, each.window.stride) for each in convolutions]
    return sorted([(model.input.inducing.shape, model.input.window.stride), *own])


def shapes_of_network(network):
    convolutions = [each for each in network.modules() if isinstance(each, nn.Conv2d)]
    return sorted((each.weight.shape, each.stride) for each in convolutions)


def test_the_network_has_the_convolutions_of_the_machine(model):
    network = ResNet(3, 10, TINY.widths)
    assert shapes_of_network(network) == shapes_of_machine(model)
    assert len(shapes_of_network(network)) == 1 + 1 + 18 + 3
    assert sum(isinstance(each, nn.BatchNorm2d) for each in network.modules()) == 23
    assert network(torch.randn(2, 3, 8, 8)).shape == (2, 10)


def test_every_convolution_sees_maps_of_the_same_size(model):
    places = []
    network = ResNet(3, 10, TINY.widths).eval()
    for each in network.modules():
        if isinstance(each, nn.Conv2d):
            each.register_forward_hook(lambda _, __, maps: places.append(tuple(maps.shape[1:])))
    network(TINY.images(1))
    summary = summarise(model, (3, 8, 8))
    expected = [(row.inducing, *row.space) for row in summary if row.kind in ("Conv", "PatchInput")]
    assert sorted(places) == sorted(expected)


@pytest.mark.parametrize("make", [ours, textbook, lambda workload, _: cnn(workload)])
def test_a_step_lowers_the_loss(make, model):
    contestant = make(TINY, copy.deepcopy(model))
    for group in contestant.optimiser.param_groups:
        group["lr"] = 1e-3
    first = float(contestant.loss().detach())
    for _ in range(5):
        step, forward = contestant.lap()
        assert step > forward > 0
    assert float(contestant.loss().detach()) < first
    contestant.forget()
    assert all(p.grad is None for g in contestant.optimiser.param_groups for p in g["params"])


def test_flops_are_those_of_a_whole_batch_and_leave_the_machine_alone(model):
    """Foretold from few images, compiled or not, they are what is counted at the full size."""
    compiled = copy.deepcopy(model)
    assert compilable(compiled)
    for part in compilable(compiled):
        part.compiled = True
    before = copy.deepcopy(compiled.state_dict())
    counted = compare.counted(TINY, compiled, ["CNN"])
    assert all(torch.equal(value, before[name]) for name, value in compiled.state_dict().items())
    assert all(part.compiled for part in compilable(compiled))
    for name, whole in {
        compare.OURS: ours(TINY, copy.deepcopy(model)),
        compare.TEXTBOOK: textbook(TINY, copy.deepcopy(model)),
        "CNN": cnn(TINY),
    }.items():
        assert counted[name]["step"] == pytest.approx(flops(whole.step), rel=0.01), name
        if whole.predict is not None:
            assert counted[name]["predict"] == pytest.approx(flops(whole.predict), rel=0.01), name


def test_the_layouts_of_the_network_agree():
    wide = Workload((8, 8, 8), batch=4, side=8)
    first, second = (each.predict() for each in networks(wide).values())
    torch.testing.assert_close(first, second.contiguous())
    assert list(networks(TINY)) == ["CNN"]


def test_images_and_labels_are_the_same_every_time():
    assert torch.equal(TINY.images(3), TINY.images(5)[:3])
    assert torch.equal(TINY.labels(9), TINY.labels(9))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"widths": (4, 4)}, "3 positive numbers, one for each stage"),
        ({"widths": (4, 0, 4)}, "got 4,0,4"),
        ({"batch": 0}, "batch must be a positive integer, got 0"),
        ({"side": 1}, "side must be at least 2"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(options, message):
    with pytest.raises(InvalidInputError, match=message):
        Workload(**options)


def test_a_profile_names_every_stage_and_leaves_the_classes_as_they_were(model):
    plans = [kind for kind in profiling.subclasses(Plan) if "data" in vars(kind)]
    before = [vars(kind)["data"] for kind in plans]
    shares = {each.stage: each for each in profiling.profile_step(model, ours(TINY, model), 1)}
    assert [vars(kind)["data"] for kind in plans] == before

    for stage in ("inducing chain", "input patches", "kernels", "convolutions", "Gram layers"):
        assert shares[stage].forward > 0, stage
        assert shares[stage].backward > 0, stage
    for stage in ("head", "likelihood", "skip connections", "pooling"):
        assert shares[stage].total > 0, stage
    assert shares["optimiser"].backward == 0
    assert all(each.forward >= 0 and each.backward >= 0 for each in shares.values())


def test_the_axes_of_growth_vary_one_size_each():
    base = Workload((4, 8, 16), batch=4, side=8)
    points, side, batch, depth = axes(base)
    assert [points.at(size).widths for size in points.sizes] == [
        (4, 8, 16),
        (8, 16, 32),
        (16, 32, 64),
    ]
    assert [side.at(size).side for size in side.sizes] == [4, 8, 16]
    assert [batch.at(size).batch for size in batch.sizes] == [2, 4, 8]
    assert [depth.at(size).blocks for size in depth.sizes] == [(1,) * 3, (2,) * 3, (4,) * 3]
    assert depth.sizes == (7, 13, 25)
