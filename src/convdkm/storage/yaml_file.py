"""Reading YAML that someone else may have written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from convdkm.errors import InvalidInputError
from convdkm.storage.files import read_text

MOST_VALUES = 100_000
"""Values of a file, those that aliases repeat counted each time."""
MOST_LEVELS = 50
MOST_DIGITS = 1000
_NUMBER = re.compile(r"[-+]?\.?\d")


def read_yaml(path: str | Path) -> dict[str, Any]:
    """A YAML file that holds a mapping; nothing but plain values is built.

    What a few lines of YAML can grow to is bounded before anything is built: nested lists, numbers
    of many digits, and aliases of aliases.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same, and faster
    try:
        text = read_text(Path(path))
        _check_size(yaml.parse(text, Loader=loader))
        content = yaml.load(text, Loader=loader)
    except InvalidInputError as error:
        raise InvalidInputError(f"cannot read {path}: {error.message}") from None
    except OSError as error:
        raise InvalidInputError(f"cannot read {path}: {error.strerror or error}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidInputError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InvalidInputError(f"{path} must hold options and their values")
    return {str(key): value for key, value in content.items()}


def _check_size(events: Any) -> None:
    """Raise if what a stream of parsing events describes is too large to be settings."""
    import yaml

    counts = [0]
    names: list[str | None] = []
    anchors: dict[str | None, int] = {}
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            counts.append(1)
            names.append(event.anchor)
            if len(counts) > MOST_LEVELS:
                raise InvalidInputError(f"it nests values more than {MOST_LEVELS} levels deep")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            count, name = counts.pop(), names.pop()
        elif isinstance(event, yaml.ScalarEvent):
            count, name = 1, event.anchor
            if len(event.value) > MOST_DIGITS and _NUMBER.match(event.value) and not event.style:
                raise InvalidInputError(f"it holds a number of {len(event.value):,} digits")
        elif isinstance(event, yaml.AliasEvent):
            count, name = anchors.get(event.anchor, MOST_VALUES), None
        else:
            continue
        if name is not None:
            anchors[name] = count
        counts[-1] += count
        if counts[-1] > MOST_VALUES:
            raise InvalidInputError(
                f"it holds more than {MOST_VALUES:,} values, or an alias of what it is part of"
            )
