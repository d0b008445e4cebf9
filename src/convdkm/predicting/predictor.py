"""The folded machine as a whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from convdkm.checks import check_positive
from convdkm.errors import InvalidInputError, NotFiniteError, located
from convdkm.kernels import Kernel
from convdkm.layers.samples import SampleShape, cast_samples, check_samples
from convdkm.predicting.base import Folded, known, tracing
from convdkm.predicting.ends import FoldedHead, Outcome, Start
from convdkm.predicting.steps import FoldedAngularConv, FoldedGram, Step
from convdkm.prediction import Prediction
from convdkm.runtime.maps import channels_last, without_autocast

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from convdkm.predicting.compiling import Program

PIECE = 1 << 22
"""Numbers of the first map that are worked on at a time on a CPU, to bound memory."""


class CannotExportError(InvalidInputError):
    """A predictor with a part that exists in Python only."""


@known
class Predictor(Folded):
    """A machine frozen for prediction; made by :meth:`convdkm.DeepKernelMachine.folded`.

    The same input gives the same bits, and an image's prediction does not depend on the others, up
    to the last bits, which products of matrices of other sizes may round otherwise. (Machines that
    take the statistics of their batch, or draw samples, are the exception.)

    ``predictor(images)`` gives plain tensors, named by :attr:`output_names`;
    :meth:`predict` checks its input and gives a :class:`convdkm.Prediction`.

    Attributes:
        sample_shape: shape of an image or vector; None for an axis of any length.
        class_names: one for each class; empty if they are not known.
    """

    settings = ("sample_shape", "class_names")
    before: Folded | None
    start: Start
    body: Step
    head: FoldedHead
    outcome: Outcome

    def __init__(
        self,
        *,
        start: Start,
        body: Step,
        head: FoldedHead,
        outcome: Outcome,
        sample_shape: SampleShape,
        class_names: tuple[str, ...] = (),
        before: Folded | None = None,
    ) -> None:
        super().__init__()
        self.before, self.start, self.body = before, start, body
        self.head, self.outcome = head, outcome
        self.sample_shape, self.class_names = tuple(sample_shape), tuple(class_names)
        self._compiled = False
        self._program: Program | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the data path."""
        return self.head.mean.dtype

    @property
    def device(self) -> torch.device:
        return self.head.mean.device

    @property
    def output_names(self) -> tuple[str, ...]:
        """What the tensors of ``predictor(images)`` are."""
        return self.outcome.names

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        if tracing():
            return self.steps(images)
        with without_autocast(images):  # its constants have the precision they were made with
            run = self._runner(images)
            parts = [run(part) for part in images.split(self._at_once(images))]
        if len(parts) == 1:
            return parts[0]
        return tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))

    @torch.no_grad()
    def predict(self, inputs: Tensor, *, batch_size: int | None = None) -> Prediction:
        """Predictive distribution; as :meth:`convdkm.DeepKernelMachine.predict`.

        Args:
            inputs: images or vectors.
            batch_size: how many to work on at a time, to bound memory; all by default.
        """
        if batch_size is not None:
            check_positive(batch_size=batch_size)
        check_samples(inputs, self.sample_shape)
        parts = [
            self.outcome.prediction(*self(cast_samples(part, self.device, self.dtype)))
            for part in inputs.split(batch_size or len(inputs))
        ]
        prediction = parts[0] if len(parts) == 1 else type(parts[0]).join(parts)
        if not bool(torch.isfinite(prediction.mean.sum() + prediction.variance.sum())):
            raise NotFiniteError("the prediction", self.dtype, 1, 1)
        return prediction

    def use_compiled(self, compiled: bool = True) -> Predictor:
        """Let ``torch.compile`` make one program of it, or not; returns itself.

        It is compiled at the first prediction, which may take a minute, and is worth it where many
        follow. Where nothing compiles (no C++ compiler), a warning is logged and the predictor
        works step by step. So it does for a single image, and where it has parts that exist in
        Python only.
        """
        self._compiled = compiled
        return self

    def compile_elementwise(self, compiled: bool = True) -> Predictor:
        """Let ``torch.compile`` make the elementwise functions of the steps; returns itself.

        See :meth:`convdkm.DeepKernelMachine.compile_elementwise`, whose functions these are; a
        folded machine whose own are compiled begins with them.
        """
        for module in self.modules():
            if isinstance(module, (Kernel, FoldedAngularConv, FoldedGram)):
                module.compiled = compiled
        return self

    def save(self, path: str | Path) -> None:
        """Write it to one safetensors file, without pickle; see :func:`convdkm.load_predictor`."""
        from convdkm.predicting.saving import save_predictor

        save_predictor(self, Path(path))

    def export(self, image_shape: tuple[int, ...] | None = None) -> ExportedProgram:
        """The program that ``torch.export`` makes of it, for batches of any size.

        Args:
            image_shape: shape of one image, where the machine takes images of any size.
        """
        from convdkm.predicting.exporting import exported_program

        return exported_program(self, image_shape)

    def save_onnx(self, path: str | Path, image_shape: tuple[int, ...] | None = None) -> None:
        """Write it as an ONNX file, for batches of any size; needs ``convdkm[onnx]``.

        Args:
            path: of the file.
            image_shape: shape of one image, where the machine takes images of any size.
        """
        from convdkm.predicting.exporting import write_onnx

        write_onnx(self, Path(path), image_shape)

    def require_exportable(self) -> None:
        """Raise unless every part of it can be written to a file."""
        for name, part in self.named_modules():
            if isinstance(part, Folded) and part.obstacle is not None:
                raise CannotExportError(
                    f"this machine cannot leave Python: its part '{name}' {part.obstacle}"
                )

    def steps(self, images: Tensor) -> tuple[Tensor, ...]:
        """The forward pass of all images at once, step by step."""
        if self.before is not None:
            images = self.before(images)
        if not tracing():
            images = channels_last(images)
        with located("input"):
            it, tt = self.start(images)
        with located("body"):
            it, tt = self.body(it, tt)
        return self.outcome(*self.head(it, tt))

    @property
    def _keeps_parts(self) -> bool:
        """Whether some part could not be folded."""
        return any(isinstance(part, Folded) and part.obstacle for part in self.modules())

    def _runner(self, images: Tensor) -> Callable[[Tensor], tuple[Tensor, ...]]:
        """The compiled program where it is wanted and has what it takes, else the steps."""
        gradient = torch.is_grad_enabled() and images.requires_grad
        if not self._compiled or gradient or self._keeps_parts:
            return self.steps
        if self._program is None:
            from convdkm.predicting.compiling import Program

            self._program = Program(self)
        return self._program

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> Predictor:
        self._program = None  # it has the tensors as they were
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_program": None}

    def _at_once(self, images: Tensor) -> int:
        """How many images to work on at a time."""
        weight = getattr(self.start, "weight", None)
        if self._keeps_parts or weight is None or images.device.type != "cpu":
            return len(images)
        return max(1, PIECE // (len(weight) * math.prod(images.shape[2:])))
