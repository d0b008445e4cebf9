"""The figures of runs, without those that depend on the clock."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CLOCKS = {"seconds", "cpu_seconds", "images_per_second"}


def without_clocks(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in CLOCKS}


def final_figures(folder: Path) -> dict[str, Any]:
    """Those in ``metrics.json``."""
    return without_clocks(json.loads((folder / "metrics.json").read_text()))
