"""Data sets as tensors, and the whitening that kernel methods want."""

from convdkm.data.images import Dataset, load_cifar10, load_digits
from convdkm.data.whitening import ZCA

__all__ = ["ZCA", "Dataset", "load_cifar10", "load_digits"]
