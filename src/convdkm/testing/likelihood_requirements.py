"""What every likelihood must fulfil: one function for each requirement.

The probability of targets given the functions needs no method of its own: it is the expectation
under marginals without variance. So expectations and predictions can be compared with means over
random values of the functions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from convdkm.errors import ConvDKMError
from convdkm.head import Marginals
from convdkm.likelihoods import Likelihood
from convdkm.prediction import ClassPrediction, Prediction
from convdkm.testing.outcome import (
    EQUAL,
    gradient,
    require,
    require_close,
    require_derivative,
    require_finite,
    require_not_negative,
)
from convdkm.testing.state_requirements import (
    STATE_REQUIREMENTS,
    Case,
    calling_changes_nothing,
)

DERIVATIVE = 1e-4
"""Allowed error of a derivative, which may be an integral of its own, relative to the largest."""

PAIRS, REPEATS, ERRORS = 256, 16, 6
"""Pairs of opposite samples; calls of a likelihood that samples; standard errors allowed."""

UNSURE = 0.2
"""Relative error of a mean of probabilities, above which few of its samples make it: no measure."""


@dataclass
class LikelihoodCase(Case):
    """A likelihood with something to try it on.

    Attributes:
        mean, variance: of the marginals of the functions.
        given: valid targets as a user gives them, one for every row of the marginals.
        invalid: targets that are to be refused.
        approximation: error that expectations and predictions may have, in nats.
    """

    noun = "likelihood"
    fresh: Likelihood
    tried: Likelihood
    mean: Tensor
    variance: Tensor
    given: Tensor
    invalid: Sequence[Tensor]
    approximation: float

    @property
    def tolerance(self) -> float:
        return EQUAL[self.mean.dtype]

    @property
    def marginals(self) -> Marginals:
        return Marginals(self.mean, self.variance)

    @property
    def targets(self) -> Tensor:
        """The targets in their canonical form."""
        return self.tried.check_targets(self.given, len(self.given))

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """Whoever samples gets the same random numbers every time."""
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(self.seed)
            yield

    def expectation(self, targets: Tensor | None = None) -> Tensor:
        """The expected log-likelihood."""
        targets = self.targets if targets is None else targets
        with self.seeded():
            return self.tried.expected_log_prob(self.marginals, targets)

    def prediction(self) -> Prediction:
        """The predictive distribution."""
        with self.seeded():
            return self.tried.predict(self.marginals)

    def scores(self) -> dict[str, Tensor]:
        """What the targets get, in training and in prediction, ``(N,)`` each."""
        predicted = self.prediction().log_prob(self.given)
        return {"expectations": self.expectation(), "predictions": predicted}

    def repeated(self, value: Callable[[LikelihoodCase], Tensor]) -> Tensor:
        """A value by as many seeds as a likelihood that samples is tried with."""
        cases = (replace(self, seed=self.seed + repeat) for repeat in range(REPEATS))
        return torch.stack([value(case).detach() for case in cases])

    def results(self, module: Likelihood) -> dict[str, Tensor]:
        """The expectation, and every tensor of the prediction."""
        case = replace(self, tried=module)
        prediction = case.prediction()
        parts = {field.name: getattr(prediction, field.name) for field in fields(prediction)}
        tensors = {f"prediction.{name}": part for name, part in parts.items() if part is not None}
        return {"the expectation": case.expectation(), **tensors}

    def samples(self, targets: Tensor) -> Tensor:
        """log P(y|f) at pairs of random functions that mirror each other, ``(2, PAIRS, N)``."""
        generator = torch.Generator().manual_seed(self.seed)
        shape = PAIRS, *self.mean.shape
        noise = torch.randn(shape, generator=generator, dtype=self.mean.dtype)
        deviations = self.variance.sqrt() * torch.stack([noise, -noise])
        functions = (self.mean + deviations).flatten(0, 2)
        certain = replace(self, mean=functions, variance=torch.zeros_like(functions[:, :1]))
        repeated = targets.repeat(2 * PAIRS, *(1,) * (targets.ndim - 1))
        return certain.expectation(repeated).detach().reshape(2, PAIRS, -1)

    def candidates(self) -> list[Tensor]:
        """The targets; those of classes as all the first class, all the second class, ..."""
        prediction = self.prediction()
        if not isinstance(prediction, ClassPrediction):
            return [self.given]
        return [torch.full_like(self.given, c) for c in range(prediction.log_probs.shape[1])]


def mean_and_error(values: Tensor) -> tuple[Tensor, Tensor]:
    """Of repeated values, ``(repeats, N)``: their mean, and its standard error."""
    return values.mean(0), values.std(0) / len(values) ** 0.5


def require_within(actual: Tensor, expected: Tensor, allowed: Tensor, what: str) -> None:
    """Raise if two tensors differ by more than ``allowed`` anywhere."""
    beyond = (actual - expected).abs() - allowed
    worst = int(beyond.argmax())
    here, there, most = (float(each.flatten()[worst]) for each in (actual, expected, allowed))
    detail = f"{what}: they are {here:.6g} and {there:.6g}, allowed difference {most:.3g}"
    require(bool(beyond.flatten()[worst] <= 0), detail)


# -- targets -----------------------------------------------------------------------------------


def checks_targets(case: LikelihoodCase) -> None:
    """``check_targets`` returns one row for every target."""
    require(isinstance(case.targets, Tensor), "check_targets returns no tensor")
    count, rows = len(case.given), len(case.targets)
    require(rows == count, f"check_targets makes {rows} rows of {count} targets")


def refuses_targets(case: LikelihoodCase) -> None:
    """Targets that are too few, and those said to be invalid, raise one of convdkm's errors."""
    count = len(case.given)
    wrong = [("one target too few", case.given[1:])]
    wrong += [(f"invalid[{index}]", targets) for index, targets in enumerate(case.invalid)]
    for what, targets in wrong:
        try:
            case.tried.check_targets(targets, count)
        except ConvDKMError:
            continue
        require(False, f"check_targets accepts {what}")


# -- values ------------------------------------------------------------------------------------


def returns_expectations(case: LikelihoodCase) -> None:
    """``expected_log_prob`` is one finite number for every target, in the dtype of the marginals.

    Also where there is no variance, or much, and where means are far from zero.
    """
    for what, extreme in _extremes(case):
        value, count = extreme.expectation(), len(case.given)
        require(value.shape == (count,), f"{what}: shape {tuple(value.shape)}, not ({count},)")
        require(
            value.dtype == case.mean.dtype,
            f"{what}: {case.mean.dtype} came in, {value.dtype} came out",
        )
        require_finite(value, f"expected_log_prob ({what})")


def returns_prediction(case: LikelihoodCase) -> None:
    """``predict`` gives a Prediction with mean and variance of the functions, and ``log_prob``."""
    for what, extreme in _extremes(case):
        marginals, prediction = extreme.marginals, extreme.prediction()
        kind = type(prediction).__name__
        require(isinstance(prediction, Prediction), f"it gives a {kind}, not a Prediction")
        for name in ("mean", "variance"):
            expected = getattr(marginals, name).expand_as(marginals.mean)
            actual = getattr(prediction, name).expand_as(marginals.mean)
            both = f"{what}: prediction.{name} and marginals.{name}"
            require_close(actual, expected, case.tolerance, both)
        value = prediction.log_prob(case.given)
        require(value.shape == (len(case.given),), f"{what}: log_prob has {tuple(value.shape)}")
        require_finite(value, f"prediction.log_prob ({what})")


def normalised(case: LikelihoodCase) -> None:
    """Probabilities of classes are not negative, and their sum is 1."""
    prediction = case.prediction()
    if isinstance(prediction, ClassPrediction):
        total = prediction.probs.sum(1)
        what = "the sum of the probabilities of all classes, and 1"
        require_close(total, torch.ones_like(total), case.tolerance, what)
        require_not_negative(prediction.probs.detach(), 0.0, "the probability of a class")


def expectation_is_the_mean(case: LikelihoodCase) -> None:
    """``expected_log_prob`` is the mean of log P(y|f) over random functions f."""
    expected, error = mean_and_error(case.samples(case.targets).mean(0))
    actual, noise = mean_and_error(case.repeated(LikelihoodCase.expectation))
    allowed = case.approximation + ERRORS * (error.square() + noise.square()).sqrt()
    what = "expected_log_prob, and the mean of log P(y|f) over samples of f"
    require_within(actual, expected, allowed + case.tolerance * expected.abs(), what)


def prediction_is_the_mean(case: LikelihoodCase) -> None:
    """The predictive distribution is the mean of P(y|f) over random functions f.

    That of classes is then divided by its sum over them, which is 1 unless P(y|f) is the density
    of something else, such as a code.
    """
    candidates, logs, errors = case.candidates(), [], []
    for given in candidates:
        samples = case.samples(case.tried.check_targets(given, len(given)))
        top = samples.amax((0, 1))
        mean, error = mean_and_error((samples - top).exp().mean(0))
        logs.append(mean.log() + top)
        errors.append(error / mean)
    expected, error = torch.stack(logs), torch.stack(errors)
    if len(candidates) > 1:
        expected, error = expected.log_softmax(0), error + error.amax(0)

    def log_probs(case: LikelihoodCase) -> Tensor:
        return torch.stack([*map(case.prediction().log_prob, candidates)])

    calls = case.repeated(log_probs)
    actual, noise = mean_and_error(calls)
    # Random predictions of few samples are off in their logarithm: by half their squared error.
    allowed = case.approximation + calls.var(0) + ERRORS * (error.square() + noise.square()).sqrt()
    allowed = allowed.masked_fill(error > UNSURE, torch.inf)
    what = "prediction.log_prob, and the logarithm of the mean of P(y|f) over samples of f"
    require_within(actual, expected, allowed + case.tolerance * expected.abs(), what)


# -- what the values may depend on -------------------------------------------------------------


def batch_independent(case: LikelihoodCase) -> None:
    """An image alone, or among others in another order, gives what it gives in the batch."""
    count, expected = len(case.given), case.scores()
    orders = [("alone", torch.tensor([index])) for index in range(count)]
    for what, rows in [*orders, ("in another order", torch.arange(count).roll(1))]:
        mean, variance, given = (part[rows] for part in (case.mean, case.variance, case.given))
        part = replace(case, mean=mean, variance=variance, given=given)
        for name, value in part.scores().items():
            require_close(value, expected[name][rows], case.tolerance, f"{name} of images {what}")


def permutes_outputs(case: LikelihoodCase) -> None:
    """Outputs in another order, and targets likewise, give the same."""
    order = torch.arange(case.tried.num_outputs).roll(1)
    variance = case.variance if case.variance.shape[1] == 1 else case.variance[:, order]
    given = case.given[:, order] if case.given.ndim > 1 else order.argsort()[case.given.long()]
    moved = replace(case, mean=case.mean[:, order], variance=variance, given=given)
    expected = case.scores()
    for name, value in moved.scores().items():
        require_close(value, expected[name], case.tolerance, f"{name} of permuted outputs")


def single_precision_follows(case: LikelihoodCase) -> None:
    """In float32 expectations and predictions are, to rounding, those of float64."""
    single, double = (
        replace(case, mean=case.mean.to(dtype), variance=case.variance.to(dtype)).scores()
        for dtype in (torch.float32, torch.float64)
    )
    for name, value in single.items():
        what = f"{name} in float32 and float64"
        require_close(value.double(), double[name], EQUAL[torch.float32], what, least_scale=1.0)


def follows_its_device(case: LikelihoodCase) -> None:
    """Moved to another device, with its data, it works there: tried on ``meta``, without numbers.

    So every tensor that it keeps is a parameter or a buffer, and no value is looked at.
    """
    moved = copy.deepcopy(case.tried).to("meta")
    marginals = Marginals(case.mean.to("meta"), case.variance.to("meta"))
    expectation = moved.expected_log_prob(marginals, case.targets.to("meta"))
    require(expectation.is_meta, f"expected_log_prob is on {expectation.device}, not on meta")
    mean = moved.predict(marginals).mean
    require(mean.is_meta, f"the prediction is on {mean.device}, not on meta")


# -- derivatives -------------------------------------------------------------------------------


def derivatives_agree_with_differences(case: LikelihoodCase) -> None:
    """Derivatives by mean, variance and every parameter are those of finite differences."""
    tracked, sources = _tracked(case, torch.float64)
    for name, source in sources.items():
        what = f"expected_log_prob by {name}"
        require_derivative(tracked.expectation, source, DERIVATIVE, what)


def gradients_finite(case: LikelihoodCase) -> None:
    """They are finite, also where there is no variance, or much, or means are far from zero."""
    for what, extreme in _extremes(case):
        tracked, sources = _tracked(extreme, case.mean.dtype)
        for name, source in sources.items():
            found = gradient(tracked.expectation(), source)
            require_finite(found, f"the gradient by {name} ({what})")


def _tracked(case: LikelihoodCase, dtype: torch.dtype) -> tuple[LikelihoodCase, dict[str, Tensor]]:
    """The case with leaves of autograd for marginals, and all that it has derivatives by."""
    mean, variance = (
        part.to(dtype, copy=True).requires_grad_() for part in (case.mean, case.variance)
    )
    sources = {"mean": mean, "variance": variance, **dict(case.tried.named_parameters())}
    return replace(case, mean=mean, variance=variance), sources


def _extremes(case: LikelihoodCase) -> Iterator[tuple[str, LikelihoodCase]]:
    """The case, and some whose marginals are extreme."""
    yield "random marginals", case
    yield "no variance", replace(case, variance=torch.zeros_like(case.variance))
    yield "100 times the variance", replace(case, variance=100 * case.variance)
    yield "20 times the mean", replace(case, mean=20 * case.mean)


LIKELIHOOD_REQUIREMENTS: tuple[Callable[[LikelihoodCase], None], ...] = (
    checks_targets,
    refuses_targets,
    calling_changes_nothing,
    returns_expectations,
    returns_prediction,
    normalised,
    batch_independent,
    permutes_outputs,
    expectation_is_the_mean,
    prediction_is_the_mean,
    single_precision_follows,
    follows_its_device,
    gradients_finite,
    derivatives_agree_with_differences,
    *STATE_REQUIREMENTS,
)
