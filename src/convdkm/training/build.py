"""From a configuration to a machine."""

from __future__ import annotations

import torch

from convdkm.architectures import resnet
from convdkm.config import ModelConfig
from convdkm.errors import InvalidInputError
from convdkm.kernels import ArcCosine
from convdkm.model import DeepKernelMachine


def build_model(
    config: ModelConfig, in_channels: int, num_classes: int, dtype: torch.dtype = torch.float32
) -> DeepKernelMachine:
    """The residual machine that a configuration describes."""
    stages = len(config.inducing)
    if len(config.blocks) != stages:
        raise InvalidInputError(
            f"inducing {config.inducing} and blocks {config.blocks} must have one number for each"
            " stage"
        )
    kernel = ArcCosine(
        config.arccos_order,
        weight_variance=config.weight_variance,
        bias_variance=config.bias_variance,
    )
    same = {
        "nu",
        "jitter",
        "statistics",
        "centre",
        "strides",
        "kernel_size",
        "border",
        "mixing",
        "gram_parameterisation",
        "gram_scale",
        "learn_gram_scale",
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
        config.blocks,
        kernel=kernel,
        normalisation=(config.inducing_norm, config.data_norm),
        scaling=(config.inducing_scale, config.data_scale),
        dtype=dtype,
        **{name: getattr(config, name) for name in same},
    )
