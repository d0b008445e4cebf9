"""The folded machine as a whole."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from convdkm.checks import check_positive
from convdkm.choices import AugmentStage, ViewsName
from convdkm.errors import NotFiniteError, located
from convdkm.head import Marginals
from convdkm.layers.samples import SampleShape, cast_samples, check_samples
from convdkm.likelihoods import Likelihood
from convdkm.ops.base import Operation
from convdkm.predicting.describing import CannotExportError, described
from convdkm.prediction import Prediction
from convdkm.runtime.compiled import compilable, reason_of
from convdkm.runtime.maps import channels_last, without_autocast
from convdkm.views import Views

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_LOG = logging.getLogger(__name__)

PIECE = 1 << 22
"""Numbers of the first map that are worked on at a time on a CPU, to bound memory."""


class Predictor(Operation):
    """A machine frozen for prediction; made by :meth:`convdkm.DeepKernelMachine.folded`.

    The same input gives the same bits, and an image's prediction does not depend on the others, up
    to the last bits, which products of matrices of other sizes may round otherwise. (Machines that
    take the statistics of their batch, or draw samples, are the exception.)

    ``predictor(images)`` gives plain tensors, named by :attr:`output_names`;
    :meth:`predict` checks its input and gives a :class:`convdkm.Prediction`.

    Attributes:
        before: what is done to images first, if anything.
        start: makes the first data blocks.
        body, head: the operations of the machine.
        outcome: the likelihood.
        sample_shape: shape of an image or vector; None for an axis of any length.
        class_names: one for each class; empty if they are not known.
        views: of every image, see :mod:`convdkm.views`; part of all files that it is written to.
        stage: whether views are made before or after what is done to images first.
    """

    before: nn.Module | None
    start: Any
    body: Any
    head: Any
    outcome: Any
    sample_shape: SampleShape
    class_names: tuple[str, ...]
    views: ViewsName = "one"
    stage: AugmentStage = "after-whitening"
    unsaved: ClassVar[tuple[str, ...]] = ("_compiled", "_program", "_form", "_obstacles")
    _compiled = False
    _program: Program | None = None

    def __init__(
        self,
        *,
        start: nn.Module,
        body: Operation,
        head: Operation,
        outcome: nn.Module,
        sample_shape: SampleShape,
        class_names: tuple[str, ...] = (),
        before: nn.Module | None = None,
    ) -> None:
        nn.Module.__init__(self)
        self.register_module("before", before)
        self.start, self.body, self.head, self.outcome = start, body, head, outcome
        self.sample_shape, self.class_names = tuple(sample_shape), tuple(class_names)

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
        return self._form[1]

    @property
    def program_works(self) -> bool | None:
        """Whether predictions come from a compiled program; None as long as there is none."""
        return None if self._program is None else self._program.works

    @cached_property
    def _form(self) -> tuple[type[Prediction], tuple[str, ...]]:
        """The kind of prediction, and which of its fields there are: those of one image."""
        mean = self.head.mean.new_zeros(1, self.outcome.num_outputs)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):  # it may draw samples
            one = self.outcome.predict(Marginals(mean, torch.ones_like(mean)))
        return type(one), tuple(_tensors(one))

    @cached_property
    def _obstacles(self) -> list[str]:
        """The parts that are not constant, each with what keeps it from a file."""
        return [
            f"its part '{name}' {part.obstacle}"
            for name, part in self.named_modules()
            if isinstance(part, (Operation, Likelihood)) and part.obstacle is not None
        ]

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        if torch.compiler.is_compiling():
            return self.steps(images)
        with without_autocast(images):  # its constants have the precision they were made with
            run = self._runner(images)
            parts = [run(part) for part in images.split(self._at_once(images))]
        if len(parts) == 1:
            return parts[0]
        return tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))

    @torch.no_grad()
    def predict(
        self, inputs: Tensor, *, batch_size: int | None = None, views: ViewsName | None = None
    ) -> Prediction:
        """Predictive distribution; as :meth:`convdkm.DeepKernelMachine.predict`.

        Args:
            inputs: images or vectors.
            batch_size: how many to work on at a time, to bound memory; all by default.
            views: of every image; its own by default.
        """
        if views is not None and views != self.views:
            return self.with_views(views).predict(inputs, batch_size=batch_size)
        if batch_size is not None:
            check_positive(batch_size=batch_size)
        check_samples(inputs, self.sample_shape)
        size = len(inputs) if batch_size is None else self._images_of(batch_size)
        parts = [
            self._prediction(self(cast_samples(part, self.device, self.dtype)))
            for part in inputs.split(size)
        ]
        prediction = parts[0] if len(parts) == 1 else type(parts[0]).join(parts)
        if not bool(torch.isfinite(prediction.mean.sum() + prediction.variance.sum())):
            raise NotFiniteError("the prediction", self.dtype, 1, 1)
        return prediction

    def _prediction(self, tensors: tuple[Tensor, ...]) -> Prediction:
        kind, names = self._form
        values: dict[str, Any] = dict.fromkeys(field.name for field in fields(kind))
        return kind(**values | dict(zip(names, tensors, strict=True)))

    def with_views(self, views: ViewsName, stage: AugmentStage | None = None) -> Predictor:
        """The same predictor, of the same tensors, by other views of every image.

        Args:
            views: see :mod:`convdkm.views`.
            stage: make them before or after what is done to images first; as it is by default.
        """
        other = copy.copy(self)
        other.views, other.stage = Views(views).name, stage or self.stage
        return other

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
        for part in compilable(self):
            part.compiled = compiled
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
        if self._obstacles:
            raise CannotExportError(f"this machine cannot leave Python: {self._obstacles[0]}")
        self.description()

    def description(self) -> dict[str, Any]:
        """What it is made of besides its tensors, as plain values; it is what files hold."""
        return described(self)

    def steps(self, images: Tensor) -> tuple[Tensor, ...]:
        """The forward pass of all images at once, step by step."""
        views = Views(self.views, self.before, self.stage)
        images = views.inputs(images)
        if not torch.compiler.is_compiling():
            images = channels_last(images)
        with located("input"):
            it, tt = self.start.data(images)
        with located("body"):
            it, tt = self.body.data(it, tt)
        with located("head"):
            marginals = views.averaged(self.head.marginals(it, tt))
        return tuple(_tensors(self.outcome.predict(marginals)).values())

    def _runner(self, images: Tensor) -> Callable[[Tensor], tuple[Tensor, ...]]:
        """The compiled program where it is wanted and has what it takes, else the steps."""
        gradient = torch.is_grad_enabled() and images.requires_grad
        if not self._compiled or gradient or self._obstacles:
            return self.steps
        if self._program is None:
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
        if self._obstacles or weight is None or images.device.type != "cpu":
            return len(images)
        return self._images_of(PIECE // (len(weight) * math.prod(images.shape[2:])))

    def _images_of(self, views: int) -> int:
        """How many images have so many views."""
        return max(1, views // Views(self.views).count)


class Program:
    """The forward pass of a predictor as one function of ``torch.compile``, for any batch size.

    It is compiled when it is first called. A predictor of the same layers, such as that of the same
    machine after more training, uses the program that is there. What is done in place to the
    constants of the predictor is seen.
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


def _tensors(prediction: Prediction) -> dict[str, Tensor]:
    """The fields of a prediction that there are."""
    values = {field.name: getattr(prediction, field.name) for field in fields(prediction)}
    return {name: value for name, value in values.items() if value is not None}
