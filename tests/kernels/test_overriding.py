"""Faster ways are taken only where a class derived from the library's has changed nothing."""

import types

import pytest
import torch

import convdkm as dkm
from convdkm.testing import random_gram
from oracle.cases import perturb

KINDS = {
    "arc-cosine": (dkm.ArcCosine, {"weight_variance": 0.8, "bias_variance": 0.1}),
    "gaussian": (dkm.NormalisedGaussian, {"gamma": 0.7}),
    "polynomial": (dkm.NormalisedPolynomial, {}),
}


class Plain(dkm.Kernel):
    """A kernel that has no faster way: that of another, or what the functions below make of it."""

    def __init__(self, kernel, changed):
        super().__init__()
        self.kernel, self.changed = kernel, changed

    def of(self, cross, left, right):
        value = self.kernel.of(cross, left, right)
        return value / 3 if "of" in self.changed else value

    def variance(self, own):
        value = self.kernel.variance(own)
        return 1.5 * value if "variance" in self.changed else value


def of(self, cross, left, right):
    return KINDS_OF[self.kind].of(self, cross, left, right) / 3


def variance(self, own):
    return 1.5 * KINDS_OF[self.kind].variance(self, own)


KINDS_OF = {name: kind for name, (kind, _) in KINDS.items()}
CHANGES = {"of": of, "variance": variance}


def derived(name, changed):
    """A kernel of a class derived from one of the library's."""
    kind, options = KINDS[name]
    own = {each: CHANGES[each] for each in changed}
    return type("Derived", (kind,), {"kind": name, **own})(**options)


def altered(name, changed):
    """One of the library's own, with other functions of its own."""
    kind, options = KINDS[name]
    kernel = kind(**options)
    kernel.kind = name
    for each in changed:
        setattr(kernel, each, types.MethodType(CHANGES[each], kernel))
    return kernel


@pytest.fixture(
    params=[(name, made) for name in KINDS for made in (derived, altered)],
    ids=lambda param: f"{param[0]} {param[1].__name__}",
)
def both(request):
    """A changed kernel, and one that does the same without a faster way; by what is changed."""
    name, make = request.param
    kind, options = KINDS[name]
    return lambda *changed: (make(name, changed), Plain(kind(**options), changed))


def machine(kernel):
    body = dkm.Sequential(
        dkm.GramLayer(5),
        kernel,
        dkm.Noise(0.1, 0.2),
        dkm.Conv(5, 6, 3),
        dkm.GramLayer(6),
        dkm.Norm(),
        dkm.GlobalAveragePool(),
    )
    model = dkm.DeepKernelMachine(
        dkm.PatchInput(2, 5), body, dkm.GPHead(6, 3), dkm.Categorical(3), dtype=torch.float64
    )
    model.initialise(torch.randn(12, 2, 6, 5, generator=torch.Generator().manual_seed(1)), seed=0)
    perturb(model, torch.Generator().manual_seed(2), 0.1)
    return model


CHANGED = [("of",), ("variance",), ("of", "variance")]


@pytest.mark.parametrize("changed", CHANGED, ids="+".join)
def test_a_changed_kernel_is_used_everywhere(both, changed):
    """In the inducing block, before noise and a convolution, and in gradients."""
    images = torch.randn(9, 2, 6, 5).double()
    found = []
    for kernel in both(*changed):
        model = machine(kernel)
        objective = model.objective(images, torch.arange(9) % 3, num_data=9)
        objective.total.backward()
        gram = model.eval().gram(images)
        gradient = model.input.inducing.grad
        found.append((gram.ii, gram.it, gram.tt, objective.total, gradient))
    for mine, expected in zip(*found, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("changed", CHANGED, ids="+".join)
def test_a_changed_kernel_is_not_folded_as_what_it_came_from(both, changed):
    images = torch.randn(9, 2, 6, 5).double()
    mine, _ = both(*changed)
    model = machine(mine)
    predictor = model.folded()
    torch.testing.assert_close(
        predictor.predict(images).mean, model.predict(images).mean, rtol=1e-9, atol=1e-12
    )
    if type(mine).__name__ == "Derived":
        predictor.require_exportable()
    else:  # functions that were set by hand are in no file
        with pytest.raises(dkm.InvalidInputError, match=f"attribute '{changed[0]}'"):
            predictor.require_exportable()


def objective_and_gradient(kernel):
    model, images = machine(kernel), torch.randn(9, 2, 6, 5, dtype=torch.float64)
    total = model.objective(images, torch.arange(9) % 3, num_data=9).total
    total.backward()
    return total, model.input.inducing.grad


@pytest.mark.parametrize("kind", [dkm.ArcCosine, dkm.NormalisedGaussian, dkm.LeakyReLU])
def test_a_changed_function_of_the_cosine_is_used_everywhere(kind):
    """Also where a faster form of the one that was there before would be at hand."""

    def of_cosine(_, cosine):
        return (cosine + cosine.square()) / 2

    def slope(_, cosine):
        return 0.5 + cosine

    def with_slope(self, cosine):
        return self.of_cosine(cosine), self.slope(cosine)

    changes = {"of_cosine": of_cosine, "slope": slope, "with_slope": with_slope}
    torch.manual_seed(0)
    found = objective_and_gradient(type("Derived", (kind,), changes)())
    torch.manual_seed(0)
    expected = objective_and_gradient(dkm.NormalisedPolynomial((1, 1)))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


class Doubled(dkm.ArcCosine):
    """Twice the kernel, by functions of three numbers."""

    def core(self, *blocks):
        return 2 * super().core(*blocks)

    def partials(self, *blocks):
        found = super().partials(*blocks)
        return type(found)(*(2 * each for each in found))

    def variance(self, own):
        return 2 * super().variance(own)


def test_a_changed_core_and_its_derivatives_are_used_everywhere():
    torch.manual_seed(0)
    found = objective_and_gradient(Doubled())
    torch.manual_seed(0)
    expected = objective_and_gradient(dkm.ArcCosine(weight_variance=2.0, learn=False))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


class Halved(dkm.Norm):
    """Divides the pixels by twice as much."""

    def data_factor(self, tt):
        return super().data_factor(tt) / 2


def test_a_changed_normalisation_is_used_after_a_gram_layer_and_a_convolution():
    gram = random_gram(5, (6, 5))
    for before in (dkm.GramLayer(5), dkm.Conv(5, 6, 3)):
        before.initialise(gram)
        norm = Halved()
        norm.initialise(before(gram))
        apart, together = norm(before(gram)), dkm.Sequential(before, norm)(gram)
        torch.testing.assert_close(together.tt, apart.tt)
        torch.testing.assert_close(together.it, apart.it)
