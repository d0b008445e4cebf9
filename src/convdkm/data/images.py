"""Image classification sets as tensors."""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from convdkm.errors import InvalidInputError


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test images with their labels.

    Images are float32, ``(N, channels, height, width)``, with values between 0 and 1.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    num_classes: int


def load_digits(test_size: int = 360, seed: int = 0) -> Dataset:
    """scikit-learn's handwritten digits: 1797 real images of 8×8 pixels, part of the package.

    The test set is stratified by class.
    """
    from sklearn.datasets import load_digits as bundled
    from sklearn.model_selection import train_test_split

    digits = bundled()
    train, test, train_labels, test_labels = train_test_split(
        digits.images, digits.target, test_size=test_size, random_state=seed, stratify=digits.target
    )

    def images(array: np.ndarray[Any, Any]) -> Tensor:
        return torch.from_numpy(array).float().unsqueeze(1) / 16

    return Dataset(
        images(train),
        torch.from_numpy(train_labels),
        images(test),
        torch.from_numpy(test_labels),
        num_classes=10,
    )


def _latin1_bytes(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"the file asks for the encoding {encoding!r}")
    return text.encode("latin1")


class _ArrayUnpickler(pickle.Unpickler):
    """Reads pickles of arrays, lists, dictionaries, numbers and strings, and nothing else."""

    _allowed = frozenset(
        {
            ("numpy", "dtype"),
            ("numpy", "ndarray"),
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):  # how Python 3 writes bytes in protocol 2
            return _latin1_bytes
        if (module, name) not in self._allowed:
            raise pickle.UnpicklingError(f"the file asks for {module}.{name}, which is not allowed")
        if name == "_reconstruct":
            module = "numpy._core.multiarray"
        return super().find_class(module, name)


def _read_cifar_batch(path: Path) -> tuple[Tensor, Tensor]:
    try:
        content = _ArrayUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        pixels, labels = content[b"data"], content[b"labels"]
        images = torch.from_numpy(np.asarray(pixels, dtype=np.uint8).reshape(-1, 3, 32, 32))
    except (OSError, pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(f"{path} is not a batch of CIFAR-10: {error}") from error
    return images.float() / 255, torch.tensor(labels)


def load_cifar10(folder: str | Path) -> Dataset:
    """CIFAR-10 from the original archive, unpacked: ``folder`` holds ``cifar-10-batches-py``."""
    root = Path(folder) / "cifar-10-batches-py"
    names = [f"data_batch_{number}" for number in range(1, 6)]
    missing = [name for name in (*names, "test_batch") if not (root / name).is_file()]
    if missing:
        raise InvalidInputError(f"CIFAR-10 not found: no {', '.join(missing)} in {root}")
    batches = [_read_cifar_batch(root / name) for name in names]
    test_images, test_labels = _read_cifar_batch(root / "test_batch")
    return Dataset(
        torch.cat([images for images, _ in batches]),
        torch.cat([labels for _, labels in batches]),
        test_images,
        test_labels,
        num_classes=10,
    )
