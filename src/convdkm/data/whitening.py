r"""Whitening: what is done to images before a kernel sees them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn

from convdkm.checks import check_choice
from convdkm.choices import WhiteningChoice, WhiteningKind
from convdkm.data.moments import Moments
from convdkm.errors import InvalidInputError, NotInitialisedError

ZCAVariant = Literal["standardised", "paper", "published"]

MOST_CHOSEN = 4_096
"""Values of an image up to which ZCA is chosen: its eigenvectors take half a minute of a core."""
MOST_VALUES = 8_192
"""Values up to which ZCA can be asked for: some minutes."""

Self = TypeVar("Self", bound="Whitening")


class Whitening(nn.Module, ABC):
    """A map of images ``(N, channels, *space)`` that is fitted to training images once.

    What it learned is in buffers that are ``None`` until then, so that a ``state_dict`` loads into
    a fresh instance, fitted or not.
    """

    @abstractmethod
    def fit(self: Self, images: Tensor) -> Self:
        """Fit to training images; returns itself."""

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """The images, whitened, in the same shape."""

    def packed(self, channels: int) -> dict[str, Tensor]:
        """Its state, for images of so many channels, in as few numbers as there are."""
        del channels
        return self.state_dict()

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        for name in self._buffers:
            saved = state_dict.get(prefix + name)
            if saved is not None:
                here = self._buffers[name]
                device = saved.device if here is None else here.device
                self._buffers[name] = torch.empty_like(saved, device=device)
        super()._load_from_state_dict(state_dict, prefix, *arguments)


class ZCA(Whitening):
    r"""Regularised ZCA whitening: decorrelates pixels, staying as close to the image as possible.

    .. math:: x \leftarrow U (\Lambda + \epsilon\bar\lambda I)^{-1/2} U^T (x - \bar x),
              \qquad \mathrm{Cov}(x) = U \Lambda U^T

    with :math:`\bar\lambda` the mean eigenvalue: ε is relative, so that it means the same for
    pixels of any scale. ``variant="paper"`` is this formula alone, which is all that the paper
    names. ``variant="standardised"`` is the formula after each channel was brought to mean 0 and
    variance 1, and then each channel brought to variance 1 once more. ``variant="published"`` is
    what the published runs do: the same, but no mean image is subtracted, and :math:`U\Lambda U^T`
    is the uncentred second moment :math:`E[xx^T]` of the standardised images.

    Args:
        epsilon: the regulariser ε, 0.1 in the paper.
        variant: ``"standardised"``, ``"paper"`` or ``"published"``.
    """

    mean: Tensor | None
    matrix: Tensor | None

    def __init__(self, epsilon: float = 0.1, variant: ZCAVariant = "standardised") -> None:
        super().__init__()
        if not 0 <= epsilon < float("inf"):
            raise InvalidInputError(f"epsilon must not be negative, got {epsilon}")
        check_choice("variant", variant, ZCAVariant)
        self.epsilon = epsilon
        self.variant = variant
        self.register_buffer("mean", None)
        self.register_buffer("matrix", None)

    @torch.no_grad()
    def fit(self, images: Tensor) -> ZCA:
        _check_fittable(images)
        _require_affordable(images.shape[1:])
        moments = Moments.of(images)
        mean, deviation = moments.mean, torch.ones_like(moments.mean)
        if self.variant != "paper":
            deviation = moments.channel_deviation()
        second = moments.covariance / deviation / deviation[:, None]
        if self.variant == "published":
            mean = moments.channel_mean(moments.mean)
            rest = (moments.mean - mean) / deviation
            second += rest.outer(rest)
        values, vectors = torch.linalg.eigh(second)
        values = values.clamp(min=0)
        shrunk = _inverse_root(values + self.epsilon * values.mean())
        matrix = (vectors * shrunk) @ vectors.T / deviation[:, None]
        if self.variant != "paper":
            # E[(xR)²] is the diagonal of R E[xxᵀ] R = U Λ (Λ + ελ̄)⁻¹ Uᵀ.
            squares = vectors.square() @ (values * shrunk.square())
            level = moments.channel_mean((moments.mean - mean) @ matrix)
            matrix = matrix / moments.channel_root_mean(squares - level.square())
            if self.variant == "published":
                # Subtracted before the product instead: level = (level R⁻¹) R.
                inverse = torch.where(shrunk > 0, 1 / shrunk, 0)
                mean = mean + ((level @ vectors) * inverse) @ vectors.T * deviation
        self.mean, self.matrix = mean.float(), matrix.float()
        return self

    def packed(self, channels: int) -> dict[str, Tensor]:
        """The matrix is symmetric but for a factor of every channel: half of it will do."""
        state = self.state_dict()
        if self.matrix is None:
            return state
        matrix = self.matrix.double()
        blocks = matrix.unflatten(0, (channels, -1)).unflatten(2, (channels, -1))
        factors = torch.stack(
            [blocks[0, :, k].norm() / blocks[k, :, 0].norm() for k in range(channels)]
        )
        columns = factors.repeat_interleave(len(matrix) // channels)
        symmetric = matrix / columns
        error = (symmetric - symmetric.T).abs().max()
        if not error < 1e-5 * symmetric.abs().max():
            return state
        rows, places = torch.tril_indices(*symmetric.shape)
        kept = {"triangle": symmetric[rows, places], "columns": columns}
        return {"mean": state["mean"], **{k: v.to(self.matrix.dtype) for k, v in kept.items()}}

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        if prefix + "triangle" in state_dict:
            triangle, columns = (state_dict.pop(prefix + k) for k in ("triangle", "columns"))
            rows, places = torch.tril_indices(len(columns), len(columns))
            symmetric = triangle.new_zeros(len(columns), len(columns))
            symmetric[rows, places] = triangle
            symmetric[places, rows] = triangle
            state_dict[prefix + "matrix"] = symmetric * columns
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def forward(self, images: Tensor) -> Tensor:
        if self.mean is None or self.matrix is None:
            raise NotInitialisedError("call fit(images) before whitening")
        flat = images.flatten(1)
        if flat.shape[1] != len(self.mean):
            raise InvalidInputError(
                f"this whitening was fitted to {len(self.mean)} pixels, got {flat.shape[1]}"
            )
        whitened = (flat - self.mean.to(flat.dtype)) @ self.matrix.to(flat.dtype)
        return whitened.reshape(images.shape)


class Standardise(Whitening):
    """Each channel brought to mean 0 and variance 1 over the training images.

    Args:
        centre: subtract the mean; without it black stays zero, and only the scale is changed.
    """

    mean: Tensor | None
    deviation: Tensor | None

    def __init__(self, *, centre: bool = True) -> None:
        super().__init__()
        self.centre = centre
        self.register_buffer("mean", None)
        self.register_buffer("deviation", None)

    @torch.no_grad()
    def fit(self, images: Tensor) -> Standardise:
        _check_fittable(images)
        moments = [torch.var_mean(channel.double(), correction=0) for channel in images.unbind(1)]
        variance, mean = (torch.stack(moment) for moment in zip(*moments, strict=True))
        self.mean = mean.float() if self.centre else torch.zeros_like(mean).float()
        self.deviation = (1 / _inverse_root(variance, otherwise=1)).float()
        return self

    def forward(self, images: Tensor) -> Tensor:
        if self.mean is None or self.deviation is None:
            raise NotInitialisedError("call fit(images) before whitening")
        if images.shape[1] != len(self.mean):
            raise InvalidInputError(
                f"this whitening was fitted to {len(self.mean)} channels, got {images.shape[1]}"
            )
        channels = (-1, *(1,) * (images.ndim - 2))
        mean, deviation = self.mean.to(images.dtype), self.deviation.to(images.dtype)
        return (images - mean.reshape(channels)) / deviation.reshape(channels)


class NoWhitening(Whitening):
    """Leaves images as they are."""

    def fit(self, images: Tensor) -> NoWhitening:
        return self

    def forward(self, images: Tensor) -> Tensor:
        return images


def chosen_whitening(
    kind: WhiteningChoice, count: int, shape: Sequence[int], tell: Callable[[str], None]
) -> WhiteningKind:
    """What to whiten ``count`` training images by; runs, estimators and baselines ask here.

    ``"auto"`` is ZCA (``"auto-paper"`` and ``"auto-published"`` are its other variants), and
    ``"standardise"`` where that does not fit. Any other kind is what was
    asked for: ZCA of too few images is warned of, and of too many values an error.

    Args:
        kind: as asked for.
        count: number of training images.
        shape: channels, height and width of an image.
        tell: what the user should know is said by it, in a line.
    """
    check_choice("whitening", kind, WhiteningChoice)
    few, large = zca_of_few(count, shape), zca_of_large(shape, MOST_CHOSEN)
    if kind.startswith("auto"):
        why = large or few
        if why is None:
            return cast("WhiteningKind", kind.replace("auto", "zca"))
        tell(f"whitening standardise in place of zca: {why}")
        return "standardise"
    if kind.startswith("zca"):
        _require_affordable(shape)
        if few is not None:
            tell(f"{few}; --whitening standardise does not")
    return cast("WhiteningKind", kind)


def zca_of_few(count: int, shape: Sequence[int]) -> str | None:
    """Why ZCA should not be fitted to so few images of a shape; None if there are enough.

    With fewer images than an image has values, the whitened training images have nothing in common,
    and test images come out far larger than they.
    """
    values = math.prod(shape)
    if count >= values:
        return None
    return f"ZCA fitted to {count:,} images of {values:,} values makes test images unlike them"


def zca_of_large(shape: Sequence[int], most: int = MOST_VALUES) -> str | None:
    """Why ZCA should not be fitted to images as large as that; None if they are small enough."""
    values = math.prod(shape)
    if values <= most:
        return None
    return (
        f"ZCA of images of {values:,} values (all channels) takes the eigenvectors of a matrix of"
        f" {8 * values**2 / 2**30:.1f} GiB, and {most:,} values are the most"
    )


def _require_affordable(shape: Sequence[int]) -> None:
    refused = zca_of_large(shape)
    if refused is not None:
        raise InvalidInputError(
            f"{refused}; --whitening standardise works, and so do smaller images (--image-size)"
        )


def make_whitening(kind: WhiteningChoice = "zca", epsilon: float = 0.1) -> Whitening:
    """An unfitted whitening by its name, not ``auto``; ``epsilon`` matters for ZCA alone."""
    check_choice("whitening", kind, WhiteningKind)
    if kind == "none":
        return NoWhitening()
    if kind in ("standardise", "scale"):
        return Standardise(centre=kind == "standardise")
    variants: dict[str, ZCAVariant] = {"zca-paper": "paper", "zca-published": "published"}
    return ZCA(epsilon, variants.get(kind, "standardised"))


def _inverse_root(values: Tensor, otherwise: float = 0) -> Tensor:
    """1/√v, and ``otherwise`` where v is zero up to rounding: no constant pixel is blown up."""
    smallest = torch.finfo(torch.float32).tiny + len(values) * 1e-15 * float(values.max())
    return torch.where(values > smallest, values.clamp(min=smallest).rsqrt(), otherwise)


def _check_fittable(images: Tensor) -> None:
    if images.ndim < 3 or len(images) < 2:
        raise InvalidInputError(
            "whitening is fitted to two or more images (N, channels, *space), got"
            f" {tuple(images.shape)}"
        )
    if not all(bool(chunk.isfinite().all()) for chunk in images.split(4096)):
        raise InvalidInputError(
            "the images that whitening is fitted to hold NaN or infinite values"
        )
