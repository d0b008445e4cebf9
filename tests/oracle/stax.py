"""Networks of neural-tangents' ``stax`` in this library's layers, and their golden kernels."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import convdkm as dkm
from convdkm.exact import (
    Convolution,
    Dense,
    ExactKernel,
    GlobalSumPool,
    LayerNorm,
    Pooling,
    Residual,
)

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "stax.npz")
NETWORKS: list[str] = GOLDEN["cases"].tolist()

PADDINGS = {"VALID": "valid", "SAME": "tf-same", "CIRCULAR": "circular"}


def _variances(w: float, b: float | None) -> dict[str, float]:
    return {"weight_variance": w**2, "bias_variance": (b or 0.0) ** 2}


def _window(ndim: int, options: dict[str, Any]) -> dict[str, Any]:
    padding = PADDINGS[options.get("padding", "VALID")]
    return {"stride": options.get("strides", 1), "padding": padding, "ndim": ndim}


def _conv(ndim: int, W_std: float, b_std: float | None, **options: Any) -> dkm.Layer:
    return Convolution(options["size"], **_window(ndim, options), **_variances(W_std, b_std))


def _dense(_: int, W_std: float, b_std: float | None) -> dkm.Layer:
    return Dense(**_variances(W_std, b_std))


def _average(ndim: int, normalize_edges: bool = False, **options: Any) -> dkm.Layer:
    reduction = "inside" if normalize_edges else "mean"
    return Pooling(options["size"], **_window(ndim, options), reduction=reduction)


def _sum(ndim: int, **options: Any) -> dkm.Layer:
    return Pooling(options["size"], **_window(ndim, options), reduction="sum")


def _norm(ndim: int, axis: list[int], eps: float = 1e-12) -> dkm.Layer:
    return LayerNorm([each - 1 for each in axis if 0 < each <= ndim], eps=eps)


def _branches(ndim: int, branches: list[Any]) -> dkm.Layer:
    return Residual(*(dkm.Sequential(*layers_of(branch, ndim)) for branch in branches))


def _bent(a: float, b: float) -> dkm.Layer:
    return dkm.LeakyReLU(a / b, weight_variance=(a**2 + b**2) / 2)


def _sine(a: float, b: float, c: float) -> dkm.Layer:
    return dkm.Sine(b, c, weight_variance=a**2)


LAYERS: dict[str, Callable[..., dkm.Layer]] = {
    "Conv": _conv,
    "Dense": _dense,
    "AvgPool": _average,
    "SumPool": _sum,
    "GlobalAvgPool": lambda _: dkm.GlobalAveragePool(),
    "GlobalSumPool": lambda _: GlobalSumPool(),
    "Flatten": lambda _: dkm.Flatten(),
    "LayerNorm": _norm,
    "FanInSum": _branches,
    "Relu": lambda _: dkm.ArcCosine(weight_variance=0.5),
    "LeakyRelu": lambda _, alpha: _bent(alpha, 1.0),
    "ABRelu": lambda _, a, b: _bent(a, b),
    "Erf": lambda _: dkm.ArcSine(),
    "Sin": lambda _, a, b, c: _sine(a, b, c),
    "Cos": lambda _, a, b, c: _sine(a, b, c + np.pi / 2),
    "Rbf": lambda _, gamma: dkm.SquaredExponential((2 * gamma) ** -0.5),
}
"""This library's layer for each of stax, from the number of axes and the arguments there."""


def layers_of(spec: list[list[Any]], ndim: int) -> list[dkm.Layer]:
    return [LAYERS[name](ndim, **options) for name, options in spec]


@dataclass(frozen=True)
class Network:
    """A network with its inputs, and neural-tangents' kernels of them, ``(N1, N1 + N2)``."""

    kernel: ExactKernel
    x1: Tensor
    x2: Tensor
    golden: dict[str, tuple[Tensor, Tensor]]

    @classmethod
    def named(cls, name: str) -> Network:
        saved = json.loads(str(GOLDEN[f"{name}/network"]))
        x1, x2 = (torch.from_numpy(GOLDEN[f"inputs/{saved['inputs']}/{x}"]) for x in ("x1", "x2"))
        kernel = ExactKernel(*layers_of(saved["layers"], x1.ndim - 2))
        golden = {
            kind: tuple(torch.from_numpy(GOLDEN[f"{name}/{kind}{sides}"]) for sides in ("11", "12"))
            for kind in ("nngp", "ntk")
        }
        return cls(kernel, x1, x2, golden)

    @torch.no_grad()
    def deviations(self, kind: str) -> tuple[float, float]:
        """Largest deviation from the golden kernels, relative to their largest entry.

        Of different images, and of each image with itself.
        """
        function = self.kernel if kind == "nngp" else self.kernel.ntk
        apart, same = 0.0, 0.0
        for others, golden in zip((None, self.x2), self.golden[kind], strict=True):
            off = (function(self.x1, others) - golden).abs() / golden.abs().max()
            if others is None:
                same = float(off.diagonal().max())
                off = off.fill_diagonal_(0)
            apart = max(apart, float(off.max()))
        return apart, same
