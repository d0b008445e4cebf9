r"""Normalisation and scaling of Gram matrices (appendix C), and centring.

The analogue of batch normalisation divides every feature vector by a norm and multiplies it by a
learned scale; on a Gram that is

.. math::
    N^{ii}_{ij} = G^{ii}_{ij}\frac{\psi_i\psi_j}{a_i a_j}, \quad
    N^{it}_{i,js} = G^{it}_{i,js}\frac{\psi_i\Psi_s}{a_i A_{js}}, \quad
    N^{tt}_{ir,ir} = G^{tt}_{ir,ir}\frac{\Psi_r^2}{A_{ir}^2}.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

import torch
from torch import Tensor, nn

from convdkm.checks import check_choice
from convdkm.choices import DataNorm, DataScale, InducingNorm, InducingScale, Statistics
from convdkm.errors import InvalidInputError, NotInitialisedError
from convdkm.gram import INDUCING_DTYPE, Gram
from convdkm.layers.base import LazyState, keeps
from convdkm.numerics import factorised, inverse_root
from convdkm.ops.base import Plan, require_shape
from convdkm.ops.gram import Centring, inducing_mean
from convdkm.ops.inducing import normalised
from convdkm.ops.norm import NormPlan, pixel_factor
from convdkm.ops.predicted import Scale
from convdkm.ops.synchronise import batch_mean

_FROZEN: ContextVar[bool] = ContextVar("frozen statistics", default=False)


@contextmanager
def frozen_statistics() -> Iterator[None]:
    """No running average moves inside the block: a batch that is seen again counts once."""
    token = _FROZEN.set(True)
    try:
        yield
    finally:
        _FROZEN.reset(token)


class RunningStatistics(LazyState):
    """A layer with a statistic of the batch that evaluation takes from a running average."""

    def __init__(self, *, statistics: Statistics, momentum: float) -> None:
        super().__init__()
        check_choice("statistics", statistics, Statistics)
        if not 0 < momentum <= 1:
            raise InvalidInputError(f"momentum must lie in (0, 1], got {momentum}")
        self.momentum, self.statistics = momentum, statistics

    @property
    def uses_batch(self) -> bool:
        """Whether the statistic is that of the batch, in the present mode."""
        return self.training or self.statistics == "batch"

    @property
    def depends_on_batch(self) -> bool:
        """Whether it is so in evaluation too."""
        return self.statistics == "batch"

    @property
    def is_plain(self) -> bool:
        """Whether no subclass changes how the statistic is worked out."""
        raise NotImplementedError(f"{type(self).__name__} must define is_plain")

    @property
    def is_constant(self) -> bool:
        """Whether its part in evaluation is known without data."""
        return self.is_plain and not self.depends_on_batch

    @torch.no_grad()
    def move(self, name: str, value: Tensor) -> None:
        """Let the running average follow the statistic of a batch, in training."""
        running: Tensor | None = getattr(self, name)
        if self.training and running is not None and not _FROZEN.get():
            running.lerp_(value.detach().to(running.dtype), self.momentum)

    def current(
        self,
        name: str,
        dtype: torch.dtype,
        shape: tuple[int, ...] | None = None,
        batch: Callable[[], Tensor] | None = None,
    ) -> Tensor:
        """The statistic to use: of the batch in training, and the running one in evaluation.

        The running average is in the buffer ``name``, whose shape is checked if ``shape`` is given.
        ``batch`` works out the statistic of the batch; without it the running one is used.
        """
        running: Tensor | None = getattr(self, name)
        needed = self.training or self.statistics == "running"
        if needed and running is not None and shape is not None:
            require_shape("running statistics", running.shape, shape)
        if batch is not None and self.uses_batch:
            value = batch()
            self.move(name, value)
            return value
        if running is None:
            raise NotInitialisedError(
                "this layer needs the running statistics of its batches, and has seen none; call"
                " initialise(images, labels) on the model, or load a state_dict first"
            )
        return running.to(dtype)


class Norm(RunningStatistics):
    r"""Normalisation and scaling of both blocks, in every combination of appendix C.

    Args:
        inducing: :math:`a_i`: ``"none"``, ``"batch"`` (mean of the diagonal of G_ii) or ``"local"``
            (each point's own).
        data: :math:`A_{ir}`: ``"none"``, ``"batch"`` (mean of g_tt over images and places),
            ``"image"`` (over an image's places), ``"location"`` (over images, for each place) or
            ``"local"`` (each pixel's own).
        inducing_scale: ψ: ``"none"``, ``"batch"`` (one number) or ``"local"`` (one per inducing
            point).
        data_scale: Ψ: ``"none"``, ``"batch"`` (one number) or ``"location"`` (one per place).
        statistics: what ``"batch"`` and ``"location"`` divide by in evaluation: ``"running"``
            averages of training, or (the published runs) those of the ``"batch"`` at hand, in
            which case a prediction depends on its neighbours.
        momentum: weight of the newest batch in the running averages.

    Scales are learned through their logarithms. Those with a shape (``"local"``, ``"location"``)
    and running averages by location are made by :meth:`initialise`, or by ``load_state_dict``.
    """

    log_inducing_scale: Tensor | None
    log_data_scale: Tensor | None
    running_variance: Tensor | None

    def __init__(
        self,
        inducing: InducingNorm = "batch",
        data: DataNorm = "batch",
        inducing_scale: InducingScale = "batch",
        data_scale: DataScale = "batch",
        *,
        statistics: Statistics = "running",
        momentum: float = 0.1,
    ) -> None:
        super().__init__(statistics=statistics, momentum=momentum)
        check_choice("inducing", inducing, InducingNorm)
        check_choice("data", data, DataNorm)
        check_choice("inducing_scale", inducing_scale, InducingScale)
        check_choice("data_scale", data_scale, DataScale)
        self.inducing, self.data = inducing, data
        self.inducing_scale, self.data_scale = inducing_scale, data_scale
        zero = torch.zeros((), dtype=INDUCING_DTYPE)
        for name, kind in (("log_inducing_scale", inducing_scale), ("log_data_scale", data_scale)):
            self.register_parameter(name, nn.Parameter(zero.clone()) if kind == "batch" else None)
        self.register_buffer("running_variance", zero + 1 if data == "batch" else None)

    def lazy_state(self) -> tuple[str, ...]:
        shaped = {
            "log_inducing_scale": self.inducing_scale == "local",
            "log_data_scale": self.data_scale == "location",
            "running_variance": self.data == "location",
        }
        return tuple(name for name, lazy in shaped.items() if lazy)

    def initialise(self, gram: Gram, generator: torch.Generator | None = None) -> Gram:
        if self.inducing_scale != "none":
            points = (gram.num_inducing,) if self.inducing_scale == "local" else ()
            self.materialise("log_inducing_scale", torch.zeros(points, device=gram.device))
        if self.data_scale != "none":
            places = gram.space if self.data_scale == "location" else ()
            self.materialise("log_data_scale", torch.zeros(places, device=gram.device))
        if self.data in ("batch", "location"):
            self.materialise("running_variance", self._variance(gram.tt))
        return self(gram)

    def plan(self, ii: Tensor) -> Plan:
        single = ("none", "batch")
        is_number = self.is_plain and self.data in single and self.data_scale in single
        if self.inducing == self.inducing_scale == "none":
            return NormPlan(ii, None, self, is_number=is_number)
        log_scale = None
        if self.inducing_scale != "none":
            log_scale = self._log_scale(self.log_inducing_scale, ii.shape[:1])
        if self.inducing != "local" and self.inducing_scale != "local":
            scaled, factor = normalised(ii, log_scale, by_mean=self.inducing == "batch")
            return NormPlan(scaled, factor, self, is_number=is_number)
        diagonal = ii.diagonal()
        factor = torch.ones_like(diagonal)
        if self.inducing != "none":
            factor = factor * inverse_root(
                diagonal.mean() if self.inducing == "batch" else diagonal
            )
        if log_scale is not None:
            factor = factor * log_scale.exp()
        return NormPlan(ii * torch.outer(factor, factor), factor, self, is_number=is_number)

    @property
    def depends_on_batch(self) -> bool:
        return self.statistics == "batch" and self.data in ("batch", "location")

    @property
    def is_plain(self) -> bool:
        return keeps(self, Norm, *_FACTORS)

    def data_factor(self, tt: Tensor) -> Tensor | None:
        """``Ψ / A`` for every pixel, ``(N, *space)``; None if it is one everywhere."""
        factor = pixel_factor(tt, self.data, self.shared_factor(tt))
        return None if factor is None else factor.expand(tt.shape)

    def shared_factor(self, tt: Tensor | None = None) -> Tensor | None:
        """What of ``Ψ / A`` is the same for all images: a scalar, or one for each place.

        None if it is one. Without data it is that of evaluation, in float64.
        """
        dtype, space = (INDUCING_DTYPE, None) if tt is None else (tt.dtype, tt.shape[1:])
        factor: Tensor | None = None
        if self.data in ("batch", "location"):
            shape = () if self.data == "batch" else space
            batch = None if tt is None else partial(self._variance, tt)
            factor = inverse_root(self.current("running_variance", dtype, shape, batch))
        if self.data_scale != "none":
            scale = self._log_scale(self.log_data_scale, space).exp().to(dtype)
            factor = scale if factor is None else factor * scale
        return factor

    def scale(self, dtype: torch.dtype) -> Scale:
        """The same where it is a scalar, not yet worked out."""
        log_scale = None if self.data_scale == "none" else self._log_scale(self.log_data_scale, ())
        if self.data == "none":
            return Scale(log_scale)
        if self.uses_batch:
            return Scale(log_scale, by_mean=True)
        return Scale(log_scale, fixed=self.current("running_variance", dtype, ()))

    def _variance(self, tt: Tensor) -> Tensor:
        """:math:`A^2`, over images alone or over images and places."""
        return batch_mean(tt, tuple(range(tt.ndim)) if self.data == "batch" else (0,))

    def _log_scale(self, log_scale: Tensor | None, shape: tuple[int, ...] | None) -> Tensor:
        if log_scale is None:
            raise NotInitialisedError(
                "this layer's scales take their shape from data; call initialise(images, labels)"
                " on the model, initialise(gram) on the layer, or load a state_dict first"
            )
        if log_scale.ndim and shape is not None:
            require_shape("scales", log_scale.shape, shape)
        return log_scale

    def extra_repr(self) -> str:
        text = f"{self.inducing!r}, {self.data!r}, {self.inducing_scale!r}, {self.data_scale!r}"
        return text if self.statistics == "running" else f"{text}, statistics='batch'"


_FACTORS = ("data_factor", "shared_factor", "scale", "current", "_variance")
"""Functions of :class:`Norm` that work out the factors of the pixels."""


class Centre(RunningStatistics):
    r"""Centring: the half of batch normalisation that subtracts a mean.

    Subtracts from G_it its mean m over images and places, one number for each inducing point, and
    corrects g_tt to match; G_ii stays. With :math:`\beta = G_{ii}^{-1} m`,

    .. math:: G_{it} \leftarrow G_{it} - m, \qquad
              g_{tt} \leftarrow g_{tt} - 2\beta^T G_{it} + \beta^T G_{ii} \beta,

    which is exactly the Gram of features :math:`f_t - \sum_i \beta_i f_i` from which one fixed
    combination of inducing features was subtracted. Not in the paper.

    What is left after centring is small beside the mean, so evaluation needs a mean that fits the
    parameters of the moment: see :meth:`DeepKernelMachine.calibrate`.

    Args:
        statistics: what to subtract in evaluation: the ``"running"`` mean of training, or the mean
            of the ``"batch"`` at hand.
        momentum: weight of the newest batch in the running mean, which is kept in whitened
            coordinates, :math:`F^{-1}m` with :math:`G_{ii} = F F^T`.
    """

    running_mean: Tensor | None

    def __init__(self, *, statistics: Statistics = "running", momentum: float = 0.1) -> None:
        super().__init__(statistics=statistics, momentum=momentum)
        self.register_buffer("running_mean", None)

    def lazy_state(self) -> tuple[str, ...]:
        return ("running_mean",)

    def initialise(self, gram: Gram, generator: torch.Generator | None = None) -> Gram:
        _, whitening = factorised(gram.ii, "the Gram matrix G_ii")
        self.materialise("running_mean", whitening @ inducing_mean(gram.it).to(whitening.dtype))
        return self(gram)

    def mean(self, points: int, batch: Callable[[], Tensor], dtype: torch.dtype) -> Tensor:
        """What to subtract, in whitened coordinates: ``(points,)``."""
        return self.current("running_mean", dtype, (points,), batch)

    def plan(self, ii: Tensor) -> Plan:
        return Centring(ii, self)

    @property
    def is_plain(self) -> bool:
        return keeps(self, Centre, "mean", "current", "constant_mean")

    def constant_mean(self) -> Tensor:
        """What to subtract in evaluation by running statistics, in float64."""
        return self.current("running_mean", INDUCING_DTYPE)

    def extra_repr(self) -> str:
        return "" if self.statistics == "running" else "statistics='batch'"
