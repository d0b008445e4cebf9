"""The functions that a user calls: they go through the requirements one by one."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from convdkm.head import Marginals
from convdkm.kernels.base import Kernel
from convdkm.layers.base import Layer
from convdkm.likelihoods import Likelihood
from convdkm.testing.grams import degenerate_gram, random_gram
from convdkm.testing.kernel_requirements import KERNEL_REQUIREMENTS, KernelCase
from convdkm.testing.layer_requirements import LAYER_REQUIREMENTS, Case
from convdkm.testing.likelihood_requirements import LIKELIHOOD_REQUIREMENTS, LikelihoodCase
from convdkm.testing.outcome import ConformanceError, reported

BOTH = (torch.float32, torch.float64)


def check_layer(
    layer: Layer,
    *,
    num_inducing: int,
    space: Sequence[int] = (),
    dtypes: Sequence[torch.dtype] = BOTH,
    seeds: Sequence[int] = (0, 1),
    step: float = 0.1,
    batch_independent: bool = True,
    permutes_inducing: bool = False,
    zero_images: bool = True,
    picklable: bool = True,
) -> None:
    """Run a layer through every requirement of :mod:`convdkm.testing.layer_requirements`.

    For every dtype and seed a copy of the layer is initialised with a random Gram and tried as it
    then is, and again after a random step of its parameters, such as an optimiser could make.

    Args:
        layer: the layer; it is copied, and stays as it is.
        num_inducing, space: of the Grams to try it on.
        dtypes: of the data.
        seeds: of the Grams.
        step: size of the random step, relative to each parameter's root mean square; 0 for none.
        batch_independent: switch off for layers that use statistics of the batch in evaluation.
        permutes_inducing: switch on where no parameter belongs to one inducing point.
        zero_images: switch off for layers that cannot take an image of zeros.
        picklable: switch off for classes that are defined inside a function.

    Raises:
        ConformanceError: a requirement is broken.
    """
    if not isinstance(layer, Layer):
        raise ConformanceError(
            type(layer).__name__, "is_a_layer", "it does not inherit from convdkm.Layer", "given"
        )
    wanted = {
        "batch_independent": batch_independent,
        "permutes_inducing": permutes_inducing,
        "survives_pickling": picklable,
    }
    requirements = [check for check in LAYER_REQUIREMENTS if wanted.get(check.__name__, True)]
    for dtype in dtypes:
        for seed in seeds:
            gram = random_gram(num_inducing, space, dtype=dtype, seed=seed)
            degenerate = degenerate_gram(
                num_inducing, space, dtype=dtype, seed=seed, zero=zero_images
            )
            tried = copy.deepcopy(layer).train()
            where = f"{dtype}, seed {seed}"
            with reported(layer, "initialise", where):
                tried.initialise(gram)
            for size in (0.0, step) if step else (0.0,):
                _random_step(tried, size, seed)
                case = Case(layer, tried.eval(), gram, degenerate, seed)
                moment = "after a random step" if size else "as initialised"
                for check in requirements:
                    with reported(layer, check.__name__, f"{where}, {moment}"):
                        check(case)


def check_kernel(
    kernel: Kernel,
    *,
    num_inducing: int = 5,
    space: Sequence[int] = (2, 2),
    seeds: Sequence[int] = (0, 1),
    zero_images: bool = True,
    picklable: bool = True,
) -> None:
    """Run a kernel through the requirements of kernels, and then through those of layers.

    See :mod:`convdkm.testing.kernel_requirements` and :func:`check_layer`.

    Args:
        kernel: the kernel; it is copied, and stays as it is.
        num_inducing, space: of the Grams to try it on.
        seeds: of points and Grams.
        zero_images: switch off for kernels that are not defined where a point is zero.
        picklable: switch off for classes that are defined inside a function.

    Raises:
        ConformanceError: a requirement is broken.
    """
    if not isinstance(kernel, Kernel):
        raise ConformanceError(
            type(kernel).__name__, "is_a_kernel", "it does not inherit from convdkm.Kernel", "given"
        )
    for seed in seeds:
        for width in (2, 6):
            case = KernelCase.at_random(copy.deepcopy(kernel), width, seed, zero_images)
            where = f"points in {width} dimensions, seed {seed}"
            for check in KERNEL_REQUIREMENTS:
                with reported(kernel, check.__name__, where):
                    check(case)
    check_layer(
        kernel,
        num_inducing=num_inducing,
        space=space,
        seeds=seeds,
        permutes_inducing=True,
        zero_images=zero_images,
        picklable=picklable,
    )


def check_likelihood(
    likelihood: Likelihood,
    targets: Tensor,
    *,
    invalid: Sequence[Tensor] = (),
    dtypes: Sequence[torch.dtype] = BOTH,
    seeds: Sequence[int] = (0, 1),
    step: float = 0.1,
    approximation: float = 1e-4,
    random: bool = False,
    permutes_outputs: bool = False,
    picklable: bool = True,
) -> None:
    """Run a likelihood through :mod:`convdkm.testing.likelihood_requirements`.

    For every dtype and seed a copy is tried on random marginals, whose outputs share their variance
    or have one each, as it is and after a random step of its parameters.

    Args:
        likelihood: the likelihood; it is copied, and stays as it is.
        targets: some that are valid, as a user would give them.
        invalid: as many that are to be refused, in one or several ways.
        dtypes: of the marginals.
        seeds: of the marginals.
        step: size of the random step, relative to each parameter's root mean square; 0 for none.
        approximation: error that expectations and predictions may have, in nats.
        random: switch on for likelihoods that sample. They are compared with what they should be
            within the standard error of their samples, and images may depend on the batch.
        permutes_outputs: switch on where all outputs are alike.
        picklable: switch off for classes that are defined inside a function.

    Raises:
        ConformanceError: a requirement is broken.
    """
    if not isinstance(likelihood, Likelihood):
        raise ConformanceError(
            type(likelihood).__name__,
            "is_a_likelihood",
            "it does not inherit from convdkm.Likelihood",
            "given",
        )
    wanted = {
        "batch_independent": not random,
        "single_precision_follows": not random,
        "permutes_outputs": permutes_outputs and not random,
        "survives_pickling": picklable,
    }
    requirements = [check for check in LIKELIHOOD_REQUIREMENTS if wanted.get(check.__name__, True)]
    for dtype in dtypes:
        for seed, separate in ((seed, separate) for seed in seeds for separate in (False, True)):
            generator = torch.Generator().manual_seed(seed)
            shape = (2, len(targets), likelihood.num_outputs)
            mean, spread = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
            variance = 0.1 + (spread if separate else spread[:, :1]).square()
            tried = copy.deepcopy(likelihood).eval()
            moves = bool(step) and any(True for _ in likelihood.parameters())
            for size in (0.0, step) if moves else (0.0,):
                _random_step(tried, size, seed)
                case = LikelihoodCase(
                    copy.deepcopy(likelihood),
                    tried,
                    Marginals(mean, variance),
                    targets,
                    invalid,
                    approximation,
                    seed,
                )
                moment = "after a random step" if size else "as given"
                for check in requirements:
                    with reported(likelihood, check.__name__, f"{dtype}, seed {seed}, {moment}"):
                        check(case)


@torch.no_grad()
def _random_step(module: nn.Module, size: float, seed: int) -> None:
    """Move every parameter at random, by ``size`` relative to its root mean square."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        scale = parameter.square().mean().sqrt() if bool(parameter.any()) else 1.0
        noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        parameter.add_(size * scale * noise)
