"""The geometry of filters, against the oracle's loops and torch's own convolutions."""

import itertools
import math

import pytest
import torch
from torch.nn import functional as F

import convdkm as dkm
import oracle
from convdkm.layers import Window
from oracle.adapter import array
from oracle.cases import generator_of, normal

SPACES = {1: (9,), 2: (7, 8), 3: (5, 6, 4)}


@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize(("size", "dilation"), list(itertools.product((1, 2, 3, 4), (1, 2))))
def test_same_padding_centres_the_filter(ndim, size, dilation):
    window = Window.of(size, 1, "same", dilation, ndim)
    assert window.padding == oracle.same_padding((size,) * ndim, (dilation,) * ndim)
    assert window.output_space(SPACES[ndim]) == SPACES[ndim]


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("padding", ["same", "valid", 0, 1, 2])
@pytest.mark.parametrize(("size", "dilation"), list(itertools.product((1, 2, 3, 4), (1, 2))))
def test_output_space_counts_the_positions_that_fit(size, dilation, padding, stride):
    for length in (7, 8, 9, 10):
        window = Window.of(size, stride, padding, dilation, 1)
        output, positions = oracle.windows(
            (length,), (size,), (stride,), (dilation,), window.padding
        )
        assert window.output_space((length,)) == output
        counts = [sum(below is not None for _, below in under) for _, under in positions]
        like = torch.empty(0, dtype=torch.float64)
        assert window.counts((length,), like).flatten().tolist() == counts


@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize(("size", "dilation"), list(itertools.product((2, 3, 4), (1, 2))))
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_convolution_is_that_of_torch(ndim, size, dilation):
    generator = generator_of(f"{ndim} {size} {dilation}")
    space = tuple(2 * length for length in SPACES[ndim])
    maps, weight = normal(generator, 2, 3, *space), normal(generator, 4, 3, *(size,) * ndim)
    window = Window.of(size, 1, "same", dilation, ndim)
    convolution = (F.conv1d, F.conv2d, F.conv3d)[ndim - 1]
    expected = convolution(maps, weight, padding="same", dilation=dilation)
    assert oracle.deviation(array(window.convolve(maps, weight)), array(expected)) < 1e-13


@pytest.mark.parametrize(("stride", "dilation", "padding"), [(1, 1, "same"), (2, 2, 1), (3, 1, 0)])
@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_patches_are_what_a_convolution_sees(ndim, stride, dilation, padding):
    generator = generator_of(f"patches {ndim} {stride}")
    maps, weight = normal(generator, 2, 3, *SPACES[ndim]), normal(generator, 4, 3, *(2,) * ndim)
    window = Window.of(2, stride, padding, dilation, ndim)
    places = torch.arange(math.prod(window.output_space(SPACES[ndim])))
    whole = window.convolve(maps, weight).flatten(2)
    images = torch.ones_like(places)
    patches = window.patches(maps, images, places)
    found = patches.flatten(1) @ weight.flatten(1).T
    assert oracle.deviation(array(found), array(whole[1, :, places].T)) < 1e-13


@pytest.mark.parametrize(
    "arguments",
    [
        {"size": 0},
        {"size": (3, 3, 3)},
        {"size": 3, "stride": 0},
        {"size": 3, "dilation": -1},
        {"size": 3, "padding": -1},
        {"size": 3, "padding": "full"},
        {"size": 2.5},
        {"size": 3, "ndim": 4},
    ],
)
def test_impossible_windows_are_refused(arguments):
    with pytest.raises(dkm.InvalidInputError):
        Window.of(**arguments)


def test_a_window_that_does_not_fit_says_so():
    window = Window.of(5, 1, "valid", 2, 2)
    with pytest.raises(dkm.GramError, match="spans 9 places along axis 1"):
        window.require_space((9, 8))
    with pytest.raises(dkm.GramError, match="works on 2-D data"):
        window.require_space((9,))
