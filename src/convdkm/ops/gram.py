r"""Learned Gram matrices and centring: projections of the data blocks.

With whitened coordinates V, :math:`U = Q^T V - u` and a factor F,

.. math:: G_{it} = F U, \qquad g_{tt} = \max(k_{tt} - |V|^2, 0) + |U|^2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from convdkm.numerics import eigenvectors, explained, factorised, inner_products, mix
from convdkm.ops.base import Blocks, LayerKL, Operation, Plan, part
from convdkm.ops.inducing import LearnedGram
from convdkm.ops.norm import NormPlan
from convdkm.ops.predicted import Scale, predicted, roots_and_shift
from convdkm.ops.synchronise import batch_mean
from convdkm.runtime.elementwise import diagonal_variance, engine
from convdkm.runtime.maps import as_rows


def inducing_mean(it: Tensor) -> Tensor:
    """Mean over images and places, ``(P_i,)``."""
    return batch_mean(as_rows(it), (0,))  # its gradient is laid out as that of other work on rows


class Centring(Plan):
    """What :class:`CentrePlan` does, before a factor of ``G_ii`` is worked out.

    The operation before may have one: then the two are joined, and none is worked out.

    Attributes:
        centre: the layer that gives the mean.
    """

    def __init__(self, ii: Tensor, centre: Any) -> None:
        super().__init__(ii)
        self.centre = centre

    def settled(self) -> CentrePlan:
        return CentrePlan(self.ii, self.centre)

    def data(self, it: Tensor, tt: Tensor) -> Blocks:
        return self.settled().data(it, tt)

    def covariance(self, left: Blocks, right: Blocks, between: Tensor) -> Tensor:
        return self.settled().covariance(left, right, between)


class CentrePlan(Plan):
    """With U = F⁻¹G_it: ``G_it ← F(U − Ū)`` and ``g_tt ← (g_tt − |U|²) + |U − Ū|²``.

    Attributes:
        centre: the layer that gives Ū.
        whitening: F⁻¹; None once the operation before has taken it over.
        factor: F, times what the operations after have given away.
    """

    first, last = "whitening", "factor"
    whitening: Tensor | None

    def __init__(self, ii: Tensor, centre: Any) -> None:
        super().__init__(ii)
        self.centre = centre
        self.factor, self.whitening = factorised(ii, "the Gram matrix G_ii")

    def data(self, it: Tensor, tt: Tensor) -> Blocks:
        white = mix(self.whitening, it.to(tt.dtype))
        centred = white - self._mean(white)
        residual = (tt - explained(white)).clamp(min=0)
        return mix(self.factor, centred), residual + explained(centred)

    def _mean(self, white: Tensor) -> Tensor:
        """Ū, in a shape that broadcasts to ``(N, P, *space)``."""
        mean: Tensor = self.centre.mean(white.shape[1], lambda: inducing_mean(white), white.dtype)
        return mean.reshape(-1, *(1,) * (white.ndim - 2))

    def covariance(self, left: Blocks, right: Blocks, between: Tensor) -> Tensor:
        white = [mix(self.whitening, it) for it, _ in (left, right)]
        centred = [each - self._mean(each) for each in white]
        return between - inner_products(*white) + inner_products(*centred)

    def frozen(self, **changes: Any) -> Operation:
        if not self.centre.is_constant:
            return super().frozen(**changes)
        shift = self.centre.constant_mean()
        roots, offset = torch.ones_like(shift), -(self.factor @ shift)
        return ProjectPlan(self.whitening, roots, self.factor, shift=shift, offset=offset).frozen()


class GramPlan(Plan):
    r"""Predicts :math:`G_{it}` and :math:`g_{tt}` from the kernel and the learned :math:`G_{ii}`.

    With V = L⁻¹K_it, Q = L⁻¹F and U = QᵀV:
    :math:`G_{it} = F U` and :math:`g_{tt} = \max(k_{tt} - |V|^2, 0) + |U|^2`.

    Centring replaces U by U − Ū; a normalisation by one factor multiplies F by it.

    Attributes:
        whitening: L⁻¹; None once the operation before has taken it over.
        spread: Q.
        orthogonal: whether the rows of Q are orthogonal to each other.
        factor: F, times what the operations after have given away.
        triangular: whether F is the Cholesky factor of the learned Gram.
        compiled: let ``torch.compile`` make the elementwise functions.
        centre, norm: the centring and the normalisation that follow, if any.
    """

    first, last = "whitening", "factor"
    centre: Centring | CentrePlan | None
    norm: NormPlan | None

    def __init__(
        self,
        learned: LearnedGram,
        nu: float,
        *,
        orthogonal: bool,
        triangular: bool,
        compiled: bool,
    ) -> None:
        kl = learned.kl if nu else learned.kl.detach()
        super().__init__(learned.ii, {"": LayerKL(kl, nu)})
        self.orthogonal, self.triangular, self.compiled = orthogonal, triangular, compiled
        self.whitening, self.spread, self.factor = learned.whitening, learned.spread, learned.factor
        self.centre, self.norm = None, None

    def data(self, it: Tensor, tt: Tensor) -> Blocks:
        shift, scale = None, Scale()
        centre: Any = None if self.centre is None else self.centre.centre
        centred = centre is not None and bool(centre.uses_batch)
        if centre is not None:
            with part(1):
                points = (self.spread.shape[1],)
                shift = None if centred else centre.current("running_mean", tt.dtype, points)
        if self.norm is not None:
            with part(self._place_of_norm):
                scale = self.norm.norm.scale(tt.dtype)
        made = predicted(
            mix(self.whitening, it),
            tt,
            self.spread,
            self.factor,
            orthogonal=self.orthogonal,
            shift=shift,
            centred=centred,
            scale=scale,
            engine=engine(compiled=self.compiled),
        )
        if centre is not None and made.shift is not None:
            centre.move("running_mean", made.shift)
        if self.norm is not None and made.mean is not None:
            self.norm.norm.move("running_variance", made.mean)
        return made.it, made.tt

    def covariance(self, left: Blocks, right: Blocks, between: Tensor) -> Tensor:
        white = [mix(self.whitening, it) for it, _ in (left, right)]
        learned = [mix(self.spread.T, each) for each in white]
        return between - inner_products(*white) + inner_products(*learned)

    @property
    def _place_of_norm(self) -> int:
        """Which part of this operation the normalisation is."""
        return 1 if self.centre is None else 2

    def constant(self) -> tuple[Tensor | None, Operation]:
        r"""Constants, and a matrix that ``it`` is to be multiplied by before.

        V is turned by the eigenvectors E of :math:`QQ^T = E\Sigma^2E^T` where it is not yet, so
        that :math:`|Q^TV| = |\Sigma E^TV|` takes no product of matrices.
        """
        live = [each for each in (self.norm, self.centre and self.centre.centre) if each]
        if not all(each.is_constant for each in live):
            return None, self.frozen()
        spread, turn = self.spread, None
        if not self.orthogonal:
            turn = eigenvectors(spread @ spread.T).T
            spread = turn @ spread
            if self.whitening is not None:
                turn = turn @ self.whitening
        with part(1):
            shift = None if self.centre is None else self.centre.centre.constant_mean()
        with part(self._place_of_norm):
            scale = None if self.norm is None else self.norm.constant_scale()
        roots, turned = roots_and_shift(spread, shift)
        factor = self.factor if scale is None else self.factor * scale
        made = ProjectPlan(
            None if turn is not None else self.whitening,
            roots,
            factor @ spread.T,
            shift=turned,
            offset=None if shift is None else -(factor @ shift),
            factor=None if scale is None else scale.square(),
        )
        made.compiled = self.compiled
        return turn, made.frozen()


class ProjectPlan(Plan):
    r"""What a Gram layer or a centring is once all of it is constant.

    .. math:: G_{it} = M V + m, \qquad
              g_{tt} = f\left(\max(k_{tt} - |V|^2, 0) + |\Sigma V - t|^2\right)

    Attributes:
        whitening: gives V from ``it``; None if it is V.
        roots: the diagonal of Σ.
        matrix, offset: M and m.
        shift: t.
        factor: f.
        compiled: let ``torch.compile`` make the elementwise functions.
    """

    compiled = False

    def __init__(
        self,
        whitening: Tensor | None,
        roots: Tensor,
        matrix: Tensor,
        *,
        shift: Tensor | None = None,
        offset: Tensor | None = None,
        factor: Tensor | None = None,
    ) -> None:
        self.whitening, self.roots, self.matrix = whitening, roots, matrix
        self.shift, self.offset, self.factor = shift, offset, factor

    def data(self, it: Tensor, tt: Tensor) -> Blocks:
        white = mix(self.whitening, it)
        if torch.compiler.is_compiling():
            column = (-1, *(1,) * (it.ndim - 2))
            shift = None if self.shift is None else self.shift.reshape(column)
            variance, _ = diagonal_variance(white, tt, self.roots.reshape(column), shift)
        else:
            run = engine(compiled=self.compiled).diagonal_variance
            variance, _ = run(as_rows(white), tt.reshape(-1), self.roots, self.shift)
            variance = variance.reshape(tt.shape)
        variance = variance if self.factor is None else variance * self.factor
        return mix(self.matrix, white, self.offset), variance
