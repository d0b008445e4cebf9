"""What is said of a machine's layers is what the equations say."""

import itertools
import math

import pytest
import torch

import convdkm as dkm
from convdkm.insight import cka, cluster_order, effective_rank, look_into
from convdkm.insight.look import LayerInsight, short_names
from convdkm.insight.similarity import class_kernel, correlation
from convdkm.insight.summary import summarise
from convdkm.insight.walk import taken_apart


@pytest.fixture(scope="module")
def images():
    return torch.randn(40, 2, 8, 6, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def labels():
    return torch.arange(40) % 3


@pytest.fixture(scope="module")
def model(images, labels):
    torch.manual_seed(0)
    made = dkm.resnet(2, 3, (4, 6), (1, 1), nu=0.5, centre=True)
    made.initialise(images, labels, seed=0)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():  # away from where it starts, so that G differs from K
        for layer in made.modules():
            if isinstance(layer, dkm.GramLayer):
                noise = torch.randn(layer.factor.shape, generator=generator, dtype=torch.float64)
                layer.factor.add_(0.3 * layer.factor.diagonal().mean() * noise.tril())
    return made


@pytest.fixture(scope="module")
def insight(model, images, labels):
    return look_into(model, images, labels, batch_size=16)


def test_the_layers_and_their_divergences_are_those_of_the_objective(model, insight):
    rows = {row.name: row for row in summarise(model, (2, 8, 6)) if row.kind == "GramLayer"}
    assert [layer.name for layer in insight.layers] == list(rows)
    for layer in insight.layers:
        assert layer.kl == pytest.approx(rows[layer.name].kl)
        assert layer.nu == 0.5
    head = next(row for row in summarise(model, (2, 8, 6)) if row.name == "head")
    assert insight.head_kl == pytest.approx(head.kl)


def test_the_divergence_is_that_of_the_matrices_and_splits_into_scale_and_shape(insight):
    for layer in insight.layers:
        ratio = torch.linalg.solve(layer.kernel, layer.gram)
        size, trace = layer.num_inducing, float(ratio.trace())
        kl = 0.5 * (trace - float(torch.logdet(ratio)) - size)
        assert layer.kl == pytest.approx(kl, rel=1e-6)
        closest = ratio * size / trace
        shape = 0.5 * (size - float(torch.logdet(closest)) - size)
        assert layer.shape_kl == pytest.approx(shape, rel=1e-6)
        assert layer.scale_kl + layer.shape_kl == pytest.approx(layer.kl)
        from_stretches = 0.5 * (layer.stretches - 1 - layer.stretches.log()).sum()
        assert layer.kl == pytest.approx(float(from_stretches), rel=1e-6)


def test_a_multiple_of_the_kernel_has_its_shape():
    kernel = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    stretches = torch.full((2,), 100.0, dtype=torch.float64)
    kl = 99 - math.log(100)
    layer = LayerInsight("gram", kernel, 100 * kernel, 1.0, kl, stretches)
    assert layer.scale == pytest.approx(100)
    assert layer.shape_kl == pytest.approx(0, abs=1e-9)
    assert layer.kernel_rank == pytest.approx(layer.gram_rank)


def test_the_walk_ends_where_the_machine_does(model, images):
    seen = []
    with taken_apart(model.eval()) as root:
        it, tt = root.data(model.input.data(images), lambda place, *_: seen.append(place))
        expected = model.gram(images)
    modules = dict(model.named_modules())
    assert all(modules[place.name] is place.layer for place in seen)
    assert {id(place.layer) for place in seen} >= {id(leaf.layer) for leaf in root.leaves()}
    torch.testing.assert_close(root.ii, expected.ii)
    torch.testing.assert_close(it, expected.it, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(tt, expected.tt, rtol=1e-4, atol=1e-5)


def test_the_share_that_inducing_points_explain():
    torch.manual_seed(0)
    x = torch.randn(30, 4, dtype=torch.float64)
    body = dkm.Sequential(dkm.SquaredExponential(), dkm.GramLayer(5))
    model = dkm.DeepKernelMachine(
        dkm.VectorInput(4, 5), body, dkm.GPHead(5, 2), dkm.Categorical(2), dtype=torch.float64
    )
    model.initialise(x, torch.arange(30) % 2, seed=0)
    gram = model.body[0](model.input(x))
    shares = torch.einsum("ni,ij,nj->n", gram.it, torch.linalg.inv(gram.ii), gram.it) / gram.tt
    insight = look_into(model, x)
    assert insight.layers[0].explained == pytest.approx(float(shares.mean().detach()), rel=1e-6)
    assert insight.layers[0].gram_alignment is None
    inducing = look_into(model, model.input.inducing.detach())
    assert inducing.layers[0].explained == pytest.approx(1.0, abs=1e-6)


def test_without_images_there_is_what_needs_none(model):
    insight = look_into(model)
    assert insight.similarity is None
    assert all(layer.explained is None for layer in insight.layers)
    assert all(layer.gram_rank >= 1 for layer in insight.layers)


def test_the_similarity_of_layers(insight):
    assert insight.names[0] == "input"
    assert insight.names[-2:] == ["top", "classes"]
    assert insight.similarity.shape == (len(insight.names),) * 2
    torch.testing.assert_close(insight.similarity, insight.similarity.T)
    assert bool((insight.similarity <= 1 + 1e-9).all())
    for place, layer in enumerate(insight.layers, 1):
        assert layer.gram_alignment == pytest.approx(float(insight.similarity[place, -1]))


def test_the_machine_is_left_as_it_was(model, images):
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    look_into(model, images)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model.eval()


def test_an_infinite_nu_learns_nothing(images, labels):
    model = dkm.resnet(2, 3, (4,), (1,), nu=math.inf).initialise(images, labels, seed=0)
    for layer in look_into(model, images, labels).layers:
        assert layer.kl == layer.scale_kl == layer.shape_kl == 0
        torch.testing.assert_close(layer.kernel, layer.gram)
        assert layer.kernel_alignment == pytest.approx(layer.gram_alignment)


class Wrapped(dkm.Layer):
    """A layer of a user's own, with a Gram layer inside."""

    def __init__(self):
        super().__init__()
        self.inner = dkm.GramLayer(5, parameterisation="whitened")

    def plan(self, ii):
        plan = self.inner.plan(ii)
        plan.kl = {"inner": plan.kl[""]}
        return plan


def test_what_cannot_be_looked_into_is_named():
    body = dkm.Sequential(dkm.ArcCosine(), Wrapped())
    model = dkm.DeepKernelMachine(dkm.VectorInput(3, 5), body, dkm.GPHead(5, 2), dkm.Categorical(2))
    model.initialise(torch.randn(9, 3), torch.arange(9) % 2)
    insight = look_into(model, torch.randn(9, 3))
    assert insight.layers == []
    assert insight.unseen == ("body.1.inner",)


def test_effective_rank():
    assert effective_rank(torch.ones(7)) == pytest.approx(7)
    assert effective_rank(torch.tensor([3.0, 0.0, 0.0])) == pytest.approx(1)


def test_cka_ignores_scale_rotation_and_offset():
    features = torch.randn(50, 6, dtype=torch.float64)
    turned = 3 * features @ torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0] + 2
    assert cka(features @ features.T, turned @ turned.T) == pytest.approx(1)


def test_cka_of_unrelated_features_is_about_zero_however_many_there_are():
    one, other = (torch.randn(60, 500, dtype=torch.float64) for _ in range(2))
    assert abs(cka(one @ one.T, other @ other.T)) < 0.1


def test_cka_is_the_unbiased_estimate_written_out():
    one, other = (torch.randn(6, 3, dtype=torch.float64) for _ in range(2))
    K, L = one @ one.T, other @ other.T

    def hsic(K, L):
        K, L = K - torch.diag(K.diagonal()), L - torch.diag(L.diagonal())
        n, ones = len(K), torch.ones(len(K), dtype=torch.float64)
        middle = (ones @ K @ ones) * (ones @ L @ ones) / ((n - 1) * (n - 2))
        return ((K @ L).trace() + middle - 2 / (n - 2) * (ones @ K @ L @ ones)) / (n * (n - 3))

    expected = hsic(K, L) / (hsic(K, K) * hsic(L, L)).sqrt()
    assert cka(K, L) == pytest.approx(float(expected), nan_ok=True)


def test_cka_with_the_classes():
    labels = torch.arange(30) % 3
    assert cka(class_kernel(labels), class_kernel(labels)) == pytest.approx(1)
    assert math.isnan(cka(torch.ones(30, 30), class_kernel(labels)))
    with pytest.raises(dkm.InvalidInputError, match="4 images or more"):
        cka(torch.eye(3), torch.eye(3))
    with pytest.raises(dkm.InvalidInputError, match="same images"):
        cka(torch.eye(5), torch.eye(6))


def test_the_order_puts_clusters_together():
    groups = torch.tensor([0, 1, 0, 1, 2, 0, 2, 1])
    gram = 0.9 * class_kernel(groups) + 0.1 * torch.eye(8, dtype=torch.float64)
    ordered = groups[torch.tensor(cluster_order(gram))].tolist()
    assert sum(a != b for a, b in itertools.pairwise(ordered)) == 2
    assert cluster_order(torch.eye(2)) == [0, 1]


def test_a_point_without_variance_has_no_correlation():
    gram = torch.tensor([[0.0, 0.0], [0.0, 4.0]])
    assert correlation(gram).tolist() == [[0, 0], [0, 1]]
    assert sorted(cluster_order(torch.zeros(5, 5))) == list(range(5))


def test_names_stay_different():
    assert short_names(["body.1", "body.2"]) == ["1", "2"]
    assert short_names(["body.gram"]) == ["gram"]
    twins = ["body.a.gram", "body.a.body.gram"]
    assert short_names(twins) == twins
