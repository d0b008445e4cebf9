"""The data and options that a method of a comparison is built for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from convdkm.config import RunConfig
from convdkm.presets import preset as preset_named

NATIVE_SIDE = 28
"""Side, in pixels, of the smallest images that the crops of presets are meant for."""


@dataclass(frozen=True)
class Setting:
    """The data and options that a method is built for.

    Attributes:
        dataset: name or path of the data set, which may have settings of its own in the preset.
        seed: of all random choices.
        preset: of the machine, the inducing NNGP and the CNN; crops and flips of all methods.
        side: shorter side of the images, in pixels.
        size: number of training images, if known; few images mean more epochs.
        folder: where a kernel may keep its blocks, so that an interrupted fit can resume.
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
