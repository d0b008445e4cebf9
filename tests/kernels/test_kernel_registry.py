"""Kernels by name: one table that configurations, flags and estimators read."""

import subprocess
import sys
from typing import get_args

import pytest

import convdkm as dkm
from convdkm.config import SECTION, RunConfig
from convdkm.kernels import KERNELS
from convdkm.kernels.registry import KernelName
from convdkm.options import MachineOptions


def first_kernel(**options):
    machine = dkm.resnet(1, 3, (4,), (1,), **options)
    return next(module for module in machine.modules() if isinstance(module, dkm.Kernel))


@pytest.mark.parametrize("name", KERNELS)
def test_every_name_is_a_kernel_that_a_configuration_builds(name):
    made = first_kernel(kernel=name)
    assert isinstance(made, dkm.Kernel)
    assert type(made).__name__ == KERNELS[name].place.partition(":")[2]
    assert getattr(dkm, type(made).__name__) is type(made)
    assert name in get_args(KernelName)


def test_every_option_is_one_of_the_configuration():
    fields = MachineOptions.model_fields
    for name, option in KERNELS.options.items():
        assert SECTION[name] == "model"
        assert (fields[name].default, fields[name].description) == (
            option.default,
            option.description,
        )
    with pytest.raises(dkm.InvalidInputError, match="gamma must be above 0, got -1"):
        RunConfig.of({"gamma": -1})


def test_a_preset_of_another_kernel_does_not_stand_in_the_way():
    made = first_kernel(kernel="arc-cosine", polynomial=(1, 3), gamma=6)
    assert isinstance(made, dkm.ArcCosine)


def test_a_name_that_is_not_known():
    with pytest.raises(dkm.InvalidInputError, match=r"one of 'arc-cosine', .*; got 'relu'"):
        KERNELS.build("relu", {})


def test_names_and_options_are_known_without_torch():
    code = "import sys, convdkm.options as c; assert 'torch' not in sys.modules; print(c.KERNELS)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "arc-cosine" in done.stdout
