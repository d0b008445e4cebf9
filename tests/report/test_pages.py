"""Pages of one run: what is on them, what is missing and why, and what cannot be made."""

import json
import re
import shutil

import pytest
from html_page import Page

import convdkm as dkm
from convdkm.cli import run as program
from convdkm.insight.look import short_names
from convdkm.report import write_report
from convdkm.report.curves import layer_curves
from convdkm.report.record import Record

ALL = [
    "overview",
    "learning",
    "calibration",
    "confusions",
    "images",
    "inside",
    "layers",
    "patches",
    "settings",
]


def page_of(*arguments, **options) -> Page:
    file = write_report(*arguments, **options)
    text = file.read_text(encoding="utf-8")
    require_self_contained(text)
    return Page(text)


def require_self_contained(text):
    """Nothing is loaded: every address is data, or a place on the page."""
    page = Page(text)
    addresses = [
        value
        for _, attributes in page.elements
        for name, value in attributes.items()
        if name in ("src", "href", "srcset", "action", "poster", "data", "xlink:href")
    ]
    assert addresses
    assert all(re.match(r"#|data:|(?![a-z]+:)[^/]*report\.html", each) for each in addresses)
    assert not page.all("script")
    assert not re.search(r"@import|url\(", text)


def fails(*arguments, **options) -> str:
    with pytest.raises(dkm.ConvDKMError) as error:
        write_report(*arguments, **options)
    return str(error.value)


@pytest.fixture(scope="module")
def digits_page(digits_run, tmp_path_factory):
    return page_of([digits_run], tmp_path_factory.mktemp("pages") / "a.html", images=5)


@pytest.fixture
def copy(digits_run, tmp_path):
    """A run that may be damaged."""
    return shutil.copytree(digits_run, tmp_path / "copy")


def test_everything_is_on_the_page(digits_page, digits_run):
    assert digits_page.sections == ALL
    assert "Not on this page" not in digits_page.text
    metrics = json.loads((digits_run / "metrics.json").read_text())
    assert f"{100 * metrics['test_accuracy']:.2f}".rstrip("0").rstrip(".") + "%" in digits_page.text
    assert "stage1.block1.first" in digits_page.text
    links = [each["href"] for each in digits_page.all("a") if each["href"].startswith("#")]
    assert {f"#{name}" for name in ALL} == set(links)


def test_the_images_asked_for_are_shown(digits_page):
    alts = [each["alt"] for each in digits_page.all("img")]
    assert 5 < sum(alt.startswith("test image") for alt in alts) <= 10
    assert sum(alt.startswith("inducing patch") for alt in alts) == 6
    assert sum(": G − K" in alt for alt in alts) == len(cards(digits_page))


def cards(page):
    return [each for each in page.all("article") if each.get("class") == "card"]


def test_every_picture_has_a_name(digits_page):
    assert all(each["alt"] for each in digits_page.all("img"))
    charts = [each for each in digits_page.all("svg") if "aria-hidden" not in each]
    assert charts
    assert all(each["aria-label"] for each in charts)


def test_the_command(digits_run, tmp_path, capsys):
    file = tmp_path / "new" / "page.html"
    assert program(["report", str(digits_run), "-o", str(file), "--images", "0"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == str(file)
    assert "80 test images" in err
    assert "images" not in Page(file.read_text()).sections


def test_the_page_is_kept_in_the_folder_and_made_again(copy, capsys):
    for _ in range(2):
        assert program(["report", str(copy), "--no-data"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(copy / "report.html")
    page = Page((copy / "report.html").read_text())
    assert page.sections == ["overview", "learning", "inside", "layers", "patches", "settings"]
    assert "which were not asked for" in page.text


def test_a_run_whose_images_are_gone(copy):
    config = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(config.replace("dataset: digits", "dataset: /gone/away"))
    page = page_of([copy])
    assert "layers" in page.sections
    assert "images" not in page.sections
    assert "Nothing that needs images" in page.text
    assert "/gone/away" in page.text


INSTRUMENTS = (
    "Variance of training images that the inducing points explain",
    "Spread of correlations over images",
    "Gradient of Gram layers and head beside their parameters",
)


def test_the_instruments_are_followed_from_the_start(digits_run, digits_page):
    assert all(title in digits_page.text for title in INSTRUMENTS)
    record = Record.read(digits_run)
    noted = record.layers
    grams = [name for name, values in noted[0].items() if "spread" in values]
    spread = layer_curves(record, "spread")
    assert [each.label for each in spread] == short_names(grams)
    for name, each in zip(grams, spread, strict=True):
        assert each.x == [0, 1, 2]
        assert each.y == [noted[epoch][name]["spread"] for epoch in (0, 1, 2)]
    assert grams[-1] == "head"  # which sees the last Gram, and learns none
    assert [each.x for each in layer_curves(record)] == [[1, 2]] * (len(grams) - 1)
    assert len(layer_curves(record, "gradient")) == len(grams)


def test_a_record_of_before_the_instruments(copy):
    old = {1: {"body.stem.gram": 1.5}, 2: {"body.stem.gram": 2.5}}
    rows = [f"{epoch},{n},{kl}" for epoch, layers in old.items() for n, kl in layers.items()]
    (copy / "layers.csv").write_text("\n".join(["epoch,layer,kl", *rows, ""]))
    page = page_of([copy], data=False)
    assert "KL of each Gram layer" in page.text
    assert not any(title in page.text for title in INSTRUMENTS)
    (series,) = layer_curves(Record.read(copy))
    assert (series.x, series.y) == ([1, 2], [1.5, 2.5])


def test_a_run_whose_images_are_others(copy, tmp_path):
    config = (copy / "config.yaml").read_text()
    config = config.replace("image_size: null", "image_size: 10")
    (copy / "config.yaml").write_text(config)
    page = page_of([copy])
    assert "calibration" not in page.sections
    assert "(1, 10, 10)" in page.text


def test_a_run_that_is_not_finished(copy):
    (copy / "metrics.json").unlink()
    epochs = (copy / "epochs.csv").read_text().splitlines(keepends=True)
    (copy / "epochs.csv").write_text("".join(epochs[:2]))
    page = page_of([copy])
    assert page.sections == ALL
    assert "Training is not finished: 1 of 2 epochs." in page.text


def test_a_run_without_a_whole_epoch(copy):
    for name in ("metrics.json", "epochs.csv", "layers.csv"):
        (copy / name).unlink()
    steps = (copy / "steps.csv").read_text()
    (copy / "steps.csv").write_text(steps + "7,2,-0.")  # the process ended while it wrote
    page = page_of([copy])
    assert page.sections == ALL
    assert "not finished" in page.text


def test_a_run_without_a_checkpoint(copy):
    shutil.rmtree(copy / "checkpoints")
    page = page_of([copy])
    assert page.sections == ["overview", "learning", "settings"]
    assert "there is no checkpoint" in page.text
    assert "there is no checkpoint" in fails([copy], checkpoint="best")
    (copy / "steps.csv").unlink()
    (copy / "epochs.csv").unlink()
    assert "there is no checkpoint" in fails([copy])


def test_a_run_without_records(copy):
    for name in ("steps.csv", "epochs.csv", "layers.csv", "metrics.json"):
        (copy / name).unlink()
    (copy / "environment.json").write_text("{ damaged")
    page = page_of([copy], data=False)
    assert "learning" not in page.sections
    assert "No learning curves" in page.text


def test_what_cannot_be_done_is_said(digits_run, tmp_path, capsys):
    assert "is not the folder of a run" in fails([tmp_path])
    assert "does not exist" in fails([tmp_path / "nowhere"])
    assert "no run" in fails([])
    assert "is a folder" in fails([digits_run], tmp_path)
    mine = tmp_path / "mine.html"
    mine.write_text("<p>my own work</p>")
    assert "--force" in fails([digits_run], mine, data=False)
    assert mine.read_text() == "<p>my own work</p>"
    write_report([digits_run], mine, data=False, force=True)
    assert "my own work" not in mine.read_text()
    assert "must not be negative" in fails([digits_run], mine, images=-1)
    assert program(["report", str(digits_run), "--checkpoint", "first"]) == 1
    assert "last" in capsys.readouterr().err


def test_names_from_users_are_text(colours, tmp_path):
    folder = tmp_path / "<b>run & more"
    made = dkm.fit(
        "quick",
        colours,
        epochs=1,
        inducing=(5,),
        blocks=(1,),
        folder=folder,
        whitening="standardise",
    )
    file = made.report(data=colours)
    assert file == folder / "report.html"
    text = file.read_text()
    require_self_contained(text)
    page = Page(text)
    assert page.sections == ALL
    assert "<script>alert(1)</script>" in page.text
    assert "<script>" not in text
    assert "<b>run & more" in page.text


def test_a_run_in_memory(colours, tmp_path):
    body = dkm.Sequential(
        dkm.ArcCosine(), dkm.Conv(5, 5, 3), dkm.GramLayer(5), dkm.Norm(), dkm.GlobalAveragePool()
    )
    machine = dkm.DeepKernelMachine(
        dkm.PatchInput(3, 5), body, dkm.GPHead(5, 3), dkm.Categorical(3)
    )
    made = dkm.fit(machine, colours, epochs=1, learning_rate=0.05)
    with pytest.raises(dkm.InvalidInputError, match=r"run\.report\('report\.html'\)"):
        made.report()
    page = Page(made.report(tmp_path / "mine.html", data=colours).read_text())
    assert page.sections == [name for name in ALL if name != "learning"]
    assert "has no record" in page.text
    without = Page(made.report(tmp_path / "mine.html").read_text())
    assert "Nothing that needs images" in without.text


def test_a_machine_of_your_own_in_a_folder(colours, tmp_path):
    body = dkm.Sequential(dkm.ArcCosine(), dkm.GramLayer(5), dkm.GlobalAveragePool())
    machine = dkm.DeepKernelMachine(
        dkm.PatchInput(3, 5), body, dkm.GPHead(5, 3), dkm.Categorical(3)
    )
    dkm.fit(machine, colours, epochs=1, folder=tmp_path / "own")
    page = page_of([tmp_path / "own"])
    assert page.sections == ["overview", "learning", "settings"]
    assert "a machine of your own" in page.text


def test_many_classes_are_a_picture(digits_run, tmp_path, monkeypatch):
    monkeypatch.setattr("convdkm.report.shown_predictions.MOST_NAMED", 5)
    page = page_of([digits_run], tmp_path / "page.html")
    assert any(each["alt"].startswith("Confusion matrix") for each in page.all("img"))


def test_the_record_says_how_far_a_run_has_come(digits_run):
    record = Record.read(digits_run)
    assert record.finished
    assert record.progress == "2 epochs"
    assert record.steps_per_epoch == len(record.steps) / 2
