"""Small runs to make pages of."""

from pathlib import Path

import pytest
import torch

import convdkm as dkm
from convdkm.data import Dataset

TINY = {"epochs": 2, "inducing": (6, 8), "train_size": 150, "evaluate_every": 1}


@pytest.fixture(autouse=True)
def without_data_sets(monkeypatch):
    """Only what comes with the program, or what a test names."""
    monkeypatch.delenv("CONVDKM_DATA", raising=False)


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory) -> Path:
    """A finished run on the digits."""
    folder = tmp_path_factory.mktemp("report") / "digits"
    dkm.fit("quick", "digits", folder=folder, test_size=80, **TINY)
    return folder


@pytest.fixture(scope="session")
def other_run(tmp_path_factory) -> Path:
    """Another, with ν infinite and fewer epochs."""
    folder = tmp_path_factory.mktemp("report") / "digits-nngp"
    settings = {**TINY, "epochs": 1, "nu": float("inf")}
    dkm.fit("quick", "digits", folder=folder, test_size=80, **settings)
    return folder


@pytest.fixture(scope="session")
def colours() -> Dataset:
    """Small colour images whose classes have names that are no HTML."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(90) % 3
    images = torch.rand(90, 3, 8, 8, generator=generator) * 0.5 + 0.25 * labels.reshape(-1, 1, 1, 1)
    names = ("<script>alert(1)</script>", 'a "quoted" & long name of a class', "c")
    return Dataset(images[:60], labels[:60], images[60:], labels[60:], 3, "colours", names)
