"""Training images in batches: shuffled, cropped, flipped, cut out and whitened."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from convdkm.data.augment import random_crop_flip
from convdkm.training.world import World

if TYPE_CHECKING:
    from convdkm.choices import AugmentStage
    from convdkm.config import Recipe
    from convdkm.data.whitening import Whitening

INSTRUMENT_IMAGES = 128
"""Training images that instruments are read on: chosen once, whitened, not augmented."""


def generator_of(*entropy: int) -> torch.Generator:
    """A generator whose stream belongs to these numbers (seed, epoch, …) alone."""
    return torch.Generator().manual_seed(seed_of(*entropy))


def seed_of(*entropy: int) -> int:
    """A 63-bit seed mixed from several numbers."""
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> 1)


def chosen_once(total: int, count: int, seed: int) -> Tensor:
    """At most ``count`` of ``total`` images: the same in all processes and at any time."""
    return torch.randperm(total, generator=generator_of(seed, 2))[:count]


class Batches:
    """The training set in random order, anew in every epoch.

    Order and augmentation are functions of (seed, epoch, step) and the place in the batch, so that
    a run can go on from any step without a saved state, with any number of processes. Images live
    on the device and whole batches are worked on at once: the model never waits for a file.

    Args:
        images: as loaded, ``(N, channels, *space)``; vectors ``(N, features)`` if neither
            whitening nor augmentation is asked for.
        targets: their labels or real targets.
        batch_size: images a step, over all processes together.
        whitening: fitted; None for none.
        crop: margin of the random crops; 0 for none.
        flip: whether to flip images at random.
        alternate_flips: with ``flip``, draw in the first epoch only: an image is mirrored in epoch
            e (from 0) if :math:`b + e` is odd, where b = 0 or 1 depends on the seed and the image
            alone (Jordan, 2024).
        cutout: side of a square of zeros at a random place of every image; 0 for none.
        augment: crop, flip and cut out before whitening, or after it. Zero is black before, and the
            mean after a whitening that subtracts it.
        seed: of order and augmentation.
        world: the processes that share the batches.
    """

    def __init__(
        self,
        images: Tensor,
        targets: Tensor,
        batch_size: int,
        *,
        whitening: Whitening | None = None,
        crop: int = 0,
        flip: bool = False,
        alternate_flips: bool = False,
        cutout: int = 0,
        augment: AugmentStage = "before-whitening",
        seed: int = 0,
        world: World | None = None,
    ) -> None:
        self.targets, self.batch_size, self.whitening = targets, batch_size, whitening
        self.crop, self.flip, self.cutout, self.seed = crop, flip, cutout, seed
        self._mirrored_first: Tensor | None = None
        if flip and alternate_flips:
            drawn = torch.rand(len(targets), generator=generator_of(seed, 8))
            self._mirrored_first = drawn >= 0.5
        self.world = world or World()
        self._augments = bool(crop or flip or cutout)
        self._whiten_first = not self._augments or augment == "after-whitening"
        self.images = self.whitened(images) if self._whiten_first else images

    @classmethod
    def of(cls, recipe: Recipe, images: Tensor, targets: Tensor, **more: Any) -> Batches:
        """Those that a recipe asks for; ``more`` may give ``whitening`` and ``world``."""
        names = ("crop", "flip", "alternate_flips", "cutout", "augment", "seed")
        options = {name: getattr(recipe, name) for name in names}
        return cls(images, targets, recipe.batch_size, **options, **more)

    @property
    def num_data(self) -> int:
        return len(self.targets)

    @property
    def steps(self) -> int:
        """Steps in an epoch."""
        return -(-self.num_data // self.batch_size)

    def size(self, step: int) -> int:
        """Images in the batch of a step (from 0), over all processes."""
        return min(self.batch_size, self.num_data - step % self.steps * self.batch_size)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch (from 0), beginning with step ``start`` (from 0).

        Of each, this process's share; where it has none, the first image of the batch.
        """
        order = torch.randperm(self.num_data, generator=generator_of(self.seed, 1, epoch))
        for step, chosen in enumerate(order.split(self.batch_size)[start:], start):
            share = self.world.shares(len(chosen))[self.world.rank] or range(1)
            own = chosen[share.start : share.stop]
            index = own.to(self.images.device)
            inputs = self.images[index]
            if self._augments:
                inputs = random_crop_flip(
                    inputs,
                    margin=self.crop,
                    flip=self._flips(epoch, own),
                    cutout=self.cutout,
                    generator=generator_of(self.seed, 3, epoch, step, 0),
                    first=share.start,
                    total=len(chosen),
                )
            yield inputs if self._whiten_first else self.whitened(inputs), self.targets[index]

    def _flips(self, epoch: int, images: Tensor) -> bool | Tensor:
        """Which of these images are mirrored in an epoch, or whether that is drawn."""
        if self._mirrored_first is None:
            return self.flip
        return self._mirrored_first[images] ^ bool(epoch % 2)

    def clean(self, count: int, at_a_time: int | None = None) -> Iterator[Tensor]:
        """At most ``count`` images, chosen once, whitened and not augmented, in batches.

        They are the same in all processes. ``at_a_time`` is the size of these batches, by default
        that of training.
        """
        order = chosen_once(self.num_data, count, self.seed)
        for chosen in order.split(at_a_time or self.batch_size):
            images = self.images[chosen.to(self.images.device)]
            yield images if self._whiten_first else self.whitened(images)

    def whitened(self, images: Tensor) -> Tensor:
        """The images as the model sees them, without augmentation."""
        if self.whitening is None:
            return images
        return torch.cat([self.whitening(part) for part in images.split(4096)])
