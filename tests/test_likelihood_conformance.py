"""Every likelihood goes through ``convdkm.testing``, and what is broken does not get by."""

import pytest
import torch
from torch import nn

import convdkm as dkm
from convdkm.gram import INDUCING_DTYPE
from convdkm.testing import ConformanceError, check_likelihood

LABELS = torch.arange(6) % 4
REAL = torch.linspace(-2, 2, 18).reshape(6, 3)
BAD_LABELS = (LABELS - 1, LABELS + 1, LABELS.double(), LABELS.reshape(2, 3))
BAD_REAL = (REAL / 0, REAL.long(), REAL.T, REAL[:, :2])
SAMPLES = {"expectation": "monte-carlo", "samples": 50}

# name: (likelihood, targets, options of the check)
LIKELIHOODS = {
    "classes": (dkm.Categorical(4), LABELS, {"invalid": BAD_LABELS, "permutes_outputs": True}),
    "two classes, more nodes": (dkm.Categorical(2, samples=100), LABELS % 2, {}),
    "classes, sampled": (
        dkm.Categorical(4, **SAMPLES),
        LABELS,
        {"invalid": BAD_LABELS, "random": True},
    ),
    "real": (
        dkm.Gaussian(3, noise=0.4),
        REAL,
        {"invalid": BAD_REAL, "permutes_outputs": True, "approximation": 0.0},
    ),
    "real, one output": (dkm.Gaussian(1), REAL[:, 0], {}),
    "real, known noise": (dkm.Gaussian(3, noise=0.1, learn_noise=False), REAL, {}),
    "real, sampled": (dkm.Gaussian(3, **SAMPLES), REAL, {"random": True}),
    "one-hot": (
        dkm.Gaussian(4, noise=0.4, classes=True),
        LABELS,
        {"invalid": BAD_LABELS, "permutes_outputs": True},
    ),
    "one-hot, sampled": (dkm.Gaussian(4, classes=True, **SAMPLES), LABELS, {"random": True}),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_likelihoods_conform(name):
    likelihood, targets, options = LIKELIHOODS[name]
    check_likelihood(likelihood, targets, seeds=(0,), **options)


def test_no_public_likelihood_is_left_out():
    public = {value for value in map(dkm.__dict__.get, dkm.__all__) if isinstance(value, type)}
    likelihoods = {kind for kind in public if issubclass(kind, dkm.Likelihood)}
    assert likelihoods - {dkm.Likelihood} == {type(tried) for tried, *_ in LIKELIHOODS.values()}


# -- what is broken is found -----------------------------------------------------------------------


class Toy(dkm.Gaussian):
    """Correct; what is derived from it is not."""

    def __init__(self):
        super().__init__(3, noise=0.5)


class DropsTargets(Toy):
    def check_targets(self, targets, count):
        return super().check_targets(targets, count)[1:]


class TakesAnything(Toy):
    def check_targets(self, targets, count):
        return targets


class TakesInfinity(Toy):
    def check_targets(self, targets, count):
        return super().check_targets(targets.nan_to_num(), count)


class CountsCalls(Toy):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def predict(self, marginals):
        self.calls += 1
        return super().predict(marginals)


class SumsUp(Toy):
    def expected_log_prob(self, marginals, targets):
        return super().expected_log_prob(marginals, targets).sum()


class WrongPrecision(Toy):
    def expected_log_prob(self, marginals, targets):
        return super().expected_log_prob(marginals, targets).double()


class PredictsNothing(Toy):
    def predict(self, marginals):
        return marginals


class MovesMeans(Toy):
    def predict(self, marginals):
        return super().predict(dkm.Marginals(marginals.mean + 1, marginals.variance))


class LooksAtTheBatch(Toy):
    def expected_log_prob(self, marginals, targets):
        centred = marginals.mean - marginals.mean.mean(0)
        return super().expected_log_prob(dkm.Marginals(centred, marginals.variance), targets)


class PredictsInOrder(Toy):
    def predict(self, marginals):
        prediction = super().predict(marginals)
        rank = 1 + 0.1 * torch.arange(len(marginals.mean))[:, None]
        return dkm.RealPrediction(
            prediction.mean, prediction.variance, prediction.target_variance * rank
        )


class FavoursTheFirst(Toy):
    def expected_log_prob(self, marginals, targets):
        weight = torch.tensor([2.0, 1.0, 1.0], dtype=marginals.mean.dtype)
        errors = (targets.to(weight) - marginals.mean).square() + marginals.variance
        return -(weight * errors).sum(1)


class ForgetsVariance(Toy):
    def expected_log_prob(self, marginals, targets):
        certain = dkm.Marginals(marginals.mean, 0 * marginals.variance)
        return super().expected_log_prob(certain, targets)


class TooSure(Toy):
    """Predicts as though the functions were known."""

    def predict(self, marginals):
        prediction = super().predict(marginals)
        noise = self.noise.to(prediction.mean.dtype).expand_as(prediction.mean)
        return dkm.RealPrediction(prediction.mean, prediction.variance, noise)


class Rounds(Toy):
    def expected_log_prob(self, marginals, targets):
        if marginals.mean.dtype == torch.float64:
            return super().expected_log_prob(marginals, targets)
        rough = dkm.Marginals(marginals.mean.half(), marginals.variance.half())
        return super().expected_log_prob(rough, targets).float()


class KeepsTensor(Toy):
    """Keeps a tensor that nobody moves."""

    def __init__(self):
        super().__init__()
        self.weight = torch.ones(3, dtype=torch.float64)

    def expected_log_prob(self, marginals, targets):
        weighted = dkm.Marginals(marginals.mean * self.weight.to(targets.dtype), marginals.variance)
        return super().expected_log_prob(weighted, targets)


class InfiniteSlope(Toy):
    def expected_log_prob(self, marginals, targets):
        variance = marginals.variance.sqrt().square()
        return super().expected_log_prob(dkm.Marginals(marginals.mean, variance), targets)


class WrongDerivative(Toy):
    def expected_log_prob(self, marginals, targets):
        mean = marginals.mean + 0.01 * (marginals.mean - marginals.mean.detach())
        return super().expected_log_prob(dkm.Marginals(mean, marginals.variance), targets)


class ForgetsNoise(Toy):
    """Its gradient by the noise is lost."""

    @property
    def noise(self):
        return self.log_noise.detach().exp()


class HidesState(Toy):
    def _save_to_state_dict(self, destination, prefix, keep_vars):
        pass


class HoldsFunction(Toy):
    def __init__(self):
        super().__init__()
        self.function = lambda value: value


class FollowsPrecision(Toy):
    def _apply(self, fn, recurse=True):
        return nn.Module._apply(self, fn, recurse)


class Improper(dkm.Categorical):
    def __init__(self):
        super().__init__(3)

    def predict(self, marginals):
        prediction = super().predict(marginals)
        return dkm.ClassPrediction(
            prediction.mean, prediction.variance, prediction.log_probs + 0.1, None
        )


class PlugsIn(Improper):
    """The softmax of the mean."""

    def predict(self, marginals):
        log_probs = marginals.mean.log_softmax(1)
        return dkm.ClassPrediction(marginals.mean, marginals.variance, log_probs, None)


BROKEN = [
    (DropsTargets, "checks_targets", "makes 5 rows of 6 targets"),
    (TakesAnything, "refuses_targets", "accepts one target too few"),
    (TakesInfinity, "refuses_targets", r"accepts invalid\[0\]"),
    (CountsCalls, "calling_changes_nothing", "evaluation: calling the likelihood changed calls"),
    (SumsUp, "returns_expectations", r"random marginals: shape \(\), not \(6,\)"),
    (WrongPrecision, "returns_expectations", "torch.float32 came in, torch.float64 came out"),
    (PredictsNothing, "returns_prediction", "gives a Marginals, not a Prediction"),
    (MovesMeans, "returns_prediction", "prediction.mean and marginals.mean: they differ by 1"),
    (Improper, "normalised", "probabilities of all classes, and 1: they differ by 0.1"),
    (LooksAtTheBatch, "batch_independent", "expectations of images alone: they differ by"),
    (PredictsInOrder, "batch_independent", "predictions of images alone: they differ by"),
    (FavoursTheFirst, "permutes_outputs", "expectations of permuted outputs: they differ by"),
    (ForgetsVariance, "expectation_is_the_mean", r"and the mean of log P\(y\|f\).*: they are -"),
    (TooSure, "prediction_is_the_mean", r"of the mean of P\(y\|f\) over samples of f: they are -"),
    (PlugsIn, "prediction_is_the_mean", r"of the mean of P\(y\|f\) over samples of f: they are -"),
    (Rounds, "single_precision_follows", "expectations in float32 and float64: they differ by"),
    (KeepsTensor, "follows_its_device", "raised RuntimeError: .*device"),
    (InfiniteSlope, "gradients_finite", r"gradient by variance \(no variance\) are NaN"),
    (WrongDerivative, "derivatives_agree_with_differences", "expected_log_prob by mean, and fini"),
    (ForgetsNoise, "derivatives_agree_with_differences", "expected_log_prob by log_noise, and"),
    (HidesState, "survives_copying", "raised RuntimeError: .*Missing key.*log_noise"),
    (HoldsFunction, "survives_pickling", "raised .*: .*lambda"),
    (FollowsPrecision, "parameters_stay_float64", "log_noise is torch.float32 after"),
]


@pytest.mark.parametrize(
    ("kind", "requirement", "message"), BROKEN, ids=[kind.__name__ for kind, *_ in BROKEN]
)
def test_broken_likelihoods_are_caught(kind, requirement, message):
    classes = issubclass(kind, dkm.Categorical)
    targets, invalid = (LABELS % 3, ()) if classes else (REAL, BAD_REAL[:1])
    with pytest.raises(ConformanceError) as caught:
        check_likelihood(kind(), targets, invalid=invalid, permutes_outputs=True)
    assert caught.value.requirement == requirement
    assert caught.value.subject == kind.__name__
    assert "seed 0" in caught.value.case
    caught.match(f"(?s){message}")


def test_every_requirement_is_broken_by_something():
    from convdkm.testing.likelihood_requirements import LIKELIHOOD_REQUIREMENTS

    assert {check.__name__ for check in LIKELIHOOD_REQUIREMENTS} == {name for _, name, _ in BROKEN}


def test_the_toy_itself_conforms():
    check_likelihood(Toy(), REAL, invalid=BAD_REAL, seeds=(0,), permutes_outputs=True)


def test_only_likelihoods_are_checked():
    with pytest.raises(ConformanceError, match="Linear breaks 'is_a_likelihood'"):
        check_likelihood(nn.Linear(2, 2), LABELS)


def test_the_checked_likelihood_stays_as_it_was():
    likelihood = dkm.Gaussian(3, noise=0.4)
    check_likelihood(likelihood, REAL, seeds=(0,))
    assert likelihood.training
    assert likelihood.noise.item() == pytest.approx(0.4)
    assert likelihood.log_noise.grad is None
    assert likelihood.log_noise.dtype == INDUCING_DTYPE
