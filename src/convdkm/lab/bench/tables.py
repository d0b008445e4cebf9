"""The results of the bench as tables, for the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BAR = 30
"""Columns of the longest bar."""
BARS = "█ forward ▒ backward"


@dataclass(frozen=True)
class Sheet:
    """A table: its title, the heads of its columns and its rows, all as text."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]

    @property
    def right(self) -> tuple[str, ...]:
        """The columns of figures."""
        return tuple(head for head in self.columns if head not in ("", BARS))

    def markdown(self) -> str:
        rule = tuple("---:" if head in self.right else "---" for head in self.columns)
        lines = [self.columns, rule, *self.rows]
        body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"**{self.title}**\n\n{body}\n"


def sheets(results: Mapping[str, Any]) -> list[Sheet]:
    """All tables of the results there are."""
    made = []
    for row in results.get("rows", []):
        made += [_training(row), _prediction(row)]
    if "rows" in results:
        made += [_ratios(results), _precision(results["precision"])]
    if "scaling" in results:
        made.append(_scaling(results["scaling"]))
    if "profile" in results:
        made.append(_profile(results["profile"]))
    return made


def heading(results: Mapping[str, Any]) -> list[str]:
    """Where and when, in a few lines."""
    machine, versions = results["machine"], results["versions"]
    memory = machine["memory_gib"]
    size = "" if memory is None else f", {memory:g} GiB"
    named = ", ".join(f"{name} {versions[name]}" for name in ("convdkm", "torch", "python"))
    return [
        f"{machine['processor']}, {machine['cores']} cores, {machine['threads']} threads{size}",
        f"{named}; {results['date']}",
        "compiled: elementwise functions of a step, the whole predictor"
        + ("; steps are recorded" if "compare" in results["settings"]["parts"] else "")
        if results["settings"]["compiled"]
        else "nothing compiled",
    ]


def notes(results: Mapping[str, Any]) -> list[str]:
    """Remarks on how the figures came about, each once."""
    return list(dict.fromkeys(note for row in results.get("rows", []) for note in row["notes"]))


def _name(widths: Any) -> str:
    return "/".join(map(str, widths))


def _training(row: Mapping[str, Any]) -> Sheet:
    own = row["train"]["ours"]
    rows: list[tuple[str, ...]] = []
    for name, each in row["train"].items():
        shown = f"{name} (floor)" if name == row["floor"] else name
        rows.append(
            (
                shown if each["run_with_batch"] == row["batch"] else f"{shown} (scaled up)",
                _seconds(each["step"]),
                _seconds(each["forward"]),
                f"{each['images_per_second']:.0f}",
                _bytes(each["memory"]),
                f"{each['step'] / own['step']:.2f}",
                f"{each['memory'] / own['memory']:.2f}",
            )
        )
    return Sheet(
        f"Training, {_name(row['widths'])}, batches of {row['batch']},"
        f" {row['side']}×{row['side']} images",
        ("", "step", "forward", "images/s", "memory", "time/ours", "memory/ours"),
        rows,
    )


def _prediction(row: Mapping[str, Any]) -> Sheet:
    own = row["predict"]["ours"]
    rows: list[tuple[str, ...]] = []
    for name, each in row["predict"].items():
        shown = f"{name} (floor)" if name == row["predict_floor"] else name
        rate = f"{each['images_per_second']:.0f}"
        rows.append(
            (shown, _seconds(each["seconds"]), rate, f"{each['seconds'] / own['seconds']:.2f}")
        )
    return Sheet(
        f"Prediction, {_name(row['widths'])}, batches of {row['batch']}",
        ("", "batch", "images/s", "time/ours"),
        rows,
    )


def _ratios(results: Mapping[str, Any]) -> Sheet:
    titles = {
        "train_step_textbook_over_ours": "training step, textbook over ours",
        "train_step_ours_over_cnn": "training step, ours over CNN",
        "predict_ours_over_cnn": "prediction, ours over CNN",
        "train_memory_ours_over_cnn": "training memory, ours over CNN",
        "train_memory_checkpointed_over_cnn": "training memory, checkpointed over CNN",
    }
    rows = results["rows"]
    return Sheet(
        "Ratios",
        ("", *(_name(row["widths"]) for row in rows)),
        [
            (title, *(f"{row['ratios'][name]:.2f}" for row in rows))
            for name, title in titles.items()
        ],
    )


def _precision(precision: Mapping[str, Any]) -> Sheet:
    named = {"single": "float32 data path", "nudged": "float64, started 1e-7 away"}
    return Sheet(
        f"Objective after {precision['steps']} steps, relative to float64",
        ("", "difference"),
        [
            (title, f"{precision[name]:.1e}")
            for name, title in named.items()
            if precision[name] is not None
        ],
    )


def _scaling(axes: list[Mapping[str, Any]]) -> Sheet:
    base = axes[0]["around"]
    return Sheet(
        f"Growth of a step, around {_name(base['widths'])}, batches of {base['batch']};"
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
    stages, base = profile["stages"], profile["around"]
    whole = sum(each["forward"] + each["backward"] for each in stages)
    longest = max(each["forward"] + each["backward"] for each in stages)
    rows: list[tuple[str, ...]] = []
    for each in stages:
        total = each["forward"] + each["backward"]
        ahead = round(BAR * each["forward"] / longest)
        bar = "█" * ahead + "▒" * (round(BAR * total / longest) - ahead)
        rows.append(
            (
                each["stage"],
                _seconds(each["forward"]),
                _seconds(each["backward"]),
                f"{total / whole:.1%}",
                bar,
            )
        )
    return Sheet(
        f"Where a step goes, {_name(base['widths'])}, batches of {base['batch']}"
        f" ({_seconds(whole)} under the profiler)",
        ("", "forward", "backward", "share", BARS),
        rows,
    )


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.1f} ms"


def _bytes(value: float) -> str:
    return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.1f} MiB"
