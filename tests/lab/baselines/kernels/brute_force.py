"""Kernels of networks by loops over places, in float64, and finite networks of random weights.

Nothing here is shared with the code under test but the classes that describe a network.
"""

import math
from itertools import product

import numpy as np
import torch
from torch.nn import functional as F

import convdkm as dkm
from convdkm.exact import Convolution


def number(positive):
    return 1.0 if positive is None else math.exp(float(positive.log_value))


def inside(skip):
    return [layer for _, layer in skip.body.named_layers()]


def places(height, width):
    return list(product(range(height), range(width)))


def start(x, y):
    _, height, width = x.shape
    return {
        (s, r): sum(a * b for a, b in zip(x[:, s[0], s[1]], y[:, r[0], r[1]], strict=True)) / len(x)
        for s, r in product(places(height, width), repeat=2)
    }


def convolve(cov, layer):
    reach = layer.window.size[0] // 2
    shifts = list(product(range(-reach, reach + 1), repeat=2))
    return {
        (s, r): layer.bias_variance
        + layer.weight_variance
        / len(shifts)
        * sum(cov.get(((s[0] + i, s[1] + j), (r[0] + i, r[1] + j)), 0.0) for i, j in shifts)
        for s, r in cov
    }


def activate(cov, left, right, layer):
    result = {}
    for (s, r), value in cov.items():
        size = math.sqrt(left[s, s] * right[r, r])
        cosine = min(1.0, max(-1.0, value / size)) if size else 0.0
        if isinstance(layer, dkm.ArcCosine):
            angle = math.acos(cosine)
            # E[relu(u) relu(v)] = size / 2π (sin θ + (π − θ) cos θ)
            bare = size * (math.sin(angle) + (math.pi - angle) * cosine) / (2 * math.pi)
            result[s, r] = 2 * number(layer.weight_variance) * bare
        elif isinstance(layer, dkm.NormalisedGaussian):
            result[s, r] = size * math.exp(number(layer.gamma) * (cosine - 1))
        elif isinstance(layer, dkm.ArcSine):
            above = math.sqrt((1 + 2 * left[s, s]) * (1 + 2 * right[r, r]))
            result[s, r] = 2 / math.pi * math.asin(2 * value / above)
        elif isinstance(layer, dkm.SquaredExponential):
            distance = left[s, s] + right[r, r] - 2 * value
            result[s, r] = number(layer.scale) * math.exp(-distance / 2)
        else:
            assert isinstance(layer.kernel, dkm.Linear)
            result[s, r] = number(layer.factor) * value
    return result


def pool(cov, size):
    result = {}
    for (s, r), value in cov.items():
        key = tuple(tuple(c // size for c in place) for place in (s, r))
        result[key] = result.get(key, 0.0) + value / size**4
    return result


def through(layers, covs):
    """``covs`` are those of x with x, x with y, y with y."""
    for layer in layers:
        if isinstance(layer, Convolution):
            covs = [convolve(cov, layer) for cov in covs]
        elif isinstance(layer, dkm.AveragePool):
            covs = [pool(cov, layer.window.size[0]) for cov in covs]
        elif isinstance(layer, dkm.Skip):
            body = through(inside(layer), covs)
            covs = [
                {k: (1 - float(layer.weight)) * a[k] + float(layer.weight) * b[k] for k in a}
                for a, b in zip(covs, body, strict=True)
            ]
        else:
            xx, xy, yy = covs
            covs = [
                activate(xx, xx, xx, layer),
                activate(xy, xx, yy, layer),
                activate(yy, yy, yy, layer),
            ]
    return covs


def read_out(cov, top):
    spots = sorted({s for s, _ in cov})
    if isinstance(top, dkm.Flatten):
        return sum(cov[s, s] for s in spots) / len(spots)
    if isinstance(top, dkm.GlobalAveragePool):
        return sum(cov.values()) / len(spots) ** 2
    reach = top.size // 2
    shifts = list(product(range(-reach, reach + 1), repeat=2))
    total = 0.0
    for a, b in spots:
        window = [(a + i, b + j) for i, j in shifts if (a + i, b + j) in spots]
        total += sum(cov[s, r] for s in window for r in window) / len(shifts) ** 2
    return total / len(spots)


def brute_kernel(architecture, x, y):
    """k of two images (C, H, W)."""
    x, y = (np.asarray(image, dtype=np.float64) for image in (x, y))
    covs = through(architecture.layers, [start(x, x), start(x, y), start(y, y)])
    return read_out(covs[1], architecture.top)


def brute_matrix(architecture, left, right=None):
    """All pairs; without ``right`` those of the images with one another, each once."""
    if right is not None:
        rows = [[brute_kernel(architecture, x, y) for y in right] for x in left]
        return torch.tensor(rows, dtype=torch.float64)
    result = torch.zeros(len(left), len(left), dtype=torch.float64)
    for i, j in product(range(len(left)), repeat=2):
        if i <= j:
            result[i, j] = result[j, i] = brute_kernel(architecture, left[i], left[j])
    return result


def finite_features(layers, maps, width, generator):
    """The units of a network of random weights, ``width`` channels each layer."""
    for layer in layers:
        if isinstance(layer, Convolution):
            size = layer.window.size[0]
            shape = (width, maps.shape[1], size, size)
            fan_in = maps.shape[1] * size**2
            weight = (
                torch.randn(shape, generator=generator) * (layer.weight_variance / fan_in) ** 0.5
            )
            bias = torch.randn(width, generator=generator) * layer.bias_variance**0.5
            maps = F.conv2d(maps, weight, bias, padding=size // 2)
        elif isinstance(layer, dkm.AveragePool):
            maps = F.avg_pool2d(maps, layer.window.size[0])
        elif isinstance(layer, dkm.Skip):
            body = finite_features(inside(layer), maps, width, generator)
            share = float(layer.weight)
            maps = (1 - share) ** 0.5 * maps + share**0.5 * body
        elif isinstance(layer, dkm.ArcCosine):
            maps = (2 * number(layer.weight_variance)) ** 0.5 * maps.relu()
        else:
            raise TypeError("no finite network has this nonlinearity")
    return maps


def finite_kernels(architecture, images, width, networks, seed):
    """The mean over units below the readout of their products, for each of several networks."""
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for _ in range(networks):
        maps = finite_features(architecture.layers, images, width, generator)
        top = architecture.top
        if isinstance(top, dkm.GlobalAveragePool):
            maps = maps.mean((2, 3), keepdim=True)
        elif not isinstance(top, dkm.Flatten):
            maps = F.avg_pool2d(maps, top.size, 1, top.size // 2, count_include_pad=True)
        vectors = maps.flatten(1)
        samples.append((vectors @ vectors.T / vectors.shape[1]).double())
    return torch.stack(samples)
