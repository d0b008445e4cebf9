"""Small data sets and runs to call the program on."""

from pathlib import Path

import numpy as np
import pytest
from cli_helpers import PHOTO, TINY, succeed
from PIL import Image


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    """As wide as a terminal usually is, and without colours."""
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "CONVDKM_DATA", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory) -> Path:
    """A finished run on the digits, which need not be named."""
    folder = tmp_path_factory.mktemp("digits") / "run"
    outcome = succeed("train", *TINY, "--epochs", 2, "--validation", 0.1, "-o", folder)
    assert outcome.last_line == str(folder)
    return folder


@pytest.fixture(scope="session")
def arrays(tmp_path_factory) -> Path:
    """An .npz file of small grey images of three classes."""
    random = np.random.default_rng(0)
    content = {}
    for part, count in (("train", 100), ("test", 40)):
        labels = random.integers(0, 3, count)
        images = random.integers(0, 120, (count, 8, 8)) + 60 * labels[:, None, None]
        content |= {f"{part}_images": images.astype(np.uint8), f"{part}_labels": labels}
    path = tmp_path_factory.mktemp("arrays") / "shades.npz"
    np.savez(path, **content)
    return path


@pytest.fixture(scope="session")
def photos(tmp_path_factory) -> Path:
    """A folder of small colour images, wider than they are high, of two classes."""
    root = tmp_path_factory.mktemp("folders") / "photos"
    random = np.random.default_rng(0)
    for name, shade in (("cat", 40), ("dog [big]", 160)):
        folder = root / name
        folder.mkdir(parents=True)
        for number in range(15):
            pixels = random.integers(0, 90, (8, 10, 3)) + shade
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    return root


@pytest.fixture(scope="session")
def photo_run(tmp_path_factory, photos) -> Path:
    """A finished run on the folder of images."""
    folder = tmp_path_factory.mktemp("photo") / "run"
    options = ["--epochs", 2, "--batch-size", 8, "--no-flip", "--test-fraction", 0.4]
    succeed("train", photos, *PHOTO, *options, "-o", folder)
    return folder
