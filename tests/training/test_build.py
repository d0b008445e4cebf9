"""From a configuration to a machine: the kernel by its name, and the precision of products."""

import pytest
import torch

import convdkm as dkm
from convdkm.architectures import build_model
from convdkm.config import Recipe
from convdkm.options import MachineOptions
from convdkm.training.build import tuned

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


@pytest.mark.parametrize(("inducing", "enough"), [(8, True), (16, False)])
def test_products_in_bfloat16_are_for_grams_that_are_not_singular(monkeypatch, inducing, enough):
    """The kernel is ρ, of patches of nine dimensions: the Gram of more of them is singular."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True}, raising=False)
    images, labels = torch.randn(64, 1, 8, 8), torch.arange(64) % 2
    model = dkm.resnet(
        *(1, 2, (inducing,), (1,)),
        kernel="normalised-polynomial",
        polynomial=(1.0,),
        mixing_parameterisation="whitened",
    ).initialise(images, labels)
    told: list[tuple[str, str]] = []

    def chosen(precision):
        told.clear()
        recipe = Recipe(precision=precision)
        return tuned(model, recipe, lambda text, level: told.append((text, level))).precision

    assert chosen("auto") == ("bfloat16" if enough else "float32")
    assert [level for _, level in told] == ([] if enough else ["info"])
    assert chosen("bfloat16") == "bfloat16"
    assert [level for _, level in told] == ([] if enough else ["warning"])
    assert enough or "body.stem.conv are too alike" in told[0][0]
    assert chosen("float64") == "float64"
    assert not told
