"""Write the kernels of the architectures in ``convdkm.lab.baselines.kernels`` from neural-tangents.

The conventions are those of ``make_golden_nngp.py``, whose NumPy recursion is used here too: every
kernel is computed by both, and the file is written only if they agree. In addition:

* a ReLU is followed by a factor 2 (normalised), which in neural-tangents is the weight variance of
  the layer that comes next, be it the readout; but for ``he``, where that is part of the network;
* ``lapN`` is average pooling with an N×N window, stride 1, zeros outside and the same divisor at
  the border, and then ``flatten``;
* ``gaussian`` is ``|x| |y| exp(cos t - 1)`` in the place of the ReLU.

neural-tangents needs package versions of its own: run this by ``make_golden_baselines.sh``.
"""

from __future__ import annotations

import argparse
import types
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
from make_golden_nngp import (
    Case,
    arccos1,
    avg_pool2,
    compute,
    conv3x3,
    cosine_and_norm,
    flatten_top,
    gap_top,
    load_stax,
    residual,
)

DEFAULT_OUTPUT = Path(__file__).resolve().parents[1] / "tests" / "golden" / "baseline_kernels.npz"
SEED = 7
GROUPS = {5: (2, 1, 1), 7: (2, 2, 2), 10: (3, 3, 3)}
Map = Callable[[np.ndarray], np.ndarray]


def gaussian(gram: np.ndarray) -> np.ndarray:
    """``|x| |y| exp(cos t - 1)``."""
    cos, norm = cosine_and_norm(gram)
    return norm * np.exp(cos - 1)


def blur_top(size: int) -> Map:
    """The readout of a box blur of a window of ``size`` × ``size``."""

    def weights(count: int) -> np.ndarray:
        """In how many windows two places lie both."""
        place = np.arange(count)
        window = (np.abs(place[:, None] - place) <= size // 2).astype(float)
        return window @ window

    def top(gram: np.ndarray) -> np.ndarray:
        height, width = gram.shape[1:3]
        total = np.einsum("ihwjkl,hk,wl->ij", gram, weights(height), weights(width))
        return total / (height * width * size**4)

    return top


def chain(*maps: Map) -> Map:
    """One map after another."""

    def through(gram: np.ndarray) -> np.ndarray:
        for one in maps:
            gram = one(gram)
        return gram

    return through


def cases(stax: types.ModuleType) -> list[Case]:
    """All architectures, as networks of neural-tangents and as NumPy maps."""

    def conv(gain: float = 1.0, bias: float = 0.0, size: int = 3):
        return stax.Conv(1, (size, size), (1, 1), "SAME", W_std=gain**0.5, b_std=bias**0.5)

    relu, pool = stax.Relu(), stax.AvgPool((2, 2), (2, 2))

    def top(name: str, gain: float) -> tuple[list, Map]:
        readout = stax.Dense(1, W_std=gain**0.5)
        if name == "gap":
            return [stax.GlobalAvgPool(), readout], gap_top
        if name == "vec":
            return [stax.Flatten(), readout], flatten_top
        size = int(name.removeprefix("lap"))
        blur = stax.AvgPool((size, size), (1, 1), "SAME", normalize_edges=False)
        return [blur, stax.Flatten(), readout], blur_top(size)

    block = stax.serial(
        stax.FanOut(2),
        # As in make_golden_nngp.py: the weight 1/2 of the sum is in the gains.
        stax.parallel(stax.serial(relu, conv(2), relu, conv(1)), conv(0.5, size=1)),
        stax.FanInSum(),
    )
    trunks: dict[str, tuple[list, Map, float, tuple[str, ...]]] = {
        "conv2": (
            [conv(), relu, conv(2), relu],
            chain(conv3x3, arccos1, conv3x3, arccos1),
            2,
            ("vec", "gap", "lap3", "lap5"),
        ),
        "bias": (
            [conv(1, 0.3), relu, conv(2, 0.3), relu],
            chain(lambda g: conv3x3(g) + 0.3, arccos1, lambda g: conv3x3(g) + 0.3, arccos1),
            2,
            ("vec", "gap"),
        ),
        "he": (
            [conv(2, 0.1), relu, conv(2, 0.1), relu],
            chain(
                lambda g: 2 * conv3x3(g) + 0.1,
                lambda g: arccos1(g) / 2,
                lambda g: 2 * conv3x3(g) + 0.1,
                lambda g: arccos1(g) / 2,
            ),
            1,
            ("vec", "gap"),
        ),
        "res1": (
            [conv(), block, relu],
            chain(conv3x3, residual, arccos1),
            2,
            ("vec", "gap", "lap3"),
        ),
    }
    for depth, groups in GROUPS.items():
        kinds = {"": (relu, arccos1, 2.0)}
        if depth == 5:
            kinds["_gaussian"] = (stax.ExpNormalized(gamma=1, shift=-1), gaussian, 1.0)
        for suffix, (layer, map_, gain) in kinds.items():
            layers, maps, following = [], [], 1.0
            for index, count in enumerate(groups):
                for _ in range(count):
                    layers += [conv(following), layer]
                    maps += [conv3x3, map_]
                    following = gain
                if index < 2:
                    layers.append(pool)
                    maps.append(avg_pool2)
            trunks[f"myrtle{depth}{suffix}"] = (layers, chain(*maps), gain, ("gap",))
    result = []
    for name, (layers, map_, gain, tops) in trunks.items():
        for kind in tops:
            above, top_map = top(kind, gain)
            result.append(Case(f"{name}_{kind}", "image", layers + above, chain(map_, top_map)))
    return result


def main() -> None:
    """Compute all cases, check them and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT)
    output = parser.parse_args().output
    stax = load_stax()
    rng = np.random.default_rng(SEED)
    x1, x2 = rng.standard_normal((3, 2, 8, 8)), rng.standard_normal((2, 2, 8, 8))
    every = cases(stax)
    arrays = {"cases": np.array([case.name for case in every]), "x1": x1, "x2": x2}
    for case in every:
        k11, k12, deviation = compute(case, x1, x2, stax)
        arrays |= {f"{case.name}/k11": k11, f"{case.name}/k12": k12}
        print(f"{case.name:24s} deviation from NumPy {deviation:.1e}", flush=True)
    np.savez_compressed(output, **arrays)
    packages = ["neural-tangents", "jax", "jaxlib", "numpy", "scipy", "frozendict"]
    print("made with", ", ".join(f"{name} {version(name)}" for name in packages))
    print(f"wrote {output} ({output.stat().st_size} bytes)")


if __name__ == "__main__":
    main()
