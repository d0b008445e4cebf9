"""What a user asks of a comparison, checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convdkm.config import RunConfig
from convdkm.data.registry import checked_dataset
from convdkm.errors import InvalidInputError
from convdkm.lab.baselines.methods import chosen
from convdkm.lab.baselines.setting import Setting
from convdkm.lab.studies.comparison.folder import ComparisonFolder, Scale
from convdkm.presets import preset as preset_named

if TYPE_CHECKING:
    from convdkm.data import Dataset


@dataclass(frozen=True)
class Request:
    """What a user asks for, as given."""

    dataset: str | None
    methods: Sequence[str] | None
    sizes: Sequence[str] | None
    seeds: int
    budget: float
    test_size: int | None
    image_size: int | None
    preset: str
    whitening: str | None
    output: Path | None
    threads: int | None = None

    def scale(self) -> Scale:
        """What all trials have in common, checked."""
        if self.dataset is None:
            raise InvalidInputError(
                "name a data set to compare methods on, such as convdkm compare digits; --list"
                " lists the methods"
            )
        if not self.budget > 0:
            raise InvalidInputError(
                f"--budget must be a positive number of minutes, got {self.budget:g}"
            )
        dataset = checked_dataset(self.dataset)
        given: dict[str, Any] = {"test_size": self.test_size, "image_size": self.image_size}
        if self.whitening is not None:
            given["whitening"] = self.whitening
        there = {name: value for name, value in given.items() if value is not None}
        RunConfig.of(there, "the options")
        usual = preset_named(self.preset).config(dataset).data.whitening
        return Scale(
            dataset=dataset,
            preset=self.preset,
            whitening=self.whitening or usual,
            test_size=self.test_size,
            image_size=self.image_size,
            minutes=None if math.isinf(self.budget) else self.budget,
        )

    def chosen(self, scale: Scale) -> tuple[str, ...]:
        """The methods."""
        for name, number in (("seeds", self.seeds), ("threads", self.threads)):
            if number is not None and number < 1:
                raise InvalidInputError(f"--{name} must be at least 1, got {number}")
        flip = Setting(dataset=scale.dataset, preset=scale.preset).flip
        return chosen(self.methods, flip=flip)

    def wanted_sizes(self) -> list[int | None] | None:
        """Training sizes, None for all images; nothing where none is named."""
        if self.sizes is None:
            return None
        found: list[int | None] = []
        for text in self.sizes:
            if text == "all":
                found.append(None)
            elif text.isdecimal() and int(text) > 0:
                found.append(int(text))
            else:
                raise InvalidInputError(
                    f"--train-size takes numbers of images, such as 500,1000, or all; got {text!r}"
                )
        return found

    def folder(self, scale: Scale) -> ComparisonFolder:
        """Where it is kept."""
        name = Path(scale.dataset).stem or scale.dataset
        return ComparisonFolder(self.output or Path("comparisons") / name)

    def settled(self, scale: Scale, folder: ComparisonFolder) -> Scale:
        """The same, with the whitening of the folder where none was asked for; checked."""
        if self.whitening in (None, "auto") and folder.is_one(folder.path):
            scale = scale.model_copy(update={"whitening": folder.read().scale.whitening})
        folder.check(scale)
        return scale

    def fitting(
        self, scale: Scale, data: Dataset, least: int, warn: Callable[[str], None]
    ) -> Scale:
        """The same, with a whitening that so few training images can be fitted by."""
        from convdkm.data.whitening import chosen_whitening

        kind = chosen_whitening(scale.whitening, least, data.image_shape, warn)
        return scale.model_copy(update={"whitening": kind})
