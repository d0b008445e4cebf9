"""What came out of a comparison, method by method, beside what is published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from convdkm.lab.baselines.methods import Method, method
from convdkm.lab.baselines.setting import Setting
from convdkm.lab.studies.cells import Cell, best_in_bold
from convdkm.lab.studies.comparison.folder import (
    ComparisonFolder,
    PlannedTrial,
    Record,
    TrialResult,
)
from convdkm.lab.studies.comparison.table import Claim, Row, SizeTable
from convdkm.lab.studies.comparison.trial import METRICS
from convdkm.lab.studies.folder import counted
from convdkm.lab.studies.sweeps.specification import category
from convdkm.lab.studies.sweeps.table import dataset_title

BOLD = ("accuracy", "log_likelihood")
MEBI = 2**20
PUBLISHED_ON = "cifar10"


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

    @property
    def sizes(self) -> list[int]:
        """Training sizes that are planned, in order."""
        return sorted({size for sizes in self.record.plan.values() for size in sizes})

    @property
    def title(self) -> str:
        """Of the whole."""
        return f"Methods compared on {dataset_title(self.record.scale.dataset)}"

    def tables(self) -> list[SizeTable]:
        """One for each training size."""
        return [self._table(size) for size in self.sizes]

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
        names = [name for name, sizes in self.record.plan.items() if size in sizes]
        columns = {metric: self._column(names, size, metric) for metric in METRICS}
        rows = [
            self._row(name, size, {metric: column[name] for metric, column in columns.items()})
            for name in names
        ]
        return SizeTable(
            f"train-{size}",
            f"{self.title}: {size:,} training images",
            size,
            tuple(rows),
            tuple(self.terms()),
            tuple(self._notes(size, rows)),
        )

    def _states(self, name: str, size: int) -> list[TrialResult]:
        """How far each seed of a method has come."""
        missing = TrialResult(state="missing")
        seeds = range(self.record.plan[name][size])
        return [self.results.get(PlannedTrial(name, size, seed), missing) for seed in seeds]

    def _column(self, names: Sequence[str], size: int, metric: str) -> dict[str, Cell]:
        cells = {name: Cell.of(self._states(name, size), metric) for name in names}
        return best_in_bold(cells) if metric in BOLD else cells

    def _row(self, name: str, size: int, cells: Mapping[str, Cell]) -> Row:
        scale, made = self.record.scale, method(name)
        done = [each for each in self._states(name, size) if each.state == "finished"]
        whole = [each for each in done if not each.resumed]
        return Row(
            made,
            made.title(flip=Setting(scale.dataset, preset=scale.preset).flip),
            cells,
            _mean([each.fit_seconds for each in whole or done]),
            bool(whole) or not done,
            _mean(
                [
                    1000 * each.predict_seconds / each.test_images
                    for each in done
                    if each.predict_seconds is not None and each.test_images
                ]
            ),
            _mean([each.added_memory for each in done], MEBI),
            _mean([each.peak_memory for each in done], MEBI),
            _mean([each.parameters for each in done]),
            claims(made) if scale.dataset == PUBLISHED_ON else (),
        )

    def _notes(self, size: int, rows: Sequence[Row]) -> Iterator[str]:
        trials = [trial for trial in self.record.planned() if trial.size == size]
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
        yield from self._events(trials)
        missing = [trial for trial in trials if trial not in self.results]
        if missing:
            yield (
                f"Not finished: {len(missing)} of {counted(len(trials), 'trial')}; the same command"
                " goes on with them."
            )

    def _events(self, trials: Sequence[PlannedTrial]) -> Iterator[str]:
        """What failed and why, what was cut short or resumed, and on which machines."""
        results = {trial: self.results[trial] for trial in trials if trial in self.results}
        yield from self._failures(results)
        for word, names in (
            ("Cut short by the time limit", _named(results, "cut_short")),
            ("Gone on with after a kill, whose time is not counted", _named(results, "resumed")),
        ):
            if names:
                yield f"{word}: {', '.join(names)}."
        machines = {
            f"{each.environment.get('processor')}, {each.environment.get('threads')} threads"
            for each in results.values()
            if each.environment
        }
        if len(machines) > 1:
            yield f"Times are of different machines: {'; '.join(sorted(machines))}."
        versions = {_version(each) for each in results.values() if each.environment}
        if len(versions) > 1:
            yield f"Trials are of different versions of the program: {', '.join(sorted(versions))}."

    def _failures(self, results: Mapping[PlannedTrial, TrialResult]) -> Iterator[str]:
        """Every reason once, with the seeds that it holds for."""
        reasons: dict[tuple[str, str, bool], list[int]] = {}
        for trial, each in results.items():
            if each.state == "failed":
                key = trial.method, each.error, each.refused
                reasons.setdefault(key, []).append(trial.seed)
        for (name, error, refused), seeds in reasons.items():
            which = "seed" if len(seeds) == 1 else "seeds"
            word = "Failed before any work" if refused else "Failed"
            yield f"{word}: {name}, {which} {', '.join(map(str, seeds))}: {error}"


def claims(made: Method) -> tuple[Claim, ...]:
    """What Table 3 says of a method."""
    table = category("comparison")
    found = []
    for row in table.rows:
        figure = table.figure("test_accuracy", row.name, PUBLISHED_ON)
        if row.name in made.rows and figure is not None:
            found.append(Claim(row.label, row.source or "", figure))
    return tuple(found)


def _version(result: TrialResult) -> str:
    """Of the program that made a trial: its commit, or where there is none its number."""
    git = result.environment.get("git") or {}
    packages = result.environment.get("packages") or {}
    return str(git.get("commit") or packages.get("convdkm"))[:10]


def _mean(values: Sequence[float | None], unit: float = 1) -> float | None:
    there = [value / unit for value in values if value is not None]
    return fmean(there) if there else None


def _named(results: Mapping[PlannedTrial, TrialResult], flag: str) -> list[str]:
    """Methods of which a trial has a flag, with how many."""
    counts = Counter(trial.method for trial, each in results.items() if getattr(each, flag))
    return [f"{name} ({counted(count, 'seed')})" for name, count in counts.items()]
