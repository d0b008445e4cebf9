"""How numbers are written, whatever the format around them."""

from __future__ import annotations

import math

from convdkm.lab.studies.results import Cell
from convdkm.lab.studies.specification import Published
from convdkm.lab.studies.statistics import Summary

MISSING = "–"


def decimals(metric: str) -> int:
    """Digits after the point, as in the paper."""
    return 2 if metric.endswith("accuracy") else 4


def with_error(value: Summary | Published, digits: int, sign: str) -> str:
    """Mean ± standard error; the mean alone where there is no error; the published as printed."""
    if isinstance(value, Published):
        digits = round(-math.log10(value.unit))
    mean = f"{value.mean:.{digits}f}"
    return mean if value.error is None else f"{mean} {sign} {value.error:.{digits}f}"


def seeds(cell: Cell) -> str:
    """How many of the planned seeds a cell has, where it has not all; empty if it has."""
    if cell.complete:
        return ""
    count = 0 if cell.ours is None else cell.ours.count
    failed = f", {cell.failed} failed" if cell.failed else ""
    return f"{count} of {cell.planned}{failed}"
