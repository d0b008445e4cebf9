"""Labels as class numbers, with the names of the classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from convdkm.errors import InvalidInputError

Array = np.ndarray[Any, Any]


def coded_labels(
    train: Any, test: Any, class_names: Sequence[str] | None = None
) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Integer or string labels of both parts as class numbers (int64), and the class names.

    Labels that occur in ``train`` are sorted and numbered, and their names are the class names;
    integers that run from 0 without a gap so stay as they are. Where ``class_names`` are given,
    strings are numbered by their place among them, and integers are class numbers already.
    """
    train_labels, test_labels = _plain(train, "train_labels"), _plain(test, "test_labels")
    if not len(train_labels):
        raise InvalidInputError("train_labels is empty")
    kind = train_labels.dtype.kind
    if len(test_labels) and test_labels.dtype.kind != kind:
        raise InvalidInputError("train_labels and test_labels must both be integers, or strings")
    if class_names is not None and kind == "i":
        names = tuple(map(str, class_names))
        return torch.from_numpy(train_labels), torch.from_numpy(test_labels), names
    values = np.unique(train_labels).tolist() if class_names is None else map(str, class_names)
    numbers = {value: number for number, value in enumerate(values)}
    listed = [labels.tolist() for labels in (train_labels, test_labels)]
    unknown = sorted({label for labels in listed for label in labels} - numbers.keys())
    if unknown:
        problem = (
            "test labels that no training image has"
            if class_names is None
            else "labels that are not among the class names"
        )
        raise InvalidInputError(f"{problem}: {some_of(list(map(str, unknown)))}")
    coded = [torch.tensor([numbers[label] for label in labels]).long() for labels in listed]
    return coded[0], coded[1], tuple(map(str, numbers))


def _plain(labels: Any, where: str) -> Array:
    """Labels as a writable array of int64 or of strings."""
    if isinstance(labels, Tensor):
        labels = labels.detach().cpu().numpy()
    try:
        array = np.asarray(labels)
    except ValueError as error:
        raise InvalidInputError(f"{where} is not a list of labels: {error}") from error
    if not array.size:
        return np.empty(0, np.int64)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        hint = "; turn one-hot rows into class numbers with argmax" if array.ndim == 2 else ""
        raise InvalidInputError(f"{where} must be (N,), got the shape {array.shape}{hint}")
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8")
    if array.dtype.kind == "U":
        return array
    if array.dtype.kind in "iub":
        return array.astype(np.int64)
    raise InvalidInputError(f"{where} must be integers or strings, got {array.dtype}")


def some_of(entries: list[str]) -> str:
    """The first ten, and how many more there are."""
    more = f" and {len(entries) - 10} more" if len(entries) > 10 else ""
    return ", ".join(entries[:10]) + more
