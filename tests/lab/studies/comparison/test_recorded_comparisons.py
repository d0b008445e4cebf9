"""The comparisons that are kept with the results: one file of trials gives their page again."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from comparison_helpers import finished, made_up
from html_page import Page
from PIL import Image

from convdkm.lab.studies.comparison.folder import (
    PACKED,
    ComparisonFolder,
    PlannedTrial,
    TrialResult,
)
from convdkm.lab.studies.comparison.page import write_methods_page
from convdkm.lab.studies.comparison.results import Results

DOCS = Path(__file__).parents[4] / "docs" / "results"
SETS = {"cifar10": ("CIFAR-10", "comparison"), "mnist": ("MNIST", "comparison-mnist")}
DIGITS = {"accuracy": 1, "log_likelihood": 3, "ece": 3}


def shown_tables(title):
    """The tables of a data set on the page: each by its heads, with its rows by their methods."""
    text = (
        (DOCS / "comparison.md").read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    )
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        head, _, *rows = [
            [cell.strip() for cell in line.strip("|\n").split("|")] for line in block.splitlines()
        ]
        found.append((head, {cells[0].strip("`"): cells[1:] for cells in rows}))
    return found


def short(seconds):
    return f"{seconds:,.0f}" if seconds >= 10 else f"{seconds:.2g}"


def metric_cell(row, metric):
    cell, digits = row.cells[metric], DIGITS[metric]
    text = f"{cell.ours.mean:.{digits}f} ± {cell.ours.error:.{digits}f}".replace("-", "−")
    return f"**{text}**" if cell.bold else text


@pytest.mark.parametrize("name", SETS)
def test_the_tables_of_the_page_follow_from_the_file(name):
    tables = Results(DOCS / "comparison" / name).tables()
    by_method = {}
    for table in tables:
        for row in table.rows:
            by_method.setdefault(row.method.name, []).append(row)
    sizes = [f"{table.size:,}" for table in tables]
    *metrics, (head, times) = shown_tables(SETS[name][0])
    assert len(metrics) == len(DIGITS)
    for metric, (columns, rows) in zip(DIGITS, metrics, strict=True):
        assert columns == ["method", *sizes]
        expected = {
            method: [metric_cell(row, metric) for row in each] for method, each in by_method.items()
        }
        assert rows == expected
    assert head == ["method", *sizes, "MiB at 500", "numbers learned at 500"]
    assert times == {
        method: [
            *(f"{short(row.fit_seconds)} + {short(row.predict_seconds)}" for row in each),
            f"{each[0].memory:,.0f}",
            f"{each[0].parameters:,.0f}",
        ]
        for method, each in by_method.items()
    }


@pytest.mark.parametrize("name", SETS)
def test_the_commands_make_its_figures_and_a_page_again(name, call, tmp_path):
    """The figures as they are shown, but for what another matplotlib draws otherwise."""
    folder = DOCS / "comparison" / name
    code, text, _ = call("tables", folder, "-o", tmp_path)
    assert code == 0
    assert text.count("\n## ") + text.startswith("## ") == 3
    assert "Not finished" not in text
    for ending in ("size", "seconds"):
        made = Image.open(tmp_path / f"accuracy-by-{ending}.png").convert("L")
        kept = Image.open(DOCS / f"{SETS[name][1]}-{ending}.png").convert("L")
        assert made.size == kept.size
        difference = np.abs(np.asarray(made, float) - np.asarray(kept, float))
        assert (difference > 64).mean() < 0.01
    page = Page(write_methods_page(folder, tmp_path / "page.html").read_text())
    assert "said" in page.sections
    assert "Not finished" not in page.text


def test_trials_are_put_into_one_file_and_new_ones_come_before_it(tmp_path):
    failure = TrialResult(state="failed", error="why\nnot")
    results = {("dkm", 0): failure, ("dkm", 1): None}
    folder = made_up(tmp_path, ("dkm", "cnn"), results=results)
    trials = folder.read().planned()
    before = [folder.status(trial) for trial in trials]
    assert sorted({each.state for each in before}) == ["failed", "finished", "missing"]
    packed = folder.pack()
    assert packed.name == PACKED
    assert len(packed.read_text().splitlines()) == 3
    assert not list(tmp_path.rglob("seed-*.json"))
    again = ComparisonFolder(tmp_path)
    assert [again.status(trial) for trial in trials] == before
    again.write(PlannedTrial("dkm", 500, 0), finished(0.7))
    assert again.status(PlannedTrial("dkm", 500, 0)) == finished(0.7)
    again.pack()
    assert ComparisonFolder(tmp_path).status(PlannedTrial("dkm", 500, 0)) == finished(0.7)


def test_damaged_lines_are_trials_that_are_missing(tmp_path):
    folder = made_up(tmp_path, ("dkm",), seeds=2)
    lines = folder.pack().read_text().splitlines()
    other = json.loads(lines[1]) | {"metrics": 3}
    (tmp_path / PACKED).write_text("\n".join([lines[0], json.dumps(other), "{", "[]", ""]))
    first, second = (ComparisonFolder(tmp_path).status(each) for each in folder.read().planned())
    assert (first.state, second.state) == ("finished", "missing")
