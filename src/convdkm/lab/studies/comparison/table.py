"""The table of a training size: a row for each method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from convdkm.lab.baselines.methods import Method
from convdkm.lab.studies.cells import Cell
from convdkm.lab.studies.comparison.trial import METRICS
from convdkm.lab.studies.rendering import (
    LATEX,
    MISSING,
    OVER_SEEDS,
    Figure,
    Grid,
    Table,
    Tabular,
    decimals,
    in_seconds,
    latex_line,
    with_error,
)
from convdkm.lab.studies.statistics import Published
from convdkm.storage.text import in_latex


@dataclass(frozen=True)
class Claim:
    """A figure of the paper's Table 3, and whose it is."""

    label: str
    source: str
    accuracy: Published


@dataclass(frozen=True)
class Row:
    """A method at one training size.

    Attributes:
        label: what the method is called here.
        cells: by metric.
        fit_seconds: mean over seeds, as all below; None where none is finished.
        whole_fit: whether that is all of the time: not if every seed was begun again after a kill.
        predict_seconds: for a thousand test images.
        memory: in MiB, beyond what the process held before the fit.
        peak: in MiB, of the process.
        parameters: numbers learned.
        published: what Table 3 says of it.
    """

    method: Method
    label: str
    cells: Mapping[str, Cell]
    fit_seconds: float | None
    whole_fit: bool
    predict_seconds: float | None
    memory: float | None
    peak: float | None
    parameters: float | None
    published: tuple[Claim, ...] = ()

    @property
    def accuracy(self) -> Cell:
        """Of the test images."""
        return self.cells["accuracy"]

    @property
    def state(self) -> str:
        """``failed`` or ``missing`` where no seed is there; ``2 of 3 seeds``; empty if all are."""
        cell = self.accuracy
        if cell.complete:
            return ""
        if not cell.count:
            return "failed" if cell.failed else "missing"
        return f"{cell.count} of {cell.planned} seeds"

    def shown(self) -> Iterator[str | Figure]:
        """All but the label and what is published."""
        for name in METRICS[:3]:
            cell, state = self.cells[name], self.state if name == "accuracy" else ""
            if cell.ours is None:
                yield state or MISSING
            else:
                yield Figure(with_error(cell.ours, decimals(name)), cell.bold, note=state)
        fit = in_seconds(self.fit_seconds)
        yield fit if self.whole_fit else f"> {fit}"
        yield in_seconds(self.predict_seconds)
        yield from (MISSING if n is None else f"{n:,.0f}" for n in (self.memory, self.parameters))


@dataclass(frozen=True)
class SizeTable(Table):
    """The methods at one training size.

    Attributes:
        size: training images.
        terms: on what terms they were compared, in sentences.
    """

    name: str
    title: str
    size: int
    rows: tuple[Row, ...]
    terms: tuple[str, ...]
    notes: tuple[str, ...]

    legend = (
        f"{OVER_SEEDS} Log-likelihood and calibration error are of the"
        f" probabilities of the test images, {MISSING} where a method has none. Seconds: of the"
        " fit, and to predict 1,000 images. Memory: the most that the fit and the prediction took"
        " beyond what the process held before. Numbers learned include the weights of training"
        " images in kernel regression."
    )

    @property
    def lead(self) -> tuple[str, str]:
        return "", f"{'; '.join(self.terms)}."

    @property
    def grid(self) -> Grid:
        """Its only part; with a column of published figures where there are any."""
        head = ["Method", "Accuracy (%)", "Log-likelihood", "ECE", "Fit (s)", "Predict (s)"]
        claims = any(row.published for row in self.rows)
        rows: list[list[str | Figure]] = []
        for row in self.rows:
            figures = ", ".join(with_error(each.accuracy, 2) for each in row.published) or MISSING
            rows.append([row.label, *row.shown(), *([figures] * claims)])
        return Grid([*head, "MiB", "Learned", *(["Published (%)"] * claims)], rows)

    def grids(self) -> Iterator[Grid]:
        yield self.grid

    def tabular(self) -> Tabular:
        grid = self.grid
        rows = [[in_latex(row[0]), *map(LATEX.cell, row[1:])] for row in grid.rows]
        return Tabular(
            "booktabs, graphicx",
            in_latex(f"{self.title}. {self.lead[1]} {self.legend}"),
            f"compare-{self.name}",
            f"l{'r' * (len(grid.head) - 1)}",
            [latex_line(map(in_latex, grid.head)), r"\midrule", *map(latex_line, rows)],
        )

    def records(self) -> Iterator[Mapping[str, object]]:
        for row in self.rows:
            values: dict[str, object] = {
                "method": row.method.name,
                "label": row.label,
                "train_size": self.size,
            }
            for name in METRICS:
                cell = row.cells[name]
                values[name] = cell.ours and cell.ours.mean
                values[f"{name}_standard_error"] = cell.ours and cell.ours.error
                values[f"{name}_bold"] = cell.ours and int(cell.bold)
            yield values | {
                "fit_seconds": row.fit_seconds,
                "fit_seconds_whole": int(row.whole_fit),
                "predict_seconds_per_1000": row.predict_seconds,
                "added_memory_mib": row.memory,
                "peak_memory_mib": row.peak,
                "parameters": row.parameters,
                "seeds": row.accuracy.count,
                "seeds_planned": row.accuracy.planned,
                "seeds_failed": row.accuracy.failed,
                "published_accuracy": "; ".join(f"{e.accuracy.mean:g}" for e in row.published),
                "published_source": "; ".join(f"{e.label}, {e.source}" for e in row.published),
                "terms": self.lead[1],
            }
