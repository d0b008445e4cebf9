"""From a machine, and the whitening of a run, to the same operations with constants."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import nn

from convdkm.data.whitening import ZCA, NoWhitening, Standardise, Whitening
from convdkm.errors import NotInitialisedError, located
from convdkm.layers.base import keeps
from convdkm.layers.input import Input
from convdkm.layers.norm import RunningStatistics
from convdkm.likelihoods import Categorical
from convdkm.likelihoods.softmax import NormalSoftmax
from convdkm.ops.base import Operation, constant
from convdkm.ops.chain import Chain
from convdkm.ops.conv import ImageMap, ImageScaling
from convdkm.predicting.predictor import Predictor
from convdkm.runtime.compiled import compilable

if TYPE_CHECKING:
    from convdkm.model import DeepKernelMachine


@torch.no_grad()
def fold(model: DeepKernelMachine, *, deterministic: bool = False) -> Predictor:
    """See :meth:`convdkm.DeepKernelMachine.folded`.

    Constants are multiplied out in float64, and brought to the precision of the data path at the
    end.
    """
    frozen = copy.deepcopy(model).eval().requires_grad_(False)
    if deterministic:
        _make_deterministic(frozen)
    plan = frozen.plan()
    with located("body"):
        body = Chain([("", plan.body)], plan.body.ii, {}).frozen()
    predictor = Predictor(
        start=_start(frozen.input),
        body=body,
        head=plan.head.frozen(),
        outcome=constant(frozen.likelihood),
        sample_shape=frozen.input.sample_shape,
    )
    for part in predictor.modules():
        if not isinstance(part, NormalSoftmax):  # whose tables are made again from their number
            part._non_persistent_buffers_set.clear()
    compiled = any(layer.compiled for layer in compilable(frozen))
    predictor.to(frozen.dtype).compile_elementwise(compiled)
    if isinstance(frozen.likelihood, Categorical) and frozen.likelihood.softmax is not None:
        frozen.likelihood.softmax.to(frozen.dtype)  # a likelihood keeps the precision of its parts
    return predictor.eval()


def _make_deterministic(model: DeepKernelMachine) -> None:
    for module in model.modules():
        if isinstance(module, RunningStatistics):
            module.statistics = "running"
    likelihood = model.likelihood
    if isinstance(likelihood, Categorical) and likelihood.softmax is None:
        model.likelihood = Categorical(likelihood.num_outputs).to(model.device)


def _start(source: Input) -> nn.Module:
    """What makes the first blocks; a user's own input as it is."""
    return source.plan().frozen() if keeps(source, Input, "data") else constant(source)


def folded_whitening(whitening: Whitening) -> nn.Module | None:
    """The map of images as constants; None if it is the identity."""
    if isinstance(whitening, NoWhitening):
        return None
    made: Operation
    if type(whitening) is ZCA:
        if whitening.mean is None or whitening.matrix is None:
            raise NotInitialisedError("call fit(images) before whitening")
        made = ImageMap(whitening.mean, whitening.matrix)
    elif type(whitening) is Standardise:
        if whitening.mean is None or whitening.deviation is None:
            raise NotInitialisedError("call fit(images) before whitening")
        factor = 1 / whitening.deviation.double()
        made = ImageScaling(factor, -whitening.mean.double() * factor)
    else:
        return constant(whitening)
    return made.frozen()
