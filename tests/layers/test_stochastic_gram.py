"""Gram matrices that are sampled in training, with noise, and the KL to second order."""

import math

import pytest
import torch

import convdkm as dkm
import oracle
from convdkm.numerics import gaussian_kl, taylor_kl, whitened_kl
from convdkm.ops.inducing import learned_gram
from oracle.adapter import array, blocks
from oracle.cases import BLOCK_NAMES, generator_of, perturb, random_gram

POINTS = 5
EYE = torch.eye(POINTS, dtype=torch.float64)


def _gram(label="stochastic"):
    return random_gram(generator_of(label), POINTS, 3, (3, 4))


def _layer(gram, **options):
    layer = dkm.GramLayer(POINTS, 0.3, **options)
    layer.initialise(gram)
    perturb(layer, generator_of("layer"), 0.2)
    return layer


def _learned(layer, gram):
    """G_ii itself, without sample and noise."""
    root = layer.factor.detach()
    root = root if layer.full else root.tril()
    if layer.parameterisation == "whitened":
        root = torch.linalg.cholesky(gram.ii) @ root
    return root @ root.T


SAMPLED = [(0.0, 0.0), (0.6, 0.0), (0.6, 0.1), (0.0, 0.1), (2.0, 0.1)]


@pytest.mark.parametrize("taylor", [True, False])
@pytest.mark.parametrize("whitened", [True, False])
@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize(("share", "noise"), SAMPLED)
def test_gradients(full, whitened, taylor, share, noise):
    """All that the sampled matrix gives to the rest of the machine, and the KL of the learned."""
    drawn = random_gram(generator_of("gradcheck"), POINTS, 1, ()).ii
    generator = torch.Generator().manual_seed(3)
    free = torch.randn(POINTS, POINTS, generator=generator, dtype=torch.float64) + 3 * EYE
    count = math.ceil(share * POINTS)
    sample = torch.randn(POINTS, count, generator=generator, dtype=torch.float64) if count else None
    log_scale = torch.tensor(0.4, dtype=torch.float64)

    def outputs(root, free, log_scale):
        kernel = drawn + root @ root.T
        options = {"whitened": whitened, "full": full, "sample": sample, "noise": noise}
        return learned_gram(kernel, free, log_scale, divisor=1.7, taylor=taylor, **options)

    inputs = [each.clone().requires_grad_() for each in (0.3 * EYE, free, log_scale)]
    assert torch.autograd.gradcheck(lambda *args: tuple(outputs(*args)), inputs)


@pytest.mark.parametrize("parameterisation", ["direct", "whitened"])
@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize(("share", "noise"), SAMPLED)
def test_the_sampled_matrix_predicts_the_whole_gram(parameterisation, full, share, noise):
    """Blocks of G̃ = F Ξ Ξᵀ Fᵀ/γ + λI in training, of G + λI in evaluation; the KL is that of G."""
    gram = _gram()
    layer = _layer(gram, samples=share, noise=noise, parameterisation=parameterisation, full=full)
    learned = _learned(layer, gram)
    sampled = learned
    if share:
        root = layer.factor.detach() if full else layer.factor.detach().tril()
        if parameterisation == "whitened":
            root = torch.linalg.cholesky(gram.ii) @ root
        root = root @ layer.sample
        sampled = root @ root.T / math.ceil(share * POINTS)
    for training, expected in ((True, sampled), (False, learned)):
        layer.train(training)
        with torch.no_grad():
            outgoing, kl = layer(gram), layer.plan(gram.ii).kl[""].value
        truth = oracle.predict_gram(blocks(gram), array(expected + noise * EYE))
        for block in BLOCK_NAMES:
            found = array(getattr(outgoing, block))
            assert oracle.deviation(found, getattr(truth, block)) < 1e-10, block
        assert float(kl) == pytest.approx(float(gaussian_kl(learned, gram.ii)), rel=1e-9)


def test_the_mean_of_the_samples_is_what_evaluation_uses():
    gram = _gram()
    layer = _layer(gram, samples=0.6, noise=0.1)
    generator, total, count = torch.Generator().manual_seed(0), torch.zeros_like(gram.ii), 1500
    with torch.no_grad():
        for _ in range(count):
            layer.resample(generator)
            total += layer.plan(gram.ii).ii
        expected = layer.eval().plan(gram.ii).ii
    torch.testing.assert_close(expected, _learned(layer, gram) + 0.1 * EYE)
    # Var G̃_jk = (G_jk² + G_jj G_kk)/γ.
    learned = _learned(layer, gram)
    own = learned.diagonal()
    error = ((learned.square() + own * own[:, None]) / (3 * count)).sqrt()
    assert bool(((total / count - expected).abs() < 5 * error).all())


def test_fewer_samples_than_inducing_points_need_noise_to_be_regular():
    gram = _gram()
    for noise, rank in ((0.0, 2), (0.1, POINTS)):
        layer = _layer(gram, samples=0.25, noise=noise)
        assert layer.sample.shape == (POINTS, 2)
        assert int(torch.linalg.matrix_rank(layer.plan(gram.ii).ii.detach())) == rank


def test_a_draw_belongs_to_its_generator_and_not_to_the_state():
    gram = _gram()
    layer = _layer(gram, samples=0.5, noise=0.1)
    drawn = []
    for seed in (1, 1, 2):
        layer.resample(torch.Generator().manual_seed(seed))
        drawn.append(layer.plan(gram.ii).ii.detach())
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.allclose(drawn[1], drawn[2])
    assert "sample" not in layer.state_dict()
    dkm.GramLayer(POINTS).load_state_dict(layer.state_dict())


def test_an_nngp_is_not_sampled():
    gram, layer = _gram(), dkm.GramLayer(POINTS, math.inf, samples=0.5, noise=0.1, kl="taylor")
    layer.resample()
    assert torch.equal(layer(gram).ii, gram.ii)


@pytest.mark.parametrize("options", [{"samples": -1}, {"noise": math.inf}, {"kl": "second"}])
def test_invalid_options_are_refused(options):
    with pytest.raises(dkm.InvalidInputError, match=next(iter(options))):
        dkm.GramLayer(POINTS, **options)


@pytest.mark.parametrize("parameterisation", ["direct", "whitened"])
@pytest.mark.parametrize("full", [True, False])
def test_the_taylor_kl_is_that_of_the_eigenvalues(parameterisation, full):
    gram = _gram()
    layer = _layer(gram, kl="taylor", parameterisation=parameterisation, full=full)
    ratios = torch.linalg.eigvals(torch.linalg.solve(_learned(layer, gram), gram.ii)).real
    expected = 0.25 * (ratios - 1).square().sum()
    assert layer.plan(gram.ii).kl[""].value.item() == pytest.approx(float(expected), rel=1e-9)


def test_the_taylor_kl_is_the_kl_to_second_order():
    direction = torch.randn(POINTS, POINTS, generator=generator_of("Taylor"), dtype=torch.float64)
    errors = []
    for size in (1e-2, 1e-3):
        spread = EYE + size * direction
        exact = whitened_kl(spread)
        errors.append(float(taylor_kl(spread) - exact))
        assert abs(errors[-1]) < 30 * size * float(exact)
    assert errors[0] / errors[1] == pytest.approx(1e3, rel=0.3)


@pytest.mark.parametrize("covariance", ["shared", "per-output"])
@pytest.mark.parametrize("parameterisation", ["direct", "whitened"])
def test_the_head_has_the_taylor_kl_too(covariance, parameterisation):
    gram = random_gram(generator_of("head"), POINTS, 4, ())
    options = {"covariance": covariance, "parameterisation": parameterisation}
    head = dkm.GPHead(POINTS, 3, **options, kl="taylor")
    perturb(head, generator_of("perturbed"), 0.2)
    with torch.no_grad():
        lower = torch.linalg.cholesky(gram.ii)
        mean, root = head.mean, head.factor / head.divisor
        if parameterisation == "whitened":
            mean, root = mean @ lower.T, lower @ root
        ratios = torch.linalg.solve(root @ root.mT, gram.ii)
        covariances = 0.25 * torch.linalg.eigvals(ratios).sub(1).square().sum(-1).real
        quadratic = 0.5 * (mean * torch.linalg.solve(gram.ii, mean.T).T).sum(1)
        found = head.plan(gram.ii).kl
    torch.testing.assert_close(found, (quadratic + covariances).expand_as(found), rtol=1e-8, atol=0)
