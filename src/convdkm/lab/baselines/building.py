"""Builders of the methods of a comparison.

They import a method when they build it, so that listing the methods does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from convdkm.lab import baselines
from convdkm.lab.baselines.setting import Setting

if TYPE_CHECKING:
    from convdkm.lab.baselines.base import Baseline
    from convdkm.lab.baselines.kernels.layers import Top

Builder = Callable[[Setting], "Baseline"]

STEPS = 1000
"""The least number of gradient steps, where there is time for them."""


def trained(kind: str, *, by_preset: bool = False, **options: Any) -> Builder:
    """The builder of a method that learns by at least :data:`STEPS` gradient steps.

    Args:
        kind: name of its class in :mod:`convdkm.lab.baselines`.
        by_preset: whether the class takes a preset.
        options: of the class, besides the seed, the crops and the flips of the setting.
    """

    def build(setting: Setting) -> Baseline:
        given = {"seed": setting.seed, **setting.augmentation, **options}
        if by_preset:
            given |= {"preset": setting.preset, "dataset": setting.dataset, "device": "cpu"}
        baseline = getattr(baselines, kind)(**given)
        training = baseline.config.training
        if setting.size is not None:
            epochs = -(-STEPS // -(-setting.size // training.batch_size))
            if epochs > training.epochs:
                baseline.config = baseline.config.updated({"epochs": epochs})
        made: Baseline = baseline
        return made

    return build


def ckn(setting: Setting) -> Baseline:
    """A convolutional kernel network that learns without gradient steps."""
    return baselines.UnsupervisedCKN(seed=setting.seed)


def kernel(
    network: str,
    depth: int,
    top: Callable[[Setting], Top] | None = None,
    *,
    flips: bool = False,
    augment_flips: bool = False,
    normalise_inputs: bool = False,
    **options: Any,
) -> Builder:
    """The builder of a regression on the exact kernel of a network.

    Args:
        network: name of a function of :mod:`convdkm.lab.baselines.kernels`.
        depth: of the network.
        top: the network's top, if it is not the usual one.
        flips, augment_flips: of the kernel and of the regression, where mirror images are of the
            same class.
        normalise_inputs: of the kernel.
        options: of the regression.
    """

    def build(setting: Setting) -> Baseline:
        from convdkm.lab.baselines import kernels

        tops = () if top is None else (top(setting),)
        architecture = getattr(kernels, network)(depth, *tops)
        return baselines.KernelRegression(
            kernels.NNGPKernel(
                architecture, flips=flips and setting.flip, normalise_inputs=normalise_inputs
            ),
            augment_flips=augment_flips and setting.flip,
            folder=setting.folder,
            seed=setting.seed,
            **options,
        )

    return build


def flat(_: Setting) -> Top:
    """The top without pooling."""
    from convdkm.layers import Flatten

    return Flatten()


def local(setting: Setting) -> Top:
    """The top that averages neighbouring places, over a quarter of the side."""
    from convdkm.lab.baselines.kernels import LocalAverage

    return LocalAverage(setting.side // 4 // 2 * 2 + 1)  # odd; 9 for 32×32, 3 for 8×8
