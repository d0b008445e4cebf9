"""From a configuration to a machine."""

from __future__ import annotations

from collections.abc import Callable

import torch

from convdkm.architectures import resnet
from convdkm.config import ModelConfig, RunConfig, TrainingConfig
from convdkm.data import Dataset
from convdkm.data.whitening import chosen_whitening
from convdkm.errors import InvalidInputError
from convdkm.kernels import KERNELS, Kernel
from convdkm.model import DeepKernelMachine
from convdkm.training.sinks import Level

Tell = Callable[[str, Level], None]


def build_model(
    config: ModelConfig, in_channels: int, num_classes: int, dtype: torch.dtype = torch.float32
) -> DeepKernelMachine:
    """The residual machine that a configuration describes."""
    stages = len(config.inducing)
    blocks = _for_stages("blocks", config.blocks, stages)
    strides = None if config.strides is None else _for_stages("strides", config.strides, stages)
    same = {
        "nu",
        "jitter",
        "statistics",
        "centre",
        "kernel_size",
        "input_stride",
        "border",
        "inducing_choice",
        "mixing",
        "mixing_parameterisation",
        "gram_parameterisation",
        "gram_scale",
        "learn_gram_scale",
        "divide_gram",
        "skip_weight",
        "learn_skip",
        "top",
        "likelihood",
        "expectation",
        "samples",
        "head_parameterisation",
        "head_covariance",
        "head_kl",
    }
    return resnet(
        in_channels,
        num_classes,
        config.inducing,
        blocks,
        strides=strides,
        kernel=build_kernel(config),
        normalisation=(config.inducing_norm, config.data_norm),
        scaling=(config.inducing_scale, config.data_scale),
        dtype=dtype,
        **{name: getattr(config, name) for name in same},
    )


def build_kernel(config: ModelConfig) -> Kernel:
    """The kernel of every layer."""
    return KERNELS.build(config.kernel, config.model_dump())


def settled(config: RunConfig, data: Dataset, tell: Tell) -> RunConfig:
    """The same, with all that depends on the data chosen: the whitening."""
    kind = chosen_whitening(
        config.data.whitening,
        len(data.train_images),
        data.image_shape,
        lambda text: tell(text, "warning"),
    )
    return config.updated({"whitening": kind})


def tune(model: DeepKernelMachine, config: TrainingConfig, tell: Tell) -> None:
    """Switch on what changes memory and speed, and results by rounding at most."""
    if config.checkpointing:
        model.checkpointing = True
    if config.compile:
        tell("compiling elementwise functions, which may take a minute", "info")
        if not model.compile_elementwise():
            tell(
                "nothing compiles here, and training goes on without: install a C++ compiler, or"
                " leave --compile out",
                "warning",
            )


def _for_stages(name: str, values: tuple[int, ...], stages: int) -> tuple[int, ...]:
    """One number for every stage, from one for each or one for all."""
    if len(values) == 1:
        return values * stages
    if len(values) != stages:
        raise InvalidInputError(
            f"there are {stages} stages, by the numbers of inducing points, but {len(values)}"
            f" {name}: give one number for each stage, or one for all"
        )
    return values
