"""The handwritten digits that come with scikit-learn."""

from __future__ import annotations

from convdkm.checks import check_positive
from convdkm.data.arrays import from_arrays
from convdkm.data.dataset import Dataset
from convdkm.errors import InvalidInputError

_COUNT, _CLASSES = 1797, 10


def load_digits(test_size: int = 360, seed: int = 0) -> Dataset:
    """scikit-learn's handwritten digits: 1797 real images of 8×8 pixels, part of the package.

    The test set is stratified by class.
    """
    from sklearn.datasets import load_digits as bundled
    from sklearn.model_selection import train_test_split

    check_positive(test_size=test_size)
    if not _CLASSES <= test_size <= _COUNT - _CLASSES:
        raise InvalidInputError(
            f"test_size must lie between {_CLASSES} and {_COUNT - _CLASSES}, so that both parts"
            f" of the {_COUNT} digits hold every class; got {test_size}"
        )
    digits = bundled()
    train, test, train_labels, test_labels = train_test_split(
        digits.images, digits.target, test_size=test_size, random_state=seed, stratify=digits.target
    )
    return from_arrays(train / 16, train_labels, test / 16, test_labels, name="digits")
