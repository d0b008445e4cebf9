"""Derivatives of every layer with respect to its parameters and to the Gram."""

import pytest
import torch

import convdkm as dkm
from oracle.cases import CHAINS, generator_of, normal, perturb, random_gram

POINTS, IMAGES = 3, 2

LAYERS = {
    "Conv": (lambda: dkm.Conv(POINTS, 4, 2), (3, 2)),
    "Conv, strided, inside": (
        lambda: dkm.Conv(POINTS, 2, 3, stride=2, dilation=2, border="inside", ndim=1),
        (5,),
    ),
    "Conv, 3-D": (lambda: dkm.Conv(POINTS, 2, (2, 1, 2), ndim=3), (2, 2, 2)),
    "Mix": (lambda: dkm.Mix(POINTS, 2), (2,)),
    "GramLayer, direct": (lambda: dkm.GramLayer(POINTS, learn_scale=True), (2, 2)),
    "GramLayer, whitened": (
        lambda: dkm.GramLayer(POINTS, parameterisation="whitened", learn_scale=True),
        (2, 2),
    ),
    **{
        f"Norm, {'/'.join(scheme)}": (lambda scheme=scheme: dkm.Norm(*scheme), (2, 2))
        for scheme in (
            ("batch", "batch", "batch", "batch"),
            ("local", "image", "local", "location"),
            ("none", "location", "none", "none"),
            ("local", "local", "batch", "location"),
        )
    },
    "Conv, whitened": (
        lambda: dkm.Conv(POINTS, POINTS, 2, parameterisation="whitened"),
        (2, 2),
    ),
    "Centre": (dkm.Centre, (2, 2)),
    "Skip": (lambda: dkm.Skip(dkm.ArcCosine(), weight=0.3, learn=True), (2, 2)),
    "Noise": (lambda: dkm.Noise(0.1, 0.2), (2,)),
    "Jitter": (lambda: dkm.Jitter(dkm.ArcCosine(bias_variance=0.1), 0.1, 0.2), (2, 2)),
    "GramLayer, full": (lambda: dkm.GramLayer(POINTS, full=True, learn_scale=True), (2, 2)),
    "Conv, divided": (lambda: dkm.Conv(POINTS, POINTS, 2, divided=True), (2, 2)),
    "GlobalAveragePool": (dkm.GlobalAveragePool, (2, 2)),
    "AveragePool": (lambda: dkm.AveragePool(2, stride=1, padding=1), (2, 2)),
    "Flatten": (dkm.Flatten, (2, 2)),
    "Flatten, mixing": (lambda: dkm.Flatten(2), (2, 2)),
    "chain": (
        lambda: dkm.Sequential(
            dkm.ArcCosine(weight_variance=1.2, bias_variance=0.1),
            dkm.Conv(POINTS, POINTS, 2),
            dkm.GramLayer(POINTS),
            dkm.Centre(),
            dkm.Norm(),
        ),
        (2, 2),
    ),
}


def _ready(build, space, label):
    generator = generator_of(label)
    layer = build()
    layer.initialise(random_gram(generator, POINTS, IMAGES, space), generator)
    perturb(layer, generator, 0.15)
    return layer, random_gram(generator, POINTS, IMAGES, space)


def _check(layer, gram, **options):
    """Numerical against automatic derivatives; G_ii through a root, so that it stays a Gram."""
    root = torch.linalg.cholesky(gram.ii)
    names = [name for name, _ in layer.named_parameters()]

    def evaluate(root, it, tt, *values):
        given = {f"layer.{name}": value for name, value in zip(names, values, strict=True)}
        incoming = dkm.Gram(root @ root.T, it, tt)
        return torch.func.functional_call(_WithKL(layer), given, (incoming,))

    blocks = (root, gram.it, gram.tt)
    inputs = [t.detach().clone().requires_grad_() for t in (*blocks, *layer.parameters())]
    return torch.autograd.gradcheck(evaluate, inputs, **options)


class _WithKL(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, gram):
        plan = self.layer.plan(gram.ii)
        outgoing = plan(gram)
        return outgoing.ii, outgoing.it, outgoing.tt, *(term.value for term in plan.kl.values())


@pytest.mark.parametrize("name", LAYERS)
def test_derivatives_of_a_layer(name):
    build, space = LAYERS[name]
    assert _check(*_ready(build, space, name), fast_mode=name == "chain")


@pytest.mark.parametrize("name", ["Norm, batch/batch/batch/batch", "Centre", "chain"])
def test_derivatives_in_evaluation(name):
    build, space = LAYERS[name]
    layer, gram = _ready(build, space, name)
    assert _check(layer.eval(), gram, fast_mode=name == "chain")


def test_derivatives_of_a_residual_block():
    generator = generator_of("block")
    layer = CHAINS["residual block"]()
    layer.initialise(random_gram(generator, 5, IMAGES, (3, 2)), generator)
    perturb(layer, generator, 0.1)
    assert _check(layer, random_gram(generator, 5, IMAGES, (3, 2)), fast_mode=True)


@pytest.mark.parametrize("covariance", ["shared", "per-output"])
@pytest.mark.parametrize("parameterisation", ["direct", "whitened"])
def test_derivatives_of_the_head(covariance, parameterisation):
    generator = generator_of(f"{covariance} {parameterisation}")
    head = dkm.GPHead(POINTS, 2, covariance=covariance, parameterisation=parameterisation)
    perturb(head, generator)
    gram = random_gram(generator, POINTS, IMAGES, ())
    root = torch.linalg.cholesky(gram.ii)

    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = head

        def forward(self, root, it, tt):
            plan = self.head.plan(root @ root.T)
            marginals = plan.marginals(it, tt)
            return marginals.mean, marginals.variance, plan.kl

    def evaluate(root, it, tt, mean, factor):
        given = {"head.mean": mean, "head.factor": factor}
        return torch.func.functional_call(Whole(), given, (root, it, tt))

    tensors = (root, gram.it, gram.tt, head.mean, head.factor)
    assert torch.autograd.gradcheck(
        evaluate, [t.detach().clone().requires_grad_() for t in tensors]
    )


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (lambda: dkm.PatchInput(2, 3, 2, stride=2), (2, 2, 3, 4)),
        (lambda: dkm.PatchInput(1, 3, 3, border="inside", ndim=1), (2, 1, 4)),
        (lambda: dkm.VectorInput(4, 3), (5, 4)),
        (lambda: dkm.VectorInput(4, 3, learn_scales=True), (5, 4)),
    ],
)
def test_derivatives_of_an_input(build, shape):
    generator = generator_of(str(shape))
    layer, inputs = build(), normal(generator, *shape)
    layer.initialise(inputs, generator)

    names = [name for name, _ in layer.named_parameters()]

    def evaluate(inputs, *values):
        gram = torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (inputs,))
        return gram.ii, gram.it, gram.tt

    tensors = (inputs, *(parameter + 0.1 for parameter in layer.parameters()))
    assert torch.autograd.gradcheck(
        evaluate, [t.detach().clone().requires_grad_() for t in tensors]
    )
