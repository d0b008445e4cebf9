"""A folded machine as one program of ``torch.compile``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from convdkm.runtime.compiled import reason_of
from convdkm.runtime.maps import channels_last

if TYPE_CHECKING:
    from convdkm.predicting.predictor import Predictor

_LOG = logging.getLogger(__name__)


class Program:
    """The forward pass of a predictor as one compiled function, for batches of any size.

    It is compiled when it is first called. A predictor of the same layers, such as that of the same
    machine after more training, uses the program that is there.

    Args:
        predictor: whose constants the program works with; what is done to them in place is seen.
    """

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._run = torch.compile(predictor.steps, fullgraph=True)
        self.works = True

    @torch.no_grad()
    def __call__(self, images: Tensor) -> tuple[Tensor, ...]:
        """The tensors of the predictor's own forward pass.

        Where nothing compiles, a warning is logged, and this and all later calls are made step by
        step. So is a call that is wrong, for its error to be the usual one.
        """
        if len(images) == 1 or not self.works:  # a program of its own would be made for one image
            return self._predictor.steps(images)
        images = channels_last(images)
        torch._dynamo.maybe_mark_dynamic(images, 0)
        torch._dynamo.mark_static(images, list(range(1, images.ndim)))
        try:
            result: tuple[Tensor, ...] = self._run(images)
        except Exception as error:  # the compiler's errors have no type in common
            result = self._predictor.steps(images)
            self.works = False
            _LOG.warning(
                "the predictor is not compiled, and works step by step: %s", reason_of(error)
            )
        return result
