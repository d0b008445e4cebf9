"""Exact regression against SciPy and the conditional of a joint Gaussian."""

import pytest
import torch
from scipy.stats import multivariate_normal

import convdkm as dkm
from convdkm.exact import ExactKernel, GPRegression


def problem(points=6, new=4, outputs=2):
    x = torch.randn(points + new, 3, dtype=torch.float64)
    joint = ExactKernel(dkm.SquaredExponential())(x)
    return joint, torch.randn(points, outputs, dtype=torch.float64), points


def test_log_marginal_likelihood_equals_scipy():
    joint, y, points = problem()
    covariance = joint[:points, :points] + 0.3 * torch.eye(points, dtype=torch.float64)
    normal = multivariate_normal(None, covariance.numpy())
    regression = GPRegression(joint[:points, :points], y, 0.3)
    expected = sum(normal.logpdf(column) for column in y.T.numpy())
    assert regression.log_marginal_likelihood.item() == pytest.approx(expected, rel=1e-12)


def test_prediction_is_the_conditional_of_the_joint():
    joint, y, points = problem()
    prediction = GPRegression(joint[:points, :points], y, 0.3).predict(
        joint[points:, :points], joint.diagonal()[points:]
    )
    noisy = joint[:points, :points] + 0.3 * torch.eye(points, dtype=torch.float64)
    gain = joint[points:, :points] @ torch.linalg.inv(noisy)
    covariance = joint[points:, points:] - gain @ joint[:points, points:]
    variance = covariance.diagonal()[:, None].expand(-1, 2)
    torch.testing.assert_close(prediction.mean, gain @ y)
    torch.testing.assert_close(prediction.variance, variance)
    torch.testing.assert_close(prediction.target_variance, variance + 0.3)


def test_chain_rule_of_predictions():
    """P(y, y*) = P(y) P(y* | y) ties the likelihood to the predictions."""
    joint, y, points = problem(new=1)
    new = torch.randn(1, 2, dtype=torch.float64)
    some = GPRegression(joint[:points, :points], y, 0.3)
    everything = GPRegression(joint, torch.cat([y, new]), 0.3)
    conditional = some.predict(joint[points:, :points], joint.diagonal()[points:]).log_prob(new)
    torch.testing.assert_close(
        everything.log_marginal_likelihood, some.log_marginal_likelihood + conditional.sum()
    )


def test_everything_is_float64_and_variance_is_never_negative():
    joint, y, points = problem()
    kernel = joint[:points, :points].float()
    regression = GPRegression(kernel, y.float(), 1e-12)
    prediction = regression.predict(kernel, kernel.diagonal())
    assert prediction.mean.dtype == torch.float64
    assert prediction.variance.min() >= 0
    torch.testing.assert_close(prediction.mean, y, rtol=1e-5, atol=1e-5)


def test_errors():
    joint, y, points = problem()
    kernel = joint[:points, :points]
    with pytest.raises(dkm.InvalidInputError, match=r"must be \(P, P\)"):
        GPRegression(joint[:points], y, 0.3)
    with pytest.raises(dkm.InvalidInputError, match=r"targets of shape \(6, outputs\)"):
        GPRegression(kernel, y[:3], 0.3)
    with pytest.raises(dkm.InvalidInputError, match=r"targets of shape \(6, outputs\)"):
        GPRegression(kernel, y[:, 0], 0.3)
    for noise in (0.0, -1.0, float("nan"), float("inf"), torch.ones(2)):
        with pytest.raises(dkm.InvalidInputError, match="noise must be a positive, finite number"):
            GPRegression(kernel, y, noise)
    regression = GPRegression(kernel, y, 0.3)
    with pytest.raises(dkm.InvalidInputError, match=r"must be \(N, 6\)"):
        regression.predict(kernel[:, :4], kernel.diagonal())
    with pytest.raises(dkm.InvalidInputError, match="as many variances"):
        regression.predict(kernel[:2], kernel.diagonal())
    with pytest.raises(dkm.NotFiniteError, match="covariance K"):
        GPRegression(kernel * float("nan"), y, 0.3)
