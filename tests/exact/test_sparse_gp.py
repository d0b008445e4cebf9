"""A machine without hidden layers and with Gaussian noise is a sparse Gaussian process."""

import warnings

import numpy as np
import pytest
import torch

import convdkm as dkm

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", ".*torch.jit.script. is deprecated", DeprecationWarning)
    import gpytorch

CLOSE = {"rtol": 1e-9, "atol": 1e-11}
LENGTHSCALE, NOISE = 0.8, 0.2


def sparse_gp(parameterisation, outputs=1):
    """A machine without hidden layers at some posterior, and its data."""
    x = torch.randn(17, 3, dtype=torch.float64)
    y = torch.stack([x[:, 0].sin() + x[:, 1], x[:, 1] * x[:, 2]], 1)[:, :outputs]
    machine = dkm.fully_connected(
        3,
        outputs,
        6,
        depth=0,
        kernel=dkm.SquaredExponential(LENGTHSCALE),
        likelihood=dkm.Gaussian(outputs, noise=NOISE),
        head_parameterisation=parameterisation,
        head_covariance="per-output",
        dtype=torch.float64,
    )
    machine.initialise(x, seed=0)
    with torch.no_grad():
        machine.input.inducing.add_(0.1)
        machine.head.mean.copy_(torch.randn(outputs, 6))
        lower = 0.3 * torch.randn(outputs, 6, 6).tril() + torch.eye(6)
        machine.head.factor.copy_(lower * machine.head.divisor)
    return machine, x[:12], y[:12], x[12:]


def numpy_kernel(a, b):
    """Squared exponential of vectors of 3 features: distances are means over the features."""
    distance = ((a[:, None] - b[None]) ** 2).mean(2)
    return np.exp(-0.5 * distance / LENGTHSCALE**2)


@pytest.mark.parametrize("parameterisation", ["direct", "whitened"])
def test_one_layer_is_the_textbook_sparse_gp(parameterisation):
    machine, x, y, new = sparse_gp(parameterisation, outputs=2)
    z = machine.input.inducing.detach().numpy()
    prior = numpy_kernel(z, z)
    lower = np.linalg.cholesky(prior) if parameterisation == "whitened" else np.eye(6)

    def posterior(inputs, output):
        mean = lower @ machine.head.mean[output].detach().numpy()
        factor = lower @ machine.head.factor[output].detach().numpy() / machine.head.divisor
        covariance = factor @ factor.T
        weights = numpy_kernel(inputs, z) @ np.linalg.inv(prior)
        cross = numpy_kernel(inputs, z)
        variance = 1 + np.einsum("ni,ij,nj->n", weights, covariance - prior, weights)
        np.testing.assert_allclose(weights @ prior, cross, rtol=1e-8, atol=1e-10)
        return weights @ mean, variance, mean, covariance

    bound = 0.0
    for output in range(2):
        mean, variance, m, s = posterior(x.numpy(), output)
        squares = (y[:, output].numpy() - mean) ** 2 + variance
        bound += -0.5 * (12 * np.log(2 * np.pi * NOISE) + squares.sum() / NOISE)
        inverse = np.linalg.inv(prior)
        logs = np.linalg.slogdet(prior)[1] - np.linalg.slogdet(s)[1]
        bound -= 0.5 * (np.trace(inverse @ s) + m @ inverse @ m - 6 + logs)
    value = machine.objective(x, y, num_data=12)
    assert 12 * value.total.item() == pytest.approx(bound, rel=1e-9)
    scaled = machine.objective(x, y, num_data=120)
    assert 120 * scaled.total.item() == pytest.approx(
        120 * scaled.expected_log_likelihood.item() - scaled.head_kl.item(), rel=1e-12
    )

    prediction = machine.predict(new)
    for output in range(2):
        mean, variance, _, _ = posterior(new.numpy(), output)
        np.testing.assert_allclose(prediction.mean[:, output].numpy(), mean, rtol=1e-8)
        np.testing.assert_allclose(prediction.variance[:, output].numpy(), variance, rtol=1e-8)


class VariationalGP(gpytorch.models.ApproximateGP):
    """The same sparse GP in GPyTorch."""

    def __init__(self, inducing, strategy):
        distribution = gpytorch.variational.CholeskyVariationalDistribution(len(inducing))
        super().__init__(strategy(self, inducing, distribution, jitter_val=0.0))
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.RBFKernel()
        self.double()
        features = torch.tensor(inducing.shape[1], dtype=torch.float64)
        self.covar_module.lengthscale = LENGTHSCALE * features.sqrt()

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


@pytest.mark.parametrize("num_data", [12, 120])
@pytest.mark.parametrize(
    ("parameterisation", "strategy"),
    [
        ("direct", gpytorch.variational.UnwhitenedVariationalStrategy),
        ("whitened", gpytorch.variational.VariationalStrategy),
    ],
)
def test_one_layer_is_the_sparse_gp_of_gpytorch(parameterisation, strategy, num_data):
    machine, x, y, new = sparse_gp(parameterisation)
    model = VariationalGP(machine.input.inducing.detach().clone(), strategy)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = torch.tensor(NOISE, dtype=torch.float64)
    strategy_of = model.variational_strategy
    strategy_of.variational_params_initialized.fill_(1)
    distribution = strategy_of._variational_distribution
    with torch.no_grad():
        distribution.variational_mean.copy_(machine.head.mean[0])
        distribution.chol_variational_covar.copy_(machine.head.factor[0] / machine.head.divisor)

    model.train()
    likelihood.train()
    elbo = gpytorch.mlls.VariationalELBO(likelihood, model, num_data)
    value = machine.objective(x, y, num_data=num_data).total
    other = elbo(model(x), y[:, 0])
    torch.testing.assert_close(value, other, rtol=1e-9, atol=0)

    ours = torch.autograd.grad(value, [machine.head.mean, machine.head.factor])
    theirs = torch.autograd.grad(
        other, [distribution.variational_mean, distribution.chol_variational_covar]
    )
    torch.testing.assert_close(ours[0][0], theirs[0], rtol=1e-7, atol=1e-9)
    of_factor = ours[1][0] * machine.head.divisor
    torch.testing.assert_close(of_factor.tril(), theirs[1].tril(), rtol=1e-7, atol=1e-9)

    model.eval()
    likelihood.eval()
    with torch.no_grad():
        functions = model(new)
        targets = likelihood(functions)
    prediction = machine.predict(new)
    torch.testing.assert_close(prediction.mean[:, 0], functions.mean, **CLOSE)
    torch.testing.assert_close(prediction.variance[:, 0], functions.variance, **CLOSE)
    torch.testing.assert_close(prediction.target_variance[:, 0], targets.variance, **CLOSE)
