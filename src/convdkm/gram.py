"""The one value that flows through a deep kernel machine."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from convdkm.errors import GramError

INDUCING_DTYPE = torch.float64
"""Precision of everything that does not touch the data: it is tiny, and it is factorised."""

Index = int | slice | Sequence[int] | Tensor


@dataclass(frozen=True, eq=False)
class Gram:
    r"""A Gram (or kernel) matrix over inducing points and pixels, in three blocks (Eq. 6).

    The full matrix has one row for each of the :math:`P_i` inducing points and one for each of the
    :math:`S` places of each of the :math:`N` images; of the image block only the diagonal is kept,
    since nothing else is ever needed (appendix E.2).

    Attributes:
        ii: :math:`G_{ii}`, shape ``(P_i, P_i)``, always float64.
        it: :math:`G_{it}`, shape ``(N, P_i, *space)``: laid out like images with ``P_i`` channels.
        tt: the diagonal of :math:`G_{tt}`, shape ``(N, *space)``, same dtype as ``it``.

    ``space`` is the shape of an image's grid of places: ``()`` for vectors, ``(W,)``, ``(H, W)`` or
    ``(D, H, W)``. A Gram never changes: every operation returns a new one.
    """

    ii: Tensor
    it: Tensor
    tt: Tensor

    def __post_init__(self) -> None:
        for name in ("ii", "it", "tt"):
            block = getattr(self, name)
            if not isinstance(block, Tensor):
                raise GramError(f"Gram.{name} must be a torch.Tensor, got {type(block).__name__}")
        ii, it, tt = self.ii, self.it, self.tt
        if ii.ndim != 2 or ii.shape[0] != ii.shape[1]:
            raise GramError(f"Gram.ii must be square, (P_i, P_i); got shape {tuple(ii.shape)}")
        if it.ndim < 2 or it.shape[1] != ii.shape[0]:
            raise GramError(
                f"Gram.it must have shape (N, P_i, *space) with P_i = {ii.shape[0]} as in Gram.ii;"
                f" got shape {tuple(it.shape)}"
            )
        expected = (it.shape[0], *it.shape[2:])
        if tuple(tt.shape) != expected:
            raise GramError(
                f"Gram.tt must have shape (N, *space) = {expected} as in Gram.it;"
                f" got shape {tuple(tt.shape)}"
            )
        if ii.dtype != INDUCING_DTYPE:
            raise GramError(f"Gram.ii must be {INDUCING_DTYPE}; got {ii.dtype}")
        if not it.dtype.is_floating_point:
            raise GramError(f"Gram.it must have a floating-point dtype; got {it.dtype}")
        if tt.dtype != it.dtype:
            raise GramError(f"Gram.tt must have the dtype of Gram.it, {it.dtype}; got {tt.dtype}")
        for name, block in (("it", it), ("tt", tt)):
            if block.device != ii.device:
                raise GramError(f"Gram.{name} is on {block.device}, but Gram.ii is on {ii.device}")

    @classmethod
    def from_features(cls, inducing: Tensor, images: Tensor) -> Gram:
        r"""The Gram of finite features, :math:`G = \tfrac{1}{M} F F^T` (Eq. 1 and 15).

        Args:
            inducing: features of the inducing points, ``(P_i, M)``.
            images: features of every place of every image, ``(N, M, *space)``.
        """
        if inducing.ndim != 2 or images.ndim < 2 or images.shape[1] != inducing.shape[1]:
            raise GramError(
                "features must be inducing (P_i, M) and images (N, M, *space) with the same M;"
                f" got {tuple(inducing.shape)} and {tuple(images.shape)}"
            )
        width = inducing.shape[1]
        precise = inducing.to(INDUCING_DTYPE)
        cross = torch.einsum("pm,nm...->np...", inducing.to(images.dtype), images) / width
        return cls(precise @ precise.T / width, cross, images.square().mean(1))

    @property
    def num_inducing(self) -> int:
        """:math:`P_i`, the number of inducing points."""
        return self.ii.shape[0]

    @property
    def num_images(self) -> int:
        """:math:`N`, the number of images (or vectors)."""
        return self.it.shape[0]

    @property
    def space(self) -> tuple[int, ...]:
        """Shape of the grid of places of one image; ``()`` once space has been collapsed."""
        return tuple(self.it.shape[2:])

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the data blocks ``it`` and ``tt``."""
        return self.it.dtype

    @property
    def device(self) -> torch.device:
        return self.ii.device

    def __len__(self) -> int:
        return self.num_images

    def __getitem__(self, index: Index) -> Gram:
        """The Gram of some of the images; an integer keeps the image axis."""
        if isinstance(index, tuple):
            index = list(index)
        elif hasattr(index, "__index__") and getattr(index, "ndim", 0) == 0:
            index = operator.index(index)
        if isinstance(index, int):
            if not -len(self) <= index < len(self):
                raise IndexError(f"image {index} of a Gram with {len(self)} images")
            index = slice(index, index + 1 or None)
        return replace(self, it=self.it[index], tt=self.tt[index])

    def __mul__(self, factor: float | Tensor) -> Gram:
        """``factor · G``: the Gram of features multiplied by ``sqrt(factor)``."""
        if not isinstance(factor, (int, float, Tensor)):
            return NotImplemented
        if isinstance(factor, Tensor):
            if factor.ndim != 0:
                raise GramError(f"a Gram is scaled by one number, got shape {tuple(factor.shape)}")
            small = factor.to(self.dtype)
            return Gram(self.ii * factor.to(INDUCING_DTYPE), self.it * small, self.tt * small)
        if not factor >= 0:
            raise GramError(f"a Gram is scaled by a number that is not negative, got {factor}")
        return Gram(self.ii * factor, self.it * factor, self.tt * factor)

    __rmul__ = __mul__

    def combine(self, other: Gram, weight: float | Tensor = 0.5) -> Gram:
        r"""Convex combination :math:`(1 - w)\,G + w\,G'`, the kernel form of a skip connection."""
        self.require_like(other)
        if isinstance(weight, Tensor):
            small: float | Tensor = weight.to(self.dtype)
            weight = weight.to(INDUCING_DTYPE)
        elif 0.0 <= weight <= 1.0:
            small = weight
        else:
            raise GramError(f"the weight of a convex combination lies in [0, 1], got {weight}")
        return Gram(
            (1 - weight) * self.ii + weight * other.ii,
            (1 - small) * self.it + small * other.it,
            (1 - small) * self.tt + small * other.tt,
        )

    def require_like(self, other: Gram) -> None:
        """Raise a :class:`GramError` that names the block in which ``other`` differs."""
        for name in ("ii", "it", "tt"):
            mine, theirs = getattr(self, name).shape, getattr(other, name).shape
            if mine != theirs:
                raise GramError(
                    f"two Grams do not match in block {name}: {tuple(mine)} and {tuple(theirs)}"
                )
        if self.dtype != other.dtype:
            raise GramError(f"two Grams do not match in dtype: {self.dtype} and {other.dtype}")

    def to(self, *args: Any, **kwargs: Any) -> Gram:
        """Move to a device, and cast the data blocks to a dtype; ``ii`` stays float64."""
        it = self.it.to(*args, **kwargs)
        return Gram(self.ii.to(it.device), it, self.tt.to(*args, **kwargs))

    def detach(self) -> Gram:
        return Gram(self.ii.detach(), self.it.detach(), self.tt.detach())

    def __repr__(self) -> str:
        return (
            f"Gram(num_inducing={self.num_inducing}, num_images={self.num_images},"
            f" space={self.space}, dtype={self.dtype}, device={self.device})"
        )
