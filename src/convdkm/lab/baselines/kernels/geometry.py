r"""How covariances of places lie in memory, a row of the left image at a time.

A covariance :math:`\Sigma(s, s')` of every place of one image with every place of B others is too
large to keep: on 32×32 places it is a million numbers for each pair. It is made and used up in
*slabs*, one for each row h of the left image, so that all the work is on a few slabs that stay in
the processor's cache. The images of the right side are innermost: shifts move whole runs of memory.

:class:`Apart` holds all pairs of places, :class:`Together` only s' = s.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from convdkm.kernels.blocks import Side


def reach(count: int, shift: int) -> tuple[slice, slice]:
    """Where a row of ``count`` places and itself moved by ``shift`` overlap: target and source."""
    overlap = max(0, count - abs(shift))
    low = max(0, -shift)
    return slice(low, low + overlap), slice(low + shift, low + shift + overlap)


class Apart:
    """Slabs ``(W, H', W', B)``: row h of one image, all places of B others."""

    moving = False

    @staticmethod
    def along_width(slab: Tensor, radius: int) -> Tensor:
        """The sum over |d| ≤ radius of ``slab[w + d, :, w' + d]``, zero outside."""
        if not radius:
            return slab
        total = slab.clone()
        for shift in (*range(-radius, 0), *range(1, radius + 1)):
            to, of = reach(slab.shape[0], shift)
            there, here = reach(slab.shape[2], shift)
            total[to, :, there] += slab[of, :, here]
        return total

    @staticmethod
    def add_row(total: Tensor, slab: Tensor, shift: int, weight: float) -> None:
        """Add the slab ``shift`` rows further down to a total: its h' moves as its h does."""
        to, of = reach(slab.shape[1], shift)
        total[:, to].add_(slab[:, of], alpha=weight)

    @staticmethod
    def left(maps: Tensor) -> Tensor:
        """Numbers of the left places ``(N, H, W)``, N = 1 or B, by row of slabs."""
        return maps.permute(1, 2, 0)[:, :, None, None, :].contiguous()

    @staticmethod
    def right(maps: Tensor) -> Tensor:
        """Numbers of the right places ``(B, H, W)``, which every slab meets as a whole."""
        return maps.permute(1, 2, 0).contiguous()


class Together:
    """Slabs ``(W, L, B)``: row h of L images and the same row of B others."""

    moving = True

    @staticmethod
    def along_width(slab: Tensor, radius: int) -> Tensor:
        """The sum over |d| ≤ radius of ``slab[w + d]``, zero outside."""
        if not radius:
            return slab
        total = slab.clone()
        for shift in (*range(-radius, 0), *range(1, radius + 1)):
            to, of = reach(len(slab), shift)
            total[to] += slab[of]
        return total

    @staticmethod
    def add_row(total: Tensor, slab: Tensor, shift: int, weight: float) -> None:
        """Add the slab ``shift`` rows further down to a total."""
        del shift
        total.add_(slab, alpha=weight)

    @staticmethod
    def left(maps: Tensor) -> Tensor:
        """Numbers of the left places ``(L, H, W)`` as ``(H, W, L, 1)``."""
        return maps.permute(1, 2, 0)[..., None].contiguous()

    @staticmethod
    def right(maps: Tensor) -> Tensor:
        """Numbers of the right places ``(B, H, W)`` as ``(H, W, 1, B)``."""
        return maps.permute(1, 2, 0)[:, :, None, :].contiguous()


class Matched(Together):
    """Slabs ``(W, 1, B)``: row h of B images, each with one image of its own on the left."""

    @staticmethod
    def left(maps: Tensor) -> Tensor:
        """As on the right."""
        return Together.right(maps)


Geometry = type[Apart] | type[Together]


@dataclass(frozen=True)
class Roots:
    """The variances of both sides before one nonlinearity, shaped by a geometry.

    Attributes:
        left, right: of each side.
        moving: the right ones change from row to row.
    """

    left: Side
    right: Side
    moving: bool

    @classmethod
    def of(cls, left: Tensor, right: Tensor, geometry: Geometry) -> Roots:
        """From variances ``(N, H, W)`` of both sides."""
        sides = Side.of(geometry.left(left)), Side.of(geometry.right(right))
        return cls(*sides, moving=geometry.moving)

    def at(self, row: int) -> tuple[Side, Side]:
        """Both sides, as the slab of a row meets them."""
        return self.left.part(row), self.right.part(row) if self.moving else self.right
