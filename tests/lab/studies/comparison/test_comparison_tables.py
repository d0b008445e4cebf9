"""Tables of a comparison: as Markdown, LaTeX and CSV, with what failed and what is published."""

import csv
import io
import re
from operator import methodcaller

import pytest
from comparison_helpers import CIFAR, DIGITS, ONE, finished, made_up
from matplotlib.figure import Figure
from PIL import Image

from convdkm.lab.baselines.methods import METHODS, NAMES
from convdkm.lab.studies.comparison.figures import by_error, curves, draw, look
from convdkm.lab.studies.comparison.folder import TrialResult
from convdkm.lab.studies.comparison.results import Results
from convdkm.lab.studies.rendering import Table

markdown, comma_separated = Table.markdown, Table.comma_separated
latex = methodcaller("latex")


def tables_of(tmp_path, *arguments, **options):
    return Results(made_up(tmp_path, *arguments, **options).path).tables()


def rows_of(text):
    """The rows of a Markdown table by their first cell."""
    lines = [line.strip("| ").split("|") for line in text.splitlines() if line.startswith("| ")]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines}


def test_mean_and_standard_error_over_seeds_and_the_best_in_bold(tmp_path):
    results = {
        ("dkm", 0): finished(0.80),
        ("dkm", 1): finished(0.84, fit_seconds=30.0, parameters=2000),
        ("cnn", 0): finished(0.30, metrics={"accuracy": 0.30}),
        ("cnn", 1): finished(0.31, metrics={"accuracy": 0.31}),
        "ckn": finished(0.2, fit_flops=None, fit_cpu_seconds=None),  # as of an older version
    }
    (table,) = tables_of(tmp_path, ("dkm", "cnn", "ckn"), results=results)
    rows = rows_of(markdown(table))
    assert rows["Method"][0] == "Accuracy (%)"
    dkm, cnn = rows["Deep kernel machine"], rows["CNN"]
    assert dkm[:3] == ["**82.00 ± 2.00**", "**-0.1800 ± 0.0200**", "0.0500 ± 0.0000"]
    assert dkm[3:] == ["25", "30", "2", "5", "100", "1,617", "92.69"]
    assert cnn[:3] == ["30.50 ± 0.50", "–", "–"]
    assert cnn[-1] == "–"
    assert "**" not in rows["CKN"][0]
    assert rows["CKN"][3:6] == ["20", "–", "–"]


def test_published_figures_stand_beside_ours_with_their_sources(tmp_path):
    (table,) = tables_of(tmp_path, ("nngp-gap", "myrtle5"))
    text = markdown(table)
    assert rows_of(text)["NNGP-GAP"][-1] == "77.43, 83.75"
    assert rows_of(text)["Myrtle5"][-1] == "–"
    assert "77.43% is NNGP-GAP, Novak et al. (2018), as in the paper's Table 3" in text
    assert "for all 50,000 training images" in text
    (table,) = tables_of(tmp_path / "digits", ("nngp-gap",), scale=DIGITS)
    assert "ublished" not in markdown(table)
    assert "Published" not in latex(table)


def test_labels_say_where_flips_are_left_off(tmp_path):
    (table,) = tables_of(tmp_path, ("nngp-lap-flip", "dkm"), scale=DIGITS)
    assert [row.label for row in table.rows] == [
        "Deep kernel machine",
        "NNGP-LAP-flip, without flips",
    ]


def test_failures_are_in_the_table_with_why(tmp_path):
    failure = TrialResult(state="failed", error="it is too large")
    refusal = TrialResult(state="failed", error="no memory for that", refused=True)
    results = {"myrtle5": failure, "myrtle7": refusal, ("cnn", 1): failure, "ckn": None}
    methods = ("cnn", "myrtle5", "myrtle7", "ckn")
    (table,) = tables_of(tmp_path, methods, results=results)
    text = markdown(table)
    rows = rows_of(text)
    assert rows["Myrtle5"][:2] == ["failed", "–"]
    assert rows["CKN"][0] == "missing"
    assert rows["CNN"][0].endswith("(1 of 2 seeds)")
    assert "- Failed: myrtle5, seeds 0, 1: it is too large" in text
    assert "- Failed: cnn, seed 1: it is too large" in text
    assert "- Failed before any work: myrtle7, seeds 0, 1: no memory for that" in text
    assert "- Not finished: 2 of 8 trials" in text
    assert "failed" in latex(table)


def test_what_else_is_to_be_said(tmp_path):
    results = {
        ("cnn", 0): finished(0.5, cut_short=True),
        ("myrtle5", 0): finished(0.6, resumed=True, fit_seconds=1.0),
        ("myrtle7", 0): finished(0.6, resumed=True, fit_seconds=1.0),
        ("myrtle7", 1): finished(0.6, resumed=True, fit_seconds=2.0),
        ("ckn", 0): finished(0.6, environment={**ONE, "processor": "another"}),
        ("ckn", 1): finished(0.6, environment={**ONE, "git": {"commit": "0123456789abcdef"}}),
    }
    (table,) = tables_of(tmp_path, ("cnn", "myrtle5", "myrtle7", "ckn"), results=results)
    text = markdown(table)
    assert "Cut short by the time limit: cnn (1 seed)." in text
    assert "whose time is not counted: myrtle5 (1 seed), myrtle7 (2 seeds)." in text
    assert rows_of(text)["Myrtle5"][3] == "20"
    assert rows_of(text)["Myrtle7"][3] == "> 1.5"
    assert "$>$ 1.5" in latex(table)
    assert "different machines: another, 2 threads; one, 2 threads" in text
    assert "versions of the program: 0.1.0, 0123456789." in text
    assert "at most 10 min a fit" in text


def test_one_seed_has_no_error(tmp_path):
    (table,) = tables_of(tmp_path, ("cnn", "dkm"), seeds=1, results={"cnn": finished(0.4)})
    assert rows_of(markdown(table))["CNN"][0] == "40.00"
    assert "One seed has no standard error" in markdown(table)


def test_terms_say_how_large_images_are_and_with_what_seconds_were_taken(tmp_path):
    scale = CIFAR.model_copy(update={"image_size": 16})
    terms = tables_of(tmp_path, ("dkm",), scale=scale)[0].terms
    assert "images made 16×16" in terms
    assert terms[-1] == "time: at most 10 min a fit, on the CPU with 2 threads"
    other = finished(0.5, environment={**ONE, "threads": 1})
    terms = tables_of(tmp_path / "other", ("dkm",), results={("dkm", 1): other})[0].terms
    assert not any("×" in term for term in terms)
    assert terms[-1] == "time: at most 10 min a fit, on the CPU"


def test_latex_is_balanced_and_escaped(tmp_path):
    (table,) = tables_of(tmp_path, ("dkm", "nngp-gap", "cnn"))
    text = latex(table)
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert body.count("{") == body.count("}")
    assert re.findall(r"\\(?:begin|end)\{(\w+)\}", body) == ["table", "tabular", "tabular", "table"]
    assert r"\toprule" in body
    assert r"$\pm$" in body
    assert r"\textbf{" in body
    assert not re.search(r"(?<!\\)[%_#]|–|±", body)
    lines = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert {line.replace(r"\&", "").count("&") for line in lines} == {10}


def test_no_error_of_a_trial_breaks_out_of_a_table(tmp_path):
    error = "boom\n\\input{/etc/passwd} | <b>"
    results = {("cnn", 0): TrialResult(state="failed", error=error)}
    (table,) = tables_of(tmp_path, ("dkm", "cnn"), results=results)
    after = latex(table).partition(r"\end{table}")[2].strip().splitlines()
    assert all(line.startswith("% ") for line in after)
    (note,) = [line for line in markdown(table).splitlines() if "boom" in line]
    assert note.startswith("- Failed")
    assert r"\| &lt;b&gt;" in note


def test_nothing_is_rounded_in_the_csv(tmp_path):
    results = {("cnn", 0): finished(1 / 3), ("cnn", 1): finished(1 / 3)}
    small, large = tables_of(tmp_path, ("cnn", "ckn"), sizes=(500, 1000), results=results)
    records = list(csv.DictReader(io.StringIO(comma_separated(small))))
    assert [record["method"] for record in records] == ["cnn", "ckn"]
    first = records[0]
    assert float(first["accuracy"]) == 100 * (1 / 3)
    assert float(first["accuracy_standard_error"]) == 0
    assert (first["accuracy_bold"], records[1]["accuracy_bold"]) == ("0", "1")
    assert (first["seeds"], first["seeds_planned"], first["train_size"]) == ("2", "2", "500")
    assert float(first["peak_memory_mib"]) == 600
    assert float(first["added_memory_mib"]) == 100
    assert float(first["predict_seconds_per_1000"]) == 5
    assert (first["fit_cpu_seconds"], first["fit_tflop"]) == ("30.0", "2.0")
    assert records[1]["published_source"] == "CKN, Mairal et al. (2014)"
    assert "zca" in first["terms"]
    records = list(csv.DictReader(io.StringIO(comma_separated(large))))
    assert {record["train_size"] for record in records} == {"1000"}


def test_no_two_methods_look_the_same():
    looks = [look(each) for each in METHODS]
    assert len({(each["marker"], "mfc" in each) for each in looks}) == len(METHODS)
    assert len({(each["color"], each["ls"]) for each in looks}) == 5


def test_figures_are_drawn_of_what_is_finished(tmp_path):
    failure = TrialResult(state="failed", error="why")
    uncounted = {"myrtle5": failure, "ckn": finished(0.5, fit_flops=None)}
    folder = made_up(tmp_path, NAMES, sizes=(500, 1000), results=uncounted)
    comparison = Results(folder.path)
    shown = curves(comparison.tables())
    assert [curve.row.method.name for curve in shown] == [n for n in NAMES if n != "myrtle5"]
    assert shown[0].sizes == [500, 1000]
    written = draw(comparison, tmp_path / "figures")
    names = [path.stem.removeprefix("accuracy-by-") for path in written]
    assert names == ["size", "seconds", "flops"]
    for path in written:
        image = Image.open(path).convert("RGB")
        colours = [colour for _, colour in image.getcolors(image.width * image.height)]
        assert len(colours) > 20
        assert all(max(colour) - min(colour) <= 2 for colour in colours), "not grey"


@pytest.mark.parametrize("accuracies", [(0.1, 0.97), (0.999, 1.0), (0.93, 0.93), (0.2, 0.6)])
def test_high_accuracies_are_drawn_by_the_error(tmp_path, accuracies, monkeypatch):
    drawn = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda *a, **k: (drawn.append(a[0]), save(*a, **k)))
    results = {name: finished(each) for name, each in zip(("cnn", "dkm"), accuracies, strict=True)}
    folder = made_up(tmp_path, ("cnn", "dkm"), results=results)
    draw(Results(folder.path), tmp_path / "figures")
    (panel,) = drawn[0].axes
    high = by_error([100 * each for each in accuracies])
    assert high == (max(accuracies) >= 0.9)
    assert panel.get_yscale() == ("function" if high else "linear")
    low, top = panel.get_ylim()
    assert low < 100 * min(accuracies)
    assert min(100 * max(accuracies), 99.99) < top <= 100


@pytest.mark.parametrize("results", [{}, {"cnn": None}])
def test_a_figure_by_size_needs_two_sizes_and_any_needs_results(tmp_path, results):
    folder = made_up(tmp_path, ("cnn",), results=results)
    names = [path.name for path in draw(Results(folder.path), tmp_path / "figures")]
    assert names == ([] if results else ["accuracy-by-seconds.png", "accuracy-by-flops.png"])


def test_the_terms_of_a_comparison_without_a_limit(tmp_path):
    scale = CIFAR.model_copy(update={"minutes": None})
    (table,) = tables_of(tmp_path, ("cnn",), scale=scale)
    assert "time: no limit, on the CPU" in markdown(table)
