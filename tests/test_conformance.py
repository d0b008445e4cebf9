"""Every kernel and layer goes through ``convdkm.testing``, and what is broken does not get by."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn

import convdkm as dkm
from convdkm.gram import INDUCING_DTYPE
from convdkm.numerics import mix
from convdkm.ops.base import IdentityPlan, LayerKL, Plan
from convdkm.ops.conv import MixPlan
from convdkm.testing import (
    ConformanceError,
    check_kernel,
    check_layer,
    degenerate_gram,
    random_gram,
)

KERNELS = {
    "linear": dkm.Linear(),
    "step": dkm.ArcCosine(0),
    "relu": dkm.ArcCosine(),
    "squared relu": dkm.ArcCosine(2),
    "relu, learned": dkm.ArcCosine(weight_variance=1.3, bias_variance=0.2),
    "relu, fixed": dkm.ArcCosine(weight_variance=1.3, bias_variance=0.2, learn=False),
    "step, learned": dkm.ArcCosine(0, weight_variance=0.7, bias_variance=0.1),
    "erf": dkm.ArcSine(),
    "erf, learned": dkm.ArcSine(weight_variance=1.3, bias_variance=0.2),
    "leaky relu": dkm.LeakyReLU(0.3),
    "absolute value": dkm.LeakyReLU(-1),
    "leaky relu, learned": dkm.LeakyReLU(weight_variance=1.3, bias_variance=0.2),
    "sine": dkm.Sine(),
    "cosine": dkm.Sine(0.7, math.pi / 2),
    "sine, learned": dkm.Sine(1.3, 0.4, weight_variance=1.3, bias_variance=0.2),
    "squared exponential": dkm.SquaredExponential(0.8, scale=1.5, learn=True),
    "matern 1/2": dkm.Matern(0.5, 1.2, learn=True),
    "matern 3/2": dkm.Matern(1.5, learn=True),
    "matern 5/2": dkm.Matern(2.5, scale=2.0),
    "rational quadratic": dkm.RationalQuadratic(0.7, learn=True),
    "normalised gaussian": dkm.NormalisedGaussian(1.5, learn=True),
    "normalised polynomial": dkm.NormalisedPolynomial((1, 2, 1)),
    "sum": dkm.ArcCosine() + dkm.Matern(1.5),
    "product": dkm.ArcCosine() * dkm.SquaredExponential(learn=True),
    "scaled": 0.5 * dkm.ArcCosine(),
    "scaled, learned": dkm.Scaled(dkm.NormalisedGaussian(), 2.0, learn=True),
    "convex": dkm.ConvexCombination(dkm.Linear(), dkm.ArcCosine(), weights=(1, 3)),
    "convex, learned": dkm.ConvexCombination(
        dkm.ArcCosine(2), dkm.SquaredExponential(), learn=True
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_conform(name):
    check_kernel(KERNELS[name])


def residual_block(ndim: int = 2) -> dkm.Layer:
    body = dkm.Sequential(
        {
            "kernel": dkm.ArcCosine(bias_variance=0.1),
            "conv": dkm.Conv(5, 4, 3, stride=2, ndim=ndim),
            "gram": dkm.GramLayer(4),
            "centre": dkm.Centre(),
            "norm": dkm.Norm(),
        }
    )
    shortcut = dkm.Sequential(dkm.Conv(5, 4, 1, stride=2, ndim=ndim), dkm.Norm("local", "local"))
    return dkm.Skip(body, shortcut, weight=0.3, learn=True)


# name: (layer, space of the Grams, options of the check); all take 5 inducing points.
LAYERS = {
    "conv, 1-D": (dkm.Conv(5, 6, 3, ndim=1), (6,), {}),
    "conv, 2-D": (dkm.Conv(5, 6, 3), (4, 3), {}),
    "conv, 3-D": (dkm.Conv(5, 4, 3, ndim=3), (3, 2, 3), {}),
    "conv, even filter": (dkm.Conv(5, 4, (2, 3), padding="same"), (4, 4), {}),
    "conv, strided and dilated": (
        dkm.Conv(5, 4, 3, stride=2, dilation=2, padding=2),
        (6, 5),
        {},
    ),
    "conv, valid": (dkm.Conv(5, 4, 2, padding="valid"), (4, 4), {}),
    "conv, inside": (dkm.Conv(5, 4, 3, border="inside"), (4, 4), {}),
    "conv, one place": (dkm.Conv(5, 3, 1), (2, 2), {}),
    "conv, real patches, 1-D": (dkm.Conv(5, 4, 3, mixing="patches", ndim=1), (6,), {}),
    "conv, real patches, 2-D": (dkm.Conv(5, 4, 3, mixing="patches"), (4, 4), {}),
    "conv from the identity": (dkm.Conv(5, 7, 3, mixing="identity"), (4, 4), {}),
    "conv from the identity, whitened": (
        dkm.Conv(5, 5, 3, mixing="identity", parameterisation="whitened"),
        (4, 4),
        {},
    ),
    "conv, whitened": (dkm.Conv(5, 4, 3, parameterisation="whitened"), (4, 4), {}),
    "mix": (dkm.Mix(5, 3), (2, 3), {}),
    "mix to more points": (dkm.Mix(5, 7), (), {}),
    "mix from the identity": (dkm.Mix(5, 5, identity=True), (3,), {}),
    "gram": (dkm.GramLayer(5), (3, 3), {}),
    "gram, no space": (dkm.GramLayer(5, 0.3), (), {}),
    "gram, whitened": (dkm.GramLayer(5, parameterisation="whitened"), (3, 2), {}),
    "gram, scaled": (dkm.GramLayer(5, initial_scale=50.0, learn_scale=True), (2, 2), {}),
    "gram, whitened, scaled": (
        dkm.GramLayer(5, parameterisation="whitened", initial_scale=0.1, learn_scale=True),
        (2, 2),
        {},
    ),
    "gram, almost nothing but rounding": (dkm.GramLayer(5, initial_scale=1e-12), (2, 2), {}),
    "gram, no regularisation": (dkm.GramLayer(5, 0.0), (2,), {}),
    "gram, NNGP": (dkm.GramLayer(5, math.inf), (2,), {"permutes_inducing": True}),
    "centre": (dkm.Centre(), (3, 3), {}),
    "centre, no space": (dkm.Centre(momentum=1.0), (), {}),
    "centre by the batch": (
        dkm.Centre(statistics="batch"),
        (3, 2),
        {"batch_independent": False, "permutes_inducing": True},
    ),
    "noise": (dkm.Noise(0.1, 0.2), (2, 2), {"permutes_inducing": True}),
    "jitter and noise": (
        dkm.Sequential(dkm.Jitter(dkm.ArcCosine()), dkm.Noise()),
        (2, 2),
        {"permutes_inducing": True},
    ),
    "square Gram": (dkm.GramLayer(5, full=True), (2, 2), {}),
    "pool, 1-D": (dkm.AveragePool(2, ndim=1), (6,), {"permutes_inducing": True}),
    "pool, 2-D": (
        dkm.AveragePool(3, stride=2, padding=1),
        (5, 4),
        {"permutes_inducing": True},
    ),
    "pool, 3-D": (dkm.AveragePool(2, ndim=3), (2, 2, 4), {"permutes_inducing": True}),
    "pool, same": (dkm.AveragePool(2, stride=1, padding="same"), (3, 3), {}),
    "global pool, 1-D": (dkm.GlobalAveragePool(), (5,), {"permutes_inducing": True}),
    "global pool, 2-D": (dkm.GlobalAveragePool(), (3, 3), {"permutes_inducing": True}),
    "global pool, 3-D": (dkm.GlobalAveragePool(), (2, 2, 3), {"permutes_inducing": True}),
    "flatten, 1-D": (dkm.Flatten(), (5,), {"permutes_inducing": True}),
    "flatten, 2-D": (dkm.Flatten(), (3, 3), {"permutes_inducing": True}),
    "flatten with mixing, 2-D": (dkm.Flatten(4), (3, 3), {}),
    "flatten with mixing, 3-D": (dkm.Flatten(4), (2, 3, 2), {}),
    "sequential, empty": (dkm.Sequential(), (2, 2), {"permutes_inducing": True}),
    "sequential of kernels": (
        dkm.Sequential(dkm.ArcCosine(), dkm.Noise(), dkm.SquaredExponential()),
        (2, 2),
        {"permutes_inducing": True},
    ),
    "sequential that folds": (
        dkm.Sequential(
            dkm.Mix(5, 4), dkm.GramLayer(4), dkm.Norm(), dkm.Centre(), dkm.AveragePool(2)
        ),
        (4, 4),
        {},
    ),
    "skip": (
        dkm.Skip(dkm.Sequential(dkm.ArcCosine(), dkm.Conv(5, 5, 3), dkm.GramLayer(5))),
        (3, 3),
        {},
    ),
    "skip, all weight": (dkm.Skip(dkm.ArcCosine(), weight=1.0), (3,), {}),
    "residual block, 1-D": (residual_block(1), (6,), {}),
    "residual block, 2-D": (residual_block(), (4, 4), {}),
    "residual block, 3-D": (residual_block(3), (2, 3, 2), {}),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_conform(name):
    layer, space, options = LAYERS[name]
    check_layer(layer, num_inducing=5, space=space, seeds=(0,), **options)


DATA_NORMS = ("none", "batch", "image", "location", "local")
NORMS = [
    *(
        (inducing, data, "batch", "batch")
        for inducing in ("none", "batch", "local")
        for data in DATA_NORMS
    ),
    *(("batch", data, "none", "none") for data in DATA_NORMS),
    *(("local", data, "local", "location") for data in DATA_NORMS),
]


@pytest.mark.parametrize("options", NORMS, ids="-".join)
def test_every_normalisation_conforms(options):
    free = options[2] != "local"
    norm = dkm.Norm(*options)
    check_layer(norm, num_inducing=4, space=(2, 3), seeds=(0,), permutes_inducing=free)


@pytest.mark.parametrize("space", [(), (4,), (2, 2, 2)], ids=str)
@pytest.mark.parametrize("data", ["image", "location", "local"])
def test_normalisation_conforms_in_any_space(data, space):
    norm = dkm.Norm("local", data, "local", "location")
    check_layer(norm, num_inducing=4, space=space, seeds=(0,))


@pytest.mark.parametrize("data", ["batch", "location"])
def test_normalisation_by_the_batch_must_be_declared(data):
    norm = dkm.Norm("batch", data, statistics="batch")
    check_layer(norm, num_inducing=4, space=(2,), seeds=(0,), batch_independent=False)
    with pytest.raises(ConformanceError, match="'batch_independent': image 0 alone and in the"):
        check_layer(norm, num_inducing=4, space=(2,), seeds=(0,))


def test_no_public_layer_is_left_out():
    tried = [*KERNELS.values(), *(layer for layer, *_ in LAYERS.values()), dkm.Norm()]
    checked = {type(module) for layer in tried for module in layer.modules()}
    values = (getattr(dkm, name) for name in dkm.__all__)
    public = {v for v in values if isinstance(v, type) and issubclass(v, dkm.Layer)}
    abstract = {dkm.Layer, dkm.Kernel, dkm.Angular, dkm.Isotropic}
    assert public - abstract <= checked


# -- what is broken is found -----------------------------------------------------------------------


class AsymmetricKernel(dkm.Kernel):
    def of(self, cross, left, right):
        return cross * (left / right).pow(0.1)

    def variance(self, own):
        return own


class NegativeKernel(dkm.Kernel):
    def of(self, cross, left, right):
        return -cross

    def variance(self, own):
        return -own


class IndefiniteKernel(dkm.Kernel):
    """``cos 2θ``: bounded by its variances, but no kernel in more than two dimensions."""

    def of(self, cross, left, right):
        return 2 * cross.square() / (left * right) - 1

    def variance(self, own):
        return torch.ones_like(own)


class TooLargeKernel(dkm.Kernel):
    """``|x − y|² + G_xy``: grows with the distance."""

    def of(self, cross, left, right):
        return left + right - cross

    def variance(self, own):
        return own


class WrongVarianceKernel(dkm.Kernel):
    def of(self, cross, left, right):
        return cross

    def variance(self, own):
        return 1.1 * own


class AcosKernel(dkm.Kernel):
    """The arc-cosine kernel as autograd would have it: NaN where two points coincide."""

    def of(self, cross, left, right):
        norm = (left * right).sqrt()
        cosine = (cross / norm.clamp(min=1e-12)).clamp(-1, 1)
        angle = torch.acos(cosine)
        return norm * (torch.sin(angle) + (math.pi - angle) * cosine) / math.pi

    def variance(self, own):
        return own


class WrongDerivative(torch.autograd.Function):
    @staticmethod
    def forward(ctx, cross):
        return cross.clone()

    @staticmethod
    def backward(ctx, grad):
        return 1.01 * grad


class WrongDerivativeKernel(dkm.Kernel):
    def of(self, cross, left, right):
        return WrongDerivative.apply(cross)

    def variance(self, own):
        return own


class WrongParameterKernel(dkm.Kernel):
    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros((), dtype=INDUCING_DTYPE))

    def of(self, cross, left, right):
        return self.log_scale.exp().to(cross.dtype) * cross

    def variance(self, own):
        return self.log_scale.detach().exp().to(own.dtype) * own


class PositionalKernel(dkm.Kernel):
    """Treats the first inducing point unlike the others."""

    def of(self, cross, left, right):
        return cross

    def variance(self, own):
        return own

    def plan(self, ii):
        weight = torch.ones(len(ii), dtype=ii.dtype)
        weight[0] = 2
        return PlanOf(ii * torch.outer(weight, weight), lambda it, tt: (mix(weight, it), tt))


BROKEN_KERNELS = [
    (AsymmetricKernel, "symmetric_in_its_arguments", r"k\(x, y\) and k\(y, x\): they differ by"),
    (NegativeKernel, "positive_semidefinite_on_points", r"smallest eigenvalue .* is -"),
    (IndefiniteKernel, "positive_semidefinite_on_points", r"smallest .* \[points in 6 dimensions"),
    (TooLargeKernel, "bounded_by_variances", r"k\(x,x\)·k\(y,y\) − k\(x,y\)² is -"),
    (
        WrongVarianceKernel,
        "variance_is_the_diagonal",
        r"variance\(a\) and of\(a, a, a\): they diff",
    ),
    (
        AcosKernel,
        "finite_at_singular_points",
        r"derivative of of by cross \(equal points.* are NaN",
    ),
    (WrongDerivativeKernel, "derivatives_agree_with_differences", r"by cross.* differ by 0.01,"),
    (WrongParameterKernel, "derivatives_agree_with_differences", r"variance by log_scale.* differ"),
    (PositionalKernel, "permutes_inducing", r"permuted inducing points and permuted output, ii"),
]


@pytest.mark.parametrize(
    ("kind", "requirement", "message"),
    BROKEN_KERNELS,
    ids=[kind.__name__ for kind, *_ in BROKEN_KERNELS],
)
def test_broken_kernels_are_caught(kind, requirement, message):
    divides = kind in (AsymmetricKernel, IndefiniteKernel)
    with pytest.raises(ConformanceError, match=message) as caught:
        check_kernel(kind(), zero_images=not divides)
    assert caught.value.requirement == requirement
    assert caught.value.subject == kind.__name__
    assert f"{kind.__name__} breaks '{requirement}'" in str(caught.value)


class PlanOf(Plan):
    """A plan from a function of the data blocks."""

    def __init__(self, ii, function, kl=None):
        super().__init__(ii, kl)
        self.function = function

    def data(self, it, tt):
        return self.function(it, tt)


class AsymmetricLayer(dkm.Layer):
    def plan(self, ii):
        return PlanOf(ii + 1e-3 * torch.ones_like(ii).triu(1), lambda it, tt: (it, tt))


class NegativeLayer(dkm.Layer):
    def plan(self, ii):
        return PlanOf(-ii, lambda it, tt: (it, tt))


class NegativeVariance(dkm.Layer):
    def plan(self, ii):
        return PlanOf(ii, lambda it, tt: (0 * it, tt - tt.mean()))


class ForgetsVariance(dkm.Layer):
    """Scales features, and forgets those of the images' own variance."""

    def plan(self, ii):
        return PlanOf(4 * ii, lambda it, tt: (4 * it, tt))


class SubtractsTooMuch(dkm.Layer):
    """Obeys Cauchy and Schwarz for each inducing point, but not for all of them together."""

    def plan(self, ii):
        own = ii.diagonal()

        def data(it, tt):
            needed = it.square() / own.to(it.dtype).reshape(-1, *(1,) * (it.ndim - 2))
            return it, needed.amax(1)

        return PlanOf(ii, data)


class WrongPrecision(dkm.Layer):
    def plan(self, ii):
        return PlanOf(ii, lambda it, tt: (it.double(), tt.double()))


class BatchDependent(dkm.Layer):
    def plan(self, ii):
        return PlanOf(ii, lambda it, tt: (it, tt * (1 + len(tt))))


class OrderDependent(dkm.Layer):
    def plan(self, ii):
        def data(it, tt):
            return it, tt * (1 + torch.arange(len(tt)).reshape(-1, *(1,) * (tt.ndim - 1)))

        return PlanOf(ii, data)


class LooksAtData(dkm.Layer):
    """Its inducing block is made of data."""

    def plan(self, ii):
        return PlanOf(ii, lambda it, tt: (it, tt))

    def forward(self, gram):
        return dkm.Gram(gram.ii * (1 + gram.tt.mean().double()), gram.it, gram.tt * 99)


class OverwritesParameter(dkm.Layer):
    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros((), dtype=INDUCING_DTYPE))

    def plan(self, ii):
        with torch.no_grad():
            self.log_scale.fill_(ii.diagonal().mean().log())
        scale = self.log_scale.exp()
        return PlanOf(ii * scale, lambda it, tt: (it * scale.to(it), tt * scale.to(tt)))


class CreatesBuffer(dkm.Layer):
    def plan(self, ii):
        self.register_buffer("seen", ii.detach().clone())
        return PlanOf(ii, lambda it, tt: (it, tt))

    def initialise(self, gram, generator=None):
        return gram


class CountsCalls(dkm.Layer):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def plan(self, ii):
        self.calls += 1
        return PlanOf(ii, lambda it, tt: (it, tt))


class NanGradient(dkm.Layer):
    """Divides every image by its norm, with no thought of an image of zeros."""

    def plan(self, ii):
        def data(it, tt):
            norm = tt.sqrt() + 1e-3
            return it / norm.unsqueeze(1), tt / norm.square()

        return PlanOf(ii, data)


class WrongSplitPlan(MixPlan):
    def split(self):
        return 2 * self.matrix, IdentityPlan(self.ii)


class WrongSplit(dkm.Mix):
    def plan(self, ii):
        return WrongSplitPlan(super().plan(ii).ii, self.weight)


class WrongPremultipliedPlan(MixPlan):
    def premultiplied(self, matrix):
        return self


class WrongPremultiplied(dkm.Mix):
    def plan(self, ii):
        return WrongPremultipliedPlan(super().plan(ii).ii, self.weight)


class ForgetsState(dkm.Layer):
    """Keeps what it learned from data where no state_dict will find it."""

    scale = None

    def initialise(self, gram, generator=None):
        self.scale = float(gram.tt.mean())
        return self(gram)

    def plan(self, ii):
        scale = self.scale or 1.0
        return PlanOf(ii * scale, lambda it, tt: (it * scale, tt * scale))


class FollowsPrecision(dkm.Mix):
    """Lets its parameters be cast, as a plain module does."""

    def _apply(self, fn, recurse=True):
        return nn.Module._apply(self, fn, recurse)

    def plan(self, ii):
        weight = self.weight.double()
        return PlanOf(weight @ ii @ weight.T, lambda it, tt: (mix(weight, it), tt))


class NegativeKL(dkm.Layer):
    def plan(self, ii):
        term = LayerKL(-ii.diagonal().sum(), 1.0)
        return PlanOf(ii, lambda it, tt: (it, tt), {"": term})


class InitialisesElsewhere(dkm.Layer):
    """Returns the Gram that came in, not the one that goes out."""

    def plan(self, ii):
        return PlanOf(2 * ii, lambda it, tt: (2 * it, 2 * tt))

    def initialise(self, gram, generator=None):
        return gram


class RaisesOnZero(dkm.Layer):
    def plan(self, ii):
        def data(it, tt):
            if not bool(tt.all()):
                raise ZeroDivisionError("an image is zero")
            return it, tt

        return PlanOf(ii, data)


BROKEN_LAYERS = [
    (AsymmetricLayer, "symmetric", "G_ii and its transpose: they differ by 0.001, allowed"),
    (NegativeLayer, "positive_semidefinite", "smallest eigenvalue of G_ii is -"),
    (NegativeVariance, "variances_not_negative", "g_tt is -.* at worst, allowed -?0"),
    (ForgetsVariance, "cauchy_schwarz", r"G_ii·g_tt − \|G_it\|² is -"),
    (SubtractsTooMuch, "schur_complement", "g_tt − G_ti G_ii⁻¹ G_it is -"),
    (WrongPrecision, "returns_gram", "data came as torch.float32, left torch.float64"),
    (BatchDependent, "batch_independent", "image 0 alone and in the batch, tt: they differ by"),
    (OrderDependent, "permutes_images", "permuted images, and the permuted output, tt"),
    (LooksAtData, "inducing_block_free_of_data", "layer.gram..ii and plan.ii"),
    (OverwritesParameter, "calling_changes_nothing", "evaluation: calling .* changed log_scale"),
    (CreatesBuffer, "calling_changes_nothing", r"evaluation: calling .* created \['seen'\]"),
    (CountsCalls, "calling_changes_nothing", "evaluation: calling the layer changed calls"),
    (NanGradient, "gradients_finite", "gradient by tt .evaluation, degenerate Gram. are NaN"),
    (WrongSplit, "split_contract", "matrix then rest, it: they differ by"),
    (WrongPremultiplied, "premultiplied_contract", "premultiplied.a matrix.*: the shapes are"),
    (ForgetsState, "survives_copying", "with the state_dict loaded: block ii is not identical"),
    (
        FollowsPrecision,
        "parameters_stay_float64",
        "weight is torch.float32 after .to.torch.float32",
    ),
    (NegativeKL, "kl_not_negative", "the KL term '' is -"),
    (
        InitialisesElsewhere,
        "initialise_returns_output",
        "returned by initialise.*, ii: they differ",
    ),
]


@pytest.mark.parametrize(
    ("kind", "requirement", "message"),
    BROKEN_LAYERS,
    ids=[kind.__name__ for kind, *_ in BROKEN_LAYERS],
)
def test_broken_layers_are_caught(kind, requirement, message):
    layer = kind(5, 5) if issubclass(kind, dkm.Mix) else kind()
    with pytest.raises(ConformanceError, match=message) as caught:
        check_layer(layer, num_inducing=5, space=(3, 3))
    assert caught.value.requirement == requirement
    assert caught.value.subject == kind.__name__
    assert "seed 0" in caught.value.case


def test_an_exception_inside_a_check_is_reported_with_its_cause():
    with pytest.raises(ConformanceError, match="raised ZeroDivisionError: an image is zero") as e:
        check_layer(RaisesOnZero(), num_inducing=3, space=(2,))
    assert e.value.requirement == "returns_gram"
    assert isinstance(e.value.__cause__, ZeroDivisionError)
    check_layer(RaisesOnZero(), num_inducing=3, space=(2,), zero_images=False)


def test_a_layer_that_cannot_be_initialised_is_reported():
    with pytest.raises(ConformanceError, match=r"'initialise': raised GramError: .* 4 inducing"):
        check_layer(dkm.GramLayer(4), num_inducing=5)


def test_classes_inside_functions_cannot_be_pickled_and_may_say_so():
    class Inside(dkm.Linear):
        pass

    with pytest.raises(ConformanceError, match="survives_pickling"):
        check_kernel(Inside())
    check_kernel(Inside(), picklable=False)


def test_only_layers_and_kernels_are_checked():
    with pytest.raises(ConformanceError, match="Linear breaks 'is_a_layer'"):
        check_layer(nn.Linear(2, 2), num_inducing=2)
    with pytest.raises(ConformanceError, match="Noise breaks 'is_a_kernel'"):
        check_kernel(dkm.Noise())


def test_the_checked_layer_stays_as_it_was():
    layer = residual_block()
    before = copy.deepcopy(layer.state_dict())
    check_layer(layer, num_inducing=5, space=(4, 4), seeds=(0,))
    after = layer.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert layer.training
    with pytest.raises(dkm.NotInitialisedError):
        layer(random_gram(5, (4, 4)))


def test_a_conformance_error_is_an_assertion_that_crosses_processes():
    error = ConformanceError("Mine", "symmetric", "they differ by 1", "float32, seed 0")
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, AssertionError)
    assert str(again) == "Mine breaks 'symmetric': they differ by 1 [float32, seed 0]"
    assert again.requirement == "symmetric"


def test_example_grams_are_what_they_say():
    gram = random_gram(4, (3, 2), num_images=7, dtype=torch.float32, seed=3)
    assert (gram.num_inducing, len(gram), gram.space) == (4, 7, (3, 2))
    assert gram.dtype == torch.float32
    assert torch.equal(gram.it, random_gram(4, (3, 2), num_images=7, seed=3).it.float())
    assert not torch.equal(gram.it, random_gram(4, (3, 2), num_images=7, seed=4).it.float())
    extreme = degenerate_gram(4, (3,))
    assert not extreme.it[0].any()
    assert not extreme.tt[0].any()
    assert torch.equal(extreme.it[1], extreme.it[2])
    assert torch.equal(extreme.it[3], -extreme.it[4])
    for place, point in enumerate((3, 2, 1)):
        assert torch.equal(extreme.it[3, :, place], extreme.ii[:, point])
        assert extreme.tt[4, place] == extreme.ii[point, point]
    assert torch.equal(degenerate_gram(4).it[3], degenerate_gram(4).ii[:, 3])
    assert degenerate_gram(4, (3,), zero=False).tt.min() > 0
