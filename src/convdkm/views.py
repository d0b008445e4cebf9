r"""Several views of an image at prediction: itself, its mirror image, and crops.

With the views :math:`x_1, \dots, x_V` of an image and the marginals
:math:`f(x_v) \sim N(m_v, s_v^2)` of the top-layer functions, the prediction is that of

.. math:: \bar f \sim N\Big(\tfrac1V\sum_v m_v,\; \tfrac1V\sum_v s_v^2\Big),

the average of the functions over the views. Its mean is exact. Its variance is the largest that the
average can have, :math:`\mathrm{Var}[\tfrac1V\sum_v f(x_v)] \le \tfrac1V\sum_v s_v^2`, and exact
where f is the same at all views. Probabilities, entropy and mutual information follow from
:math:`\bar f` by the likelihood, as they do from :math:`f` for one view.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from convdkm.checks import check_choice
from convdkm.choices import AugmentStage, ViewsName
from convdkm.errors import InvalidInputError
from convdkm.head import Marginals

MIRRORED: tuple[ViewsName, ...] = ("flip", "crops")
"""Those that have the mirror image of every view as well."""
SHIFTED: tuple[ViewsName, ...] = ("shifts", "crops")
"""Those that have the image moved by a pixel along its diagonal, both ways, as well."""


@dataclass(frozen=True)
class Views:
    """From images to the views that a machine sees of them.

    Args:
        name: ``"one"`` is the image; ``"flip"`` adds its mirror image; ``"shifts"`` adds the image
            moved by one pixel down and to the right, and up and to the left, with a margin of zeros
            as in training; ``"crops"`` is all three with their mirror images.
        whitening: what is done to images before the machine sees them, if anything.
        stage: make views before whitening or after it.
    """

    name: ViewsName = "one"
    whitening: Callable[[Tensor], Tensor] | None = None
    stage: AugmentStage = "after-whitening"

    def __post_init__(self) -> None:
        check_choice("views", self.name, ViewsName)
        check_choice("stage", self.stage, AugmentStage)

    @property
    def count(self) -> int:
        """How many views there are of an image."""
        return (3 if self.name in SHIFTED else 1) * (2 if self.name in MIRRORED else 1)

    def inputs(self, images: Tensor) -> Tensor:
        """The inputs of the machine, ``(V·N, …)``: the first view of all images, then the next."""
        if self.stage == "before-whitening":
            return self._whitened(self._made(images))
        return self._made(self._whitened(images))

    def averaged(self, marginals: Marginals) -> Marginals:
        """The marginals of images, from those of :meth:`inputs`."""
        if self.count == 1:
            return marginals
        means, variances = (
            each.unflatten(0, (self.count, -1)).mean(0)
            for each in (marginals.mean, marginals.variance)
        )
        return Marginals(means, variances)

    def _whitened(self, images: Tensor) -> Tensor:
        return images if self.whitening is None else self.whitening(images)

    def _made(self, images: Tensor) -> Tensor:
        if self.count == 1:
            return images
        if images.ndim != 4:
            raise InvalidInputError(
                f"views={self.name!r} are views of images (N, channels, height, width), got"
                f" {tuple(images.shape)}; other inputs have one view"
            )
        views = [images]
        if self.name in SHIFTED:
            height, width = images.shape[2:]
            padded = F.pad(images, (1, 1, 1, 1))
            views += [padded[:, :, at : at + height, at : at + width] for at in (0, 2)]
        if self.name in MIRRORED:
            views += [view.flip(3) for view in views]
        return torch.cat(views)
