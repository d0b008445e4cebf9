"""Plans that absorb their neighbours: faster, and otherwise the same."""

import pytest
import torch

import convdkm as dkm
import oracle
from oracle.adapter import array
from oracle.cases import BLOCK_NAMES, CHAINS, DTYPES, generator_of, normal, perturb, random_gram

SPACE = (4, 6)
CLOSE = {torch.float64: 1e-12, torch.float32: 1e-5}

LAYERS = {
    "ArcCosine": dkm.ArcCosine,
    "Conv": lambda: dkm.Conv(5, 6, 3, stride=2),
    "Mix": lambda: dkm.Mix(5, 6),
    "GramLayer": lambda: dkm.GramLayer(5),
    "GramLayer, NNGP": lambda: dkm.GramLayer(5, float("inf")),
    "Norm": lambda: dkm.Norm("local", "local", "local", "location"),
    "Norm, inducing only": lambda: dkm.Norm("local", "none", "none", "none"),
    "Norm, data only": lambda: dkm.Norm("none", "local", "none", "none"),
    "Centre": dkm.Centre,
    "Skip": lambda: dkm.Skip(dkm.GramLayer(5)),
    "Noise": dkm.Noise,
    "Jitter": lambda: dkm.Jitter(dkm.ArcCosine()),
    "GramLayer, full": lambda: dkm.GramLayer(5, full=True),
    "AveragePool": lambda: dkm.AveragePool(2, padding=1),
    "GlobalAveragePool": dkm.GlobalAveragePool,
    "Flatten": dkm.Flatten,
    "Flatten, mixing": lambda: dkm.Flatten(6),
    "Sequential": lambda: dkm.Sequential(dkm.GramLayer(5), dkm.Norm(), dkm.Centre()),
    "Sequential, empty": dkm.Sequential,
}
SPLITTING = {"GramLayer", "Norm", "Norm, inducing only", "Centre", "AveragePool"}
SPLITTING |= {"GlobalAveragePool", "Sequential", "GramLayer, full"}
ABSORBING = {"Conv", "Mix", "GramLayer", "Norm", "Norm, inducing only", "Centre", "AveragePool"}
ABSORBING |= {"GlobalAveragePool", "Flatten, mixing", "Sequential", "GramLayer, full"}


def _ready(build, label, dtype=torch.float64):
    """A layer away from its starting values, in evaluation, and a Gram for it."""
    generator = generator_of(label)
    layer = build()
    layer.initialise(random_gram(generator, 5, 3, SPACE, dtype), generator)
    perturb(layer, generator)
    return layer.eval(), random_gram(generator, 5, 3, SPACE, dtype)


def _left_multiplied(matrix, it):
    matrix = torch.diag(matrix) if matrix.ndim == 1 else matrix
    return torch.einsum("qp,np...->nq...", matrix, it)


@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_split_takes_a_matrix_out_of_the_front(name):
    layer, gram = _ready(LAYERS[name], name)
    plan = layer.plan(gram.ii).settled()
    split = plan.split()
    assert (split is not None) == (name in SPLITTING)
    if split is None:
        return
    matrix, rest = split
    it, tt = rest.data(_left_multiplied(matrix, gram.it), gram.tt)
    expected = plan(gram)
    assert oracle.deviation(array(it), array(expected.it)) < CLOSE[torch.float64]
    assert oracle.deviation(array(tt), array(expected.tt)) < CLOSE[torch.float64]
    assert torch.equal(rest.ii, plan.ii)
    assert rest.kl.keys() == plan.kl.keys()


@pytest.mark.parametrize("diagonal", [True, False])
@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_premultiplied_puts_a_matrix_behind(name, diagonal):
    layer, gram = _ready(LAYERS[name], name)
    plan = layer.plan(gram.ii).settled()
    points = plan.ii.shape[0]
    matrix = normal(generator_of(name), *((points,) if diagonal else (points + 1, points)))
    absorbed = plan.premultiplied(matrix)
    assert (absorbed is not None) == (name in ABSORBING)
    if absorbed is None:
        return
    it, tt = absorbed.data(gram.it, gram.tt)
    expected = plan(gram)
    product = array(_left_multiplied(matrix, expected.it))
    assert oracle.deviation(array(it), product) < CLOSE[torch.float64]
    assert oracle.deviation(array(tt), array(expected.tt)) < CLOSE[torch.float64]
    assert absorbed.kl.keys() == plan.kl.keys()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", CHAINS)
@torch.no_grad()
def test_a_chain_is_its_layers_one_by_one(name, training, dtype):
    chain, gram = _ready(CHAINS[name], name, dtype)
    chain.train(training)
    apart = gram
    for _, layer in chain.named_layers():
        apart = layer(apart)
    together = chain(gram)
    for block in BLOCK_NAMES:
        actual, expected = array(getattr(together, block)), array(getattr(apart, block))
        assert oracle.deviation(actual, expected) < CLOSE[dtype]


@torch.no_grad()
def test_whitening_really_moves_into_the_layer_before():
    chain, gram = _ready(CHAINS["Conv, GramLayer, Norm"], "merging")
    (_, kernel_and_conv), (_, learned_and_norm) = chain.plan(gram.ii).steps
    assert learned_and_norm.whitening is None
    assert learned_and_norm.norm.inducing is None
    white = dkm.Sequential(chain[0], chain[1]).plan(gram.ii)
    assert not torch.equal(kernel_and_conv.conv.weight, white.steps[0][1].conv.weight)
    assert kernel_and_conv.kernel.ii.shape == (5, 5)


@torch.no_grad()
def test_a_head_gives_its_whitening_to_the_body():
    model = dkm.DeepKernelMachine(
        dkm.PatchInput(2, 6),
        dkm.Sequential(
            dkm.Skip(dkm.Sequential(dkm.ArcCosine(), dkm.Conv(6, 6, 3), dkm.GramLayer(6))),
            dkm.GlobalAveragePool(),
        ),
        dkm.GPHead(6, 3),
        dkm.Gaussian(3),
        dtype=torch.float64,
    )
    images = normal(generator_of("head"), 5, 2, 6, 6)
    model.initialise(images, seed=0)
    plan = model.plan()
    assert plan.head.whitening is None
    apart = model.head(model.gram(images))
    together = model.marginals(images)
    assert oracle.deviation(array(together.mean), array(apart.mean)) < 1e-12
    assert oracle.deviation(array(together.variance), array(apart.variance)) < 1e-12


def test_merging_keeps_gradients():
    chain, gram = _ready(CHAINS["residual block"], "gradients")
    inputs = [block.requires_grad_() for block in (gram.ii, gram.it, gram.tt)]

    def gradients(outgoing):
        total = outgoing.ii.sum() + outgoing.it.square().sum() + outgoing.tt.sum()
        return torch.autograd.grad(total, [*inputs, *chain.parameters()])

    apart = dkm.Gram(*inputs)
    for _, layer in chain.named_layers():
        apart = layer(apart)
    for one, other in zip(gradients(chain(dkm.Gram(*inputs))), gradients(apart), strict=True):
        assert oracle.deviation(array(one), array(other)) < 1e-10


def test_kl_terms_are_named_by_path():
    chain, gram = _ready(CHAINS["residual block"], "names")
    plan = chain.plan(gram.ii)
    assert list(plan.kl) == ["0.body.2", "0.body.6"]
    assert [term.nu for term in plan.kl.values()] == [1.0, 0.1]
    assert float(plan.kl["0.body.6"].weighted.detach()) == pytest.approx(
        0.1 * float(plan.kl["0.body.6"].value.detach())
    )


# -- where an error belongs --------------------------------------------------------------------


class Refusing(dkm.ArcCosine):
    """A kernel that does not like the data."""

    def of_cosine(self, cosine):
        if cosine.ndim == 2 and len(cosine) != cosine.shape[1]:
            raise dkm.GramError("no such cosine")
        return super().of_cosine(cosine)


def _kernel_and_conv(**layers):
    parts = {
        "kernel": dkm.ArcCosine(),
        "noise": dkm.Noise(),
        "conv": dkm.Conv(5, 5, 3, padding="valid"),
        "norm": dkm.Norm(),
    }
    return dkm.Sequential({"inner": dkm.Sequential({**parts, **layers})}), 1


def _gram_layer(**layers):
    parts = {"gram": dkm.GramLayer(5), "centre": dkm.Centre(), "norm": dkm.Norm()}
    return dkm.Sequential({"inner": dkm.Sequential({**parts, **layers})}), 1


def _uninitialised(layer, name):
    setattr(layer.inner, name, type(getattr(layer.inner, name))())
    if name == "norm":
        layer.inner.norm.running_variance = None


@pytest.mark.parametrize("predicting", [False, True])
@pytest.mark.parametrize(
    ("build", "name"),
    [
        (_kernel_and_conv, "norm"),
        (_gram_layer, "norm"),
        (_gram_layer, "centre"),
    ],
)
@torch.no_grad()
def test_an_error_of_layers_done_in_one_go_names_the_one_that_raised_it(build, name, predicting):
    (layer, count), gram = build(), random_gram(generator_of("errors"), 5, 3, SPACE, torch.float32)
    layer.initialise(gram)
    _uninitialised(layer, name)
    plan = layer.eval().plan(gram.ii)
    assert len(plan.steps) == count, "they are one operation"
    with pytest.raises(dkm.NotInitialisedError) as caught:
        plan.frozen() if predicting else plan(gram)
    assert caught.value.layer == f"inner.{name}"


@pytest.mark.parametrize("frozen", [False, True])
@torch.no_grad()
def test_an_error_of_a_convolution_after_a_kernel_names_the_convolution(frozen):
    (layer, count), gram = (
        _kernel_and_conv(),
        random_gram(generator_of("errors"), 5, 3, SPACE, torch.float32),
    )
    layer.initialise(gram)
    plan = layer.eval().plan(gram.ii)
    assert len(plan.steps) == count
    plan = plan.frozen() if frozen else plan
    with pytest.raises(dkm.GramError, match="spans 3 places") as caught:
        plan.data(gram.it[..., :2], gram.tt[..., :2])
    assert caught.value.layer == "inner.conv"


@torch.no_grad()
def test_an_error_of_a_kernel_before_a_convolution_names_the_kernel():
    layer, _ = _kernel_and_conv(kernel=Refusing())
    gram = random_gram(generator_of("errors"), 5, 3, SPACE, torch.float32)
    with pytest.raises(dkm.GramError, match="no such cosine") as caught:
        layer.plan(gram.ii).data(gram.it, gram.tt)
    assert caught.value.layer == "inner.kernel"
