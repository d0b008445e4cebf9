"""Scaling of a Gram: of inducing points, and of pixels by their variances or by numbers."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from convdkm.choices import DataNorm
from convdkm.numerics import inverse_root, mix
from convdkm.ops.base import Blocks, Operation, Plan, require_shape


def pixel_factor(tt: Tensor, kind: DataNorm, shared: Tensor | None) -> Tensor | None:
    """``shared``, over the root of a variance of every pixel if the norm is of that kind.

    That is the pixel's (``"local"``), or its mean over the pixel's ``"image"``. The result has a
    shape that broadcasts to ``(N, *space)``; it is None if it is one.
    """
    if kind not in ("image", "local"):
        return shared
    places = tuple(range(1, tt.ndim))
    factor = inverse_root(tt.mean(places, keepdim=True) if kind == "image" and places else tt)
    return factor if shared is None else factor * shared


class NormPlan(Plan):
    """Multiplies by the factors of the inducing points, and by those of the pixels.

    Attributes:
        inducing: factors of the inducing points (or one scalar for all), or a matrix that took
            them in; None if another operation has taken them over.
        norm: the layer that gives the factors of the pixels; None once they are constants.
        kind: the norm of pixels, where they are.
        shared: the factor that all images share then; one if not given.
        is_number: whether all it does to the data is to multiply ``it`` by a scalar, and ``tt``
            by its square.
    """

    first = last = "inducing"
    inducing: Tensor | None
    shared: Tensor | None

    def __init__(
        self,
        ii: Tensor,
        inducing: Tensor | None = None,
        norm: Any = None,
        *,
        is_number: bool = False,
    ) -> None:
        super().__init__(ii)
        self.inducing, self.norm, self.is_number = inducing, norm, is_number
        self.kind: DataNorm = "none"
        self.shared = None

    def data(self, it: Tensor, tt: Tensor) -> Blocks:
        it = mix(self.inducing, it)
        scale = self._scale(tt)
        if scale is None:
            return it, tt
        return it * scale.unsqueeze(1), tt * scale.square()

    def _scale(self, tt: Tensor) -> Tensor | None:
        """The factor of every pixel, ``(N, *space)``; None if it is one everywhere."""
        if self.norm is not None:
            scale: Tensor | None = self.norm.data_factor(tt)
        else:
            if self.shared is not None and self.shared.ndim:
                require_shape("factors", self.shared.shape, tt.shape[1:])
            scale = pixel_factor(tt, self.kind, self.shared)
        return None if scale is None else scale.expand(tt.shape)

    def covariance(self, left: Blocks, right: Blocks, between: Tensor) -> Tensor:
        scales = [self._scale(tt) for _, tt in (left, right)]
        if scales[0] is None or scales[1] is None:
            return between
        return between * scales[0].unsqueeze(1) * scales[1].unsqueeze(0)

    def premultiplied(self, matrix: Tensor) -> NormPlan | None:
        return None if self.inducing is None else super().premultiplied(matrix)

    @property
    def is_constant(self) -> bool:
        """Whether the layer's part in the factors is known without data."""
        return self.norm is None or self.norm.is_constant

    def constant_scale(self) -> Tensor | None:
        """The factor that all images share, where it is constant; None if it is one."""
        found: Tensor | None = self.norm.shared_factor()
        return found

    def frozen(self, **changes: Any) -> Operation:
        if self.norm is not None and self.is_constant:
            changes |= {"norm": None, "kind": self.norm.data, "shared": self.constant_scale()}
        return super().frozen(**changes)
