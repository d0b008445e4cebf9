"""What a user asks of a comparison, checked and made into one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convdkm.config import RunConfig
from convdkm.data.registry import checked_dataset, is_known, locate
from convdkm.errors import InvalidInputError
from convdkm.lab.baselines.methods import chosen, method
from convdkm.lab.baselines.setting import Setting
from convdkm.lab.studies.comparison.folder import ComparisonFolder, Record, Scale, product
from convdkm.presets import preset as preset_named

if TYPE_CHECKING:
    from convdkm.lab.studies.comparison.comparison import Comparison
    from convdkm.lab.studies.study import Tell

USUAL_SIZE = 1000


def asked_for(
    dataset: str | None,
    *,
    methods: Sequence[str] | None,
    sizes: Sequence[str] | None,
    seeds: int,
    budget: float,
    preset: str,
    whitening: str | None,
    output: Path | None,
    data_dir: str | None,
    here: bool,
    tell: Tell,
    **given: Any,
) -> Comparison:
    """The comparison that the options of ``convdkm compare`` ask for, with its images.

    Nothing is written. Where no whitening is asked for, it is that of the folder, or that of the
    preset if so few training images can be fitted by it.
    """
    if dataset is None:
        raise InvalidInputError(
            "name a data set to compare methods on, such as convdkm compare digits; --list lists"
            " the methods"
        )
    if not budget > 0:
        raise InvalidInputError(f"--budget must be a positive number of minutes, got {budget:g}")
    dataset = checked_dataset(dataset)
    options = {**given, "whitening": whitening}
    RunConfig.of({k: v for k, v in options.items() if v is not None}, "the options")
    scale = Scale(
        dataset=dataset,
        preset=preset,
        whitening=whitening or preset_named(preset).config(dataset).training.whitening,
        minutes=None if math.isinf(budget) else budget,
        **given,
    )
    if seeds < 1:
        raise InvalidInputError(f"--seeds must be at least 1, got {seeds}")
    names = chosen(methods, flip=Setting(dataset=dataset, preset=preset).flip)
    wanted = None if sizes is None else [_size(text) for text in sizes]
    folder = ComparisonFolder(output or Path("comparisons") / (Path(dataset).stem or dataset))
    if whitening in (None, "auto") and folder.is_one(folder.path):
        scale = scale.model_copy(update={"whitening": folder.read().scale.whitening})
    folder.check(scale)
    if data_dir is not None:
        data_dir = str(Path(data_dir).expanduser().resolve())
    if is_known(dataset):
        locate(dataset, data_dir)
    from convdkm.data.whitening import chosen_whitening
    from convdkm.lab.studies.comparison.comparison import Comparison
    from convdkm.lab.studies.comparison.images import check_sizes, load_images

    data = load_images(scale, data_dir, tell.say)
    numbers = check_sizes(data, wanted or [min(USUAL_SIZE, len(data.train_images))])
    kind = chosen_whitening(scale.whitening, numbers[0], data.image_shape, tell.warn)
    scale = scale.model_copy(update={"whitening": kind})
    for each in (method(name) for name in chosen(methods) if name not in names):
        tell.say(f"{each.name} is left out: without flips it is {each.without_flips}")
    record = Record(scale=scale, plan=product(names, numbers, seeds))
    return Comparison(folder, record, data, here)


def _size(text: str) -> int | None:
    """A training size; None for all images."""
    if text == "all":
        return None
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise InvalidInputError(
        f"--train-size takes numbers of images, such as 500,1000, or all; got {text!r}"
    )
