"""Small data sets to compare methods on."""

import numpy as np
import pytest


def saved(folder, *, one_colour):
    """An .npz file of images of three classes, which differ in where they are bright."""
    random = np.random.default_rng(0)
    content = {}
    for part, count in (("train", 700), ("test", 60)):
        labels = np.arange(count) % 3
        images = random.integers(0, 100, (count, 4, 4)).astype(np.uint8)
        images[np.arange(count), labels] += 120
        if one_colour:
            images[labels == 0] = 7
        content |= {f"{part}_images": images, f"{part}_labels": labels}
    path = folder / ("plain.npz" if one_colour else "bright.npz")
    np.savez(path, **content)
    return path


@pytest.fixture(scope="session")
def bright(tmp_path_factory):
    """Tiny images that are told apart easily."""
    return saved(tmp_path_factory.mktemp("bright"), one_colour=False)


@pytest.fixture(scope="session")
def plain_images(tmp_path_factory):
    """The same, but the images of a class are of one colour."""
    return saved(tmp_path_factory.mktemp("plain"), one_colour=True)
