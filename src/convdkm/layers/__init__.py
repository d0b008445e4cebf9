"""Layers: functions Gram → Gram with parameters, and the inputs that make the first Gram."""

from convdkm.layers.base import Layer, LazyState
from convdkm.layers.compose import Sequential, Skip
from convdkm.layers.conv import Conv, Mix
from convdkm.layers.gram_layer import GramLayer
from convdkm.layers.input import Input, PatchInput, VectorInput
from convdkm.layers.noise import Jitter, Noise
from convdkm.layers.norm import Centre, Norm
from convdkm.layers.pool import AveragePool, Flatten, GlobalAveragePool
from convdkm.ops.base import IdentityPlan, LayerKL, Plan
from convdkm.ops.window import Window

__all__ = [
    "AveragePool",
    "Centre",
    "Conv",
    "Flatten",
    "GlobalAveragePool",
    "GramLayer",
    "IdentityPlan",
    "Input",
    "Jitter",
    "Layer",
    "LayerKL",
    "LazyState",
    "Mix",
    "Noise",
    "Norm",
    "PatchInput",
    "Plan",
    "Sequential",
    "Skip",
    "VectorInput",
    "Window",
]
