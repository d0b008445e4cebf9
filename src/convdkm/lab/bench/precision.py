"""The cost of the float32 data path in precision, over some steps of training."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from convdkm.architectures import PUBLISHED, resnet8
from convdkm.data.digits import load_digits
from convdkm.lab.bench.contestants import BETAS, CLASSES, NU
from convdkm.model import DeepKernelMachine
from convdkm.training.gradients import RecordedGradients

WIDTHS, BATCH = (16, 32, 64), 32
RATE = 1e-3
"""Adam's rate: that of the middle part of the paper's schedule."""
NUDGE = 1e-7
LAST = 10
"""The objective at the end is its mean over so many steps."""


def compare_precisions(steps: int, *, nudged: bool) -> dict[str, Any]:
    """Train a machine on the handwritten digits: in float64, in float32, and in float64 nudged.

    ResNet8 with 16/32/64 inducing points and the settings of the published runs, batches of 32
    digits of 8×8 pixels, Adam at 0.001. All see the same batches from the same start.

    Returns:
        Plain values: the number of ``steps``; the relative difference of the objective at the end
        from that in float64 of the float32 data path (``single``) and of a float64 run whose start
        differs by a relative 1e-7 (``nudged``: how far apart two runs that are equally right end;
        None without such a run); and the ``curves`` of the objective, by run.
    """
    data = load_digits()
    images = (data.train_images - data.train_images.mean()) / data.train_images.std()
    torch.manual_seed(0)
    double = resnet8(
        1, CLASSES, WIDTHS, nu=NU, dtype=torch.float64, **{**PUBLISHED, "expectation": "nodes"}
    )
    double.initialise(images, data.train_labels, seed=0)
    models = {"float64": double, "float32": copy.deepcopy(double).float()}
    if nudged:
        models["nudged"] = _nudged(double)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    batches = [order.roll(-step * BATCH)[:BATCH] for step in range(steps)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # matrices this small gain nothing by more
    try:
        curves = {
            name: _train(model, images, data.train_labels, batches)
            for name, model in models.items()
        }
    finally:
        torch.set_num_threads(threads)
    ends = {name: sum(curve[-LAST:]) for name, curve in curves.items()}
    apart = {name: abs(end - ends["float64"]) / abs(ends["float64"]) for name, end in ends.items()}
    return {
        "steps": steps,
        "single": apart["float32"],
        "nudged": apart.get("nudged"),
        "curves": curves,
    }


def _nudged(model: DeepKernelMachine) -> DeepKernelMachine:
    """A copy whose parameters are multiplied by ``1 ± 1e-7``."""
    model = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            sign = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype).sign()
            parameter.mul_(1 + NUDGE * sign)
    return model


def _train(
    model: DeepKernelMachine, images: Tensor, labels: Tensor, batches: list[Tensor]
) -> list[float]:
    """The objective at every step."""
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE, betas=BETAS, fused=True)
    gradients = RecordedGradients(model, num_data=len(images))
    curve = []
    for batch in batches:
        optimiser.zero_grad()
        objective = gradients(images[batch], labels[batch])
        optimiser.step()
        curve.append(float(objective.total.detach()))
    return curve
