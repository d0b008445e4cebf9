"""The functions that a user calls: they go through the requirements one by one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from convdkm.kernels.base import Kernel
from convdkm.layers.base import Layer
from convdkm.likelihoods import Likelihood
from convdkm.testing.grams import degenerate_gram, random_gram
from convdkm.testing.kernel_requirements import KERNEL_REQUIREMENTS, KernelCase
from convdkm.testing.layer_requirements import LAYER_REQUIREMENTS, LayerCase
from convdkm.testing.likelihood_requirements import LIKELIHOOD_REQUIREMENTS, LikelihoodCase
from convdkm.testing.outcome import ConformanceError, reported

BOTH = (torch.float32, torch.float64)

Requirement = Callable[[Any], None]


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
    _require_a(Layer, layer)
    requirements = _chosen(
        LAYER_REQUIREMENTS,
        batch_independent=batch_independent,
        permutes_inducing=permutes_inducing,
        survives_pickling=picklable,
    )
    for dtype, seed in product(dtypes, seeds):
        gram = random_gram(num_inducing, space, dtype=dtype, seed=seed)
        degenerate = degenerate_gram(num_inducing, space, dtype=dtype, seed=seed, zero=zero_images)
        tried, where = copy.deepcopy(layer).train(), f"{dtype}, seed {seed}"
        with reported(layer, "initialise", where):
            tried.initialise(gram)
        for moment in _moments(tried.eval(), step, seed, "as initialised"):
            # Anew, since a case keeps the outputs of its layer.
            case = LayerCase(layer, tried, seed, gram, degenerate)
            _run(requirements, case, f"{where}, {moment}")


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
    _require_a(Kernel, kernel)
    for seed, width in product(seeds, (2, 6)):
        case = KernelCase(copy.deepcopy(kernel), width, seed, zero_images)
        _run(KERNEL_REQUIREMENTS, case, f"points in {width} dimensions, seed {seed}")
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
    _require_a(Likelihood, likelihood)
    requirements = _chosen(
        LIKELIHOOD_REQUIREMENTS,
        batch_independent=not random,
        single_precision_follows=not random,
        permutes_outputs=permutes_outputs and not random,
        survives_pickling=picklable,
    )
    shape = 2, len(targets), likelihood.num_outputs
    for dtype, seed, separate in product(dtypes, seeds, (False, True)):
        generator = torch.Generator().manual_seed(seed)
        mean, deviation = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        variance = 0.1 + (deviation if separate else deviation[:, :1]).square()
        fresh, tried = copy.deepcopy(likelihood), copy.deepcopy(likelihood).eval()
        case = LikelihoodCase(fresh, tried, seed, mean, variance, targets, invalid, approximation)
        for moment in _moments(tried, step, seed, "as given"):
            _run(requirements, case, f"{dtype}, seed {seed}, {moment}")


def _require_a(kind: type[nn.Module], subject: object) -> None:
    """Raise unless what a user gave is a layer, a kernel or a likelihood."""
    if not isinstance(subject, kind):
        detail = f"it does not inherit from convdkm.{kind.__name__}"
        name = f"is_a_{kind.__name__.lower()}"
        raise ConformanceError(type(subject).__name__, name, detail, "given")


def _chosen(requirements: Sequence[Requirement], **wanted: bool) -> list[Requirement]:
    """The requirements but for those, by name, that are not wanted."""
    return [check for check in requirements if wanted.get(check.__name__, True)]


def _moments(module: nn.Module, step: float, seed: int, first: str) -> Iterator[str]:
    """When to try a module: as it is, and if it has parameters after a random step of theirs."""
    yield first
    parameters = list(module.parameters())
    if step and parameters:
        generator = torch.Generator().manual_seed(seed)
        for parameter in (each.detach() for each in parameters):
            scale = parameter.square().mean().sqrt() if bool(parameter.any()) else 1.0
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(step * scale * noise)
        yield "after a random step"


def _run(requirements: Sequence[Requirement], case: Any, where: str) -> None:
    """Go through the requirements; the first that is broken raises."""
    for check in requirements:
        with reported(case.tried, check.__name__, where):
            check(case)
