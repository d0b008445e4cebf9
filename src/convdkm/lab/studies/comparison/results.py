"""The results of a comparison as tables: a row for each method, beside what is published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from convdkm.lab.baselines.methods import Method, method
from convdkm.lab.baselines.setting import Setting
from convdkm.lab.studies.comparison.folder import (
    ComparisonFolder,
    PlannedTrial,
    Record,
    TrialResult,
)
from convdkm.lab.studies.comparison.trial import METRICS
from convdkm.lab.studies.folder import counted
from convdkm.lab.studies.rendering import (
    LATEX,
    MISSING,
    OVER_SEEDS,
    Figure,
    Grid,
    Table,
    latex_line,
    latex_table,
    rounded,
    with_error,
)
from convdkm.lab.studies.statistics import Cell, Published, best_in_bold
from convdkm.lab.studies.sweeps.results import dataset_title
from convdkm.lab.studies.sweeps.specification import category
from convdkm.storage.text import in_latex

BOLD = ("accuracy", "log_likelihood")
MEBI = 2**20
PUBLISHED_ON = "cifar10"
TERA = 10**12
HEADS = (
    *("Accuracy (%)", "Log-likelihood", "ECE"),
    *("Fit (s)", "CPU (s)", "TFLOP", "Predict (s)", "MiB", "Learned"),
)


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
        cpu_seconds: time of processors, of the fit.
        flops: of the training steps, in TFLOP.
        predict_seconds: for a thousand test images.
        memory: in MiB, beyond what the process held before the fit.
        peak: in MiB, of the process.
        parameters: count of learned parameters.
        published: what Table 3 says of it.
    """

    method: Method
    label: str
    cells: Mapping[str, Cell]
    fit_seconds: float | None
    whole_fit: bool
    cpu_seconds: float | None
    flops: float | None
    predict_seconds: float | None
    memory: float | None
    peak: float | None
    parameters: float | None
    published: tuple[Claim, ...] = ()

    @property
    def accuracy(self) -> Cell:
        """The accuracy of the test images."""
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
        """The cells under the :data:`HEADS`."""
        for name in METRICS[:3]:
            cell, state = self.cells[name], self.state if name == "accuracy" else ""
            if cell.ours is None:
                yield state or MISSING
            else:
                yield Figure(with_error(cell.ours, name), cell.bold, note=state)
        for value in (self.fit_seconds, self.cpu_seconds):
            least = value is not None and not self.whole_fit
            yield f"{'> ' * least}{rounded(value)}"
        yield from map(rounded, (self.flops, self.predict_seconds))
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
        " fit, on the clock and of processors, and to predict 1,000 images. TFLOP: floating-point"
        " operations of training steps, of machines and the CNN. Memory: the most that the fit and"
        " the prediction took beyond what the process held before. Numbers learned include the"
        " weights of training images in kernel regression."
    )

    @property
    def lead(self) -> tuple[str, str]:
        return "", f"{'; '.join(self.terms)}."

    @property
    def grid(self) -> Grid:
        """Its only part; with a column of published figures where there are any."""
        claims = any(row.published for row in self.rows)
        rows: list[list[str | Figure]] = []
        for row in self.rows:
            figures = [with_error(each.accuracy, "accuracy") for each in row.published]
            rows.append([row.label, *row.shown(), *([", ".join(figures) or MISSING] * claims)])
        return Grid(["Method", *HEADS, *(["Published (%)"] * claims)], rows)

    def grids(self) -> Iterator[Grid]:
        yield self.grid

    def latex(self) -> str:
        grid = self.grid
        rows = [[in_latex(row[0]), *map(LATEX.cell, row[1:])] for row in grid.rows]
        return latex_table(
            "booktabs, graphicx",
            in_latex(f"{self.title}. {self.lead[1]} {self.legend}"),
            f"compare-{self.name}",
            f"l{'r' * (len(grid.head) - 1)}",
            [latex_line(map(in_latex, grid.head)), r"\midrule", *map(latex_line, rows)],
            notes=self.notes,
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
                "fit_cpu_seconds": row.cpu_seconds,
                "fit_tflop": row.flops,
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


class Results:
    """The trials of a comparison, read once.

    Args:
        path: folder of the comparison.
    """

    def __init__(self, path: str | Path) -> None:
        self.folder = ComparisonFolder(path)
        self.record: Record = self.folder.read()
        found = {trial: self.folder.status(trial) for trial in self.record.planned()}
        self.results = {trial: each for trial, each in found.items() if each.state != "missing"}
        self.title = f"Methods compared on {dataset_title(self.record.scale.dataset)}"

    def tables(self) -> list[SizeTable]:
        """One for each training size, in order."""
        sizes = {size for sizes in self.record.plan.values() for size in sizes}
        return [self._table(size) for size in sorted(sizes)]

    def terms(self) -> Iterator[str]:
        """What all methods have in common."""
        scale = self.record.scale
        counts = {each.test_images for each in self.results.values() if each.test_images}
        tested = " or ".join(f"{count:,}" for count in sorted(counts))
        yield f"Test images: {tested or 'none yet'}"
        if scale.image_size is not None:
            yield f"images made {scale.image_size}×{scale.image_size}"
        fitted = "" if scale.whitening == "none" else ", fitted to the training images"
        yield f"whitening: {scale.whitening}{fitted}"
        yield f"preset: {scale.preset}"
        limit = "no limit" if scale.minutes is None else f"at most {scale.minutes:g} min a fit"
        environments = [each.environment for each in self.results.values()]
        threads = {int(each["threads"]) for each in environments if "threads" in each}
        where = f" with {counted(threads.pop(), 'thread')}" if len(threads) == 1 else ""
        yield f"time: {limit}, on the CPU{where}"

    def _table(self, size: int) -> SizeTable:
        missing = TrialResult(state="missing")
        states = {
            name: [
                self.results.get(PlannedTrial(name, size, seed), missing)
                for seed in range(sizes[size])
            ]
            for name, sizes in self.record.plan.items()
            if size in sizes
        }
        columns = {}
        for metric in METRICS:
            cells = {name: Cell.of(each, metric) for name, each in states.items()}
            columns[metric] = best_in_bold(cells) if metric in BOLD else cells
        rows = [
            self._row(name, each, {metric: column[name] for metric, column in columns.items()})
            for name, each in states.items()
        ]
        return SizeTable(
            f"train-{size}",
            f"{self.title}: {size:,} training images",
            size,
            tuple(rows),
            tuple(self.terms()),
            tuple(self._notes(size, rows)),
        )

    def _row(self, name: str, states: Sequence[TrialResult], cells: Mapping[str, Cell]) -> Row:
        scale, made = self.record.scale, method(name)
        done = [each for each in states if each.state == "finished"]
        whole = [each for each in done if not each.resumed]
        per_thousand = [
            1000 * each.predict_seconds / each.test_images
            for each in done
            if each.predict_seconds is not None and each.test_images
        ]
        return Row(
            made,
            made.title(flip=Setting(scale.dataset, preset=scale.preset).flip),
            cells,
            _mean([each.fit_seconds for each in whole or done]),
            bool(whole) or not done,
            _mean([each.fit_cpu_seconds for each in whole or done]),
            _mean([each.fit_flops for each in done], TERA),
            _mean(per_thousand),
            _mean([each.added_memory for each in done], MEBI),
            _mean([each.peak_memory for each in done], MEBI),
            _mean([each.parameters for each in done]),
            claims(made) if scale.dataset == PUBLISHED_ON else (),
        )

    def _notes(self, size: int, rows: Sequence[Row]) -> Iterator[str]:
        """What is published, what failed and why, and what else is to be said."""
        for row in rows:
            for claim in row.published:
                yield (
                    f"Published, {row.method.name}: {claim.accuracy.mean:g}% is {claim.label},"
                    f" {claim.source}, as in the paper's Table 3."
                )
        if any(row.published for row in rows):
            yield (
                "Published figures are for all 50,000 training images, at the scale and with the"
                " settings of their papers; they are not to be expected here."
            )
        if any(row.accuracy.planned == 1 for row in rows):
            yield "One seed has no standard error; it is bold only if it is the best."
        results = {trial: each for trial, each in self.results.items() if trial.size == size}
        yield from _failures(results)
        for flag, words in (
            ("cut_short", "Cut short by the time limit"),
            ("resumed", "Gone on with after a kill, whose time is not counted"),
        ):
            counts = Counter(trial.method for trial, each in results.items() if getattr(each, flag))
            if counts:
                names = [f"{name} ({counted(count, 'seed')})" for name, count in counts.items()]
                yield f"{words}: {', '.join(names)}."
        environments = [each.environment for each in results.values() if each.environment]
        machines = {f"{e.get('processor')}, {e.get('threads')} threads" for e in environments}
        if len(machines) > 1:
            yield f"Times are of different machines: {'; '.join(sorted(machines))}."
        versions = {  # the commit of the program, or where there is none its version
            str((e.get("git") or {}).get("commit") or (e.get("packages") or {}).get("convdkm"))[:10]
            for e in environments
        }
        if len(versions) > 1:
            yield f"Trials are of different versions of the program: {', '.join(sorted(versions))}."
        planned = sum(row.accuracy.planned for row in rows)
        if len(results) < planned:
            yield (
                f"Not finished: {planned - len(results)} of {counted(planned, 'trial')}; the same"
                " command goes on with them."
            )


def claims(made: Method) -> tuple[Claim, ...]:
    """The figures of a method in Table 3."""
    table = category("comparison")
    return tuple(
        Claim(row.label, row.source or "", figure)
        for row in table.rows
        if row.name in made.rows
        and (figure := table.figure("test_accuracy", row.name, PUBLISHED_ON)) is not None
    )


def _failures(results: Mapping[PlannedTrial, TrialResult]) -> Iterator[str]:
    """Every reason once, with the seeds that it holds for."""
    reasons: dict[tuple[str, str, bool], list[str]] = {}
    for trial, each in results.items():
        if each.state == "failed":
            key = trial.method, each.error, each.refused
            reasons.setdefault(key, []).append(str(trial.seed))
    for (name, error, refused), seeds in reasons.items():
        words = "Failed before any work" if refused else "Failed"
        yield f"{words}: {name}, seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}: {error}"


def _mean(values: Sequence[float | None], unit: float = 1) -> float | None:
    there = [value / unit for value in values if value is not None]
    return fmean(there) if there else None
