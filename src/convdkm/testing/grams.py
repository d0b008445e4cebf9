"""Grams to try a layer on: at random, and as degenerate as data can be."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from convdkm.gram import Gram


def random_gram(
    num_inducing: int,
    space: Sequence[int] = (),
    *,
    num_images: int = 5,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Gram:
    """The Gram of random features, about half of whose variance the inducing points explain."""
    generator = torch.Generator().manual_seed(seed)
    width = 2 * num_inducing + 2
    inducing = torch.randn(num_inducing, width, generator=generator, dtype=torch.float64)
    shape = (num_images, width, *space)
    images = torch.randn(shape, generator=generator, dtype=torch.float64)
    return Gram.from_features(inducing, images).to(dtype)


def degenerate_gram(
    num_inducing: int,
    space: Sequence[int] = (),
    *,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    zero: bool = True,
) -> Gram:
    """The Gram of six images at which careless derivatives are NaN.

    An image of zeros (``zero=False``: a random one), two images that are the same, one whose every
    place is an inducing point (the last, the last but one, …), minus that image, and a random one.
    """
    gram = random_gram(num_inducing, space, num_images=6, seed=seed)
    it, tt = gram.it.clone(), gram.tt.clone()
    places = torch.arange(math.prod(space)).reshape(tuple(space))
    which = (num_inducing - 1 - places).remainder(num_inducing)
    if zero:
        it[0], tt[0] = 0, 0
    it[2], tt[2] = it[1], tt[1]
    it[3], tt[3] = gram.ii[:, which], gram.ii.diagonal()[which]
    it[4], tt[4] = -it[3], tt[3]
    return Gram(gram.ii, it, tt).to(dtype)
