"""The table of models: every option of the paper builds a machine that trains and predicts."""

import math

import pytest
import torch

import convdkm as dkm
from convdkm.layers import GlobalAveragePool


def images(count=6, channels=2, space=(8, 8)):
    return torch.randn(count, channels, *space)


def labels(count=6, classes=3):
    return torch.arange(count) % classes


def small(inducing=(5, 7), blocks=(1, 1), channels=2, classes=3, **options):
    return dkm.resnet(channels, classes, inducing, blocks, **options)


def trains(model, x, y):
    """Initialise, take a step of Adam, and predict; return the prediction."""
    model.initialise(x, y, seed=0)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    before = model.objective(x, y, num_data=60)
    (-before.total).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"no gradient reaches {name}"
        assert torch.isfinite(parameter.grad).all(), f"gradient of {name}"
    optimiser.step()
    after = model.objective(x, y, num_data=60)
    assert torch.isfinite(after.total)
    assert not torch.equal(after.total, before.total)
    return model.eval().predict(x)


OPTIONS = {
    "paper": {},
    "published": dkm.PUBLISHED | {"strides": (2, 2)},
    "nngp": {"nu": math.inf},
    "no regularisation": {"nu": 0.0},
    "no normalisation": {"normalisation": ("none", "none"), "scaling": ("none", "none")},
    "location": {"normalisation": ("batch", "location"), "scaling": ("batch", "location")},
    "image": {"normalisation": ("local", "image"), "scaling": ("local", "batch")},
    "local": {"normalisation": ("local", "local"), "scaling": ("local", "none")},
    "linear": {"top": "linear"},
    "gap+mix": {"top": "gap+mix"},
    "linear+mix": {"top": "linear+mix"},
    "gaussian": {"likelihood": "gaussian"},
    "gaussian by sampling": {"likelihood": "gaussian", "expectation": "monte-carlo"},
    "sampling": {"expectation": "monte-carlo", "samples": 50},
    "real patches, centred, whitened": {
        "mixing": "patches",
        "centre": True,
        "mixing_parameterisation": "whitened",
        "gram_parameterisation": "whitened",
        "gram_scale": 100.0,
        "head_parameterisation": "whitened",
    },
    "normalised Gaussian, distinct patches": {
        "kernel": dkm.NormalisedGaussian(2.0, learn=True),
        "jitter": 1e-4,
        "inducing_choice": "distinct",
    },
    "eigenvector patches": {"inducing_choice": "eigenvectors"},
    "narrow stem": {"stem": 3},
    "centred layers": {"centre": "layers"},
    "learned skips": {"learn_skip": True, "skip_weight": 0.3},
    "one A a class": {"head_covariance": "per-output"},
    "squared exponential": {"kernel": dkm.SquaredExponential(learn=True)},
    "double precision": {"dtype": torch.float64},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_option_trains_and_predicts(options):
    prediction = trains(small(**options), images(), labels())
    assert prediction.probs.shape == (6, 3)
    torch.testing.assert_close(prediction.probs.sum(1), torch.ones_like(prediction.probs[:, 0]))


@pytest.mark.parametrize("space", [(9,), (8, 7), (4, 5, 6)], ids=str)
@pytest.mark.parametrize("top", ["gap", "linear+mix"])
def test_any_number_of_axes_and_any_size(space, top):
    prediction = trains(small(ndim=len(space), top=top), images(space=space), labels())
    assert torch.isfinite(prediction.log_probs).all()


def test_resnet20_mirrors_its_namesake():
    model = dkm.resnet20(3, 10, (4, 6, 8))
    convolutions = [m for m in model.modules() if isinstance(m, dkm.Conv)]
    wide = [conv for conv in convolutions if conv.window.size == (3, 3)]
    shortcuts = [conv for conv in convolutions if conv.window.size == (1, 1)]
    assert len(wide) == len([m for m in model.modules() if isinstance(m, dkm.GramLayer)]) == 19
    assert [conv.window.stride for conv in shortcuts] == [(2, 2), (2, 2)]
    assert [(conv.in_inducing, conv.out_inducing) for conv in shortcuts] == [(4, 6), (6, 8)]
    model.initialise(images(10, 3, (32, 32)), labels(10, 10), seed=0)
    assert model.gram(images(2, 3, (32, 32))).ii.shape == (8, 8)


def test_the_stem_may_be_narrower_than_the_first_stage():
    model = dkm.resnet20(3, 10, (8, 6, 4), stem=5)
    assert len(model.input.inducing) == 5
    convolutions = [m for m in model.modules() if isinstance(m, dkm.Conv)]
    widths = [(conv.in_inducing, conv.out_inducing) for conv in convolutions[:3]]
    assert widths == [(5, 5), (5, 8), (8, 8)]
    shortcuts = [conv for conv in convolutions if conv.window.size == (1, 1)]
    assert [(conv.in_inducing, conv.out_inducing) for conv in shortcuts] == [(5, 8), (8, 6), (6, 4)]


@pytest.mark.parametrize(
    ("centre", "count"),
    [("none", 0), ("layers", 6), ("all", 7), (False, 0), (True, 7)],  # as in earlier versions
)
def test_shortcuts_are_centred_on_request(centre, count):
    model = small(centre=centre)
    centres = [name for name, m in model.named_modules() if isinstance(m, dkm.Centre)]
    assert len(centres) == count
    assert any("shortcut" in name for name in centres) == (count == 7)


def test_published_strides_shrink_every_stage():
    model = dkm.resnet20(1, 10, (3, 4, 5), **dkm.PUBLISHED)
    before_pool = []
    pool = next(m for m in model.modules() if isinstance(m, GlobalAveragePool))
    plan = pool.plan
    pool.plan = lambda ii: _Spy(plan(ii), before_pool)
    model.initialise(images(10, 1, (32, 32)), labels(10, 10), seed=0)
    assert before_pool[0] == (4, 4)


class _Spy(dkm.Plan):
    """Notes the places of the Gram it is given."""

    def __init__(self, plan, seen):
        super().__init__(plan.ii, plan.kl)
        self.inner, self.seen = plan, seen

    def data(self, it, tt):
        self.seen.append(tuple(tt.shape[1:]))
        return self.inner.data(it, tt)


def test_published_differs_from_the_paper_where_it_says():
    model = small(**dkm.PUBLISHED | {"strides": (2, 2)})
    kernels = [m for m in model.modules() if isinstance(m, dkm.ArcCosine)]
    assert len({id(kernel) for kernel in kernels}) == len(kernels) == 5
    for kernel in kernels:
        assert kernel.bias_variance(torch.ones(())).item() == pytest.approx(0.1)
    norms = [m for m in model.modules() if isinstance(m, dkm.Norm)]
    assert all(norm.statistics == "batch" for norm in norms)
    assert model.head_kl == "mean"
    assert model.likelihood.samples == 1000


def test_one_weight_for_each_layer():
    model = small(nu=(0.0, 1.0, 2.0, 3.0, math.inf))
    model.initialise(images(), labels(), seed=0)
    weights = [term.nu for term in model.objective(images(), labels(), num_data=6).kl.values()]
    assert weights == [0.0, 1.0, 2.0, 3.0]
    layers = [m.nu for m in model.modules() if isinstance(m, dkm.GramLayer)]
    assert layers == [0.0, 1.0, 2.0, 3.0, math.inf]
    with pytest.raises(dkm.InvalidInputError, match="one for each of 5 layers, got 2"):
        small(nu=(1.0, 2.0))
    with pytest.raises(dkm.InvalidInputError, match="one for each of 3 layers, got 2"):
        dkm.fully_connected(4, 1, depth=3, nu=[1.0, 2.0])


def test_a_users_own_architecture_in_a_few_lines():
    body = dkm.Sequential(
        dkm.ArcCosine(),
        dkm.Conv(6, 8, 3, stride=2),
        dkm.GramLayer(8, nu=0.1),
        dkm.Norm("batch", "location"),
        dkm.AveragePool(2),
        dkm.GlobalAveragePool(),
    )
    model = dkm.DeepKernelMachine(dkm.PatchInput(2, 6), body, dkm.GPHead(8, 3), dkm.Categorical(3))
    prediction = trains(model, images(), labels())
    assert list(model.objective(images(), labels(), num_data=6).kl) == ["body.2"]
    assert prediction.labels.shape == (6,)


@pytest.mark.parametrize(
    ("depth", "kernel"), [(0, dkm.SquaredExponential(0.7)), (1, None), (3, None)]
)
def test_fully_connected_regression_learns(depth, kernel):
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(80, 2, generator=generator) * 4 - 2
    y = torch.sin(2 * x[:, :1]) * x[:, 1:]
    x, y = torch.cat([x, torch.ones(80, 1)], 1), y / y.std()
    model = dkm.fully_connected(3, 1, inducing=30, depth=depth, kernel=kernel, noise=0.1)
    model.initialise(x[:60], y[:60], seed=0)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(150):
        objective = model.objective(x[:60], y[:60], num_data=60)
        optimiser.zero_grad()
        (-objective.total).backward()
        optimiser.step()
    prediction = model.eval().predict(x[60:])
    error = (prediction.mean - y[60:]).square().mean()
    assert float(error) < 0.4 * float(y[60:].var())
    assert prediction.log_prob(y[60:]).shape == (20,)


def test_fully_connected_classification_learns():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 2, generator=generator)
    y = (x.prod(1) > 0).long()
    x = torch.cat([x, torch.ones(120, 1)], 1)
    model = dkm.fully_connected(3, 2, inducing=20, depth=1, likelihood="categorical")
    model.initialise(x[:80], y[:80], seed=0)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(100):
        objective = model.objective(x[:80], y[:80], num_data=80)
        optimiser.zero_grad()
        (-objective.total).backward()
        optimiser.step()
    assert float(model.eval().predict(x[80:]).accuracy(y[80:])) > 0.85
