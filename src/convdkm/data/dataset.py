"""A classification set: images and labels, checked when it is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from convdkm.checks import check_positive
from convdkm.data.checksums import digest_of_bytes
from convdkm.data.labels import some_of
from convdkm.data.splits import stratified
from convdkm.errors import InvalidInputError


class Origin(NamedTuple):
    """Where an image comes from: its file (empty without one), and the digest of what was there."""

    name: str
    digest: str


@dataclass(frozen=True, eq=False)
class Part:
    """Some images of a set, with their labels and, where these are known, their origins."""

    images: Tensor
    labels: Tensor
    origins: tuple[Origin, ...] = ()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, positions: Tensor) -> Part:
        origins = tuple(self.origins[i] for i in positions.tolist()) if self.origins else ()
        return Part(self.images[positions], self.labels[positions], origins)

    @cached_property
    def digests(self) -> list[tuple[str, ...]]:
        """What tells each image from others: digests of its origin, if it has one, and its pixels.

        The first does not depend on the decoder and the machine, the second not on the file format.
        """
        pixels = [digest_of_bytes(image.tobytes()) for image in self.images.cpu().numpy()]
        if not self.origins:
            return [(digest,) for digest in pixels]
        return [
            (origin.digest, digest) for origin, digest in zip(self.origins, pixels, strict=True)
        ]

    def with_origins(self) -> Part:
        """With the pixels as they are now for origins, if there are no others."""
        made = self.origins or tuple(Origin("", digest) for (digest,) in self.digests)
        return replace(self, origins=made)


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Training and test images with their labels.

    Images are float32, ``(N, channels, height, width)``, with values between 0 and 1; labels are
    int64, ``(N,)``. A set without a test part holds no test images: see :attr:`has_test` and
    :meth:`with_split`.

    Args:
        name: what to call the set in messages.
        class_names: one for each class; by default the class's number.
        train_origins, test_origins: where each image comes from, if that is known.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    num_classes: int
    name: str = ""
    class_names: tuple[str, ...] = ()
    train_origins: tuple[Origin, ...] = ()
    test_origins: tuple[Origin, ...] = ()

    def __post_init__(self) -> None:
        check_positive(num_classes=self.num_classes)
        if not self.class_names:
            object.__setattr__(self, "class_names", tuple(map(str, range(self.num_classes))))
        if len(self.class_names) != self.num_classes:
            raise InvalidInputError(
                f"{self._called} has {self.num_classes} classes but"
                f" {len(self.class_names)} class names"
            )
        repeated = {name for name in self.class_names if self.class_names.count(name) > 1}
        if repeated:
            raise InvalidInputError(
                f"class names must differ; {', '.join(sorted(repeated))} stands more than once"
            )
        if not len(self.train_images):
            raise InvalidInputError(f"{self._called} has no training images")
        self._check_part("training", self.train)
        self._check_part("test", self.test)
        train_shape, test_shape = self.train_images.shape[1:], self.test_images.shape[1:]
        if train_shape != test_shape:
            raise InvalidInputError(
                f"{self._called} has training images {shape_text(train_shape)} but test images"
                f" {shape_text(test_shape)} (channels×height×width); bring them to one shape"
            )
        unseen = sorted({*self.test_labels.tolist()} - {*self.train_labels.tolist()})
        if unseen:
            named = some_of([self.class_names[label] for label in unseen])
            raise InvalidInputError(
                f"{self._called} has test images of classes without a training image: {named}"
            )

    @property
    def has_test(self) -> bool:
        """Whether there are test images."""
        return len(self.test_images) > 0

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        channels, height, width = self.train_images.shape[1:]
        return channels, height, width

    @cached_property
    def train(self) -> Part:
        """The training images."""
        return Part(self.train_images, self.train_labels, self.train_origins)

    @cached_property
    def test(self) -> Part:
        """The test images."""
        return Part(self.test_images, self.test_labels, self.test_origins)

    @staticmethod
    def of(train: Part, test: Part, class_names: tuple[str, ...], name: str = "") -> Dataset:
        """The data set of two parts."""
        tensors = train.images, train.labels, test.images, test.labels
        return Dataset(*tensors, len(class_names), name, class_names, train.origins, test.origins)

    def with_parts(self, train: Part, test: Part) -> Dataset:
        """Other images in the place of these."""
        return Dataset.of(train, test, self.class_names, self.name)

    def subset(
        self, train_size: int | None = None, test_size: int | None = None, seed: int = 0
    ) -> Dataset:
        """Fewer images, drawn at random with the classes in their proportions.

        Every class keeps an image as long as the size allows it; ``None`` keeps all images.
        """
        train = self._chosen("train_size", self.train_labels, train_size, seed)
        if test_size is None:
            trained = torch.isin(self.test_labels, self.train_labels[train])
            test = trained.nonzero().flatten()
        elif not self.has_test:
            raise InvalidInputError(f"{self._called} has no test images, so test_size must be None")
        else:
            test = self._chosen("test_size", self.test_labels, test_size, seed)
        return self.with_parts(self.train[train], self.test[test])

    def hold_out(self, fraction: float, seed: int = 0) -> tuple[Dataset, Tensor, Tensor]:
        """Take a share of the training images of every class away, say for validation.

        Returns the set without them, the images held out, and their labels. Every class keeps at
        least one training image.
        """
        smaller, held = self.divided(fraction, seed)
        return smaller, held.images, held.labels

    def divided(self, fraction: float, seed: int = 0) -> tuple[Dataset, Part]:
        """What :meth:`hold_out` leaves, and what it takes away."""
        if not 0 < fraction < 1:
            raise InvalidInputError(
                f"the fraction held out must lie between 0 and 1, got {fraction}"
            )
        count = max(round(fraction * len(self.train_labels)), 1)
        held = stratified(self.train_labels, count, seed, left=1)
        if not len(held):
            raise InvalidInputError(
                f"{self._called} has one training image a class: none can be held out"
            )
        keep = torch.ones(len(self.train_labels), dtype=torch.bool)
        keep[held] = False
        left = self.train[keep.nonzero().flatten()]
        return self.with_parts(left, self.test), self.train[held]

    def with_split(self, test_fraction: float, seed: int = 0) -> Dataset:
        """A test part made of a share of the training images, for a set that has none."""
        if self.has_test:
            raise InvalidInputError(
                f"{self._called} has a test part already, of {len(self.test_images)} images"
            )
        smaller, test = self.divided(test_fraction, seed)
        return smaller.with_parts(smaller.train, test)

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}, {len(self.train_images)} training and"
            f" {len(self.test_images)} test images {shape_text(self.image_shape)},"
            f" {self.num_classes} classes)"
        )

    @property
    def _called(self) -> str:
        return f"the data set {self.name!r}" if self.name else "the data set"

    def _chosen(self, option: str, labels: Tensor, size: int | None, seed: int) -> Tensor:
        if size is None:
            return torch.arange(len(labels))
        check_positive(**{option: size})
        if size > len(labels):
            raise InvalidInputError(
                f"{option} is {size}, but {self._called} has {len(labels)} such images"
            )
        return stratified(labels, size, seed, least=1)

    def _check_part(self, part: str, content: Part) -> None:
        images, labels = content.images, content.labels
        where = f"the {part} images of {self._called}"
        if images.ndim != 4 or images.dtype != torch.float32:
            raise InvalidInputError(
                f"{where} must be float32 (N, channels, height, width), got {images.dtype}"
                f" {tuple(images.shape)}; convdkm.data.from_arrays converts other arrays"
            )
        if 0 in images.shape[1:]:
            raise InvalidInputError(f"{where} have no pixels: {shape_text(images.shape[1:])}")
        if labels.ndim != 1 or labels.dtype != torch.int64:
            raise InvalidInputError(
                f"the {part} labels of {self._called} must be int64 (N,), got {labels.dtype}"
                f" {tuple(labels.shape)}"
            )
        for what, given in ((f"{part} labels", labels), ("origins", content.origins or labels)):
            if len(images) != len(given):
                raise InvalidInputError(
                    f"{self._called} has {len(images)} {part} images but {len(given)} {what}"
                )
        if not len(images):
            return
        low, high = (float(value) for value in torch.aminmax(images))
        if not (isfinite(low) and isfinite(high)):
            bad = (~images.isfinite()).flatten(1).any(1).nonzero().flatten()
            raise InvalidInputError(
                f"{where} hold NaN or infinite values, in {len(bad)} images, the first at"
                f" position {int(bad[0])}"
            )
        if low < -1e-5 or high > 1 + 1e-5:
            raise InvalidInputError(
                f"{where} must have values between 0 and 1, got {low:.4g} to {high:.4g}; divide"
                " pixels of 0 to 255 by 255, and leave standardising to the whitening"
            )
        first, last = int(labels.min()), int(labels.max())
        if first < 0 or last >= self.num_classes:
            raise InvalidInputError(
                f"the {part} labels of {self._called} run from {first} to {last}, but must lie"
                f" between 0 and {self.num_classes - 1}"
            )


def shape_text(shape: Sequence[int]) -> str:
    """A shape as people write it: ``3×32×32``."""
    return "×".join(map(str, shape))
