"""What a user names: the settings of a run, or the folder of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convdkm.checks import check_choice
from convdkm.choices import ViewsName
from convdkm.cli.output import warn
from convdkm.config import RunConfig, nested
from convdkm.data.registry import checked_dataset
from convdkm.errors import InvalidInputError
from convdkm.options import nearest
from convdkm.presets import default_for
from convdkm.presets import preset as preset_of
from convdkm.pretrained import known, located
from convdkm.storage.text import named_path
from convdkm.storage.yaml_file import read_yaml

if TYPE_CHECKING:
    from convdkm.training.run import Run


def resolve(
    dataset: str | None, preset: str | None, config: Path | None, options: Mapping[str, Any]
) -> tuple[RunConfig, str]:
    """The configuration, and the preset's name: preset, then file, then flags."""
    from_file = {} if config is None else read_yaml(config)
    in_file = from_file.pop("preset", None)
    section = from_file.get("data")
    in_section = section.get("dataset") if isinstance(section, Mapping) else None
    named = dataset or from_file.get("dataset") or in_section or "digits"
    name = checked_dataset(str(named))
    sections = nested({**from_file, **options}, str(config))
    given = {option: value for fields in sections.values() for option, value in fields.items()}
    usual = default_for(name) if given.get("start_from") is None else "fast"
    preset = str(preset or in_file or usual)
    settings = preset_of(preset).config(name)
    settings = settings.updated({**from_file, "dataset": name}, str(config))
    settings = settings.updated({**options, "dataset": name})
    if settings.data.data_dir is not None:
        place = named_path(settings.data.data_dir).resolve()
        settings = settings.updated({"data_dir": str(place)})
    if settings.training.start_from is not None:
        from convdkm.training.origin import with_machine_of_origin

        settings = with_machine_of_origin(settings, given)
    return settings, preset


def given_options(texts: Iterable[str]) -> dict[str, str]:
    """Options given as ``--set NAME=VALUE``, by their names in the configuration."""
    given: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        name = name.removeprefix("--").replace("-", "_")
        if not (name and equals and value):
            raise InvalidInputError(f"--set needs NAME=VALUE, such as gram_scale=1, got {text!r}")
        if name in given:
            raise InvalidInputError(f"--set {name} is given twice")
        given[name] = value
    return given


def checked_views(name: str | None) -> ViewsName | None:
    """The views of ``--views``."""
    if name is not None:
        check_choice("--views", name, ViewsName)
    return name  # type: ignore[return-value]


def open_run(source: Path, checkpoint: str, device: str | None) -> Run:
    """A run from its folder, or a machine from its file or by its name.

    A damaged checkpoint is reported.
    """
    from convdkm.training.checkpoint import Which
    from convdkm.training.run import Run

    check_choice("--checkpoint", checkpoint, Which)
    path = located(source)
    if not path.exists() and (meant := nearest(str(source), known())):
        raise InvalidInputError(f"there is no run, file or pretrained machine {source}.{meant}")
    if path.is_file():
        if checkpoint != "last":
            raise InvalidInputError(f"--checkpoint goes with a run, and {source} is one machine")
        return Run.load(path, device=device)
    run = Run.open(path, checkpoint, device=device)  # type: ignore[arg-type]
    if run.warning is not None:
        warn(run.warning)
    return run
