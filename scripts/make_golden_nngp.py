"""Write exact NNGP kernels from neural-tangents to a golden file for the tests.

The convention of the stored kernels:

* the Gram of an image is ``G[i, s, j, r]``, for images ``i, j`` at locations ``s, r``. On the
  input it is the mean over channels of the products of pixels;
* a convolution averages over its ``D`` filter positions, with zeros outside the image:
  ``G'[i, s, j, r] = 1/D sum_d G[i, s + d, j, r + d]`` (always divided by ``D``, borders too);
* the ReLU is the arc-cosine kernel of order 1 normalised so that ``k(x, x) = G_xx``;
* ``erf`` is the kernel of that function, as neural-tangents has it, and ``leaky`` that of the leaky
  ReLU of slope 0.3, normalised so that ``k(x, x) = G_xx``;
* the top is either ``flatten``, ``1/S sum_s G[i, s, j, s]``, or ``gap`` (global average pooling),
  ``1/S^2 sum_{s, r} G[i, s, j, r]``.

Every kernel is also computed here by a plain NumPy recursion on the full Gram, and the file is
written only if the two agree.

neural-tangents needs package versions of its own: run this by ``make_golden_nngp.sh``, which makes
a suitable virtual environment.
"""

from __future__ import annotations

import argparse
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

DEFAULT_OUTPUT = Path(__file__).resolve().parents[1] / "tests" / "golden" / "nngp.npz"
SEED = 0
RBF_GAMMA = 0.5
LEAK = 0.3
RTOL = 1e-11
ATOL = 1e-12


def load_stax() -> types.ModuleType:
    """Import ``neural_tangents.stax`` in float64, without its TensorFlow-only submodule."""
    import jax

    jax.config.update("jax_enable_x64", True)
    name = "neural_tangents.experimental"
    sys.modules[name] = types.ModuleType(name)
    from neural_tangents import stax

    return stax


# --- The same kernels in NumPy, on the full Gram -------------------------------------------------


def input_gram(x: np.ndarray) -> np.ndarray:
    """Gram of ``x``, of shape (N, C, ...): the mean over channels; shape (N, ..., N, ...)."""
    x = np.moveaxis(x, 1, -1)
    return np.tensordot(x, x, axes=(-1, -1)) / x.shape[-1]


def cosine_and_norm(gram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cosines ``G_ab / sqrt(G_aa G_bb)`` and their denominators, in the shape of ``gram``."""
    rows = int(np.sqrt(gram.size))
    flat = gram.reshape(rows, rows)
    norm = np.sqrt(np.outer(np.diag(flat), np.diag(flat)))
    return np.clip(flat / norm, -1, 1).reshape(gram.shape), norm.reshape(gram.shape)


def arccos0(gram: np.ndarray) -> np.ndarray:
    """Arc-cosine kernel of order 0 with ``k(x, x) = 1``: ``1 - theta / pi``."""
    return 1 - np.arccos(cosine_and_norm(gram)[0]) / np.pi


def arccos1(gram: np.ndarray) -> np.ndarray:
    """Arc-cosine kernel of order 1 with ``k(x, x) = G_xx``."""
    cos, norm = cosine_and_norm(gram)
    theta = np.arccos(cos)
    return norm * (np.sin(theta) + (np.pi - theta) * cos) / np.pi


def erf(gram: np.ndarray) -> np.ndarray:
    """``E[erf(u) erf(v)]``: ``2/pi asin(2 G_ab / sqrt((1 + 2 G_aa) (1 + 2 G_bb)))``."""
    rows = int(np.sqrt(gram.size))
    flat = gram.reshape(rows, rows)
    own = 1 + 2 * np.diag(flat)
    return (2 / np.pi * np.arcsin(2 * flat / np.sqrt(np.outer(own, own)))).reshape(gram.shape)


def leaky(gram: np.ndarray) -> np.ndarray:
    """``E[f(u) f(v)]`` with ``f(u) = max(u, 0) + LEAK min(u, 0)``, times ``2 / (1 + LEAK^2)``."""
    cos, norm = cosine_and_norm(gram)
    theta = np.arccos(cos)
    # Of the products of f(u) and f(v), those of equal signs, and those of opposite ones.
    equal = norm * (np.sin(theta) + (np.pi - theta) * cos) / (2 * np.pi)
    opposite = norm * (np.sin(theta) - theta * cos) / (2 * np.pi)
    return 2 / (1 + LEAK**2) * ((1 + LEAK**2) * equal - 2 * LEAK * opposite)


def rbf(gram: np.ndarray, gamma: float) -> np.ndarray:
    """Squared exponential kernel ``exp(-gamma (G_ii + G_jj - 2 G_ij))`` of vectors."""
    diag = np.diag(gram)
    return np.exp(-gamma * (diag[:, None] + diag[None, :] - 2 * gram))


def conv3x3(gram: np.ndarray, stride: int = 1, pad: int = 1) -> np.ndarray:
    """Average a Gram of images over the positions of a 3x3 filter, zero outside the images."""
    gram = np.pad(gram, [(0, 0), (pad, pad), (pad, pad)] * 2)
    last_row, last_col = gram.shape[1] - 3, gram.shape[2] - 3
    total = 0.0
    for a in range(3):
        for b in range(3):
            rows = slice(a, a + last_row + 1, stride)
            cols = slice(b, b + last_col + 1, stride)
            total = total + gram[:, rows, cols, :, rows, cols]
    return total / 9


def avg_pool2(gram: np.ndarray) -> np.ndarray:
    """Average pooling of window 2 and stride 2, on both sides of a Gram of even-sized images."""
    n, h, w = gram.shape[:3]
    return gram.reshape(n, h // 2, 2, w // 2, 2, n, h // 2, 2, w // 2, 2).mean(axis=(2, 4, 7, 9))


def residual(gram: np.ndarray) -> np.ndarray:
    """Half the branch ReLU-conv-ReLU-conv plus half the identity."""
    branch = conv3x3(arccos1(conv3x3(arccos1(gram))))
    return 0.5 * branch + 0.5 * gram


def flatten_top(gram: np.ndarray) -> np.ndarray:
    """Mean over locations of the blocks diagonal in space."""
    return np.einsum("ihwjhw->ij", gram) / np.prod(gram.shape[1:3])


def gap_top(gram: np.ndarray) -> np.ndarray:
    """Mean over all pairs of locations."""
    return gram.mean(axis=(1, 2, 4, 5))


# --- The cases -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A network of neural-tangents and the NumPy map from input Gram to kernel it must equal."""

    name: str
    inputs: str
    layers: list
    reference: Callable[[np.ndarray], np.ndarray]


def image_cases(stax: types.ModuleType) -> list[Case]:
    """The convolutional cases, each with the two tops."""

    def conv(gain: float = 1.0, stride: int = 1, padding: str = "SAME", size: int = 3):
        """Convolution multiplying the average over patches by ``gain``: 2 undoes a ReLU's half."""
        return stax.Conv(1, (size, size), (stride, stride), padding, W_std=gain**0.5)

    relu = stax.Relu()
    block = stax.serial(
        stax.FanOut(2),
        # The weight 1/2 of the sum is in the last gain of the branch, 2 * 1/2, and in a 1x1
        # convolution in the place of the identity, which multiplies the kernel by its gain only.
        stax.parallel(stax.serial(relu, conv(2), relu, conv(1)), conv(0.5, size=1)),
        stax.FanInSum(),
    )
    trunks = {
        "conv1": ("even", [conv()], conv3x3),
        "conv_relu_conv": (
            "even",
            [conv(), relu, conv(2)],
            lambda g: conv3x3(arccos1(conv3x3(g))),
        ),
        "depth3": (
            "odd",
            [conv(), relu, conv(2), relu, conv(2)],
            lambda g: conv3x3(arccos1(conv3x3(arccos1(conv3x3(g))))),
        ),
        "stride2_same": (
            "odd",
            [conv(), relu, conv(2, stride=2)],
            lambda g: conv3x3(arccos1(conv3x3(g)), stride=2),
        ),
        "stride2_valid": (
            "even",
            [conv(), relu, conv(2, stride=2, padding="VALID")],
            lambda g: conv3x3(arccos1(conv3x3(g)), stride=2, pad=0),
        ),
        "avgpool": (
            "even",
            [conv(), relu, stax.AvgPool((2, 2), (2, 2)), conv(2)],
            lambda g: conv3x3(avg_pool2(arccos1(conv3x3(g)))),
        ),
        "conv_erf_conv": (
            "even",
            [conv(), stax.Erf(), conv()],
            lambda g: conv3x3(erf(conv3x3(g))),
        ),
        "conv_leaky_conv": (
            "even",
            [conv(), stax.LeakyRelu(LEAK), conv(2 / (1 + LEAK**2))],
            lambda g: conv3x3(leaky(conv3x3(g))),
        ),
        "residual": ("even", [conv(), block], lambda g: residual(conv3x3(g))),
    }
    tops = {
        "flatten": ([stax.Flatten(), stax.Dense(1)], flatten_top),
        "gap": ([stax.GlobalAvgPool(), stax.Dense(1)], gap_top),
    }
    return [
        Case(
            f"{trunk}_{top}",
            inputs,
            layers + top_layers,
            lambda g, trunk_fn=trunk_fn, top_fn=top_fn: top_fn(trunk_fn(g)),
        )
        for trunk, (inputs, layers, trunk_fn) in trunks.items()
        for top, (top_layers, top_fn) in tops.items()
    ]


def vector_cases(stax: types.ModuleType) -> list[Case]:
    """Kernels of vectors, on the Gram ``x . x' / C``."""
    first, after_relu = stax.Dense(1), stax.Dense(1, W_std=2**0.5)
    # A half of the kernel plus a half: 1 - 2 theta / pi of the sign becomes 1 - theta / pi.
    after_sign = stax.Dense(1, W_std=0.5**0.5, b_std=0.5**0.5)
    relu, sign = stax.Relu(), stax.Sign()
    return [
        Case("vec_linear", "vector", [first], lambda g: g),
        Case("vec_arccos1", "vector", [first, relu, after_relu], arccos1),
        Case(
            "vec_arccos1_depth3",
            "vector",
            [first] + [relu, after_relu] * 3,
            lambda g: arccos1(arccos1(arccos1(g))),
        ),
        Case("vec_arccos0", "vector", [first, sign, after_sign], arccos0),
        Case("vec_sign", "vector", [first, sign], lambda g: 2 * arccos0(g) - 1),
        Case("vec_erf", "vector", [first, stax.Erf(), first], erf),
        Case(
            "vec_erf_depth3",
            "vector",
            [first] + [stax.Erf(), first] * 3,
            lambda g: erf(erf(erf(g))),
        ),
        Case(
            "vec_leaky",
            "vector",
            [first, stax.LeakyRelu(LEAK), stax.Dense(1, W_std=(2 / (1 + LEAK**2)) ** 0.5)],
            leaky,
        ),
        Case(
            "vec_abs",
            "vector",
            [first, stax.ABRelu(-1, 1), first],
            lambda g: 2 * arccos1(g) - g,
        ),
        Case("vec_rbf", "vector", [first, stax.Rbf(RBF_GAMMA)], lambda g: rbf(g, RBF_GAMMA)),
    ]


def make_inputs() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Standard normal inputs x1 and x2: images as NCHW, vectors as (N, C)."""
    rng = np.random.default_rng(SEED)
    shapes = {"even": (2, 6, 6), "odd": (2, 7, 5), "vector": (5,)}
    return {
        name: (rng.standard_normal((3, *shape)), rng.standard_normal((2, *shape)))
        for name, shape in shapes.items()
    }


def compute(
    case: Case, x1: np.ndarray, x2: np.ndarray, stax: types.ModuleType
) -> tuple[np.ndarray, np.ndarray, float]:
    """The kernels k(x1, x1), k(x1, x2) and their greatest deviation from the reference."""
    kernel_fn = stax.serial(*case.layers)[2]
    # neural-tangents wants the channels last.
    last1, last2 = np.moveaxis(x1, 1, -1), np.moveaxis(x2, 1, -1)
    k11 = np.asarray(kernel_fn(last1, None, "nngp"))
    k12 = np.asarray(kernel_fn(last1, last2, "nngp"))
    if not k11.dtype == k12.dtype == np.float64:
        raise TypeError(f"{case.name}: kernels of {k11.dtype} and {k12.dtype}, not float64")

    actual = np.concatenate([k11, k12], axis=1)
    desired = case.reference(input_gram(np.concatenate([x1, x2])))[: len(x1)]
    np.testing.assert_allclose(actual, desired, rtol=RTOL, atol=ATOL, err_msg=case.name)
    return k11, k12, float(np.abs(actual - desired).max())


def main() -> None:
    """Compute all cases, check them and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT)
    output = parser.parse_args().output

    stax = load_stax()
    inputs = make_inputs()
    cases = image_cases(stax) + vector_cases(stax)
    arrays = {"cases": np.array([case.name for case in cases])}
    for case in cases:
        x1, x2 = inputs[case.inputs]
        k11, k12, deviation = compute(case, x1, x2, stax)
        arrays |= {
            f"{case.name}/x1": x1,
            f"{case.name}/x2": x2,
            f"{case.name}/k11": k11,
            f"{case.name}/k12": k12,
        }
        print(f"{case.name:24s} x1 {x1.shape!s:13s} deviation from NumPy {deviation:.1e}")

    output.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(output, **arrays)
    packages = ["neural-tangents", "jax", "jaxlib", "numpy", "scipy", "frozendict"]
    print("made with", ", ".join(f"{name} {version(name)}" for name in packages))
    print(f"wrote {output} ({output.stat().st_size} bytes)")


if __name__ == "__main__":
    main()
