r"""Layers of exact kernels: those that have weights of their own, and what is around them.

Each is one of neural-tangents' ``stax`` (in its parameterisation ``"ntk"``) and changes a
:class:`SpatialGram`, G and the neural tangent kernel Θ beside it. ``docs/exact.md`` has a table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from torch import Tensor, nn

from convdkm.checks import check_choice
from convdkm.choices import Parameterisation
from convdkm.errors import GramError, InvalidInputError
from convdkm.exact.spatial import SpatialGram
from convdkm.layers import GramLayer, Layer, Plan, Window
from convdkm.ops.window import Padding, Reduction, Size

FITTED = ("tf-same", "circular")
"""Paddings that depend on the size of the image."""


class ExactLayer(Layer):
    """Base class of layers that exist in exact kernels only: define :meth:`of_gram`."""

    instead: ClassVar[str] = "another layer"
    """What a sparse machine has in its place."""

    def of_gram(self, gram: SpatialGram) -> SpatialGram:
        """What the layer does to the full covariance."""
        raise NotImplementedError(f"{type(self).__name__} must define of_gram(gram)")

    def plan(self, ii: Tensor) -> Plan:
        raise GramError(
            f"{type(self).__name__} is a layer of exact kernels and knows nothing of {len(ii)}"
            f" inducing points; in a sparse machine use {self.instead}"
        )


class _Windowed(ExactLayer):
    """A layer that slides a window over the image.

    Attributes:
        window: its geometry; without padding where that depends on the image.
        fitted: the padding that does; None for others.
    """

    window: Window
    fitted: str | None

    def __init__(
        self, kernel_size: Size, stride: Size, padding: Padding, dilation: Size, ndim: int
    ) -> None:
        super().__init__()
        known = ("same", "valid", *FITTED)
        if isinstance(padding, str) and padding not in known:
            listed = ", ".join(map(repr, known))
            raise InvalidInputError(f"padding must be {listed} or integers, got {padding!r}")
        plain = "valid" if padding in FITTED else padding
        window = Window.of(kernel_size, stride, plain, dilation, ndim)
        if padding == "tf-same" and set(window.stride) == {1}:
            padding = "same"  # the two are one
            window = Window.of(kernel_size, stride, padding, dilation, ndim)
        self.window = window
        self.fitted = padding if isinstance(padding, str) and padding in FITTED else None

    @property
    def circular(self) -> bool:
        """Whether the image goes on at its other side."""
        return self.fitted == "circular"

    def window_on(self, space: Sequence[int]) -> Window:
        """The window with the padding that it has on images of this shape."""
        if self.fitted is None or len(space) != self.window.ndim:
            return self.window  # which refuses a wrong number of axes
        window = self.window
        pads = []
        for axis, length in enumerate(space):
            reach = window.dilation[axis] * (window.size[axis] - 1) + 1
            last = (math.ceil(length / window.stride[axis]) - 1) * window.stride[axis]
            total = max(last + reach - length, 0)
            pads.append((total // 2, total - total // 2))
        return replace(window, padding=tuple(pads))

    def extra_repr(self) -> str:
        return str(self.window) if self.fitted is None else f"{self.window}, {self.fitted}"


class Convolution(_Windowed):
    r"""The kernelised convolution Γ of Eq. 11 on whole images; :class:`Conv` is its sparse form.

    .. math::
        \Gamma_{ir,js} &= \tfrac{\sigma_w^2}D \sum_d \Omega_{i(r+d), j(s+d)} + \sigma_b^2 \\
        \Theta_{ir,js} &\leftarrow
            \tfrac{\sigma_w^2}D \sum_d \Theta_{i(r+d), j(s+d)} + \Gamma_{ir,js}

    Args:
        kernel_size: size of the filter, an integer or one for each axis.
        stride, dilation: as in ``torch.nn.Conv2d``.
        padding: what lies around the image. ``"same"`` (default): zeros, with the filter centred on
            every ``stride``-th place from the first on. ``"tf-same"``: as few zeros as give
            ``ceil(size / stride)`` places, one more at the end where their number is odd, which
            is TensorFlow's and JAX's ``"SAME"``; it differs for a stride on even sizes.
            ``"circular"``: as many places as that, of the image's other side. ``"valid"``: nothing.
            Or integers, of zeros.
        ndim: number of spatial axes, 1 to 3.
        weight_variance: :math:`\sigma_w^2`, what Γ is multiplied by: each weight has variance
            :math:`\sigma_w^2/(CD)`, of C channels and D places of the filter.
        bias_variance: :math:`\sigma_b^2`, what is added then, at every place.
    """

    instead = "Conv"

    def __init__(
        self,
        kernel_size: Size,
        *,
        stride: Size = 1,
        padding: Padding = "same",
        dilation: Size = 1,
        ndim: int = 2,
        weight_variance: float = 1.0,
        bias_variance: float = 0.0,
    ) -> None:
        super().__init__(kernel_size, stride, padding, dilation, ndim)
        _check_variances("convolution", weight_variance, bias_variance)
        self.weight_variance, self.bias_variance = weight_variance, bias_variance

    def of_gram(self, gram: SpatialGram) -> SpatialGram:
        window = self.window_on(gram.space)
        variances = self.weight_variance, self.bias_variance
        return gram.convolve(window, *variances, circular=self.circular)


class Dense(ExactLayer):
    r"""A dense layer: weights between all features of a place, the same at every place.

    .. math:: G \leftarrow \sigma_w^2 G + \sigma_b^2, \qquad
              \Theta \leftarrow \sigma_w^2\Theta + G

    To G it does nothing with the variances 1 and 0; the NTK counts its weights. After
    :class:`convdkm.Flatten` it has a weight for every place and feature.

    Args:
        weight_variance: :math:`\sigma_w^2`: each weight has variance :math:`\sigma_w^2/C`.
        bias_variance: :math:`\sigma_b^2`.
    """

    instead = "Mix"

    def __init__(self, weight_variance: float = 1.0, bias_variance: float = 0.0) -> None:
        super().__init__()
        _check_variances("dense layer", weight_variance, bias_variance)
        self.weight_variance, self.bias_variance = weight_variance, bias_variance

    def of_gram(self, gram: SpatialGram) -> SpatialGram:
        return gram.dense(self.weight_variance, self.bias_variance)

    def extra_repr(self) -> str:
        return f"{self.weight_variance:g}, {self.bias_variance:g}"


class Pooling(_Windowed):
    r"""Average or sum over a window; :class:`AveragePool` is its sparse form.

    .. math:: G_{ir,js} \leftarrow \tfrac1{w_r w_s} \sum_{dd'} G_{i(r+d), j(s+d')},
              \quad\text{and the same for } \Theta

    Args:
        kernel_size: size of the window.
        stride: its step; the size of the window by default.
        padding: as in :class:`Convolution`; ``"valid"`` by default.
        reduction: what the sum over a window is divided by: the number of its places (``"mean"``),
            that of its places inside the image (``"inside"``), or nothing (``"sum"``).
        ndim: number of spatial axes.
    """

    instead = "AveragePool"

    def __init__(
        self,
        kernel_size: Size,
        *,
        stride: Size | None = None,
        padding: Padding = "valid",
        reduction: Reduction = "mean",
        ndim: int = 2,
    ) -> None:
        super().__init__(kernel_size, kernel_size if stride is None else stride, padding, 1, ndim)
        check_choice("reduction", reduction, Reduction)
        self.reduction: Reduction = reduction
        for size, pads in zip(self.window.size, self.window.padding, strict=True):
            if max(pads) >= size:
                raise InvalidInputError(
                    f"padding {max(pads)} leaves windows of size {size} wholly outside the image"
                )

    def of_gram(self, gram: SpatialGram) -> SpatialGram:
        window = self.window_on(gram.space)
        return gram.pool(window, self.reduction, circular=self.circular)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, reduction={self.reduction!r}"


class GlobalSumPool(ExactLayer):
    """Sum over all places of an image; leaves a Gram without space."""

    instead = "GlobalAveragePool"

    def of_gram(self, gram: SpatialGram) -> SpatialGram:
        return gram.global_sum_pool()


class LayerNorm(ExactLayer):
    r"""Layer normalisation over features, and over places as well; :class:`Norm` is its kin.

    Infinitely many features of Gaussian weights have mean zero, and the mean of their squares is a
    number that does not change with the weights:

    .. math:: G_{ir,js} \leftarrow \frac{G_{ir,js}}{\sqrt{(v_{ir} + \epsilon)(v_{js} + \epsilon)}},
              \quad\text{and the same for } \Theta,

    with :math:`v_{ir} = G_{ir,ir}`, or its mean over the axes that are normalised over.

    Args:
        axes: axes of space to normalise over beside the features, counted from 0; none by default,
            ``"all"`` for the whole image.
        eps: ε.
    """

    instead = "Norm"

    def __init__(self, axes: Sequence[int] | Literal["all"] = (), *, eps: float = 1e-12) -> None:
        super().__init__()
        if isinstance(axes, str):
            check_choice("axes of a LayerNorm", axes, Literal["all"])
        elif any(not isinstance(axis, int) or axis < 0 for axis in axes):
            raise InvalidInputError(
                "axes of a LayerNorm are axes of space, integers from 0 on, or 'all'; got"
                f" {tuple(axes)}"
            )
        if not 0 <= eps < math.inf:
            raise InvalidInputError(f"eps of a LayerNorm must not be negative, got {eps}")
        self.axes = axes if isinstance(axes, str) else tuple(axes)
        self.eps = eps

    def of_gram(self, gram: SpatialGram) -> SpatialGram:
        gram.require_gaussian("LayerNorm subtracts a mean of features, which is zero")
        ndim = len(gram.space)
        axes = tuple(range(ndim)) if isinstance(self.axes, str) else self.axes
        if any(axis >= ndim for axis in axes):
            raise GramError(f"LayerNorm over axes {axes} of a grid of shape {gram.space}")
        dims = [1 + axis for axis in axes]

        def factor(variances: Tensor) -> Tensor:
            mean = variances.mean(dims, keepdim=True) if dims else variances
            return (mean + self.eps).rsqrt().expand_as(variances)

        return gram.rescale(factor)

    def extra_repr(self) -> str:
        return f"axes={self.axes!r}, eps={self.eps:g}"


class Residual(ExactLayer):
    r"""A sum of branches, :math:`G \leftarrow \sum_b B_b(G)`; :class:`Skip` takes their mean.

    With one branch the identity is the other: ``Residual(body)`` is :math:`x + f(x)`, and
    ``Residual(body, Convolution(1, stride=2))`` has a shortcut with weights. All branches must end
    with features that are Gaussian and of mean zero, and the identity must begin with such.

    Args:
        branches: layers, or several as :class:`convdkm.Sequential`, which is the identity if it has
            none.
    """

    instead = "Skip"

    def __init__(self, *branches: Layer) -> None:
        super().__init__()
        for branch in branches:
            if not isinstance(branch, Layer):
                raise InvalidInputError(
                    f"a branch of a Residual is a layer, got a {type(branch).__name__}"
                )
        if not branches:
            raise InvalidInputError("a Residual needs at least one branch")
        self.branches = nn.ModuleList(branches)


class LearnedGram(ExactLayer):
    r"""A learned Gram matrix of all places of all training images; for :class:`FullRankDKM`.

    The machine, which knows how many places there are, puts a :class:`convdkm.GramLayer` of that
    size in its place. In an :class:`ExactKernel` ν must be infinite, and the layer does nothing.

    Args:
        nu: weight ν of the divergence of G from the kernel K, from 0 to infinity, where G = K.
        parameterisation: ``"direct"``, a factor of G, or ``"whitened"``, one relative to K.
        initial_scale: α², G starts at α² K.
    """

    instead = "GramLayer"

    def __init__(
        self,
        nu: float = 1.0,
        *,
        parameterisation: Parameterisation = "direct",
        initial_scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.options = {"parameterisation": parameterisation, "initial_scale": initial_scale}
        self.nu = self.of_size(1, nu).nu

    def of_size(self, size: int, nu: float | None = None) -> GramLayer:
        """The Gram layer of a matrix of so many rows."""
        return GramLayer(size, self.nu if nu is None else nu, **self.options)  # type: ignore[arg-type]

    @property
    def is_nngp(self) -> bool:
        """ν is infinite: G = K, with nothing to learn."""
        return math.isinf(self.nu)

    def of_gram(self, gram: SpatialGram) -> SpatialGram:
        return gram.learned(self)

    def extra_repr(self) -> str:
        return f"nu={self.nu:g}, parameterisation={self.options['parameterisation']!r}"


def _check_variances(layer: str, weight_variance: float, bias_variance: float) -> None:
    if not 0 < weight_variance < math.inf:
        raise InvalidInputError(
            f"the weight_variance of a {layer} must be a positive number, got {weight_variance}"
        )
    if not 0 <= bias_variance < math.inf:
        raise InvalidInputError(
            f"bias_variance of a {layer} must not be negative, got {bias_variance}"
        )
