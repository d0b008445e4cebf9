"""Whatever is changed in a machine, no record of what it was is played."""

import copy
import gc

import pytest
import torch

import convdkm as dkm
from convdkm.kernels.base import Positive
from convdkm.layers.base import Layer
from convdkm.ops.base import IdentityPlan
from convdkm.ops.window import Window
from convdkm.training.gradients import RecordedGradients
from oracle.cases import perturb

NUM_DATA = 50


class Options:
    """Settings of a user's own, as an object."""

    def __init__(self):
        self.factor = 1.0


class Scaled(Layer):
    """A layer of a user's own that multiplies by all sorts of attributes."""

    def __init__(self):
        super().__init__()
        self.numbers, self.named, self.options = [1.0, 1.0], {"factor": 1.0}, Options()
        self._hidden, self.function = 1.0, abs
        self.unregistered = (torch.ones(()).double(),)

    def plan(self, ii):
        factor = sum(self.numbers) / 2 * self.named["factor"] * self.options.factor * self._hidden
        return IdentityPlan(ii * (self.function(factor) * self.unregistered[0]))


def machine():
    body = {
        "own": Scaled(),
        "kernel": dkm.NormalisedPolynomial(),
        "noise": dkm.Noise(0.1, 0.1),
        "conv": dkm.Conv(5, 6, 3),
        "gram": dkm.GramLayer(6),
        "centre": dkm.Centre(),
        "norm": dkm.Norm(),
        "relu": dkm.ArcCosine(weight_variance=1.0),
        "pool": dkm.AveragePool(3, stride=1),
        "top": dkm.GlobalAveragePool(),
    }
    model = dkm.DeepKernelMachine(
        dkm.PatchInput(2, 5), dkm.Sequential(body), dkm.GPHead(6, 3), dkm.Categorical(3)
    )
    model.initialise(BATCH[0], seed=0)
    perturb(model, torch.Generator().manual_seed(1), 0.2)
    return model.train()


BATCH = (
    torch.randn(8, 2, 6, 5, generator=torch.Generator().manual_seed(0)),
    torch.arange(8) % 3,
)


def halved(cross, left, right):
    return dkm.NormalisedPolynomial().of(cross, left, right) / 2


class Shifted(dkm.NormalisedPolynomial):
    def variance(self, own):
        return own + 0.3


ATTRIBUTES = {
    "body.conv.window": Window.of(3, 1, "same", 2, 2),
    "body.conv.border": "inside",
    "body.pool.window": Window.of(3, 2, "same", 1, 2),
    "body.noise.relative": 0.5,
    "body.gram.nu": 30.0,
    "body.gram.divisor": 2.0,
    "body.norm.data": "image",
    "body.norm.inducing": "local",
    "body.norm.training": False,
    "body.kernel.weights": (0.1, 0.2, 0.7),
    "body.kernel.of": halved,
    "body.kernel.__class__": Shifted,
    "body.relu.order": 2,
    "body.own.numbers": [1.0, 3.0],
    "body.own.named": {"factor": 2.0},
    "body.own._hidden": 2.0,
    "body.own.function": lambda factor: 2 * factor,
    "body.own.unregistered": (torch.full((), 2.0).double(),),
    "input.border": "inside",
    "head_kl": "mean",
}
IN_PLACE = {
    "list": lambda model: model.body.own.numbers.append(3.0),
    "dictionary": lambda model: model.body.own.named.update(factor=2.0),
    "object": lambda model: setattr(model.body.own.options, "factor", 2.0),
    "tensor": lambda model: model.body.own.unregistered[0].fill_(2.0),
    "layer": lambda model: setattr(model.body, "kernel", dkm.NormalisedGaussian(2.0)),
    "inner module": lambda model: setattr(
        model.body.relu, "weight_variance", Positive("w", 2.0, learn=True)
    ),
    "no inner module": lambda model: setattr(model.body.relu, "weight_variance", None),
    "likelihood": lambda model: setattr(model, "likelihood", dkm.Gaussian(3, classes=True)),
    "hook": lambda model: model.body.relu.weight_variance.register_forward_hook(
        lambda layer, given, result: 2 * result
    ),
}


def require_same(gradients, steps=3):
    """Some steps, of which the third is the first that is played; the last total."""
    for _ in range(steps):
        expected = copy.deepcopy(gradients.model)
        expected.zero_grad()
        gradients.model.zero_grad()
        objective = expected.objective(*BATCH, num_data=gradients.num_data)
        (-objective.total).backward()
        found = gradients(*BATCH)
        torch.testing.assert_close(found.total, objective.total, rtol=1e-9, atol=0)
        for mine, theirs in zip(gradients.model.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-5, atol=1e-8)
    return found.total.item()


def test_another_attribute_is_followed_and_so_is_the_one_before():
    gradients = RecordedGradients(machine(), num_data=NUM_DATA)
    before = require_same(gradients)
    for path, value in ATTRIBUTES.items():
        layer, _, name = path.rpartition(".")
        layer = gradients.model.get_submodule(layer)
        old = getattr(layer, name)
        setattr(layer, name, value)
        assert abs(require_same(gradients, steps=1) - before) > 1e-5, path
        if name == "of":
            del layer.of
        else:
            setattr(layer, name, old)
        assert require_same(gradients, steps=1) == before, path


@pytest.mark.parametrize("change", IN_PLACE)
def test_what_attributes_hold_is_followed_and_so_are_layers_and_hooks(change):
    gradients = RecordedGradients(machine(), num_data=NUM_DATA)
    before = require_same(gradients)
    IN_PLACE[change](gradients.model)
    assert abs(require_same(gradients, steps=1) - before) > 1e-5


def test_another_size_of_the_data_and_another_machine_are_followed():
    gradients = RecordedGradients(machine(), num_data=NUM_DATA)
    totals = [require_same(gradients)]
    gradients.num_data = 5
    totals.append(require_same(gradients))
    gradients.model = machine()
    with torch.no_grad():
        gradients.model.head.mean.add_(1)
    totals.append(require_same(gradients, steps=1))
    assert len({round(total, 4) for total in totals}) == 3


def test_a_layer_in_the_place_of_one_that_is_gone_is_another():
    """Even where it is made in the same place of memory."""
    gradients = RecordedGradients(machine(), num_data=NUM_DATA)
    totals = []
    for power in range(4):
        weights = tuple(float(each == power) for each in range(4))
        del gradients.model.body.kernel
        gc.collect()
        gradients.model.body.kernel = dkm.NormalisedPolynomial(weights)
        body = gradients.model.body._modules
        for name in [name for name in body if name not in ("own", "kernel")]:
            body[name] = body.pop(name)  # the kernel is the second layer again
        totals.append(require_same(gradients))
    assert len({round(total, 4) for total in totals}) == 4
