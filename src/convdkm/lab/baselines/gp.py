"""Convolutional Gaussian processes, shallow and deep, as baselines; on GPyTorch, an optional extra.

Van der Wilk et al. (2017), with the orthogonal inducing points of Shi et al. (2020) if asked for;
Blomqvist et al. (2018) for the hidden layers; the translation-insensitive kernel of Dutordoir et
al. (2020) on top of them.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from convdkm.checks import check_positive
from convdkm.config import RunConfig
from convdkm.errors import InvalidInputError, NotInitialisedError
from convdkm.lab.baselines.base import Baseline, check_training_set
from convdkm.lab.baselines.descent import Budget, descend
from convdkm.lab.baselines.shapes import check_like
from convdkm.runtime.memory import available_memory
from convdkm.training.batches import Batches, generator_of, seed_of

if TYPE_CHECKING:
    from convdkm.lab.baselines.gp_layers import DeepConvolutionalGP, Hidden, Top

MOST_PATCHES = 256
"""Patches of an image that the top looks at, at most, where no stride is given."""
COPIES = 8
"""Copies of the kernel of the patches of a batch that a step holds, about."""
LOOKED_AT = 256
"""Images that a layer's first inducing patches are taken from."""


def gp_layers() -> ModuleType:
    """The module that needs GPyTorch.

    Raises:
        InvalidInputError: it is not installed.
    """
    try:
        return importlib.import_module("convdkm.lab.baselines.gp_layers")
    except ImportError as error:
        if (error.name or "").split(".")[0] not in ("gpytorch", "linear_operator"):
            raise
        raise InvalidInputError(
            "convolutional Gaussian processes need a package that is not installed,"
            f" {error.name}; install it by pip install convdkm[gp]"
        ) from error


class ConvolutionalGP(Baseline):
    """A sum over patches, or with hidden layers a deep GP; trained by Adam on the ELBO.

    Args:
        inducing: inducing patches of every layer.
        orthogonal: more of them in the top, orthogonal to those (Shi et al., 2020).
        size: side of the patches of the top.
        stride: of these; by default the least for which an image has 256 patches or fewer.
        located: whether the top's kernel also compares where patches are (Dutordoir et al., 2020).
        hidden: hidden layers.
        channels: of the images that hidden layers make.
        hidden_size, hidden_stride: of the patches of hidden layers.
        samples: of the functions, for the likelihood; and in prediction of hidden layers.
        recipe: options of :class:`~convdkm.config.Recipe`, such as ``epochs``, ``crop``, ``seed``.
    """

    RECIPE: ClassVar[dict[str, Any]] = {
        "epochs": 50,
        "batch_size": 64,
        "learning_rate": 0.05,
        "betas": (0.9, 0.99),
        "schedule": "cosine",
        "warmup": 0.0,
        "crop": 0,
        "flip": False,
    }

    def __init__(
        self,
        *,
        inducing: int = 100,
        orthogonal: int = 0,
        size: int = 5,
        stride: int | None = None,
        located: bool = False,
        hidden: int = 0,
        channels: int = 8,
        hidden_size: int = 5,
        hidden_stride: int = 2,
        samples: int = 10,
        **recipe: Any,
    ) -> None:
        check_positive(
            inducing=inducing,
            size=size,
            channels=channels,
            hidden_size=hidden_size,
            hidden_stride=hidden_stride,
            samples=samples,
        )
        if stride is not None:
            check_positive(stride=stride)
        if min(hidden, orthogonal) < 0:
            raise InvalidInputError(
                f"hidden and orthogonal must be 0 or more, got {hidden} and {orthogonal}"
            )
        self.inducing, self.orthogonal, self.samples = inducing, orthogonal, samples
        self.size, self.stride, self.located = size, stride, located
        self.hidden, self.channels = hidden, channels
        self.hidden_size, self.hidden_stride = hidden_size, hidden_stride
        self.config = RunConfig.of(self.RECIPE | recipe)
        self.model: DeepConvolutionalGP | None = None
        self.likelihood: Any = None
        self._shape: tuple[int, ...] = ()
        self.curve: list[float] = []

    def fit(self, images: Tensor, labels: Tensor) -> ConvolutionalGP:
        classes = check_training_set(images, labels)
        parts = gp_layers()
        budget = Budget(self.minutes)
        images, labels = images.float(), labels.long()
        training = self.config.training
        batches = Batches.of(training, images, labels)
        model = self._built(images, classes).to(images.device)
        likelihood = parts.Softmax()

        def loss(inputs: Tensor, targets: Tensor) -> Tensor:
            with parts.gpytorch.settings.num_likelihood_samples(self.samples):
                value: Tensor = parts.bound(model, likelihood, inputs, targets, len(images))
            return -value

        model.train()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(training.seed, 4))
            self.curve = descend(
                model.parameters(), batches, training, loss, budget=budget, tell=self.tell
            )
        self.cut_short = budget.over()
        self.model, self.likelihood = model.eval(), likelihood.eval()
        self._shape = tuple(images.shape[1:])
        return self

    @torch.no_grad()
    def scores(self, images: Tensor) -> Tensor:
        """Log-probabilities, by samples of the functions and of the hidden layers."""
        model = self._fitted()
        check_like(images, self._shape)
        settings = gp_layers().gpytorch.settings
        draws = self.samples if self.hidden else 1
        found = []
        with torch.random.fork_rng(devices=[]), settings.num_likelihood_samples(10 * self.samples):
            torch.manual_seed(seed_of(self.config.training.seed, 5))
            for part in images.float().split(self.config.training.batch_size):
                probs = [self.likelihood(model(part)).probs.double().mean(0) for _ in range(draws)]
                found.append(torch.stack(probs).mean(0))
        return torch.cat(found).clamp(min=1e-30).log().log_softmax(1)

    def probabilities(self, images: Tensor) -> Tensor:
        return self.scores(images).exp()

    @property
    def parameters(self) -> int:
        return self._fitted().learned

    def foresee(self, images: Tensor, labels: Tensor) -> None:
        check_training_set(images, labels)
        gp_layers()
        sides = self._sides(tuple(images.shape[2:]))
        stride = self._stride_for(*sides)
        counts = [(side - self.size) // stride + 1 for side in sides]
        patches = counts[0] * counts[1]
        batch = min(self.config.training.batch_size, len(images))
        needed, there = COPIES * 4 * batch * patches**2, available_memory()
        if there is not None and needed > there:
            fits = there // (COPIES * 4 * patches**2)
            raise InvalidInputError(
                f"the kernel of {patches} patches of each of {batch} images takes about"
                f" {needed / 1e9:.1f} GB, and there are {there / 1e9:.1f} GB; use a batch_size of"
                f" {fits}, or a larger stride"
            )

    def _fitted(self) -> DeepConvolutionalGP:
        if self.model is None:
            raise NotInitialisedError("ConvolutionalGP has to be fitted first: call fit")
        return self.model

    def _sides(self, sides: tuple[int, ...]) -> tuple[int, ...]:
        """Height and width of what the top is given; an error where patches do not fit."""
        for _ in range(self.hidden):
            self._require_fits(self.hidden_size, sides, "hidden_size")
            sides = tuple((side - self.hidden_size) // self.hidden_stride + 1 for side in sides)
        self._require_fits(self.size, sides, "size")
        return sides

    def _require_fits(self, size: int, sides: tuple[int, ...], option: str) -> None:
        if size > min(sides):
            raise InvalidInputError(
                f"patches of {size}×{size} do not fit into images of {sides[0]}×{sides[1]}; use a"
                f" smaller {option}"
            )

    def _stride_for(self, height: int, width: int) -> int:
        if self.stride is not None:
            return self.stride
        stride, down, along = 1, height - self.size, width - self.size
        while (down // stride + 1) * (along // stride + 1) > MOST_PATCHES:
            stride += 1
        return stride

    def _built(self, images: Tensor, classes: int) -> DeepConvolutionalGP:
        """The model at its start, every layer set from the mean of the one before."""
        seed = self.config.training.seed
        order = torch.randperm(len(images), generator=generator_of(seed, 2))[:LOOKED_AT]
        maps = images[order.to(images.device)]
        self._sides(tuple(maps.shape[2:]))
        hidden = []
        with torch.no_grad():
            for index in range(self.hidden):
                layer = self._hidden_layer(maps, generator_of(seed, 7, index))
                hidden.append(layer)
                maps = layer.moments(maps)[0]
            top = self._top(maps, classes, generator_of(seed, 8))
        model: DeepConvolutionalGP = gp_layers().DeepConvolutionalGP(hidden, top)
        return model

    def _hidden_layer(self, maps: Tensor, generator: torch.Generator) -> Hidden:
        parts, size, stride = gp_layers(), self.hidden_size, self.hidden_stride
        points = parts.patches(maps, size, stride).flatten(0, 1)
        if self.channels > points.shape[1]:
            raise InvalidInputError(
                f"patches of {points.shape[1]} numbers have no {self.channels} principal"
                f" components; use {points.shape[1]} channels or fewer, or a larger hidden_size"
            )
        mean, centre = principal_components(points, self.channels)
        start = distinct_rows(points, self.inducing, generator)
        inducing = parts.Inducing(start, self.channels)
        inducing.spread(parts.HIDDEN_SPREAD)
        base = parts.scaled_rbf(start)
        base.outputscale = parts.HIDDEN_VARIANCE
        layer: Hidden = parts.Hidden(base, inducing, mean, centre, size=size, stride=stride)
        return layer

    def _top(self, maps: Tensor, classes: int, generator: torch.Generator) -> Top:
        parts = gp_layers()
        shape = tuple(maps.shape[1:])
        stride = self._stride_for(*shape[1:])
        taken = parts.located_patches if self.located else parts.patches
        points = taken(maps, self.size, stride).flatten(0, 1)
        start = distinct_rows(points, self.inducing + self.orthogonal, generator)
        base = parts.scaled_rbf(start, located=self.located)
        kernel = parts.ConvolutionalKernel(base, shape, self.size, stride, located=self.located)
        variance = kernel(maps[:32].flatten(1), diag=True).mean()
        kernel.base.outputscale = parts.TOP_VARIANCE / variance
        inducing = parts.Inducing(start, classes, self.orthogonal)
        inducing.spread(parts.TOP_SPREAD)
        top: Top = parts.Top(kernel, inducing)
        return top


class DeepConvolutionalGaussianProcess(ConvolutionalGP):
    """A convolutional GP with hidden layers: one by default, of 3×3 patches, and a located top.

    Args:
        options: of :class:`ConvolutionalGP`.
    """

    def __init__(self, **options: Any) -> None:
        ours = {"hidden": 1, "size": 3, "hidden_size": 3, "hidden_stride": 1, "located": True}
        super().__init__(**{**ours, **options})


def distinct_rows(rows: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """So many different rows, chosen at random."""
    some = rows[torch.randperm(len(rows), generator=generator)[: 20 * count].to(rows.device)]
    some = some.unique(dim=0)
    if len(some) < count:
        raise InvalidInputError(
            f"{count} inducing patches need as many different patches, and {len(some)} were found"
            " in the images; use fewer inducing patches, or more images"
        )
    return some[torch.randperm(len(some), generator=generator)[:count].to(rows.device)]


def principal_components(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """A map ``(count, d)`` to the largest principal components, of variance one; and the mean.

    Components without variance are mapped to zero.
    """
    centre = rows.mean(0)
    centred = (rows - centre).double()
    values, vectors = torch.linalg.eigh(centred.mT @ centred / len(rows))
    values, vectors = values[-count:], vectors[:, -count:]
    least = 1e-8 * values.max()
    scale = torch.where(values > least, values.clamp(min=1e-300).rsqrt(), torch.zeros_like(values))
    return (vectors * scale).mT.to(rows), centre
