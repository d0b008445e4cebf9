"""From a configuration to a machine: the kernel by its name."""

import pytest

import convdkm as dkm
from convdkm.architectures import build_model
from convdkm.options import MachineOptions

SMALL = {"inducing": (4, 4), "blocks": (1,)}


def kernels(**options):
    machine = build_model(MachineOptions(**SMALL, **options), 1, 3)
    return [module for module in machine.modules() if isinstance(module, dkm.Kernel)]


def test_the_kernel_by_its_name():
    assert all(isinstance(kernel, dkm.ArcCosine) for kernel in kernels())
    found = kernels(kernel="normalised-gaussian", gamma=2.5)
    assert len(found) == 5
    for kernel in found:
        assert isinstance(kernel, dkm.NormalisedGaussian)
        assert kernel.gamma.log_value.exp().item() == pytest.approx(2.5)
    for kernel in kernels(kernel="leaky-relu", leaky_slope=0.3, bias_variance=0.1):
        assert isinstance(kernel, dkm.LeakyReLU)
        assert kernel.negative_slope == 0.3
    for kernel in kernels(kernel="normalised-polynomial", polynomial="1,2,1"):
        assert isinstance(kernel, dkm.NormalisedPolynomial)
        assert kernel.weights == (0.25, 0.5, 0.25)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bias_variance": 0.1}, "bias_variance belongs to the arc-cosine kernel"),
        ({"bias_variance": 0.1, "weight_variance": 1.0}, "bias_variance belong to"),
        ({"arccos_order": 2}, "arccos_order belongs to the arc-cosine kernel"),
    ],
)
def test_options_of_another_kernel_are_refused(options, words):
    with pytest.raises(dkm.InvalidInputError, match=words):
        kernels(kernel="normalised-gaussian", **options)
