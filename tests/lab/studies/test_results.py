"""Tables of sweeps whose figures are made up: bold, differences, holes, and every format."""

import csv
import io
import json
from operator import methodcaller

import pytest
from sweep_folders import SMALL, finish, planned

from convdkm.errors import InvalidInputError
from convdkm.lab.studies.rendering import Table
from convdkm.lab.studies.sweeps.planning import Scale
from convdkm.lab.studies.sweeps.results import Results
from convdkm.storage.text import in_latex

markdown, comma_separated = Table.markdown, Table.comma_separated
latex = methodcaller("latex")
SPREAD = (-0.001, 0.0, 0.0005, 0.0015)


def fill(place, runs, accuracies):
    """Finish the runs of every row, spread about an accuracy."""
    for (row, _), cell in runs.items():
        for run, shift in zip(cell, SPREAD, strict=False):
            finish(place, run, accuracies[row] + shift)


def cells(table, metric="test_accuracy"):
    (block,) = [block for block in table.blocks if block.metric == metric]
    return {line.row.name: line.cells[0] for line in block.lines}


@pytest.fixture
def likelihood(tmp_path):
    place, runs = planned(tmp_path, "likelihood", scale=Scale())
    fill(place, runs, {"gaussian": 0.8596, "categorical": 0.9})
    return place, runs


def test_ours_stands_beside_the_published(likelihood):
    place, _ = likelihood
    (table,) = Results(place.path).tables()
    found = cells(table)
    assert found["categorical"].ours.mean == pytest.approx(90.025)
    assert found["categorical"].published.mean == 87.86
    assert found["categorical"].bold
    assert not found["gaussian"].bold
    assert found["categorical"].difference == "above"
    assert found["gaussian"].difference is None
    assert [block.metric for block in table.blocks] == ["test_accuracy", "train_accuracy"]
    assert table.scale == ()


def test_markdown(likelihood):
    text = markdown(next(Results(likelihood[0].path).tables()))
    assert "At the scale of the paper." in text
    assert "| Categorical | **90.03 ± 0.05** ▲ | **87.86 ± 0.09** |" in text
    assert " ± 0.05 |     85.96 ± 0.29 |" in text
    assert "cannot be compared" in text


def test_latex(likelihood):
    text = latex(next(Results(likelihood[0].path).tables()))
    for line in (r"\toprule", r"\midrule", r"\bottomrule", r"\multirow{2}{*}{Test accuracy (\%)}"):
        assert line in text
    assert r"\textbf{90.03 $\pm$ 0.05}$^{\blacktriangle}$ & \textbf{87.86 $\pm$ 0.09} \\" in text
    rows = [
        line for line in text.splitlines() if line.endswith(r"\\") and "multicolumn" not in line
    ]
    assert {line.count("&") for line in rows} == {3}
    assert in_latex("50% of a_b & ν") == r"50\% of a\_b \& $\nu$"


def test_comma_separated(likelihood):
    text = comma_separated(next(Results(likelihood[0].path).tables()))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 4
    first = next(r for r in rows if (r["row"], r["metric"]) == ("categorical", "test_accuracy"))
    assert float(first["mean"]) == pytest.approx(90.025)
    assert first["published_mean"] == "87.86"
    assert (first["seeds"], first["seeds_planned"], first["bold"]) == ("4", "4", "1")
    assert first["difference"] == "above"
    assert first["scale"] == "as in the paper"


def test_costs_are_means_over_the_runs_that_have_them(likelihood):
    place, runs = likelihood
    (table,) = Results(place.path).tables()
    assert "PFLOP" not in markdown(table)  # as of older versions
    for run, pflop in zip(runs["categorical", "cifar10"], (1, 2), strict=False):
        path = place.of(run) / "metrics.json"
        values = json.loads(path.read_text()) | {"flops": pflop * 1e15, "cpu_seconds": 7200.0}
        path.write_text(json.dumps(values))
    (table,) = Results(place.path).tables()
    head, _, *rows = [line for line in markdown(table).splitlines() if line.startswith("|")]
    assert head.split("|")[-3:-1] == [" PFLOP ", " CPU (h) "]
    (ours,) = [row for row in rows[:2] if "Categorical" in row]
    (other,) = [row for row in rows[:2] if "Gaussian" in row]
    assert [cell.strip() for cell in ours.split("|")[-3:-1]] == ["1.5", "2"]
    assert [cell.strip() for cell in other.split("|")[-3:-1]] == ["–", "–"]
    records = list(csv.DictReader(io.StringIO(comma_separated(table))))
    first = next(r for r in records if (r["row"], r["metric"]) == ("categorical", "test_accuracy"))
    assert (first["pflop"], first["cpu_hours"]) == ("1.5", "2.0")


def test_holes_are_shown(tmp_path):
    place, runs = planned(tmp_path, "likelihood")
    for run in runs["categorical", "cifar10"][:2]:
        finish(place, run, 0.9)
    place.note_failure(runs["categorical", "cifar10"][2], "out of memory", 4)
    (table,) = Results(tmp_path).tables()
    text = markdown(table)
    assert "(2 of 4, 1 failed)" in text
    assert "– (0 of 4)" in text
    assert "Failed: cifar10, likelihood Categorical, seed 2: out of memory (see" in text
    assert "Not finished: 5 of 8 runs" in text
    assert "**Not at the scale of the paper**: preset quick" in text
    assert "-- (0 of 4)" in latex(table)
    assert "% Failed: cifar10" in latex(table)


def test_no_error_of_a_run_breaks_out_of_a_table(tmp_path):
    hostile = "boom\n\\input{/etc/passwd}\r\x1b[31m | <script>x</script> ![a](http://x)"
    place, runs = planned(tmp_path, "likelihood")
    place.note_failure(runs["categorical", "cifar10"][0], hostile, 1)
    (table,) = Results(tmp_path).tables()
    text = latex(table)
    after = text.partition(r"\end{table}")[2].strip().splitlines()
    assert all(line.startswith("% ") for line in after)
    assert any(r"\input" in line for line in after)
    shown = markdown(table)
    (note,) = [line for line in shown.splitlines() if "boom" in line]
    assert note.startswith("- Failed: ")
    assert "&lt;script&gt;" in note
    assert r"\[a\]" in note
    assert "\x1b" not in text + shown


def test_a_data_set_of_any_name_stays_in_its_cell(tmp_path):
    folder = tmp_path / "=a|b"
    folder.mkdir()
    planned(tmp_path / "sweep", "likelihood", datasets=(f"{folder}", "=1+1"))
    (table,) = Results(tmp_path / "sweep").tables()
    rows = list(csv.DictReader(io.StringIO(comma_separated(table))))
    assert {row["dataset"] for row in rows} == {str(folder), "'=1+1"}
    heads = [line for line in markdown(table).splitlines() if line.startswith("| Likelihood")]
    assert heads
    assert all(r"=a\|b" in head for head in heads)


def test_runs_of_another_scale_are_not_averaged(tmp_path):
    place, runs = planned(tmp_path, "likelihood", seeds=2)
    ours, other = runs["categorical", "cifar10"]
    finish(place, ours, 0.9)
    finish(place, other, 0.1)
    longer = other.config.updated({"epochs": 50})
    (place.of(other) / "config.yaml").write_text(longer.to_yaml())
    (table,) = Results(tmp_path).tables()
    assert cells(table)["categorical"].ours.mean == pytest.approx(90)
    assert cells(table)["categorical"].ours.count == 1
    assert any("seed 1: epochs 50 and not 2" in note for note in table.notes)


def test_a_row_that_was_not_asked_for_shows_the_published_alone(tmp_path):
    place, runs = planned(tmp_path, "nu", rows=["1"], seeds=1)
    finish(place, runs["1", "cifar10"][0], 0.88)
    (table,) = Results(tmp_path).tables()
    assert cells(table)["0"].ours is None
    assert cells(table)["0"].complete
    assert "10³" not in [line.row.label for line in table.blocks[0].lines]
    assert "10³" in [line.row.label for line in table.blocks[1].lines]
    assert " **88.00** |" in markdown(table)
    assert "One seed has no standard error" in markdown(table)


def test_table_1_shows_five_categories_and_then_their_other_metrics(tmp_path):
    place, runs = planned(tmp_path, "selection", seeds=1)
    done = set()
    for cell in runs.values():
        for run in cell:
            if run.place not in done:
                finish(place, run, 0.9)
                done.add(run.place)
    tables = {table.name: table for table in Results(tmp_path).tables()}
    assert list(tables) == ["selection", "nu", "normalisation", "rescaling", "top", "likelihood"]
    first = tables["selection"]
    assert len(first.blocks) == 5
    assert sum(len(block.lines) for block in first.blocks) == 28
    assert [block.metric for block in tables["nu"].blocks] == [
        "test_accuracy",
        "test_log_likelihood",
        "train_accuracy",
        "train_log_likelihood",
    ]
    assert r"\multirow{11}{*}{Regularisation strength}" in latex(first)


def test_a_part_of_table_1(tmp_path):
    place, runs = planned(tmp_path, "selection", ("digits",), rows=["nu:1", "gaussian"], seeds=1)
    finish(place, runs["1", "digits"][0], 0.9)
    first, *others = Results(tmp_path).tables()
    assert [block.category.name for block in first.blocks] == ["nu", "likelihood"]
    assert [table.name for table in others] == ["nu", "likelihood"]
    assert "| 10⁰     |" in markdown(first)


def test_table_2_has_the_time_of_an_epoch(tmp_path):
    place, runs = planned(tmp_path, "inducing", rows=["16/32/64"], seeds=2)
    for run in runs["16/32/64", "cifar10"]:
        finish(place, run, 0.8)
    (table,) = Results(tmp_path).tables()
    line = table.blocks[0].lines[0]
    assert line.seconds == (10.0, 45)
    assert "s / epoch" in markdown(table)
    assert "Time per epoch (s)" in latex(table)
    assert not table.blocks[1].timed


def test_table_3_compares_with_the_methods_of_others(tmp_path):
    place, runs = planned(tmp_path, "comparison", seeds=2)
    for run in runs["dkm", "cifar10"]:
        finish(place, run, 0.80)
    (table,) = Results(tmp_path).tables()
    assert not cells(table)["dkm"].bold, "Novak's is worse, others are better"
    text = markdown(table)
    assert "| Adlam et al. (2023)     | Tuned Myrtle10 DA CG |" in text
    assert " 91.2 |" in text, "as printed"
    assert "Kernel methods without parameters & Novak et al. (2018)" in latex(table)


def test_figures(tmp_path):
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    from convdkm.lab.studies.sweeps.figures import draw, read_published

    curves = tmp_path / "curves.csv"
    curves.write_text(
        "dataset,epochs,inducing,seed,epoch,test_acc\n"
        "cifar10,2,16/32/64,0,0,0.4\ncifar10,2,16/32/64,0,1,0.5\ncifar10,1,16/32/64,0,0,0.1\n"
    )
    published = read_published(curves)
    assert published == {("cifar10", "16/32/64"): {1: [40.0], 2: [50.0]}}
    for name in ("nu", "inducing", "top", "comparison"):
        place, runs = planned(tmp_path / name, name, seeds=2)
        for number, cell in enumerate(runs.values()):
            for run in cell:
                finish(place, run, 0.5 + 0.02 * number)
        results = Results(place.path)
        written = draw(results, place.path / "tables", published)
        assert [path.name for path in written] == [f"{name}.png", f"{name}-curves.png"]
        assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)


def test_curves_that_cannot_be_read(tmp_path):
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    from convdkm.lab.studies.sweeps.figures import read_published

    path = tmp_path / "curves.csv"
    with pytest.raises(InvalidInputError, match="cannot read"):
        read_published(path)
    path.write_text("dataset,epoch\n")
    with pytest.raises(InvalidInputError, match="lacks the columns epochs, inducing, seed"):
        read_published(path)
    path.write_text("dataset,epochs,inducing,seed,epoch,test_acc\nmnist,2,16/32/64,0,one,0.5\n")
    with pytest.raises(InvalidInputError, match="line 2: invalid literal"):
        read_published(path)


def test_the_record_of_a_sweep_can_be_read_by_a_person(tmp_path):
    planned(tmp_path, "likelihood", seeds=2)
    content = json.loads((tmp_path / "sweep.json").read_text())
    assert content["scale"] == SMALL.model_dump()
    assert content["tables"]["likelihood"]["seeds"] == 2
