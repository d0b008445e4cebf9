"""A recipe followed: from options and images to a machine that is ready to be trained.

Runs, estimators and baselines all come through here, so that the same images, options and seed give
the same machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from convdkm.architectures import build_model as build_model  # noqa: PLC0414 (public there too)
from convdkm.config import Precision, Recipe
from convdkm.data.augment import random_crop_flip
from convdkm.data.splits import stratified
from convdkm.data.whitening import Whitening, chosen_whitening, make_whitening
from convdkm.insight.walk import taken_apart
from convdkm.layers.base import Layer
from convdkm.layers.conv import Conv
from convdkm.layers.gram_layer import GramLayer
from convdkm.model import DeepKernelMachine
from convdkm.options import MachineOptions
from convdkm.training.batches import generator_of, seed_of
from convdkm.training.origin import Origin
from convdkm.training.sinks import Level

Tell = Callable[[str, Level], None]


def settled(recipe: Recipe, images: Tensor, labels: Tensor, tell: Tell) -> Recipe:
    """The same, with all that depends on the training images chosen.

    That is the whitening, and how many images initialisation looks at.
    """
    changes: dict[str, Any] = {}
    if recipe.start_from is None:
        changes["whitening"] = chosen_whitening(
            recipe.whitening, len(images), images.shape[1:], lambda text: tell(text, "warning")
        )
    if recipe.inducing_per_class is not None:
        changes["inducing_images"] = recipe.inducing_per_class * len(labels.unique())
    return recipe.model_copy(update=changes)


def unfitted_whitening(recipe: Recipe) -> Whitening:
    """The whitening of a settled recipe, before it has seen images."""
    return make_whitening(recipe.whitening, recipe.zca_epsilon)


def fitted_whitening(recipe: Recipe, images: Tensor, tell: Tell) -> Whitening:
    """The same, fitted to the training images; or that of the machine to start from."""
    if recipe.start_from is not None:
        tell(f"starting from {recipe.start_from}, with a new top layer", "info")
        return Origin.open(recipe.start_from).whitening(images.shape[1:])
    if recipe.whitening.startswith("zca"):
        tell(f"fitting ZCA to {len(images):,} images", "info")
    return unfitted_whitening(recipe).fit(augmented(recipe, images))


def augmented(recipe: Recipe, images: Tensor) -> Tensor:
    """Training images outside of training: cropped and flipped, if the recipe asks for that."""
    if not recipe.augment_everywhere:
        return images
    generator = generator_of(recipe.seed, 7)
    parts = (
        random_crop_flip(part, margin=recipe.crop, flip=recipe.flip, generator=generator)
        for part in images.split(4096)
    )
    return torch.cat(list(parts))


@contextmanager
def first_draws(recipe: Recipe) -> Iterator[None]:
    """Random numbers for what a machine draws when it is built and initialised."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(recipe.seed, 6))
        yield


def built(
    options: MachineOptions, recipe: Recipe, in_channels: int, num_classes: int, **parts: Any
) -> DeepKernelMachine:
    """The machine before it has seen images; ``parts`` are those of :func:`build_model`."""
    with first_draws(recipe):
        return build_model(options, in_channels, num_classes, dtype_of(recipe), **parts)


def initialise(
    model: DeepKernelMachine, recipe: Recipe, images: Tensor, labels: Tensor, whitening: Whitening
) -> DeepKernelMachine:
    """Set everything that comes from data by some training images, balanced over the classes.

    Where the recipe names a machine to start from, take it from there (:mod:`.origin`).

    Args:
        model: on the CPU.
        images, labels: the training images as they were loaded.
        whitening: fitted.

    Returns:
        The model itself.
    """
    count = min(recipe.inducing_images, len(images))
    chosen = stratified(labels, count, recipe.seed, least=recipe.inducing_per_class or 1)
    some = augmented(recipe, images[chosen])
    if recipe.inducing_patches == "whitened" or recipe.start_from is not None:
        device = next(whitening.buffers(), some).device
        some = whitening(some.to(device)).cpu()
    elif recipe.inducing_patches == "standardised":
        some = make_whitening("standardise").fit(augmented(recipe, images))(some)
    with first_draws(recipe):
        if recipe.start_from is not None:
            return Origin.open(recipe.start_from).give(model, some, labels[chosen])
        return model.initialise(some, labels[chosen], seed=recipe.seed, max_images=count)


def tuned(model: DeepKernelMachine, recipe: Recipe, tell: Tell) -> Recipe:
    """Switch on what changes memory and speed, and results by rounding at most.

    Returns:
        The recipe with the precision chosen, if that was left to the machine.
    """
    if recipe.checkpointing:
        model.checkpointing = True
    if recipe.compile:
        tell("compiling elementwise functions, which may take a minute", "info")
        if not model.compile_elementwise():
            tell(
                "nothing compiles here, and training goes on without: install a C++ compiler, or"
                " leave --compile out",
                "warning",
            )
    precision = chosen_precision(model, recipe.precision, tell)
    return recipe.model_copy(update={"precision": precision})


def dtype_of(recipe: Recipe) -> torch.dtype:
    """Precision of the data path."""
    return torch.float64 if recipe.precision == "float64" else torch.float32


def precision_on(device: torch.device, precision: Precision) -> Precision:
    """What ``"auto"`` stands for on a device, any other precision being itself."""
    if precision != "auto":
        return precision
    if device.type == "cuda":
        able = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        capabilities = getattr(torch.cpu, "get_capabilities", None)  # absent from older PyTorch
        known: dict[str, Any] = capabilities() if capabilities and device.type == "cpu" else {}
        able = known.get("avx512_bf16") or known.get("amx_bf16")
    return "bfloat16" if able else "float32"


def chosen_precision(model: DeepKernelMachine, precision: Precision, tell: Tell) -> Precision:
    r"""What ``"auto"`` stands for with a machine; a word of warning where bfloat16 is too little.

    Products with :math:`G_{ii}^{-1}` magnify what is rounded in a map by up to the inverse square
    root of the ratio of its smallest eigenvalue and its largest. With more inducing points than the
    kernel of small grey patches has dimensions, that makes noise of maps in bfloat16.
    """
    found = precision_on(model.device, precision)
    if found != "bfloat16":
        return found
    with taken_apart(model) as root:
        inverted = [each for each in root.leaves() if _inverts(each.layer)]
        ratios = {each.name: _eigenvalue_ratio(each.incoming) for each in inverted}
    worst = min(ratios, key=ratios.__getitem__, default="")
    if not worst or ratios[worst] > torch.finfo(torch.bfloat16).eps ** 2:
        return found
    reason = f"the inducing points that enter {worst} are too alike for products in bfloat16"
    if precision == "auto":
        tell(f"{reason}; training in float32", "info")
        return "float32"
    tell(f"{reason}: take fewer of them, or --precision float32", "warning")
    return found


def _inverts(layer: Layer) -> bool:
    """Whether the data of a layer are multiplied by the inverse of a root of the incoming Gram."""
    whitened = isinstance(layer, Conv) and layer.parameterisation == "whitened"
    return whitened or isinstance(layer, GramLayer)


def _eigenvalue_ratio(matrix: Tensor) -> float:
    """Smallest over largest eigenvalue."""
    spectrum = torch.linalg.eigvalsh(matrix)
    return float(spectrum[0] / spectrum[-1])


def products_in(precision: Precision, device: torch.device) -> torch.autocast:
    """A block in which convolutions and products are made in the precision of a recipe."""
    lower = precision_on(device, precision) == "bfloat16"
    return torch.autocast(device.type, torch.bfloat16, enabled=lower, cache_enabled=False)
