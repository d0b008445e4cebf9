"""What a method of a comparison is made for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from convdkm.config import RunConfig
from convdkm.presets import preset as preset_named

NATIVE_SIDE = 28
"""Of the smallest images that the crops of presets are made for, but for sets of small images."""


@dataclass(frozen=True)
class Setting:
    """What a method is made for.

    Attributes:
        dataset: its name or path, for settings of its own in the preset.
        seed: of all that is random.
        preset: of the machine, the inducing NNGP and the CNN; crops and flips of all methods.
        side: of the images, the shorter one.
        size: training images, if that is known; where they are few, epochs are made more.
        folder: where a kernel may keep its blocks, so that a fit that was killed can go on.
    """

    dataset: str = "images"
    seed: int = 0
    preset: str = "quick"
    side: int = 32
    size: int | None = None
    folder: Path | None = None

    @cached_property
    def config(self) -> RunConfig:
        """The preset's settings for the data set."""
        return preset_named(self.preset).config(self.dataset)

    @property
    def flip(self) -> bool:
        """Whether mirror images are of the same class: not for digits."""
        return self.config.training.flip

    @property
    def augmentation(self) -> dict[str, Any]:
        """Crops and flips, as options of a method.

        Crops of a preset are meant for images of :data:`NATIVE_SIDE` pixels; smaller ones move in
        proportion.
        """
        crop = round(self.config.training.crop * min(1.0, self.side / NATIVE_SIDE))
        return {"crop": crop, "flip": self.flip}
