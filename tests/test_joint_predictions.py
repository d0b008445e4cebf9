"""Joint predictions: covariances between images, and samples of functions."""

import numpy as np
import pytest
import torch

import convdkm as dkm
from convdkm.errors import ConvDKMError, InvalidInputError
from convdkm.layers import Layer
from convdkm.ops.base import Plan
from convdkm.ops.chain import apart
from layers.test_joint_gram import (
    IMAGES,
    POINTS,
    Joint,
    build,
    each_space,
    push_average,
    push_centre,
    push_conv,
    push_gram_layer,
    push_kernel,
    push_norm,
    push_skip,
    random_joint,
)
from oracle.cases import KERNELS

TOPS = ["gap", "linear", "gap+mix", "linear+mix"]


def same_place(joint: Joint) -> np.ndarray:
    """The covariances between images at the same place, ``(N, N, *space)``."""
    places = int(np.prod(joint.space))
    block = joint.matrix[joint.points :, joint.points :]
    block = block.reshape(joint.count, places, joint.count, places)
    return np.einsum("isjs->ijs", block).reshape(joint.count, joint.count, *joint.space)


def off_diagonal(matrix) -> np.ndarray:
    return np.asarray(matrix)[~np.eye(IMAGES, dtype=bool)]


def assert_same_covariances(layer, joint, expected, tolerance=1e-10):
    """Between different images; the variance of each image is in its data block."""
    gram = joint.gram()
    with torch.no_grad(), apart():
        plan = layer.plan(gram.ii)
        blocks = (gram.it, gram.tt)
        left, right, between = plan.joint(blocks, blocks, torch.from_numpy(same_place(joint)))
    outgoing = layer(gram)
    for side in (left, right):
        torch.testing.assert_close(side[0], outgoing.it, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(side[1], outgoing.tt, rtol=1e-9, atol=1e-9)
    assert np.abs(off_diagonal(between) - off_diagonal(expected)).max() < tolerance


# -- each layer, against the joint Gram pushed through by brute force -----------------------------


@each_space
@pytest.mark.parametrize("name", KERNELS)
def test_kernel(name, space):
    joint = random_joint(name, space)
    layer = build(KERNELS[name](), joint, name)
    assert_same_covariances(layer, joint, same_place(push_kernel(layer, joint)))


@each_space
@pytest.mark.parametrize(("size", "stride"), [(1, 1), (3, 1), (2, 2)])
def test_conv(size, stride, space):
    joint = random_joint("conv", space)
    layer = build(dkm.Conv(POINTS, 6, size, stride=stride, ndim=len(space)), joint, "conv")
    assert_same_covariances(layer, joint, same_place(push_conv(layer, joint)))


@each_space
def test_gram_layer(space):
    joint = random_joint("gram layer", space)
    layer = build(dkm.GramLayer(POINTS, initial_scale=3.0), joint, "gram layer")
    assert_same_covariances(layer, joint, same_place(push_gram_layer(layer, joint)))


@each_space
@pytest.mark.parametrize("data", ["batch", "image", "location", "local"])
def test_norm(data, space):
    joint = random_joint("norm", space)
    layer = build(dkm.Norm("batch", data, "batch", "location"), joint, data)
    assert_same_covariances(layer, joint, same_place(push_norm(layer, joint)))


@each_space
def test_centre(space):
    joint = random_joint("centre", space)
    layer = build(dkm.Centre(), joint, "centre")
    assert_same_covariances(layer, joint, same_place(push_centre(layer, joint)))


@each_space
def test_mixing_and_noise_leave_covariances_alone(space):
    joint = random_joint("mix", space)
    layer = build(dkm.Sequential(dkm.Mix(POINTS, 3), dkm.Noise(0.2, 0.1)), joint, "mix")
    assert_same_covariances(layer, joint, same_place(joint))


@each_space
def test_skip(space):
    joint = random_joint("skip", space)
    layer = build(dkm.Skip(dkm.ArcCosine(), weight=0.3), joint, "skip")
    pushed = push_skip(0.3, joint, push_kernel(dkm.ArcCosine(), joint))
    assert_same_covariances(layer, joint, same_place(pushed))


@each_space
def test_flatten(space):
    joint = random_joint("flatten", space)
    layer = build(dkm.Flatten(5), joint, "flatten")
    expected = same_place(joint).reshape(IMAGES, IMAGES, -1).mean(2)
    assert_same_covariances(layer, joint, expected)


def corrected(joint: Joint) -> Joint:
    """Covariances between different places by the inducing points; those of equal places exact."""
    p, matrix = joint.points, joint.matrix.copy()
    G_ti = matrix[p:, :p]
    approximate = G_ti @ np.linalg.inv(matrix[:p, :p]) @ G_ti.T
    places = [place for _, place in joint.pixels]
    same = np.array([[a == b for b in places] for a in places])
    matrix[p:, p:] = np.where(same, matrix[p:, p:], approximate)
    return Joint(matrix, joint.points, joint.count, joint.space)


@each_space
def test_global_average_pool(space):
    joint = random_joint("pool", space)
    members = [[(n, place) for place in np.ndindex(*space)] for n in range(IMAGES)]
    expected = push_average(corrected(joint), members, ())
    assert_same_covariances(dkm.GlobalAveragePool(), joint, same_place(expected))


@each_space
def test_average_pool(space):
    joint = random_joint("average", space)
    layer = dkm.AveragePool(2, stride=1, ndim=len(space))
    output = layer.window.output_space(space)
    corners = [
        [tuple(np.add(first, step)) for step in np.ndindex(*(2,) * len(space))]
        for first in np.ndindex(*output)
    ]
    members = [[(n, place) for place in places] for n in range(IMAGES) for places in corners]
    expected = push_average(corrected(joint), members, output)
    assert_same_covariances(layer, joint, same_place(expected))


# -- whole machines ------------------------------------------------------------------------------


def machine(top="gap", **options):
    torch.manual_seed(0)
    images = torch.rand(9, 2, 8, 8, dtype=torch.float64)
    model = dkm.resnet(
        in_channels=2,
        num_classes=3,
        inducing=(6, 8),
        blocks=(1, 1),
        top=top,
        dtype=torch.float64,
        **options,
    )
    return model.initialise(images, seed=1), images


@pytest.mark.parametrize("top", TOPS)
@pytest.mark.parametrize("covariance", ["shared", "per-output"])
def test_covariance_is_positive_and_has_the_variances_of_the_marginals(top, covariance):
    model, images = machine(top, head_covariance=covariance)
    alone, joint = model.predict(images), model.predict(images, joint=True)
    torch.testing.assert_close(joint.log_probs, alone.log_probs)
    assert alone.covariance is None
    assert joint.covariance.shape == (1 if covariance == "shared" else 3, 9, 9)
    torch.testing.assert_close(joint.covariance.diagonal(dim1=1, dim2=2).T, alone.variance)
    assert torch.linalg.eigvalsh(joint.covariance).min() > -1e-10
    correlation = joint.covariance[0, 0, 1] / (joint.variance[0, 0] * joint.variance[1, 0]).sqrt()
    assert 0.01 < float(correlation.abs()) < 1


def test_equal_images_have_equal_functions():
    model, images = machine()
    joint = model.predict(images[[0, 0, 1]], joint=True)
    torch.testing.assert_close(joint.covariance[0, 0, 1], joint.variance[0, 0])


def test_published_settings_too():
    model, images = machine(**{**dkm.PUBLISHED, "strides": (1, 2)})
    joint = model.predict(images, joint=True)
    assert torch.linalg.eigvalsh(joint.covariance).min() > -1e-10


def test_blocks_of_images_give_the_same(monkeypatch):
    model, images = machine()
    whole = model.predict(images, joint=True).covariance
    monkeypatch.setattr("convdkm.model.JOINT_ENTRIES", 4 * 64)
    torch.testing.assert_close(model.predict(images, joint=True).covariance, whole)


def test_samples_have_the_mean_and_the_covariance():
    model, images = machine()
    joint = model.predict(images[:3], joint=True)
    drawn = joint.sample(40_000, generator=torch.Generator().manual_seed(0))
    assert drawn.shape == (40_000, 3, 3)
    scale = float(joint.variance.max())
    torch.testing.assert_close(drawn.mean(0), joint.mean, rtol=0, atol=0.03 * scale**0.5)
    for output in range(3):
        found = torch.cov(drawn[:, :, output].T)
        torch.testing.assert_close(found, joint.covariance[0], rtol=0, atol=0.03 * scale)


@pytest.mark.parametrize("learn_scales", [False, True])
def test_posterior_of_vectors_is_that_of_a_sparse_gaussian_process(learn_scales):
    """By the formula, with K the kernel matrix between all points."""
    torch.manual_seed(0)
    x, new = torch.randn(12, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    model = dkm.DeepKernelMachine(
        dkm.VectorInput(3, 4, learn_scales=learn_scales),
        dkm.ArcCosine(),
        dkm.GPHead(4, 1),
        dkm.Gaussian(1),
        dtype=torch.float64,
    ).initialise(x, seed=0)
    rows = torch.cat([model.input.inducing.detach(), new])
    if learn_scales:
        scales = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
        model.input.log_scales.data.copy_(scales.log())
        rows = rows * scales
    gram = rows @ rows.T / 3
    own = gram.diagonal()
    K = dkm.ArcCosine().of(gram, own[:, None], own[None])
    A = model.head.factor.detach() @ model.head.factor.detach().T / 4
    regression = torch.linalg.solve(K[:4, :4], K[:4, 4:]).T
    expected = K[4:, 4:] - regression @ (K[:4, :4] - A) @ regression.T
    found = model.predict(new, joint=True).covariance[0]
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


# -- bad input -----------------------------------------------------------------------------------


def test_samples_need_a_joint_prediction():
    model, images = machine()
    with pytest.raises(InvalidInputError, match=r"predict\(\.\.\., joint=True\)"):
        model.predict(images).sample()
    with pytest.raises(InvalidInputError, match="count"):
        model.predict(images, joint=True).sample(0)


def test_more_than_fits_into_memory_is_refused_with_the_figures(monkeypatch):
    model, images = machine()
    monkeypatch.setattr("convdkm.model.available_memory", lambda device: 600)
    with pytest.raises(
        InvalidInputError, match=r"9 inputs takes .* GiB are available; predict few"
    ):
        model.predict(images, joint=True)


def test_a_layer_of_ones_own_without_covariances_is_named():
    class Halved(Layer):
        def plan(self, ii):
            class HalvedPlan(Plan):
                def data(self, it, tt):
                    return it / 2, tt / 4

            return HalvedPlan(ii / 4)

    images = torch.rand(6, 1, 4, 4)
    body = dkm.Sequential({"halved": Halved(), "pool": dkm.GlobalAveragePool()})
    model = dkm.DeepKernelMachine(
        dkm.PatchInput(1, 4), body, dkm.GPHead(4, 2), dkm.Categorical(2)
    ).initialise(images, seed=0)
    with pytest.raises(ConvDKMError, match=r"body\.halved.*HalvedPlan.*covariance\(left, right"):
        model.predict(images, joint=True)
