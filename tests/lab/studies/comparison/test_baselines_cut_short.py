"""Whether a method says that the time limit ended its fit."""

import pytest
import torch

from convdkm.lab.baselines import (
    CNN,
    ConvolutionalGP,
    InducingNNGP,
    KernelRegression,
    Machine,
    NNGPKernel,
    SupervisedCKN,
    UnsupervisedCKN,
)
from convdkm.lab.baselines.kernels import plain

SMALL = {"inducing": (4, 4), "epochs": 2, "batch_size": 16, "calibrate": 0, "device": "cpu"}
LAYERS = ((4, 3, 2), (4, 3, 2))
METHODS = {
    "machine": lambda: Machine("quick", "digits", **SMALL),
    "inducing": lambda: InducingNNGP("quick", "digits", **SMALL),
    "cnn": lambda: CNN("quick", "digits", **SMALL),
    "ckn": lambda: UnsupervisedCKN(LAYERS),
    "supervised ckn": lambda: SupervisedCKN(LAYERS, epochs=2),
    "process": lambda: ConvolutionalGP(inducing=5, epochs=2, samples=2),
}


@pytest.fixture(scope="module")
def images():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(48) % 3
    images = torch.randn(48, 1, 8, 8, generator=generator)
    images[torch.arange(48), 0, labels] += 3
    return images, labels


@pytest.mark.parametrize("name", METHODS)
def test_a_fit_says_whether_the_time_limit_ended_it(images, name):
    baseline = METHODS[name]()
    assert not baseline.cut_short
    baseline.minutes = 1e-6
    assert baseline.fit(*images).cut_short
    baseline.minutes = None
    assert not baseline.fit(*images).cut_short
    assert baseline.expected_seconds(images[0], 10) is None


def test_a_kernel_knows_how_long_it_takes(images, monkeypatch):
    monkeypatch.setattr(NNGPKernel, "seconds_per_pair", lambda *_: 0.5)
    baseline = KernelRegression(NNGPKernel(plain(1)))
    assert baseline.expected_seconds(images[0], 10) == (0.5 * 48 * 49 / 2, 0.5 * 48 * 10)
