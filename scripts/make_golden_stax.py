"""Write NNGP and NTK of small networks of neural-tangents' stax to a golden file for the tests.

A network is a list of layers by their names in ``stax``, with their arguments:
``[["Conv", {"size": 3, "strides": 2, "padding": "SAME"}], ["Relu", {}], …]``; ``["FanInSum",
{"branches": [[…], […]]}]`` stands for ``FanOut``, ``parallel`` and ``FanInSum``. The file holds
these lists as JSON, so that the tests translate them layer by layer, and the parameterisation is
``"ntk"`` everywhere.

Both kernels are also computed here by a plain NumPy recursion on the full covariance of all places
of all images, and the file is written only if the two agree.

neural-tangents needs package versions of its own: run this by ``make_golden_stax.sh``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import types
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from make_golden_nngp import load_stax

DEFAULT_OUTPUT = Path(__file__).resolve().parents[1] / "tests" / "golden" / "stax.npz"
SEED = 20
RTOL = 1e-11
ROOT_RTOL = 1e-7
"""Of an image with itself: neural-tangents has the angle 0 from √(ab − c²), which is rounding."""

Spec = list[list[Any]]


# --- Networks ------------------------------------------------------------------------------------


def conv(size: int = 3, w: float = 1.3, b: float | None = 0.2, **options: Any) -> list[Any]:
    """A convolution; VALID unless said otherwise."""
    return ["Conv", {"size": size, "W_std": w, "b_std": b, **options}]


def dense(w: float = 1.2, b: float | None = 0.3) -> list[Any]:
    """A dense layer."""
    return ["Dense", {"W_std": w, "b_std": b}]


def pool(kind: str, size: int, strides: int, padding: str, **options: Any) -> list[Any]:
    """Pooling over squares."""
    return [kind, {"size": size, "strides": strides, "padding": padding, **options}]


def add(*branches: Spec) -> list[Any]:
    """A sum of branches; an empty one is the identity."""
    return ["FanInSum", {"branches": list(branches)}]


RELU, FLATTEN, GAP = ["Relu", {}], ["Flatten", {}], ["GlobalAvgPool", {}]
NORM = ["LayerNorm", {"axis": [-1]}]
SINE = ["Sin", {"a": 1.4, "b": 0.9, "c": 0.3}]
READ = [GAP, dense()]


def wide_block(strides: int, shortcut: Spec) -> list[Any]:
    """A residual block of a Wide ResNet, with layer normalisation."""
    first = conv(b=None, strides=strides, padding="SAME", w=1.5)
    second = conv(b=None, padding="SAME", w=1.5)
    return add([NORM, RELU, first, NORM, RELU, second], shortcut)


def elementwise(name: str, layer: list[Any]) -> dict[str, tuple[str, Spec]]:
    """A nonlinearity in a fully connected and in a convolutional network."""
    convs = [conv(padding="SAME"), layer, conv(padding="SAME", b=None), layer]
    return {
        f"fc_{name}": (
            "vector",
            [dense(), layer, dense(1.1, None), layer, dense(), layer, dense()],
        ),
        f"conv_{name}": ("even", [*convs, *READ]),
    }


CASES: dict[str, tuple[str, Spec]] = {
    **elementwise("relu", RELU),
    **elementwise("leaky", ["LeakyRelu", {"alpha": 0.2}]),
    **elementwise("abrelu", ["ABRelu", {"a": -0.5, "b": 1.3}]),
    **elementwise("erf", ["Erf", {}]),
    **elementwise("sine", SINE),
    **elementwise("cosine", ["Cos", {"a": 1.2, "b": 0.8, "c": 0.1}]),
    **elementwise("rbf", ["Rbf", {"gamma": 0.4}]),
    "fc_linear": ("vector", [dense(), dense(0.9, None)]),
    "fc_deep": ("vector", [dense(1.4, 0.1), *[RELU, dense(1.4, 0.1)] * 8]),
    "fc_layernorm": ("vector", [dense(), NORM, RELU, dense(), NORM, ["Erf", {}], dense()]),
    "fc_residual": (
        "vector",
        [
            dense(),
            add([RELU, dense()], []),
            add([["Erf", {}], dense()], [dense(0.7)]),
            RELU,
            dense(),
        ],
    ),
    "fc_three_branches": (
        "vector",
        [dense(), add([], [RELU, dense()], [["Erf", {}], dense()]), RELU, dense()],
    ),
    "bias_zero_padding": (
        "odd",
        [conv(padding="SAME", b=0.7), RELU, conv(padding="SAME", b=0.5), RELU, FLATTEN, dense()],
    ),
    "no_bias": ("odd", [conv(b=None), RELU, conv(b=None, padding="SAME"), RELU, FLATTEN, dense()]),
    "stride2_even": (
        "even",
        [
            conv(strides=2, padding="SAME"),
            RELU,
            conv(strides=2, padding="SAME"),
            RELU,
            FLATTEN,
            dense(),
        ],
    ),
    "stride2_odd": (
        "odd",
        [conv(strides=2, padding="SAME"), RELU, conv(strides=2, padding="SAME"), RELU, *READ],
    ),
    "stride2_mixed": (
        "mixed",
        [conv(strides=2, padding="SAME"), RELU, conv(padding="SAME"), *READ],
    ),
    "stride3_filter4": ("mixed", [conv(4, strides=3, padding="SAME"), RELU, FLATTEN, dense()]),
    "stride2_filter2": ("odd", [conv(2, strides=2, padding="SAME"), RELU, *READ]),
    "stride2_filter1": ("even", [conv(1, strides=2, padding="SAME"), RELU, *READ]),
    "filter2": ("even", [conv(2, padding="SAME"), RELU, conv(2, padding="SAME"), *READ]),
    "stride2_valid": ("even", [conv(strides=2, padding="VALID"), RELU, FLATTEN, dense()]),
    "circular": (
        "even",
        [conv(padding="CIRCULAR"), RELU, conv(padding="CIRCULAR"), RELU, FLATTEN, dense()],
    ),
    "circular_filter5": ("odd", [conv(5, padding="CIRCULAR"), RELU, *READ]),
    "circular_stride2_even": (
        "even",
        [
            conv(strides=2, padding="CIRCULAR"),
            RELU,
            conv(padding="CIRCULAR"),
            RELU,
            FLATTEN,
            dense(),
        ],
    ),
    "circular_stride2_odd": (
        "odd",
        [
            conv(padding="CIRCULAR"),
            RELU,
            conv(4, strides=2, padding="CIRCULAR"),
            RELU,
            FLATTEN,
            dense(),
        ],
    ),
    "myrtle": (
        "large",
        [
            *[conv(padding="SAME"), RELU],
            *[conv(padding="SAME"), RELU, pool("AvgPool", 2, 2, "SAME")],
            *[conv(padding="SAME"), RELU, pool("AvgPool", 2, 2, "SAME")],
            *[conv(padding="SAME"), RELU, *READ],
        ],
    ),
    "wide_resnet": (
        "large",
        [
            conv(b=None, padding="SAME"),
            wide_block(1, []),
            wide_block(2, [conv(1, b=None, strides=2, padding="SAME")]),
            wide_block(1, []),
            *[NORM, RELU, *READ],
        ],
    ),
    "residual_stride2": (
        "even",
        [
            conv(padding="SAME"),
            add(
                [RELU, conv(strides=2, padding="SAME"), RELU, conv(padding="SAME")],
                [conv(strides=2, padding="SAME")],
            ),
            *[RELU, FLATTEN, dense()],
        ],
    ),
    "layernorm_image": (
        "odd",
        [conv(), ["LayerNorm", {"axis": [1, 2, 3]}], RELU, conv(padding="SAME"), *READ],
    ),
    "layernorm_rows": (
        "mixed",
        [conv(), ["LayerNorm", {"axis": [1, -1], "eps": 0.05}], RELU, FLATTEN, dense()],
    ),
    "layernorm_columns": (
        "mixed",
        [conv(), RELU, conv(), ["LayerNorm", {"axis": [2, 3]}], ["Erf", {}], FLATTEN, dense()],
    ),
    "avgpool_valid": (
        "odd",
        [
            conv(padding="SAME"),
            RELU,
            pool("AvgPool", 2, 2, "VALID"),
            conv(padding="SAME"),
            RELU,
            *READ,
        ],
    ),
    "avgpool_same": (
        "even",
        [conv(padding="SAME"), RELU, pool("AvgPool", 3, 2, "SAME"), conv(padding="SAME"), *READ],
    ),
    "avgpool_edges": (
        "even",
        [
            *[conv(padding="SAME"), RELU, pool("AvgPool", 3, 2, "SAME", normalize_edges=True)],
            *[conv(padding="SAME"), RELU, FLATTEN, dense()],
        ],
    ),
    "avgpool_circular": (
        "odd",
        [conv(padding="CIRCULAR"), RELU, pool("AvgPool", 3, 2, "CIRCULAR"), FLATTEN, dense()],
    ),
    "avgpool_of_gaussian": (
        "even",
        [conv(padding="SAME"), pool("AvgPool", 2, 1, "VALID"), RELU, FLATTEN, dense()],
    ),
    "sumpool": (
        "even",
        [
            conv(padding="SAME"),
            RELU,
            pool("SumPool", 3, 2, "SAME"),
            conv(padding="SAME"),
            RELU,
            *READ,
        ],
    ),
    "sumpool_circular": (
        "even",
        [conv(padding="SAME"), RELU, pool("SumPool", 3, 2, "CIRCULAR"), FLATTEN, dense()],
    ),
    "global_sum": ("odd", [conv(padding="SAME"), RELU, ["GlobalSumPool", {}], dense()]),
    "dense_after_flatten": (
        "even",
        [conv(padding="SAME"), RELU, FLATTEN, dense(), RELU, dense(), ["Erf", {}], dense()],
    ),
    "dense_on_images": ("even", [dense(), RELU, conv(), dense(), RELU, FLATTEN, dense()]),
    "gap_without_dense": ("even", [conv(padding="SAME"), RELU, conv(padding="SAME"), GAP]),
    "pixels": ("even", [FLATTEN, dense(), RELU, dense()]),
    "line": (
        "line",
        [conv(strides=2, padding="SAME"), RELU, conv(padding="CIRCULAR"), SINE, *READ],
    ),
}


def make_inputs() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Standard normal inputs x1 and x2: images as NCHW, lines as NCW, vectors as NC."""
    rng = np.random.default_rng(SEED)
    shapes = {
        "even": (2, 6, 6),
        "odd": (2, 7, 5),
        "mixed": (3, 5, 8),
        "large": (3, 8, 8),
        "line": (2, 10),
        "vector": (5,),
    }
    return {
        name: (rng.standard_normal((3, *shape)), rng.standard_normal((2, *shape)))
        for name, shape in shapes.items()
    }


# --- By neural-tangents --------------------------------------------------------------------------


def of_stax(stax: types.ModuleType, spec: Spec, ndim: int) -> tuple:
    """The network, in space of ``ndim`` axes."""
    made = []
    for name, given in spec:
        options = dict(given)
        if name == "FanInSum":
            branches = [of_stax(stax, branch, ndim) for branch in options["branches"]]
            parts = stax.FanOut(len(branches)), stax.parallel(*branches), stax.FanInSum()
            made.append(stax.serial(*parts))
            continue
        if name == "LayerNorm":
            options["axis"] = tuple(options["axis"])
        if "size" in options:
            sizes = (options.pop("size"),) * ndim
            steps = (options.pop("strides", 1),) * ndim
            arguments = (1,) if name == "Conv" else ()
            made.append(getattr(stax, name)(*arguments, sizes, steps, **options))
        else:
            made.append(getattr(stax, name)(*((1,) if name == "Dense" else ()), **options))
    return stax.serial(*made) if made else stax.Identity()


# --- By NumPy ------------------------------------------------------------------------------------


class Numbers:
    """Covariance G and NTK Θ between all places of all images, each ``(N, S, N, S)``."""

    def __init__(self, gram: np.ndarray, ntk: np.ndarray, space: tuple[int, ...]) -> None:
        self.gram, self.ntk, self.space = gram, ntk, space

    @classmethod
    def of_images(cls, x: np.ndarray) -> Numbers:
        space = x.shape[2:]
        flat = x.reshape(*x.shape[:2], -1)
        gram = np.einsum("ncs,mcr->nsmr", flat, flat) / x.shape[1]
        return cls(gram, np.zeros_like(gram), space)

    @property
    def own(self) -> np.ndarray:
        """Variance of every place, ``(N, S)``."""
        return np.einsum("nsns->ns", self.gram)

    def weighted(self, maps: list[np.ndarray], w: float, b: float | None) -> Numbers:
        """A layer of weights: the mean over ``maps``, matrices ``(S', S)``, of both sides."""

        def linear(block: np.ndarray) -> np.ndarray:
            both = [np.einsum("as,nsmr,br->namb", m, block, m) for m in maps]
            return w**2 * sum(both) / len(maps)

        gram = linear(self.gram) + (0 if b is None else b**2)
        return Numbers(gram, gram + linear(self.ntk), self.space)

    def mapped(self, matrix: np.ndarray, space: tuple[int, ...]) -> Numbers:
        """A linear map of places, ``(S', S)``."""
        blocks = (np.einsum("as,nsmr,br->namb", matrix, x, matrix) for x in (self.gram, self.ntk))
        return Numbers(*blocks, space)

    def flat(self) -> Numbers:
        blocks = (np.einsum("nsms->nm", x) / x.shape[1] for x in (self.gram, self.ntk))
        return Numbers(*(block[:, None, :, None] for block in blocks), ())

    def scaled(self, factor: np.ndarray) -> Numbers:
        """Features multiplied by numbers ``(N, S)``."""
        both = factor[:, :, None, None] * factor
        return Numbers(self.gram * both, self.ntk * both, self.space)

    def plus(self, other: Numbers) -> Numbers:
        return Numbers(self.gram + other.gram, self.ntk + other.ntk, self.space)

    def bent(self, name: str, options: dict[str, float]) -> Numbers:
        """A nonlinearity: E[f f] and E[f' f'] of Gaussian pairs."""
        left, right, c = self.own[:, :, None, None], self.own[None, None], self.gram
        if name in ("Relu", "LeakyRelu", "ABRelu"):
            low = options.get("alpha", options.get("a", 0.0))
            high = options.get("b", 1.0)
            value, slope = _two_slopes(low, high, c, left, right)
        elif name == "Erf":
            sine = 2 * c / np.sqrt((1 + 2 * left) * (1 + 2 * right))
            value = 2 / np.pi * np.arcsin(sine)
            slope = 4 / np.pi / np.sqrt((1 + 2 * left) * (1 + 2 * right) - 4 * c**2)
        elif name == "Rbf":
            value = np.exp(-options["gamma"] * (left + right - 2 * c))
            slope = 2 * options["gamma"] * value
        else:
            a, b = options["a"], options["b"]
            phase = options["c"] + (np.pi / 2 if name == "Cos" else 0)
            minus = np.exp(-(b**2) * (left + right - 2 * c) / 2)
            plus = np.cos(2 * phase) * np.exp(-(b**2) * (left + right + 2 * c) / 2)
            value, slope = a**2 * (minus - plus) / 2, a**2 * b**2 * (minus + plus) / 2
        return Numbers(value, self.ntk * slope, self.space)


def _two_slopes(
    low: float, high: float, c: np.ndarray, left: np.ndarray, right: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Of ``low min(u, 0) + high max(u, 0)``."""
    norm = np.sqrt(left * right)
    cos = np.clip(c / norm, -1, 1)
    images, places = c.shape[:2]
    for i, s in itertools.product(range(images), range(places)):
        cos[i, s, i, s] = 1  # a point with itself
    theta = np.arccos(cos)
    equal = (np.pi - theta) / (2 * np.pi)  # the chance that both are positive
    opposite = theta / (2 * np.pi)
    slope = (low**2 + high**2) * equal + 2 * low * high * opposite
    of_equal = np.sin(theta) / (2 * np.pi) + equal * cos
    of_opposite = np.sin(theta) / (2 * np.pi) - opposite * cos
    value = norm * ((low**2 + high**2) * of_equal - 2 * low * high * of_opposite)
    return value, slope


def windows(
    space: tuple[int, ...], size: int, strides: int, padding: str
) -> tuple[list[list[list[int | None]]], tuple[int, ...]]:
    """For each output place and each offset of the window, the place it sees, or None."""
    axes, output = [], []
    for length in space:
        if padding == "VALID":
            count, before = (length - size) // strides + 1, 0
        else:
            count = math.ceil(length / strides)
            before = max((count - 1) * strides + size - length, 0) // 2
        rows: list[list[int | None]] = []
        for position in range(count):
            seen = [position * strides + offset - before for offset in range(size)]
            if padding == "CIRCULAR":
                rows.append([place % length for place in seen])
            else:
                rows.append([place if 0 <= place < length else None for place in seen])
        axes.append(rows)
        output.append(count)
    places = []
    for combined in itertools.product(*axes):
        seen_places = []
        for each in itertools.product(*combined):
            outside = any(place is None for place in each)
            seen_places.append(None if outside else int(np.ravel_multi_index(each, space)))
        places.append(seen_places)
    return places, tuple(output)


def offset_maps(numbers: Numbers, options: dict[str, Any]) -> tuple[list[np.ndarray], tuple]:
    """One matrix of zeros and ones for every offset of a window."""
    arguments = options["size"], options.get("strides", 1), options.get("padding", "VALID")
    places, output = windows(numbers.space, *arguments)
    maps = [np.zeros((len(places), math.prod(numbers.space))) for _ in places[0]]
    for row, seen in enumerate(places):
        for matrix, place in zip(maps, seen, strict=True):
            if place is not None:
                matrix[row, place] = 1
    return maps, output


def of_numpy(spec: Spec, numbers: Numbers) -> Numbers:
    """The same network by plain sums."""
    for name, options in spec:
        if name == "Dense":
            identity = [np.eye(numbers.gram.shape[1])]
            numbers = numbers.weighted(identity, options["W_std"], options["b_std"])
        elif name == "Conv":
            maps, output = offset_maps(numbers, options)
            numbers = numbers.weighted(maps, options["W_std"], options["b_std"])
            numbers.space = output
        elif name in ("AvgPool", "SumPool"):
            maps, output = offset_maps(numbers, options)
            total = sum(maps)
            if name == "AvgPool":
                inside = total.sum(1, keepdims=True)
                total = total / (inside if options.get("normalize_edges") else len(maps))
            numbers = numbers.mapped(total, output)
        elif name in ("GlobalAvgPool", "GlobalSumPool"):
            places = numbers.gram.shape[1]
            value = 1 / places if name == "GlobalAvgPool" else 1.0
            numbers = numbers.mapped(np.full((1, places), value), ())
        elif name == "Flatten":
            numbers = numbers.flat()
        elif name == "LayerNorm":
            own = numbers.own.reshape(-1, *numbers.space)
            axes = tuple(axis for axis in options["axis"] if 0 < axis <= len(numbers.space))
            mean = np.broadcast_to(own.mean(axes, keepdims=True), own.shape) if axes else own
            factor = 1 / np.sqrt(mean + options.get("eps", 1e-12))
            numbers = numbers.scaled(factor.reshape(len(own), -1))
        elif name == "FanInSum":
            first, *others = (of_numpy(branch, numbers) for branch in options["branches"])
            for other in others:
                first = first.plus(other)
            numbers = first
        else:
            numbers = numbers.bent(name, options)
    return numbers


# --- Both ----------------------------------------------------------------------------------------


def compute(
    name: str, spec: Spec, x1: np.ndarray, x2: np.ndarray, stax: types.ModuleType
) -> tuple[dict[str, np.ndarray], str]:
    """NNGP and NTK of x1 with x1 and with x2, and how far they are from the recursion."""
    kernel_fn = of_stax(stax, spec, x1.ndim - 2)[2]
    last1, last2 = np.moveaxis(x1, 1, -1), np.moveaxis(x2, 1, -1)  # channels last
    found = {
        "11": kernel_fn(last1, None, ("nngp", "ntk")),
        "12": kernel_fn(last1, last2, ("nngp", "ntk")),
    }
    numbers = of_numpy(spec, Numbers.of_images(np.concatenate([x1, x2])))
    arrays, deviations = {}, []
    for kind, whole in (("nngp", numbers.gram), ("ntk", numbers.ntk)):
        expected = whole[: len(x1), 0, :, 0]
        for sides, part in (("11", expected[:, : len(x1)]), ("12", expected[:, len(x1) :])):
            value = np.asarray(getattr(found[sides], kind))
            if value.dtype != np.float64:
                raise TypeError(f"{name}: {value.dtype}, not float64")
            where = f"{name} {kind} {sides}"
            apart = (
                ~np.eye(*value.shape, dtype=bool) if sides == "11" else np.ones_like(value, bool)
            )
            scale = np.abs(part).max()
            off = np.abs(value - part) / scale
            if off[apart].max() > RTOL or off.max() > ROOT_RTOL:
                raise ValueError(f"{where}: {off.max():.1e} from the recursion")
            deviations.append(
                f"{off[apart].max():.0e}" + (f" ({off.max():.0e})" if sides == "11" else "")
            )
            arrays[f"{name}/{kind}{sides}"] = value
    return arrays, "  ".join(deviations)


def main() -> None:
    """Compute all cases, check them and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT)
    output = parser.parse_args().output

    stax = load_stax()
    inputs = make_inputs()
    arrays: dict[str, np.ndarray] = {"cases": np.array(list(CASES))}
    for name, (x1, x2) in inputs.items():
        arrays |= {f"inputs/{name}/x1": x1, f"inputs/{name}/x2": x2}
    print("deviation from NumPy, relative: NNGP x1 x1, x1 x2; NTK x1 x1 (with the diagonal), x1 x2")
    for name, (kind, spec) in CASES.items():
        made, deviations = compute(name, spec, *inputs[kind], stax)
        arrays |= made
        arrays[f"{name}/network"] = np.array(json.dumps({"inputs": kind, "layers": spec}))
        print(f"{name:24s} {deviations}")

    output.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(output, **arrays)
    packages = ["neural-tangents", "jax", "jaxlib", "numpy", "scipy", "frozendict"]
    print("made with", ", ".join(f"{name} {version(name)}" for name in packages))
    print(f"wrote {output} ({output.stat().st_size} bytes)")


if __name__ == "__main__":
    main()
