"""Both ends of a folded machine: from images to the first Gram, from the last to a prediction."""

from __future__ import annotations

import torch
from torch import Tensor

from convdkm.choices import Border
from convdkm.layers.conv import window_variance
from convdkm.layers.window import Window
from convdkm.likelihoods.softmax import NODES, NormalSoftmax
from convdkm.numerics import explained
from convdkm.predicting.base import Blocks, Folded, convolved, known
from convdkm.prediction import ClassPrediction, Prediction, RealPrediction
from convdkm.runtime.maps import mean_squares

# -- images ------------------------------------------------------------------------------------


@known
class FoldedScaling(Folded):
    """Every channel scaled and shifted: ``factor · x + offset``, both ``(channels,)``."""

    factor: Tensor
    offset: Tensor

    def __init__(self, *, factor: Tensor, offset: Tensor) -> None:
        super().__init__()
        self.constants(factor=factor, offset=offset)

    def forward(self, images: Tensor) -> Tensor:
        shape = (-1, *(1,) * (images.ndim - 2))
        return images * self.factor.reshape(shape) + self.offset.reshape(shape)


@known
class FoldedWhitening(Folded):
    """A linear map of whole images: ``(x − mean) · matrix``."""

    mean: Tensor
    matrix: Tensor

    def __init__(self, *, mean: Tensor, matrix: Tensor) -> None:
        super().__init__()
        self.constants(mean=mean, matrix=matrix)

    def forward(self, images: Tensor) -> Tensor:
        return ((images.flatten(1) - self.mean) @ self.matrix).reshape(images.shape)


class Start(Folded):
    """Makes the first Gram."""

    def forward(self, images: Tensor) -> Blocks:
        raise NotImplementedError


@known
class FoldedPatches(Start):
    """The Gram of patches; see :class:`convdkm.PatchInput`."""

    settings = ("window", "border")
    weight: Tensor

    def __init__(self, *, weight: Tensor, window: Window, border: Border) -> None:
        super().__init__()
        self.window, self.border = window, border
        self.constants(weight=weight)

    def forward(self, images: Tensor) -> Blocks:
        own = window_variance(self.window, mean_squares(images), self.border)
        return convolved(self.window, images, self.weight), own


@known
class FoldedVectors(Start):
    """The Gram of vectors; see :class:`convdkm.VectorInput`."""

    weight: Tensor

    def __init__(self, *, weight: Tensor) -> None:
        super().__init__()
        self.constants(weight=weight)

    def forward(self, images: Tensor) -> Blocks:
        return images @ self.weight.T, images.square().mean(1)


# -- predictions -------------------------------------------------------------------------------


@known
class FoldedHead(Folded):
    """Mean and variance of the top-layer functions; see :class:`convdkm.GPHead`.

    Args:
        mean: ``L⁻¹μ``, ``(outputs, P)``, with the incoming block being whitened, ``L⁻¹K_it``.
        spread: ``L⁻¹`` times a factor of A, ``(P, P)`` or ``(outputs, P, P)``.
    """

    mean: Tensor
    spread: Tensor

    def __init__(self, *, mean: Tensor, spread: Tensor) -> None:
        super().__init__()
        self.constants(mean=mean, spread=spread)

    def forward(self, it: Tensor, tt: Tensor) -> Blocks:
        residual = (tt - explained(it)).clamp(min=0).unsqueeze(1)
        if self.spread.ndim == 2:
            learned = explained(it @ self.spread).unsqueeze(1)
        else:
            outputs, points, width = self.spread.shape
            flat = self.spread.movedim(0, 1).reshape(points, outputs * width)
            learned = (it @ flat).unflatten(1, (outputs, width)).square().sum(2)
        return it @ self.mean.T, residual + learned


class Outcome(Folded):
    """From the marginals of the functions to what is predicted.

    Attributes:
        names: of the tensors that :meth:`forward` gives, in order.
    """

    names: tuple[str, ...]

    def forward(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
        raise NotImplementedError

    def prediction(self, *tensors: Tensor) -> Prediction:
        """The tensors of :meth:`forward` as a prediction."""
        raise NotImplementedError


@known
class FoldedCategorical(Outcome):
    """The softmax, averaged over the functions; see :class:`convdkm.Categorical`.

    Args:
        samples: number of nodes.
        nodes: of the files of older versions, one for each row; their number is what counts.
    """

    settings = ("samples",)
    names = ("mean", "variance", "log_probs", "expected_entropy")

    def __init__(self, *, samples: int = NODES, nodes: Tensor | None = None) -> None:
        super().__init__()
        self.samples = samples if nodes is None else len(nodes)
        self.softmax = NormalSoftmax(self.samples)

    def forward(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
        return mean, variance, *self.softmax(mean, variance.sqrt())

    def prediction(self, *tensors: Tensor) -> Prediction:
        return ClassPrediction(*tensors)


@known
class FoldedBayes(Outcome):
    """Classes by Bayes' rule among one-hot vectors with noise; see :class:`convdkm.Gaussian`."""

    settings = ("noise",)
    names = ("mean", "variance", "log_probs")
    codes: Tensor

    def __init__(self, *, noise: float, codes: Tensor) -> None:
        super().__init__()
        self.noise = noise
        self.constants(codes=codes)

    def forward(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
        total = (variance + self.noise).expand_as(mean).unsqueeze(1)
        density = -0.5 * ((self.codes - mean.unsqueeze(1)).square() / total).sum(2)
        return mean, variance, torch.log_softmax(density, 1)

    def prediction(self, *tensors: Tensor) -> Prediction:
        mean, variance, log_probs = tensors
        return ClassPrediction(mean, variance, log_probs, None)


@known
class FoldedGaussian(Outcome):
    """Real targets with Gaussian noise; see :class:`convdkm.Gaussian`."""

    settings = ("noise",)
    names = ("mean", "variance", "target_variance")

    def __init__(self, *, noise: float) -> None:
        super().__init__()
        self.noise = noise

    def forward(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
        own = variance.expand_as(mean)
        return mean, own, own + self.noise

    def prediction(self, *tensors: Tensor) -> Prediction:
        return RealPrediction(*tensors)
