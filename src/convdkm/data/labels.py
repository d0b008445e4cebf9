"""Labels as class numbers, with the names of the classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from convdkm.errors import InvalidInputError

Array = np.ndarray[Any, Any]


class CodedLabels(NamedTuple):
    """Class numbers (int64) of both parts, and what the numbers stand for."""

    train: Tensor
    test: Tensor
    class_names: tuple[str, ...]


def coded_labels(train: Any, test: Any, class_names: Sequence[str] | None = None) -> CodedLabels:
    """Integer or string labels as class numbers.

    What occurs in ``train`` is sorted and numbered, and the class names tell what each number was;
    integers that run from 0 without a gap so stay as they are.
    """
    train_labels, test_labels = _plain(train, "train_labels"), _plain(test, "test_labels")
    if not len(test_labels):
        test_labels = test_labels.astype(train_labels.dtype)
    if train_labels.dtype.kind != test_labels.dtype.kind:
        raise InvalidInputError("train_labels and test_labels must both be integers, or strings")
    if not len(train_labels):
        raise InvalidInputError("train_labels is empty")
    integers = train_labels.dtype.kind == "i"
    if class_names is not None:
        names = tuple(map(str, class_names))
        code: Callable[[Array], Tensor]
        code = torch.from_numpy if integers else partial(_numbered, names=names)
        return CodedLabels(code(train_labels), code(test_labels), names)
    values = np.unique(train_labels)
    _check_seen(values, test_labels)
    return CodedLabels(
        torch.from_numpy(np.searchsorted(values, train_labels)),
        torch.from_numpy(np.searchsorted(values, test_labels)),
        tuple(map(str, values)),
    )


def _plain(labels: Any, where: str) -> Array:
    """Labels as a writable array of int64 or of strings."""
    if isinstance(labels, Tensor):
        labels = labels.detach().cpu().numpy()
    try:
        array = np.asarray(labels)
    except ValueError as error:
        raise InvalidInputError(f"{where} is not a list of labels: {error}") from error
    if not array.size:
        array = array.astype(np.int64).reshape(-1)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        hint = "; turn one-hot rows into class numbers with argmax" if array.ndim == 2 else ""
        raise InvalidInputError(f"{where} must be (N,), got the shape {array.shape}{hint}")
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8")
    if array.dtype.kind in "iub":
        return array.astype(np.int64)
    if array.dtype.kind == "U":
        return array
    raise InvalidInputError(f"{where} must be integers or strings, got {array.dtype}")


def _numbered(labels: Array, names: tuple[str, ...]) -> Tensor:
    numbers = {name: number for number, name in enumerate(names)}
    unknown = sorted(set(labels.tolist()) - numbers.keys())
    if unknown:
        raise InvalidInputError(f"labels that are not among the class names: {some_of(unknown)}")
    return torch.tensor([numbers[label] for label in labels.tolist()], dtype=torch.int64)


def _check_seen(values: Array, test_labels: Array) -> None:
    unseen = np.setdiff1d(test_labels, values)
    if len(unseen):
        raise InvalidInputError(
            f"test labels that no training image has: {some_of([str(label) for label in unseen])}"
        )


def some_of(entries: list[str]) -> str:
    """The first ten, and how many more there are."""
    more = f" and {len(entries) - 10} more" if len(entries) > 10 else ""
    return ", ".join(entries[:10]) + more
