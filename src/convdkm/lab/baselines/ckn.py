"""Convolutional kernel networks (Mairal et al. 2014; Mairal 2016), unsupervised and supervised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from convdkm.checks import check_positive
from convdkm.config import RunConfig
from convdkm.errors import InvalidInputError
from convdkm.lab.baselines.base import Baseline, check_like, check_training_set
from convdkm.lab.baselines.ckn_classifier import Linear, Stop, logistic_regression
from convdkm.lab.baselines.ckn_layer import CKNLayer, patches, spherical_kmeans
from convdkm.lab.baselines.descent import Budget, descend
from convdkm.runtime.memory import available_memory
from convdkm.training.batches import Batches, generator_of, seed_of
from convdkm.training.optimiser import Descent

Shape = tuple[int, int, int]
TWO_LAYERS: tuple[Shape, ...] = ((64, 3, 2), (256, 3, 4))
THREE_LAYERS: tuple[Shape, ...] = ((64, 3, 2), (128, 3, 2), (256, 3, 2))
AT_ONCE = 256
"""Images in a batch where nothing is learned by gradients."""
START = 0.3
"""Share of the time for the unsupervised start of a supervised network."""
COPIES = 6
"""Copies of the features, in double precision, that logistic regression needs at most."""


@dataclass(eq=False, repr=False)
class UnsupervisedCKN(Baseline):
    """A network whose anchors are found by spherical k-means, with a linear classifier on top.

    The classifier is multinomial logistic regression on all pixels of the last maps, its
    regularisation chosen on held-out images.

    Args:
        layers: filters, side of the patches and subsampling of each; see :class:`CKNLayer`.
        alpha, epsilon: of every layer.
        patches: the largest number of patches for k-means.
        seed: of all random choices.
    """

    layers: Sequence[Shape] = TWO_LAYERS
    _: KW_ONLY
    alpha: float = 4.0
    epsilon: float = 1e-3
    patches: int = 50_000
    seed: int = 0

    network: nn.Sequential | None = field(default=None, init=False)
    classifier: Linear | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not self.layers or any(len(shape) != 3 for shape in self.layers):
            raise InvalidInputError(
                "layers must be triples of filters, side of patches and subsampling, at least one;"
                f" got {self.layers!r}"
            )
        check_positive(patches=self.patches)
        self._unfitted(1)  # raises now if an option is wrong
        self._shape: tuple[int, ...] = ()

    def fit(self, images: Tensor, labels: Tensor) -> UnsupervisedCKN:
        classes = check_training_set(images, labels)
        budget = Budget(self.minutes)
        self._fit_unsupervised(images.float(), labels.long(), classes, budget.over)
        self.cut_short = budget.over()
        return self

    def features(self, images: Tensor) -> Tensor:
        """The last maps of every image as a vector, ``(N, features)``."""
        network = self.require_fitted(self.network)
        check_like(images, self._shape)
        return _features(network, images.float())

    def scores(self, images: Tensor) -> Tensor:
        classifier = self.require_fitted(self.classifier)
        return classifier(self.features(images).double()).log_softmax(1)

    @property
    def parameters(self) -> int:
        classifier = self.require_fitted(self.classifier)
        anchors = self.require_fitted(self.network).parameters()
        return sum(p.numel() for p in (*anchors, classifier.weight, classifier.bias))

    def foresee(self, images: Tensor, labels: Tensor) -> None:
        check_training_set(images, labels)
        height, width = images.shape[2:]
        for _, _, step in self.layers:
            height, width = -(-height // step), -(-width // step)
        features = self.layers[-1][0] * height * width
        needed, there = COPIES * 8 * len(images) * features, available_memory()
        if there is not None and needed > there:
            fits = there // (COPIES * 8 * features)
            raise InvalidInputError(
                f"{len(images)} images of {features} features take about {needed / 1e9:.1f} GB, and"
                f" there are {there / 1e9:.1f} GB; use {fits} images, fewer filters or more"
                " subsampling"
            )

    def _unfitted(self, channels: int) -> list[CKNLayer]:
        """The layers for images of so many channels, with random anchors."""
        below = (channels, *(filters for filters, _, _ in self.layers))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(self.seed, 6))
            return [
                CKNLayer(before, *shape, alpha=self.alpha, epsilon=self.epsilon)
                for before, shape in zip(below, self.layers, strict=False)
            ]

    def _fit_unsupervised(self, images: Tensor, labels: Tensor, classes: int, stop: Stop) -> None:
        """Fit anchors, then the classifier; ``stop`` may end either early."""
        layers = self._unfitted(images.shape[1])
        network = nn.Sequential(*layers).to(images.device)
        for index, layer in enumerate(layers):
            generator, filters = generator_of(self.seed, 7, index), len(layer.anchors)
            vectors = _drawn(network[:index], layer.size, images, self.patches, generator)
            anchors, curve = spherical_kmeans(vectors, filters, generator, stop)
            layer.set_anchors(anchors)
            self.tell(
                f"layer {index + 1} of {len(layers)}: {filters} anchors, mean cosine"
                f" {curve[-1]:.3f} after {len(curve) - 1} iterations"
            )
        features = _features(network, images)
        self.network, self._shape = network, tuple(images.shape[1:])
        self.classifier = logistic_regression(features, labels, classes, seed=self.seed, stop=stop)
        self.tell(f"classifier of {features.shape[1]} features: λ = {self.classifier.strength:g}")


class SupervisedCKN(UnsupervisedCKN):
    """A network whose anchors and classifier are learned together, from the unsupervised one on.

    Adam minimises the loss of the classifier, with its λ, and the anchors are projected back to the
    sphere after every step.

    Args:
        layers, alpha, epsilon, patches, seed: as of :class:`UnsupervisedCKN`.
        recipe: options of :class:`~convdkm.config.Recipe`, such as ``epochs`` and ``crop``.
    """

    RECIPE: ClassVar[dict[str, Any]] = {
        "epochs": 30,
        "batch_size": 128,
        "learning_rate": 0.003,
        "schedule": "one-cycle",
        "crop": 0,
        "flip": False,
    }

    def __init__(
        self,
        layers: Sequence[Shape] = THREE_LAYERS,
        *,
        alpha: float = 4.0,
        epsilon: float = 1e-3,
        patches: int = 50_000,
        seed: int = 0,
        **recipe: Any,
    ) -> None:
        super().__init__(layers, alpha=alpha, epsilon=epsilon, patches=patches, seed=seed)
        self.config = RunConfig.of(self.RECIPE | recipe | {"seed": seed})
        self.curve: list[float] = []

    def fit(self, images: Tensor, labels: Tensor) -> SupervisedCKN:
        classes = check_training_set(images, labels)
        budget = Budget(self.minutes)
        images, labels = images.float(), labels.long()
        self._fit_unsupervised(images, labels, classes, lambda: budget.share > START)
        network, start = self.require_fitted(self.network), self.require_fitted(self.classifier)
        weight, bias = (nn.Parameter(value.to(images)) for value in (start.weight, start.bias))
        classifier = replace(start, weight=weight, bias=bias)
        training = self.config.training

        def loss(inputs: Tensor, targets: Tensor) -> Tensor:
            return classifier.loss(network(inputs).flatten(1), targets)

        def project() -> None:
            for layer in network:
                assert isinstance(layer, CKNLayer)
                layer.project()

        learned = [*network.parameters(), weight, bias]
        optimiser = Descent.adam(learned, training, images.device)
        batches = Batches.of(training, images, labels)
        self.curve, _ = descend(
            optimiser, batches, training, loss, budget=budget, tell=self.tell, after=project
        )
        self.cut_short = budget.over()
        self.classifier = replace(classifier, weight=weight.detach(), bias=bias.detach())
        return self


@torch.no_grad()
def _features(network: nn.Module, images: Tensor) -> Tensor:
    """The last maps of all images as vectors, found some at a time."""
    return torch.cat([network(part).flatten(1) for part in images.split(AT_ONCE)])


@torch.no_grad()
def _drawn(
    below: nn.Module, size: int, images: Tensor, count: int, generator: torch.Generator
) -> Tensor:
    """About ``count`` patches ``(n, C·size²)`` of maps, as many from every image, at random."""
    order = torch.randperm(len(images), generator=generator)[:count]
    each = -(-count // len(order))
    found = []
    for chosen in order.split(AT_ONCE):
        vectors = patches(below(images[chosen.to(images.device)]), size)
        places = torch.rand(len(chosen), vectors.shape[2], generator=generator)
        picked = places.argsort(1)[:, :each].to(vectors.device)
        index = picked.unsqueeze(1).expand(-1, vectors.shape[1], -1)
        found.append(vectors.gather(2, index).mT.flatten(0, 1))
    return torch.cat(found)
