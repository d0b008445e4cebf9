"""The page of several runs."""

import shutil

import pytest
from html_page import Page
from test_pages import require_self_contained

from convdkm.cli import run as program
from convdkm.report import write_report
from convdkm.report.curves import objective_curves
from convdkm.report.record import Record, runs_in


@pytest.fixture(scope="module")
def file(digits_run, other_run, tmp_path_factory):
    return write_report(
        [digits_run, other_run], tmp_path_factory.mktemp("compared") / "report.html"
    )


def test_everything_is_on_the_page(file, digits_run, other_run):
    text = file.read_text()
    require_self_contained(text)
    page = Page(text)
    assert page.sections == ["figures", "settings", "learning", "layers", "calibration", "runs"]
    assert "2 runs compared" in page.text
    assert digits_run.name in page.text
    assert other_run.name in page.text
    assert "Not on this page" not in page.text


def test_only_settings_that_differ_are_listed(file):
    settings = file.read_text().partition('id="settings"')[2].partition("</section>")[0]
    assert ">nu<" in settings
    assert ">inf<" in settings
    assert ">epochs<" in settings
    assert "batch size" not in settings


def test_a_folder_of_runs_is_all_of_them(digits_run, other_run, tmp_path, monkeypatch, capsys):
    for name in ("b", "a"):
        shutil.copytree(digits_run, tmp_path / "runs" / name)
    (tmp_path / "runs" / "notes").mkdir()
    assert runs_in([tmp_path / "runs"]) == [tmp_path / "runs" / "a", tmp_path / "runs" / "b"]
    monkeypatch.chdir(tmp_path)
    assert program(["report", "runs", str(other_run), "--no-data"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "report.html"
    page = Page((tmp_path / "report.html").read_text())
    assert "3 runs compared" in page.text
    assert "calibration" not in page.sections
    assert page.text.count("which were not asked for") == 3


def test_runs_of_one_name_are_told_apart(digits_run, tmp_path):
    for place in ("one", "two"):
        shutil.copytree(digits_run, tmp_path / place / "run")
    folders = [tmp_path / "one" / "run", tmp_path / "two" / "run"]
    write_report(folders[:1], data=False)
    file = write_report(folders, tmp_path / "report.html", data=False)
    page = Page(file.read_text())
    assert "one/run, two/run" in page.text
    assert "All settings are the same." in page.text
    assert {"href": "one/run/report.html"} in page.all("a")


def test_a_run_that_has_only_begun_is_compared_as_far_as_it_goes(digits_run, tmp_path):
    begun = shutil.copytree(digits_run, tmp_path / "begun")
    shutil.rmtree(begun / "checkpoints")
    for name in ("metrics.json", "epochs.csv", "layers.csv"):
        (begun / name).unlink()
    page = Page(write_report([digits_run, begun], tmp_path / "report.html").read_text())
    assert "begun: Nothing of the machine itself" in page.text
    series, x_label = objective_curves([Record.read(digits_run), Record.read(begun)])
    assert x_label == "step"
    assert series[0].x[-1] == series[1].x[-1] == len(Record.read(begun).steps)
    assert "calibration" in page.sections
