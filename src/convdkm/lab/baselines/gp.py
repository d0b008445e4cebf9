"""Convolutional Gaussian processes, shallow and deep, as baselines; on GPyTorch, an optional extra.

Van der Wilk et al. (2017), with the orthogonal inducing points of Shi et al. (2020) if asked for;
Blomqvist et al. (2018) for the hidden layers; the translation-insensitive kernel of Dutordoir et
al. (2020) on top of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from convdkm.checks import check_positive
from convdkm.config import RunConfig
from convdkm.errors import InvalidInputError
from convdkm.lab.baselines.base import Baseline, check_like, check_training_set
from convdkm.lab.baselines.descent import Budget, descend
from convdkm.runtime.memory import available_memory
from convdkm.training.batches import Batches, seed_of
from convdkm.training.optimiser import Descent

if TYPE_CHECKING:
    from convdkm.lab.baselines.gp_layers import DeepConvolutionalGP

MOST_PATCHES = 256
"""Patches of an image that the top looks at, at most, where no stride is given."""
COPIES = 8
"""Copies of the kernel of the patches of a batch that a step holds, about."""


def require_gpytorch() -> None:
    """Raise :class:`InvalidInputError` where GPyTorch is not installed."""
    try:
        import convdkm.lab.baselines.gp_layers  # noqa: F401
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
        orthogonal: further ones in the top, orthogonal to those (Shi et al., 2020).
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
        check_positive(inducing=inducing, size=size, stride=1 if stride is None else stride)
        check_positive(channels=channels, hidden_size=hidden_size, hidden_stride=hidden_stride)
        check_positive(samples=samples)
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
        self._shape: tuple[int, ...] = ()
        self.curve: list[float] = []

    def fit(self, images: Tensor, labels: Tensor) -> ConvolutionalGP:
        classes = check_training_set(images, labels)
        require_gpytorch()
        from convdkm.lab.baselines.gp_layers import bound, initial_model

        budget = Budget(self.minutes)
        images, labels = images.float(), labels.long()
        training = self.config.training
        batches = Batches.of(training, images, labels)
        self._sides(images.shape[2:])
        model = initial_model(self, images, classes).to(images.device)

        def loss(inputs: Tensor, targets: Tensor) -> Tensor:
            return -bound(model, inputs, targets, len(images), self.samples)

        model.train()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(training.seed, 4))
            optimiser = Descent.adam(model.parameters(), training, images.device)
            self.curve, _ = descend(
                optimiser, batches, training, loss, budget=budget, tell=self.tell
            )
        self.cut_short = budget.over()
        self.model, self._shape = model.eval(), tuple(images.shape[1:])
        return self

    @torch.no_grad()
    def scores(self, images: Tensor) -> Tensor:
        """Log-probabilities, by samples of the functions and of the hidden layers."""
        model = self.require_fitted(self.model)
        check_like(images, self._shape)
        draws = self.samples if self.hidden else 1
        found = []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(self.config.training.seed, 5))
            for part in images.float().split(self.config.training.batch_size):
                logits = (model.samples(part, 10 * self.samples) for _ in range(draws))
                probs = [each.softmax(2).double().mean(0) for each in logits]
                found.append(torch.stack(probs).mean(0))
        return torch.cat(found).clamp(min=1e-30).log().log_softmax(1)

    @property
    def parameters(self) -> int:
        return self.require_fitted(self.model).learned

    def foresee(self, images: Tensor, labels: Tensor) -> None:
        check_training_set(images, labels)
        require_gpytorch()
        from convdkm.lab.baselines.gp_layers import grid

        sides = self._sides(images.shape[2:])
        patches = math.prod(grid(sides, self.size, self.stride_for(*sides)))
        batch = min(self.config.training.batch_size, len(images))
        needed, there = COPIES * 4 * batch * patches**2, available_memory()
        if there is not None and needed > there:
            fits = there // (COPIES * 4 * patches**2)
            raise InvalidInputError(
                f"the kernel of {patches} patches of each of {batch} images takes about"
                f" {needed / 1e9:.1f} GB, and there are {there / 1e9:.1f} GB; use a batch_size of"
                f" {fits}, or a larger stride"
            )

    def stride_for(self, height: int, width: int) -> int:
        """The stride of the patches of the top, which is given maps of that size."""
        if self.stride is not None:
            return self.stride
        stride, down, along = 1, height - self.size, width - self.size
        while (down // stride + 1) * (along // stride + 1) > MOST_PATCHES:
            stride += 1
        return stride

    def _sides(self, sides: Sequence[int]) -> Sequence[int]:
        """Height and width of what the top is given; an error where patches do not fit."""
        from convdkm.lab.baselines.gp_layers import grid

        for _ in range(self.hidden):
            sides = grid(sides, self.hidden_size, self.hidden_stride, "hidden_size")
        grid(sides, self.size, 1, "size")
        return sides


class DeepConvolutionalGaussianProcess(ConvolutionalGP):
    """A convolutional GP with hidden layers: one by default, of 3×3 patches, and a located top.

    Args:
        options: of :class:`ConvolutionalGP`.
    """

    def __init__(self, **options: Any) -> None:
        ours = {"hidden": 1, "size": 3, "hidden_size": 3, "hidden_stride": 1, "located": True}
        super().__init__(**{**ours, **options})
