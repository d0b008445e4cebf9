"""The results of the bench as tables, for the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

BAR = 30
"""Columns of the longest bar."""
BARS = "█ forward ▒ backward"
RATIOS = {
    "train_step_textbook_over_ours": "training step, textbook over ours",
    "train_step_ours_over_cnn": "training step, ours over CNN",
    "predict_ours_over_cnn": "prediction, ours over CNN",
    "train_memory_ours_over_cnn": "training memory, ours over CNN",
    "train_memory_checkpointed_over_cnn": "training memory, checkpointed over CNN",
    "train_flops_textbook_over_ours": "FLOPs of a training step, textbook over ours",
    "train_flops_ours_over_cnn": "FLOPs of a training step, ours over CNN",
    "predict_flops_ours_over_cnn": "FLOPs of a prediction, ours over CNN",
}
FLOPS = ("GFLOP", "GFLOP/s")
PRECISIONS = {"single": "float32 data path", "nudged": "float64, started 1e-7 away"}


@dataclass(frozen=True)
class Sheet:
    """A table: its title, the heads of its columns and its rows, all as text."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    @property
    def right(self) -> tuple[str, ...]:
        """The columns of figures."""
        return tuple(head for head in self.columns if head not in ("", BARS))

    def markdown(self) -> str:
        rule = tuple("---:" if head in self.right else "---" for head in self.columns)
        lines = [self.columns, rule, *self.rows]
        body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"**{self.title}**\n\n{body}\n"


def sheets(results: Mapping[str, Any]) -> Iterator[Sheet]:
    """All tables of the results there are."""
    for row in results.get("rows", []):
        yield _training(row)
        yield _prediction(row)
    if "rows" in results:
        rows, precision = results["rows"], results["precision"]
        yield Sheet(
            "Ratios",
            ("", *(_around(row["widths"]) for row in rows)),
            [(RATIOS[name], *(f"{row['ratios'][name]:.2f}" for row in rows)) for name in RATIOS],
        )
        found = {name: precision[name] for name in PRECISIONS if precision[name] is not None}
        yield Sheet(
            f"Objective after {precision['steps']} steps, relative to float64",
            ("", "difference"),
            [(PRECISIONS[name], f"{value:.1e}") for name, value in found.items()],
        )
    if "scaling" in results:
        yield _scaling(results["scaling"])
    if "profile" in results:
        yield _profile(results["profile"])


def heading(results: Mapping[str, Any]) -> list[str]:
    """Where and when, in a few lines."""
    machine, versions, settings = results["machine"], results["versions"], results["settings"]
    memory = machine["memory_gib"]
    size = "" if memory is None else f", {memory:g} GiB"
    named = ", ".join(f"{name} {versions[name]}" for name in ("convdkm", "torch", "python"))
    compiled = "nothing compiled"
    if settings["compiled"]:
        recorded = "; steps are recorded" if "compare" in settings["parts"] else ""
        compiled = f"compiled: elementwise functions of a step, the whole predictor{recorded}"
    return [
        f"{machine['processor']}, {machine['cores']} cores, {machine['threads']} threads{size}",
        f"{named}; {results['date']}",
        compiled,
    ]


def notes(results: Mapping[str, Any]) -> list[str]:
    """Remarks on how the figures came about, each once."""
    return list(dict.fromkeys(note for row in results.get("rows", []) for note in row["notes"]))


def _training(row: Mapping[str, Any]) -> Sheet:
    ours = row["train"]["ours"]
    rows = []
    for name, each in row["train"].items():
        floor = " (floor)" if name == row["floor"] else ""
        scaled = "" if each["run_with_batch"] == row["batch"] else " (scaled up)"
        rows.append(
            (
                f"{name}{floor}{scaled}",
                _seconds(each["step"]),
                _seconds(each["forward"]),
                f"{each['images_per_second']:.0f}",
                _bytes(each["memory"]),
                f"{each['step'] / ours['step']:.2f}",
                f"{each['memory'] / ours['memory']:.2f}",
                _giga(each["flops"]),
                _giga(each["flops_per_second"]),
            )
        )
    return Sheet(
        f"Training, {_around(row['widths'], row['batch'])}, {row['side']}×{row['side']} images",
        ("", "step", "forward", "images/s", "memory", "time/ours", "memory/ours", *FLOPS),
        rows,
    )


def _prediction(row: Mapping[str, Any]) -> Sheet:
    rows = []
    for name, each in row["predict"].items():
        floor = " (floor)" if name == row["predict_floor"] else ""
        ratio = each["seconds"] / row["predict"]["ours"]["seconds"]
        speed = f"{each['images_per_second']:.0f}"
        flops = _giga(each["flops"]), _giga(each["flops_per_second"])
        rows.append((f"{name}{floor}", _seconds(each["seconds"]), speed, f"{ratio:.2f}", *flops))
    title = f"Prediction, {_around(row['widths'], row['batch'])}"
    return Sheet(title, ("", "batch", "images/s", "time/ours", *FLOPS), rows)


def _scaling(axes: list[Mapping[str, Any]]) -> Sheet:
    base = axes[0]["around"]
    return Sheet(
        f"Growth of a step, around {_around(base['widths'], base['batch'])};"
        " exponents by theory where the data dominates (where the inducing chain does)",
        ("", "sizes", "step", "exponent", "theory", "memory", "exponent", "theory"),
        [
            (
                each["axis"],
                ", ".join(map(str, each["sizes"])),
                ", ".join(map(_seconds, each["seconds"])),
                f"{each['time_exponent']:.2f}",
                each["time_theory"],
                ", ".join(map(_bytes, each["bytes"])),
                f"{each['memory_exponent']:.2f}",
                each["memory_theory"],
            )
            for each in axes
        ],
    )


def _profile(profile: Mapping[str, Any]) -> Sheet:
    base = profile["around"]
    stages = [(each["stage"], each["forward"], each["backward"]) for each in profile["stages"]]
    totals = [forward + backward for _, forward, backward in stages]
    whole, unit = sum(totals), BAR / max(totals)
    rows = []
    for (stage, forward, backward), total in zip(stages, totals, strict=True):
        ahead = round(unit * forward)
        bar = "█" * ahead + "▒" * (round(unit * total) - ahead)
        rows.append((stage, _seconds(forward), _seconds(backward), f"{total / whole:.1%}", bar))
    return Sheet(
        f"Where a step goes, {_around(base['widths'], base['batch'])}"
        f" ({_seconds(whole)} under the profiler)",
        ("", "forward", "backward", "share", BARS),
        rows,
    )


def _around(widths: Iterable[int], batch: int | None = None) -> str:
    """The sizes of a workload."""
    name = "/".join(map(str, widths))
    return name if batch is None else f"{name}, batches of {batch}"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.1f} ms"


def _giga(value: float) -> str:
    return f"{value / 1e9:,.0f}" if value >= 1e11 else f"{value / 1e9:.3g}"


def _bytes(value: float) -> str:
    return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.1f} MiB"
