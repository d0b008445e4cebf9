"""What a run notes of its layers: the instruments, and the gradients of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from convdkm.insight.instruments import Reading
from convdkm.model import DeepKernelMachine
from convdkm.training.sinks import INSTRUMENTS

IMAGES = 128
"""Training images that instruments are read on: chosen once, whitened, not augmented."""


def at_a_time(batch_size: int, micro_batch: int | None) -> int:
    """How many of them to work on at a time: no more than in training."""
    return min(IMAGES, micro_batch or batch_size)


def layer_values(
    model: DeepKernelMachine,
    divergences: Mapping[str, float],
    gradients: Mapping[str, float],
    read: Mapping[str, Reading],
) -> dict[str, dict[str, float]]:
    """All that is known of layers, in the order of the data, without what is not known.

    Args:
        model: whose layers they are.
        divergences: the KL of Gram layers in the last step, for those that were not read.
        gradients: of layers with parameters.
        read: the Gram layers that were read.
    """
    known = {*divergences, *gradients, *read}
    in_order = [name for name, _ in model.named_modules() if name in known]
    values = {}
    for name in dict.fromkeys([*in_order, *divergences]):
        found: dict[str, float | None] = {"kl": divergences.get(name)}
        found |= asdict(read[name]) if name in read else {}
        found["gradient"] = gradients.get(name)
        values[name] = {key: v for key in INSTRUMENTS if (v := found.get(key)) is not None}
    return values
