"""Other methods for the same images: those of the paper's Table 3, and the CNN a user would pick.

Each is a class with ``fit`` and ``predict``; ``convdkm compare`` runs them side by side.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from convdkm.lab.baselines.base import Baseline
    from convdkm.lab.baselines.ckn import SupervisedCKN, UnsupervisedCKN
    from convdkm.lab.baselines.cnn import CNN
    from convdkm.lab.baselines.gp import ConvolutionalGP, DeepConvolutionalGaussianProcess
    from convdkm.lab.baselines.kernel_regression import KernelRegression
    from convdkm.lab.baselines.kernels import NNGPKernel
    from convdkm.lab.baselines.machine import InducingNNGP, Machine
    from convdkm.lab.baselines.methods import Method, method
    from convdkm.lab.baselines.setting import Setting

_HOME = {
    "CNN": "cnn",
    "ConvolutionalGP": "gp",
    "DeepConvolutionalGaussianProcess": "gp",
    "InducingNNGP": "machine",
    "KernelRegression": "kernel_regression",
    "Machine": "machine",
    "Method": "methods",
    "NNGPKernel": "kernels",
    "Baseline": "base",
    "Setting": "setting",
    "SupervisedCKN": "ckn",
    "UnsupervisedCKN": "ckn",
    "method": "methods",
}

__all__ = [
    "CNN",
    "Baseline",
    "ConvolutionalGP",
    "DeepConvolutionalGaussianProcess",
    "InducingNNGP",
    "KernelRegression",
    "Machine",
    "Method",
    "NNGPKernel",
    "Setting",
    "SupervisedCKN",
    "UnsupervisedCKN",
    "method",
]


def __getattr__(name: str) -> Any:
    """Load a public name where it is first used: a list of methods does not wait for torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'convdkm.lab.baselines' has no attribute {name!r}")
    value = getattr(import_module(f"convdkm.lab.baselines.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
