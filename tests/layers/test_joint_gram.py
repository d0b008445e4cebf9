"""Layers against the full joint Gram over inducing points and every pixel of every image.

The library keeps three blocks of that matrix. Here the whole of it, ``(P + N·S)`` square, is pushed
through each layer by brute force, as features or as one matrix, and then cut into blocks.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import convdkm as dkm
import oracle
from oracle.adapter import array, kernel_function, learned_gram
from oracle.blocks import Array
from oracle.cases import BLOCK_NAMES, KERNELS, generator_of, normal, perturb

SPACES = [(5,), (4, 3), (2, 3, 2)]
POINTS, IMAGES, WIDTH = 4, 2, 40
each_space = pytest.mark.parametrize("space", SPACES, ids=str)


@dataclass(frozen=True)
class Joint:
    """A Gram matrix with a row for each inducing point, then for each pixel of each image."""

    matrix: Array
    points: int
    count: int
    space: tuple[int, ...]

    @property
    def pixels(self):
        """Index of every pixel: image and place."""
        return [(n, place) for n in range(self.count) for place in np.ndindex(*self.space)]

    def features(self) -> Array:
        """Features with this Gram, one row for each point: a symmetric root."""
        values, vectors = np.linalg.eigh(self.matrix)
        return vectors * np.sqrt(np.maximum(values, 0))

    def of_features(self, inducing: Array, pixels: Array, space) -> "Joint":
        rows = np.concatenate([inducing, pixels])
        return Joint(rows @ rows.T, len(inducing), self.count, tuple(space))

    def blocks(self) -> oracle.Blocks:
        cross = self.matrix[: self.points, self.points :]
        cross = cross.reshape(self.points, self.count, *self.space)
        own = np.diag(self.matrix)[self.points :].reshape(self.count, *self.space)
        ii = self.matrix[: self.points, : self.points]
        return oracle.Blocks(ii, np.moveaxis(cross, 0, 1), own)

    def gram(self) -> dkm.Gram:
        return dkm.Gram(*(torch.from_numpy(np.ascontiguousarray(b)) for b in self.blocks()))


def random_joint(label, space) -> Joint:
    generator = generator_of(label)
    rows = array(normal(generator, POINTS + IMAGES * int(np.prod(space)), WIDTH))
    rows *= 0.5 + np.linspace(0, 1, len(rows))[:, None]
    return Joint(rows @ rows.T / WIDTH, POINTS, IMAGES, space)


def build(layer, joint, label):
    generator = generator_of(label)
    layer.initialise(joint.gram(), generator)
    perturb(layer, generator)
    return layer


def assert_same(layer, joint, expected, tolerance=1e-10):
    with torch.no_grad():
        outgoing = layer(joint.gram())
    for name, block in zip(BLOCK_NAMES, expected.blocks(), strict=True):
        assert oracle.deviation(array(getattr(outgoing, name)), block) < tolerance, name


# -- brute force -------------------------------------------------------------------------------


def push_kernel(layer, joint):
    own = np.diag(joint.matrix)
    matrix = kernel_function(layer)(joint.matrix, own[:, None], own[None, :])
    return replace(joint, matrix=matrix)


def push_conv(layer, joint):
    """Eq. 17: patches of features, and of inducing features mixed by C; then W averaged out."""
    features, window = joint.features(), layer.window
    weight = array(layer.weight)
    offsets = list(np.ndindex(*window.size))
    inducing = np.concatenate(
        [weight[(..., *offset)] @ features[: joint.points] for offset in offsets], 1
    )
    grid = features[joint.points :].reshape(joint.count, *joint.space, -1)
    output, positions = oracle.windows(
        joint.space, window.size, window.stride, window.dilation, window.padding
    )
    positions = list(positions)
    nothing = np.zeros(features.shape[1])
    patches = np.array(
        [
            np.concatenate([nothing if p is None else grid[(n, *p)] for _, p in under])
            for n in range(joint.count)
            for _, under in positions
        ]
    )
    scale = len(offsets) ** -0.5
    return joint.of_features(scale * inducing, scale * patches, output)


def push_gram_layer(layer, joint):
    """f_t = K_ti K_ii⁻¹ f_i + noise: replace the covariance of f_i, and keep that of the noise."""
    p = joint.points
    K_ii, K_ti, K_tt = joint.matrix[:p, :p], joint.matrix[p:, :p], joint.matrix[p:, p:]
    regression = K_ti @ np.linalg.inv(K_ii)
    noise = K_tt - regression @ K_ti.T
    sources = np.zeros_like(joint.matrix)
    sources[:p, :p], sources[p:, p:] = learned_gram(layer, K_ii), noise
    mixing = np.eye(len(sources))
    mixing[p:, :p] = regression
    return replace(joint, matrix=mixing @ sources @ mixing.T)


def push_norm(layer, joint):
    """D G D with a diagonal D: every feature vector is multiplied by a number."""
    blocks = joint.blocks()
    psi, Psi = np.exp(array(layer.log_inducing_scale)), np.exp(array(layer.log_data_scale))
    own = {"batch": np.diag(blocks.ii).mean(), "local": np.diag(blocks.ii)}[layer.inducing]
    axes = {"batch": None, "image": tuple(range(1, blocks.tt.ndim)), "location": 0, "local": ()}
    variance = blocks.tt.mean(axes[layer.data], keepdims=True)
    inducing = np.broadcast_to(psi / np.sqrt(own), (joint.points,))
    pixels = np.broadcast_to(Psi / np.sqrt(variance), blocks.tt.shape)
    D = np.diag(np.concatenate([inducing, pixels.ravel()]))
    return replace(joint, matrix=D @ joint.matrix @ D)


def push_centre(layer, joint):
    """Features f_t − Σ_i β_i f_i, with β such that the mean of G_it becomes zero."""
    features = joint.features()
    inducing, pixels = features[: joint.points], features[joint.points :]
    mean = (inducing @ pixels.T).mean(1)
    beta = np.linalg.inv(inducing @ inducing.T) @ mean
    return joint.of_features(inducing, pixels - beta @ inducing, joint.space)


def push_skip(weight, short, body):
    """Features side by side."""
    rows = np.concatenate(
        [np.sqrt(1 - weight) * short.features(), np.sqrt(weight) * body.features()], 1
    )
    return replace(body, matrix=rows @ rows.T)


def nystrom(joint):
    """The pixels' block replaced by G_ti G_ii⁻¹ G_it, its diagonal put right."""
    p, matrix = joint.points, joint.matrix.copy()
    G_ti = matrix[p:, :p]
    approximate = G_ti @ np.linalg.inv(matrix[:p, :p]) @ G_ti.T
    np.fill_diagonal(approximate, np.diag(matrix)[p:])
    matrix[p:, p:] = approximate
    return replace(joint, matrix=matrix)


def push_average(joint, members, space):
    """Average the rows and columns of pixels; ``members`` lists those of every new pixel."""
    pixels = {pixel: row for row, pixel in enumerate(joint.pixels, joint.points)}
    averaging = np.zeros((joint.points + len(members), len(joint.matrix)))
    averaging[: joint.points, : joint.points] = np.eye(joint.points)
    for row, chosen in enumerate(members, joint.points):
        for pixel in chosen:
            averaging[row, pixels[pixel]] = 1 / len(chosen)
    matrix = averaging @ joint.matrix @ averaging.T
    return Joint(matrix, joint.points, joint.count, tuple(space))


def push_global_pool(joint):
    members = [[(n, place) for place in np.ndindex(*joint.space)] for n in range(joint.count)]
    return push_average(nystrom(joint), members, ())


# -- each layer --------------------------------------------------------------------------------


@each_space
@pytest.mark.parametrize("name", KERNELS)
def test_kernel(name, space):
    joint = random_joint(name, space)
    layer = build(KERNELS[name](), joint, name)
    assert_same(layer, joint, push_kernel(layer, joint))


@each_space
@pytest.mark.parametrize(
    ("size", "stride", "dilation", "padding"),
    [(1, 1, 1, "same"), (2, 1, 1, "same"), (3, 1, 1, "same"), (2, 2, 1, 1), (2, 1, 2, 1)],
)
def test_conv(size, stride, dilation, padding, space):
    label = f"conv {size} {stride} {dilation} {space}"
    joint = random_joint(label, space)
    conv = dkm.Conv(
        POINTS, 6, size, stride=stride, dilation=dilation, padding=padding, ndim=len(space)
    )
    layer = build(conv, joint, label)
    assert_same(layer, joint, push_conv(layer, joint))


@each_space
@pytest.mark.parametrize("parameterisation", ["direct", "whitened"])
def test_gram_layer(parameterisation, space):
    joint = random_joint("gram layer", space)
    gram_layer = dkm.GramLayer(POINTS, parameterisation=parameterisation, initial_scale=3.0)
    layer = build(gram_layer, joint, parameterisation)
    assert_same(layer, joint, push_gram_layer(layer, joint))


@each_space
@pytest.mark.parametrize("data", ["batch", "image", "location", "local"])
@pytest.mark.parametrize("inducing", ["batch", "local"])
def test_norm(inducing, data, space):
    joint = random_joint("norm", space)
    norm = dkm.Norm(inducing, data, inducing, "location")
    layer = build(norm, joint, f"{inducing} {data}")
    assert_same(layer, joint, push_norm(layer, joint))


@each_space
def test_centre(space):
    joint = random_joint("centre", space)
    layer = build(dkm.Centre(), joint, "centre")
    assert_same(layer, joint, push_centre(layer, joint))


@each_space
def test_skip(space):
    joint = random_joint("skip", space)
    layer = build(dkm.Skip(dkm.ArcCosine(), weight=0.3), joint, "skip")
    assert_same(layer, joint, push_skip(0.3, joint, push_kernel(dkm.ArcCosine(), joint)))


@each_space
def test_mix(space):
    joint = random_joint("mix", space)
    layer = build(dkm.Mix(POINTS, 3), joint, "mix")
    features = joint.features()
    mixed = array(layer.weight) @ features[:POINTS]
    assert_same(layer, joint, joint.of_features(mixed, features[POINTS:], space))


@each_space
def test_noise(space):
    joint = random_joint("noise", space)
    own = np.diag(joint.matrix)
    noisy = replace(joint, matrix=joint.matrix + np.diag(0.2 * own + 0.1))
    assert_same(dkm.Noise(0.2, 0.1), joint, noisy)


@each_space
def test_global_average_pool(space):
    joint = random_joint("pool", space)
    assert_same(dkm.GlobalAveragePool(), joint, push_global_pool(joint))


@each_space
@pytest.mark.parametrize(("size", "stride", "padding"), [(2, 2, 0), (2, 1, 1), (3, 2, "same")])
def test_average_pool(size, stride, padding, space):
    joint = random_joint("average", space)
    layer = dkm.AveragePool(size, stride=stride, padding=padding, ndim=len(space))
    window = layer.window
    output, positions = oracle.windows(
        space, window.size, window.stride, window.dilation, window.padding
    )
    inside = [[below for _, below in under if below is not None] for _, under in positions]
    members = [[(n, place) for place in places] for n in range(IMAGES) for places in inside]
    assert_same(layer, joint, push_average(nystrom(joint), members, output))


@each_space
def test_pooling_is_exact_where_inducing_points_span_the_features(space):
    """Then the Nyström approximation is no approximation."""
    rows = array(normal(generator_of("span"), POINTS + IMAGES * int(np.prod(space)), POINTS))
    joint = Joint(rows @ rows.T / POINTS, POINTS, IMAGES, space)
    members = [[(n, place) for place in np.ndindex(*space)] for n in range(IMAGES)]
    assert_same(dkm.GlobalAveragePool(), joint, push_average(joint, members, ()), 1e-9)


@each_space
@pytest.mark.parametrize("after", [None, 5])
def test_flatten(after, space):
    """Features of all places side by side; an inducing point is an image mixed by C."""
    joint = random_joint("flatten", space)
    layer = build(dkm.Flatten(after), joint, "flatten")
    features, places = joint.features(), list(np.ndindex(*space))
    inducing = features[:POINTS]
    mixed = [
        inducing if after is None else array(layer.weight)[(..., *place)] @ inducing
        for place in places
    ]
    images = features[POINTS:].reshape(IMAGES, -1)
    scale = len(places) ** -0.5
    expected = joint.of_features(scale * np.concatenate(mixed, 1), scale * images, ())
    assert_same(layer, joint, expected)


# -- layer after layer -------------------------------------------------------------------------


@each_space
def test_chain_with_a_skip_connection(space):
    ndim = len(space)
    joint = random_joint("chain", space)
    layers = {
        "kernel": dkm.ArcCosine(),
        "conv": dkm.Conv(POINTS, 5, 3, stride=2, ndim=ndim),
        "gram": dkm.GramLayer(5),
        "norm": dkm.Norm("batch", "batch", "batch", "location"),
    }
    short = {"conv": dkm.Conv(POINTS, 5, 1, stride=2, ndim=ndim)}
    skip = dkm.Skip(dkm.Sequential(layers), dkm.Sequential(short), weight=0.6)
    model = build(
        dkm.Sequential(skip, dkm.ArcCosine(), dkm.Centre(), dkm.GlobalAveragePool()), joint, "chain"
    )
    body = push_conv(layers["conv"], push_kernel(layers["kernel"], joint))
    body = push_norm(layers["norm"], push_gram_layer(layers["gram"], body))
    joined = push_skip(0.6, push_conv(short["conv"], joint), body)
    expected = push_centre(None, push_kernel(model[1], joined))
    assert_same(dkm.Sequential(*[model[k] for k in range(3)]), joint, expected, 1e-9)
    assert_same(model, joint, push_global_pool(expected), 1e-9)
