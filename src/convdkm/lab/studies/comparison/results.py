"""What came out of a comparison, method by method, beside what is published."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from convdkm.lab.baselines.methods import Method, method
from convdkm.lab.baselines.setting import Setting
from convdkm.lab.studies.comparison.folder import ComparisonFolder, Record, TrialResult
from convdkm.lab.studies.comparison.planning import PlannedTrial
from convdkm.lab.studies.planning import counted
from convdkm.lab.studies.results import dataset_title
from convdkm.lab.studies.specification import Published, category
from convdkm.lab.studies.statistics import Summary, similar_to_best

BOLD = ("accuracy", "log_likelihood")
METRICS = (*BOLD, "ece", "brier")
MEBI = 2**20
PUBLISHED_ON = "cifar10"


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
        method: which.
        label: what it is called here.
        metrics: by name, over the finished seeds; accuracies in per cent. Without those that the
            method does not have.
        fit_seconds: mean over seeds; None where none is finished.
        whole_fit: whether that is all of the time: not if every seed was begun again after a kill.
        predict_seconds: for a thousand test images.
        memory: in MiB, beyond what the process held before the fit.
        peak: in MiB, of the process.
        parameters: numbers learned.
        planned, failed: seeds.
        bold: metrics in which it is the best, or not significantly worse.
        published: what Table 3 says of it.
    """

    method: Method
    label: str
    metrics: Mapping[str, Summary]
    fit_seconds: float | None
    whole_fit: bool
    predict_seconds: float | None
    memory: float | None
    peak: float | None
    parameters: float | None
    planned: int
    failed: int
    bold: frozenset[str] = frozenset()
    published: tuple[Claim, ...] = ()

    @property
    def accuracy(self) -> Summary | None:
        """Of the test images, in per cent."""
        return self.metrics.get("accuracy")

    @property
    def state(self) -> str:
        """``failed`` or ``missing`` where no seed is there; ``2 of 3 seeds``; empty if all are."""
        count = 0 if self.accuracy is None else self.accuracy.count
        if count == self.planned:
            return ""
        if not count:
            return "failed" if self.failed else "missing"
        return f"{count} of {self.planned} seeds"


@dataclass(frozen=True)
class SizeTable:
    """The methods at one training size.

    Attributes:
        name: for files.
        title: at its head.
        size: training images.
        rows: the methods.
        terms: on what terms they were compared, in sentences.
        notes: what is missing and why, and what else is to be said.
    """

    name: str
    title: str
    size: int
    rows: tuple[Row, ...]
    terms: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def claims(self) -> bool:
        """Whether anything is published of these methods on this data."""
        return any(row.published for row in self.rows)


@dataclass
class Comparison:
    """The trials of a comparison, read once.

    Args:
        path: folder of the comparison.
    """

    path: Path
    folder: ComparisonFolder = field(init=False)
    record: Record = field(init=False)
    results: dict[PlannedTrial, TrialResult] = field(init=False)

    def __post_init__(self) -> None:
        self.folder = ComparisonFolder(self.path)
        self.record = self.folder.read()
        found = {trial: self.folder.result(trial) for trial in self.record.trials()}
        self.results = {trial: each for trial, each in found.items() if each is not None}

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
        rows = [
            self._row(name, size) for name in self.record.plan if size in self.record.plan[name]
        ]
        for metric in BOLD:
            summaries = {
                row.method.name: row.metrics[metric] for row in rows if metric in row.metrics
            }
            best = similar_to_best(summaries)
            rows = [_with_bold(row, metric) if row.method.name in best else row for row in rows]
        return SizeTable(
            f"train-{size}",
            f"{self.title}: {size:,} training images",
            size,
            tuple(rows),
            tuple(self.terms()),
            tuple(self._notes(size, rows)),
        )

    def _row(self, name: str, size: int) -> Row:
        scale = self.record.scale
        made, seeds = method(name), self.record.plan[name][size]
        found = [self.results.get(PlannedTrial(name, size, seed)) for seed in range(seeds)]
        done = [each for each in found if each is not None and each.state == "finished"]
        whole = [each for each in done if not each.resumed]
        per_thousand = [
            1000 * each.predict_seconds / each.test_images
            for each in done
            if each.predict_seconds is not None and each.test_images
        ]
        return Row(
            made,
            made.title(flip=Setting(scale.dataset, preset=scale.preset).flip),
            _summaries([each.metrics for each in done]),
            _mean([each.fit_seconds for each in whole or done]),
            bool(whole) or not done,
            _mean(per_thousand),
            _scaled(_mean([each.added_memory for each in done])),
            _scaled(_mean([each.peak_memory for each in done])),
            _mean([each.parameters for each in done]),
            seeds,
            sum(each is not None and each.state == "failed" for each in found),
            published=claims(made) if scale.dataset == PUBLISHED_ON else (),
        )

    def _notes(self, size: int, rows: Sequence[Row]) -> Iterator[str]:
        trials = [trial for trial in self.record.trials() if trial.size == size]
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
        if any(row.planned == 1 for row in rows):
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


def _with_bold(row: Row, metric: str) -> Row:
    return replace(row, bold=row.bold | {metric})


def _summaries(metrics: Sequence[Mapping[str, float]]) -> dict[str, Summary]:
    found = {}
    for name in METRICS:
        factor = 100 if name == "accuracy" else 1
        summary = Summary.of([factor * each[name] for each in metrics if name in each])
        if summary is not None:
            found[name] = summary
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None


def _scaled(count: float | None) -> float | None:
    return None if count is None else count / MEBI


def _named(results: Mapping[PlannedTrial, TrialResult], flag: str) -> list[str]:
    """Methods of which a trial has a flag, with how many."""
    counts: dict[str, int] = {}
    for trial, each in results.items():
        if getattr(each, flag):
            counts[trial.method] = counts.get(trial.method, 0) + 1
    return [f"{name} ({counted(count, 'seed')})" for name, count in counts.items()]
