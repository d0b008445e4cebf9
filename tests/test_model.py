"""The whole machine: objective, prediction, initialisation from data."""

import math

import pytest
import torch

import convdkm as dkm
from convdkm.layers import Layer
from convdkm.numerics import cholesky, whiten


def number(value):
    return float(value.detach())


def batch(count=12, classes=3, space=(8, 8)):
    generator = torch.Generator().manual_seed(3)
    return (
        torch.randn(count, 2, *space, generator=generator),
        torch.arange(count) % classes,
    )


def machine(seed=0, **options):
    model = dkm.resnet(2, 3, (5, 7), (1, 1), **options)
    return model.initialise(*batch(), seed=seed)


def test_the_total_is_the_sum_of_its_parts():
    model = machine(nu=0.3, gram_scale=2.0)
    objective = model.objective(*batch(), num_data=100)
    assert len(objective.kl) == 5
    regulariser = sum(0.3 * number(term.value) for term in objective.kl.values())
    expected = number(objective.expected_log_likelihood)
    expected -= (number(objective.head_kl) + regulariser) / 100
    assert number(objective.total) == pytest.approx(expected, rel=1e-12)
    assert "body.stage2.block1.body.second.gram" in objective.kl
    assert "expected_log_likelihood" in repr(objective)


def test_kl_is_zero_at_the_nngp_and_known_at_a_multiple_of_it():
    for term in machine().objective(*batch(), num_data=12).kl.values():
        assert number(term.value) == pytest.approx(0, abs=1e-8)
    scaled = machine(gram_scale=4.0).objective(*batch(), num_data=12).kl
    for name, term in scaled.items():
        points = 5 if "stage2" not in name else 7
        assert number(term.value) == pytest.approx(0.5 * points * (4 - 1 - math.log(4)), rel=1e-8)


def test_a_weight_of_zero_drops_the_kl_and_its_gradient():
    model = machine(nu=0.0, gram_scale=4.0)
    objective = model.objective(*batch(), num_data=12)
    assert number(objective.regulariser) == 0
    assert all(number(term.value) > 1 for term in objective.kl.values())
    assert not any(term.value.requires_grad for term in objective.kl.values())


def test_an_infinite_weight_has_no_gram_parameters():
    model = machine(nu=math.inf)
    assert not any("gram" in name for name, _ in model.named_parameters())
    assert model.objective(*batch(), num_data=12).kl == {}


def test_head_kl_is_the_sum_over_classes_or_their_mean():
    total = machine().objective(*batch(), num_data=12).head_kl
    mean = machine(head_kl="mean").objective(*batch(), num_data=12).head_kl
    assert number(total) == pytest.approx(3 * number(mean), rel=1e-10)


def test_the_objective_of_a_data_set_is_the_mean_over_its_batches():
    model = machine().eval()
    x, y = batch()
    whole = model.objective(x, y, num_data=12).total
    parts = [model.objective(x[i : i + 4], y[i : i + 4], num_data=12).total for i in (0, 4, 8)]
    torch.testing.assert_close(torch.stack(parts).mean(), whole, rtol=1e-5, atol=1e-6)


def test_predictions_do_not_depend_on_the_batch():
    model = machine(centre=True, normalisation=("batch", "location"))
    x, _ = batch()
    together = model.predict(x)
    alone = model.predict(x, batch_size=1)
    torch.testing.assert_close(alone.probs, together.probs, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(alone.variance, together.variance, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(alone.mutual_information, together.mutual_information,
                               rtol=1e-3, atol=1e-5)  # fmt: skip


def test_statistics_of_the_batch_are_an_option():
    model = machine(statistics="batch")
    x, _ = batch()
    x = x * torch.linspace(0.2, 3, len(x)).reshape(-1, 1, 1, 1)
    difference = model.predict(x).probs[:2] - model.predict(x[:2]).probs
    assert float(difference.abs().max()) > 1e-3


def test_a_folded_model_predicts_the_same_and_stays_as_it_was():
    model = machine()
    x, y = batch()
    predictor, before = model.folded(), model.predict(x)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    (-model.objective(x, y, num_data=12).total).backward()
    optimiser.step()
    torch.testing.assert_close(predictor.predict(x).probs, before.probs)
    torch.testing.assert_close(predictor.predict(x, batch_size=5).probs, before.probs)
    assert float((model.predict(x).probs - before.probs).abs().max()) > 1e-3


def test_float32_follows_float64():
    single, double = machine(gram_scale=3.0), machine(gram_scale=3.0).double()
    x, y = batch()
    totals, gradients = [], []
    for model in (single, double):
        total = model.objective(x, y, num_data=50).total
        (-total).backward()
        totals.append(number(total))
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert totals[0] == pytest.approx(totals[1], rel=1e-6)
    difference = (gradients[0] - gradients[1]).norm() / gradients[1].norm()
    assert float(difference) < 1e-4


def test_calibration_makes_evaluation_agree_with_training():
    model = machine(centre=True)
    x, y = batch()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(5):
        optimiser.zero_grad()
        (-model.objective(x, y, num_data=12).total).backward()
        optimiser.step()
    with torch.no_grad():
        training = model.train().marginals(x).mean
    lagging = model.eval().marginals(x).mean.detach()
    model.calibrate([x])
    assert not model.training
    calibrated = model.marginals(x).mean.detach()
    torch.testing.assert_close(calibrated, training, rtol=1e-4, atol=1e-5)
    assert float((lagging - training).abs().max()) > 1e-3
    momenta = {m.momentum for m in model.modules() if hasattr(m, "momentum")}
    assert momenta == {0.1}


def test_calibration_averages_over_batches():
    model = machine()
    x, _ = batch()
    norm = next(m for m in model.modules() if isinstance(m, dkm.Norm))
    values = []
    for part in (x[:6], x[6:]):
        model.calibrate([part])
        values.append(number(norm.running_variance))
    model.calibrate([x[:6], x[6:]])
    assert number(norm.running_variance) == pytest.approx(sum(values) / 2, rel=1e-6)


# -- initialisation ----------------------------------------------------------------------------


def patches_of(x, size=3):
    return torch.nn.functional.unfold(x, size, padding=1).permute(0, 2, 1).flatten(0, 1)


def test_inducing_patches_are_training_patches_balanced_over_classes():
    generator = torch.Generator().manual_seed(0)
    y = torch.cat([torch.zeros(40), torch.ones(5), torch.full((3,), 2)]).long()
    x = torch.randn(48, 2, 6, 6, generator=generator)
    model = dkm.resnet(2, 3, (9,), (1,)).initialise(x, y, seed=1)
    drawn = model.input.inducing.detach().flatten(1)
    distance = (drawn[:, None] - patches_of(x).double()).abs().amax(2)
    assert float(distance.min(1).values.max()) < 1e-6
    owners = distance.argmin(1) // 36
    assert torch.bincount(y[owners], minlength=3).tolist() == [3, 3, 3]


def test_the_same_seed_gives_the_same_machine():
    first, second, other = machine(seed=5), machine(seed=5), machine(seed=6)
    x, _ = batch()
    assert torch.equal(first.predict(x).probs, second.predict(x).probs)
    assert not torch.equal(first.predict(x).probs, other.predict(x).probs)


def test_gram_layers_start_at_the_kernel():
    model = machine(mixing="patches", centre=True)
    seen = []

    def look(layer, kernel):
        seen.append((layer.plan(kernel).ii, kernel))

    for module in model.modules():
        if isinstance(module, dkm.GramLayer):
            module.plan = _spy(module, look)
    model.plan()
    assert len(seen) == 5
    for learned, kernel in seen:
        torch.testing.assert_close(learned, kernel, rtol=1e-9, atol=1e-12)


def _spy(layer, look):
    original = type(layer).plan

    def plan(kernel):
        layer.plan = lambda ii: original(layer, ii)
        look(layer, kernel)
        return original(layer, kernel)

    return plan


class _Keep(Layer):
    """Passes a Gram on and keeps it."""

    def initialise(self, gram, generator=None):
        self.kept = gram
        return gram

    def plan(self, ii):
        raise AssertionError("only initialise is used")


def explained_share(mixing):
    generator = torch.Generator().manual_seed(0)
    smooth = torch.nn.functional.avg_pool2d(
        torch.randn(60, 1, 14, 14, generator=generator), 3, stride=1
    )
    keep = _Keep()
    layer = dkm.Sequential(dkm.ArcCosine(), dkm.Conv(16, 16, 3, mixing=mixing), keep)
    gram = dkm.PatchInput(1, 16).initialise(smooth, generator)
    layer.initialise(gram, generator)
    gram = keep.kept.detach()
    factor = cholesky(gram.ii, "K_ii").float()
    white = whiten(factor, gram.it.flatten(2))
    return float((white.square().sum(1) / gram.tt.flatten(1)).mean())


def test_real_patches_explain_more_than_random_weights():
    assert explained_share("patches") > 1.15 * explained_share("random")


def test_real_patches_are_what_they_claim():
    """Each new inducing point has the covariances of some real patch of the layer below."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 2, 5, 5, generator=generator, dtype=torch.float64)
    # All patches are inducing points of the first Gram, so that Nyström is exact below.
    source = dkm.PatchInput(2, 18, 3)
    below = source.initialise(x, generator)
    conv = dkm.Conv(18, 6, 3, padding="valid", mixing="patches")
    above = conv.initialise(below, generator)
    # Column of K_it at the chosen patch equals the column of K_ii of its inducing point.
    columns = above.it.movedim(1, -1).reshape(-1, 6)
    distance = (above.ii.detach()[:, None] - columns.detach()).abs().amax(2)
    assert float(distance.min(1).values.max()) < 1e-10
    assert len(set(distance.argmin(1).tolist())) == 6


def test_initialise_uses_at_most_so_many_images():
    model = dkm.resnet(2, 3, (5,), (1,))
    x, y = batch()
    model.initialise(x, y, seed=0, max_images=4)
    assert torch.isfinite(model.predict(x).probs).all()
