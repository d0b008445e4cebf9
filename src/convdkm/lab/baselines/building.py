"""How the methods of a comparison are made for a setting.

What a method is built of is imported when it is built, so that a list of methods asks for no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from convdkm.lab.baselines.setting import Setting

if TYPE_CHECKING:
    from convdkm.lab.baselines.base import Baseline
    from convdkm.lab.baselines.kernels import Architecture
    from convdkm.lab.baselines.kernels.layers import Top

PLAIN_DEPTH, FLAT_DEPTH, BLOCKS = 4, 6, 2
"""Convolutions of the plain kernels, of the one without pooling, and blocks of the residual one."""
STEPS = 1000
"""What learns by steps makes as many at least, where there is time for them."""


def kernel(setting: Setting, architecture: Architecture, **options: Any) -> Baseline:
    """Regression on the exact kernel of an architecture."""
    from convdkm.lab.baselines.kernel_regression import KernelRegression
    from convdkm.lab.baselines.kernels import NNGPKernel

    ours = {name: options.pop(name) for name in ("flips", "normalise_inputs") if name in options}
    return KernelRegression(
        NNGPKernel(architecture, **ours), folder=setting.folder, seed=setting.seed, **options
    )


def plain(setting: Setting, depth: int, top: Top | None = None, **options: Any) -> Baseline:
    """The kernel of convolutions one after the other."""
    from convdkm.lab.baselines import kernels

    return kernel(setting, kernels.plain(depth, top), **options)


def linear(setting: Setting) -> Baseline:
    """The plain kernel without pooling."""
    from convdkm.layers import Flatten

    return plain(setting, FLAT_DEPTH, Flatten())


def residual(setting: Setting) -> Baseline:
    """The kernel of a residual network."""
    from convdkm.lab.baselines import kernels

    return kernel(setting, kernels.residual(BLOCKS))


def local(setting: Setting) -> Baseline:
    """The plain kernel with neighbouring places averaged on top, over mirror images."""
    from convdkm.lab.baselines.kernels import LocalAverage

    size = setting.side // 4 // 2 * 2 + 1  # odd; 9 for 32×32, 3 for 8×8
    return plain(setting, PLAIN_DEPTH, LocalAverage(size), flips=setting.flip)


def augmented(setting: Setting) -> Baseline:
    """The plain kernel, trained on mirror images too."""
    return plain(setting, PLAIN_DEPTH, augment_flips=setting.flip)


def myrtle(depth: int) -> Callable[[Setting], Baseline]:
    """What makes the kernel of the Myrtle network of that depth."""

    def build(setting: Setting) -> Baseline:
        from convdkm.lab.baselines import kernels

        return kernel(setting, kernels.myrtle(depth))

    return build


def tuned(setting: Setting) -> Baseline:
    """Myrtle10 of normalised images, trained on mirror images too."""
    from convdkm.lab.baselines import kernels

    return kernel(
        setting, kernels.myrtle(10), normalise_inputs=True, augment_flips=setting.flip, solver="cg"
    )


def enough(baseline: Any, setting: Setting) -> Baseline:
    """The method, with so many epochs that it makes :data:`STEPS` steps at least."""
    training = baseline.config.training
    if setting.size is not None:
        least = -(-STEPS // -(-setting.size // training.batch_size))
        if least > training.epochs:
            baseline.config = baseline.config.updated({"epochs": least})
    made: Baseline = baseline
    return made


def of_preset(setting: Setting) -> dict[str, Any]:
    """Options of what is trained by a preset."""
    return {
        "preset": setting.preset,
        "dataset": setting.dataset,
        "seed": setting.seed,
        "device": "cpu",
        **setting.augmentation,
    }


def machine(setting: Setting, **options: Any) -> Baseline:
    """The machine of the preset."""
    from convdkm.lab.baselines.machine import Machine

    return enough(Machine(**{**of_preset(setting), **options}), setting)


def cautious(setting: Setting) -> Baseline:
    """The same at ν = 1."""
    return machine(setting, nu=1.0)


def inducing(setting: Setting) -> Baseline:
    """The same at ν = ∞."""
    from convdkm.lab.baselines.machine import InducingNNGP

    return enough(InducingNNGP(**of_preset(setting)), setting)


def network(setting: Setting) -> Baseline:
    """The residual network of the machine's shape."""
    from convdkm.lab.baselines.cnn import CNN

    return enough(CNN(**of_preset(setting)), setting)


def process(setting: Setting, **options: Any) -> Baseline:
    """A convolutional Gaussian process."""
    from convdkm.lab.baselines.gp import ConvolutionalGP

    process = ConvolutionalGP(seed=setting.seed, **setting.augmentation, **options)
    return enough(process, setting)


def orthogonal(setting: Setting) -> Baseline:
    """The same with orthogonal inducing patches."""
    return process(setting, orthogonal=100)


def deep_process(setting: Setting) -> Baseline:
    """A deep convolutional Gaussian process."""
    from convdkm.lab.baselines.gp import DeepConvolutionalGaussianProcess

    process = DeepConvolutionalGaussianProcess(seed=setting.seed, **setting.augmentation)
    return enough(process, setting)


def ckn(setting: Setting) -> Baseline:
    """A convolutional kernel network that learns from images alone."""
    from convdkm.lab.baselines.ckn import UnsupervisedCKN

    return UnsupervisedCKN(seed=setting.seed)


def supervised_ckn(setting: Setting) -> Baseline:
    """A convolutional kernel network that learns with its classifier."""
    from convdkm.lab.baselines.ckn import SupervisedCKN

    return enough(SupervisedCKN(seed=setting.seed, **setting.augmentation), setting)
