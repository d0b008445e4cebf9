"""Operations on full covariances, against explicit features and naive loops."""

import itertools

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import convdkm as dkm
from convdkm.exact import SpatialGram
from convdkm.layers import Window

CLOSE = {"rtol": 1e-12, "atol": 1e-13}


def images(count, *shape):
    return torch.randn(count, *shape, dtype=torch.float64)


def assert_same(actual: SpatialGram, expected: SpatialGram):
    for name in ("cross", "left", "right"):
        torch.testing.assert_close(getattr(actual, name), getattr(expected, name), **CLOSE)


def naive_convolution(cross: np.ndarray, window: Window) -> np.ndarray:
    """Eq. 11 by a loop over pairs of places and offsets; zero outside the image."""
    space = cross.shape[2 : 2 + window.ndim]
    output = window.output_space(space)
    result = np.zeros((*cross.shape[:2], *output, *output))

    def place(corner, offset):
        return tuple(
            c * stride + o * dilation - pads[0]
            for c, o, stride, dilation, pads in zip(
                corner, offset, window.stride, window.dilation, window.padding, strict=True
            )
        )

    def inside(where):
        return all(0 <= w < size for w, size in zip(where, space, strict=True))

    for r in np.ndindex(*output):
        for s in np.ndindex(*output):
            for offset in np.ndindex(*window.size):
                one, two = place(r, offset), place(s, offset)
                if inside(one) and inside(two):
                    result[(slice(None), slice(None), *r, *s)] += cross[
                        (slice(None), slice(None), *one, *two)
                    ]
    return result / np.prod(window.size)


@pytest.mark.parametrize(
    ("space", "window"),
    [
        ((7,), Window.of(3, 1, "same", 1, 1)),
        ((8,), Window.of(4, 2, "same", 1, 1)),
        ((9,), Window.of(3, 2, 2, 3, 1)),
        ((4, 3), Window.of(3, 1, "same", 1, 2)),
        ((5, 4), Window.of((3, 2), (2, 1), (1, 0), (1, 2), 2)),
        ((3, 2, 3), Window.of(2, (1, 1, 2), "same", 1, 3)),
        ((2, 3, 2), Window.of((1, 3, 2), 1, (0, 1, 1), 1, 3)),
    ],
    ids=str,
)
def test_convolution_equals_a_loop(space, window):
    gram = SpatialGram.of_images(images(2, 2, *space), images(3, 2, *space))
    out = gram.convolve(window)
    assert out.space == window.output_space(space)
    np.testing.assert_allclose(
        out.cross.numpy(), naive_convolution(gram.cross.numpy(), window), rtol=1e-12, atol=1e-14
    )
    for side in ("left", "right"):
        block = getattr(gram, side).numpy()[None]
        expected = naive_convolution(block, window)[0]
        np.testing.assert_allclose(getattr(out, side).numpy(), expected, rtol=1e-12, atol=1e-14)


def test_convolution_of_pixels_is_the_gram_of_patches():
    x, z = images(3, 2, 6, 5), images(2, 2, 6, 5)
    settings = {"dilation": 2, "padding": 2, "stride": (2, 1)}
    window = Window.of(3, settings["stride"], settings["padding"], settings["dilation"], 2)
    patches = [
        F.unfold(i, 3, **settings).unflatten(2, window.output_space(i.shape[2:])) for i in (x, z)
    ]
    assert_same(SpatialGram.of_images(x, z).convolve(window), SpatialGram.of_images(*patches))


@pytest.mark.parametrize(
    ("ndim", "size", "stride", "padding"), [(1, 3, 2, 1), (2, 2, 2, 0), (2, 3, 1, 1), (3, 2, 1, 1)]
)
def test_pooling_of_pixels_is_the_gram_of_pooled_images(ndim, size, stride, padding):
    space = (6, 5, 4)[:ndim]
    x, z = images(3, 2, *space), images(2, 2, *space)
    pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[ndim - 1]
    pooled = [pool(i, size, stride, padding, False, False) for i in (x, z)]
    window = Window.of(size, stride, padding, 1, ndim)
    assert_same(SpatialGram.of_images(x, z).average_pool(window), SpatialGram.of_images(*pooled))


@pytest.mark.parametrize("space", [(5,), (3, 4), (2, 3, 2)])
def test_tops_of_pixels_are_grams_of_features(space):
    x, z = images(3, 2, *space), images(2, 2, *space)
    gram = SpatialGram.of_images(x, z)
    means = [i.flatten(2).mean(2) for i in (x, z)]
    assert_same(gram.global_average_pool(), SpatialGram.of_images(*means))
    flat = [i.flatten(1) for i in (x, z)]
    assert_same(gram.flatten(), SpatialGram.of_images(*flat))
    assert gram.flatten().space == ()


def test_kernel_of_every_entry():
    x, z = images(2, 3, 3, 2), images(3, 3, 3, 2)
    gram = SpatialGram.of_images(x, z).apply(dkm.SquaredExponential(0.7))
    for i, j in itertools.product(range(2), range(3)):
        for r, s in itertools.product(np.ndindex(3, 2), np.ndindex(3, 2)):
            distance = (x[(i, slice(None), *r)] - z[(j, slice(None), *s)]).square().mean()
            expected = torch.exp(-0.5 * distance / 0.49)
            torch.testing.assert_close(gram.cross[(i, j, *r, *s)], expected, **CLOSE)
    pairs = SpatialGram.of_images(x, x).apply(dkm.SquaredExponential(0.7)).cross
    torch.testing.assert_close(gram.left, torch.stack([pairs[0, 0], pairs[1, 1]]), **CLOSE)


class Nugget(dkm.Kernel):
    """The linear kernel, and a variance of each point's own."""

    def of(self, cross, left, right):
        return cross

    def variance(self, own):
        return own + 0.5


def test_a_point_with_itself_is_given_by_the_variance():
    x, z = images(2, 3, 3), images(2, 3, 3)
    gram, other = SpatialGram.of_images(x), SpatialGram.of_images(x, z)
    nugget = 0.5 * torch.eye(6, dtype=torch.float64)
    torch.testing.assert_close(gram.apply(Nugget()).matrix(), gram.matrix() + nugget, **CLOSE)
    torch.testing.assert_close(other.apply(Nugget()).matrix(), other.matrix(), **CLOSE)
    inside = other.apply(Nugget()).left - other.left
    torch.testing.assert_close(inside, nugget[:3, :3].expand(2, 3, 3), **CLOSE)


def test_the_same_images_keep_their_covariance_tied():
    """An order-0 kernel loses half the digits at identical points, unless they are known."""
    x = images(3, 2, 4)
    kernel = dkm.ArcCosine(0)
    window = Window.of(3, 1, "same", 1, 1)
    gram = SpatialGram.of_images(x).convolve(window).apply(kernel).convolve(window)
    for i in range(3):
        torch.testing.assert_close(gram.cross[i, i], gram.left[i], rtol=0, atol=0)
    untied = SpatialGram.of_images(x, x).convolve(window).apply(kernel).convolve(window)
    torch.testing.assert_close(untied.cross, gram.cross, rtol=1e-6, atol=1e-6)
    once = SpatialGram.of_images(x).apply(kernel)
    assert torch.equal(once.left_variances, torch.ones(3, 4, dtype=torch.float64))


def test_the_matrix_is_symmetric_positive_and_ordered_by_image_then_place():
    x = images(2, 3, 3, 2)
    gram = SpatialGram.of_images(x).convolve(Window.of(3, 1, "same")).apply(dkm.ArcCosine())
    matrix = gram.matrix()
    assert matrix.shape == (12, 12)
    torch.testing.assert_close(matrix, matrix.T, **CLOSE)
    assert torch.linalg.eigvalsh(matrix).min() > 0
    torch.testing.assert_close(matrix[6 + 3, 2], gram.cross[1, 0, 1, 1, 1, 0], rtol=0, atol=0)
    torch.testing.assert_close(matrix.diagonal().reshape(2, 3, 2), gram.left_variances, **CLOSE)
    torch.testing.assert_close(gram.right_variances, gram.left_variances, **CLOSE)


def test_combination_is_the_gram_of_concatenated_features():
    x, y = images(3, 2, 4), images(3, 2, 4)
    first, second = SpatialGram.of_images(x), SpatialGram.of_images(y)
    both = torch.cat([0.75**0.5 * x, 0.25**0.5 * y], 1) * 2**0.5
    assert_same(first.combine(second, 0.25), SpatialGram.of_images(both))
    weight = torch.tensor(0.25)
    assert_same(first.combine(second, weight), SpatialGram.of_images(both))


def test_rescaling_and_noise():
    x, z = images(3, 2, 4), images(2, 2, 4)
    gram = SpatialGram.of_images(x, z)
    unit = gram.rescale(lambda own: own.rsqrt())
    expected = [i / i.square().mean(1, keepdim=True).sqrt() for i in (x, z)]
    assert_same(unit, SpatialGram.of_images(*expected))
    noisy = gram.with_variances(lambda own: own + 0.5)
    assert torch.equal(noisy.cross, gram.cross)
    torch.testing.assert_close(noisy.left - gram.left, 0.5 * torch.eye(4).double().expand(3, 4, 4))
    torch.testing.assert_close(noisy.right_variances, gram.right_variances + 0.5)
    tied = SpatialGram.of_images(x).with_variances(lambda own: own + 0.5).matrix()
    own = SpatialGram.of_images(x).matrix()
    torch.testing.assert_close(tied, own + 0.5 * torch.eye(12).double(), **CLOSE)


def test_vectors_are_images_without_places():
    x, z = images(4, 3), images(2, 3)
    gram = SpatialGram.of_images(x, z)
    assert gram.space == ()
    torch.testing.assert_close(gram.cross, x @ z.T / 3, **CLOSE)
    torch.testing.assert_close(gram.left, x.square().mean(1), **CLOSE)
    assert "left=4, right=2" in repr(gram)


def test_errors_name_the_block():
    x = images(3, 2, 4)
    gram = SpatialGram.of_images(x)
    with pytest.raises(dkm.GramError, match="N1, N2"):
        SpatialGram(torch.ones(3, 3, 4), gram.left, gram.right)
    with pytest.raises(dkm.GramError, match=r"SpatialGram\.left must have shape \(3, 4, 4\)"):
        SpatialGram(gram.cross, gram.left[:2], gram.right)
    with pytest.raises(dkm.GramError, match=r"SpatialGram\.right must have the dtype"):
        SpatialGram(gram.cross, gram.left, gram.right.float())
    with pytest.raises(dkm.GramError, match="cannot be the same"):
        SpatialGram(gram.cross[:2], gram.left[:2], gram.right, same=True)
    with pytest.raises(dkm.InvalidInputError, match="same C and space"):
        SpatialGram.of_images(x, images(3, 3, 4))
    with pytest.raises(dkm.GramError, match="2-D data"):
        gram.convolve(Window.of(3))
    with pytest.raises(dkm.GramError, match="no space left"):
        gram.flatten().global_average_pool()
    with pytest.raises(dkm.GramError, match="same images and places"):
        gram.combine(gram.average_pool(Window.of(2, 2, 0, 1, 1)))
    with pytest.raises(dkm.GramError, match=r"\[0, 1\]"):
        gram.combine(gram, 1.5)
