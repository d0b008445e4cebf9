"""The page of a comparison: whole, self-contained, and drawn by a real browser."""

import pytest
from browser import Browser, find_browser
from comparison_helpers import finished, made_up
from html_page import Page
from PIL import Image
from test_browser import (
    CONTRAST,
    NOT_DRAWN,
    SMALLEST_TEXT,
    WIDER_THAN_THE_SCREEN,
    require_drawn,
    require_quiet,
)
from test_pages import require_self_contained

from convdkm.lab.baselines.methods import NAMES
from convdkm.lab.studies.comparison.folder import TrialResult
from convdkm.lab.studies.comparison.page import write_methods_page

PROGRAM = find_browser()
SIZES = (500, 1000, 2000)


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """The page of all methods at three sizes, some of which failed."""
    results = {
        "myrtle5": TrialResult(state="failed", error="5 < 6 & more <b>memory</b>", refused=True),
        "cnn": finished(0.5, notes=("epoch 3 of 9: loss 2.0", "stopped"), cut_short=True),
        ("ckn", 1): None,
    }
    folder = made_up(tmp_path_factory.mktemp("page"), NAMES, sizes=SIZES, results=results)
    return write_methods_page(folder.path)


def test_everything_is_on_the_page(everything):
    text = everything.read_text()
    require_self_contained(text)
    page = Page(text)
    sizes = [f"train-{size}" for size in SIZES]
    assert page.sections == [*sizes, "charts", "published", "said"]
    assert everything.name == "report.html"
    assert "Methods compared on CIFAR-10" in page.text
    assert "5 < 6 & more <b>memory</b>" in page.text
    assert f"1,000 training images: Not finished: 1 of {2 * len(NAMES)} trials" in page.text
    assert "Cut short by the time limit: cnn (2 seeds)." in page.text
    assert "Novak et al. (2018)" in page.text
    assert "epoch 3 of 9: loss 2.0; stopped" in page.text
    assert "<b>" in text.partition('id="train-500"')[2].partition("</section>")[0]
    assert "\x02" not in text
    charts = [each["aria-label"] for each in page.all("svg") if "aria-label" in each]
    assert charts == [
        "Accuracy of the test images",
        *(
            f"{title} ({part} of 3)"
            for part in (1, 2, 3)
            for title in ("By training images", "By seconds to fit")
        ),
    ]
    assert page.text.count("Mean ± standard error over seeds. Marked:") == 1
    assert all(name in page.text for name in NAMES)


def test_a_small_comparison_has_charts_without_parts(tmp_path):
    page = Page(write_methods_page(made_up(tmp_path, ("dkm", "myrtle5"), seeds=1).path).read_text())
    assert page.sections == ["train-500", "charts", "published"]
    charts = [each["aria-label"] for each in page.all("svg") if "aria-label" in each]
    assert charts == ["Accuracy of the test images", "By seconds to fit"]
    assert "Not on this page" not in page.text


def test_nothing_finished_is_a_page_too(tmp_path):
    folder = made_up(tmp_path, ("dkm",), results={"dkm": None})
    page = Page(write_methods_page(folder.path).read_text())
    assert page.sections == ["train-500", "published"]
    assert "missing" in page.text


def test_a_comparison_is_not_mixed_with_runs_nor_does_it_replace_other_files(tmp_path, call, fail):
    folder = made_up(tmp_path / "one", ("dkm",)).path
    assert "has a page of its own; name it alone" in fail("report", folder, folder)
    mine = tmp_path / "mine.html"
    mine.write_text("mine")
    assert "--force replaces it" in fail("report", folder, "-o", mine)
    assert mine.read_text() == "mine"
    code, text, _ = call("report", folder, "-o", mine, "--force")
    assert (code, text) == (0, f"{mine}\n")
    assert "Methods compared on" in mine.read_text()


@pytest.fixture(scope="module")
def browser():
    if PROGRAM is None:
        pytest.skip("no Chromium here; scripts/install_chromium.sh installs it")
    with Browser(PROGRAM) as running:
        yield running


@pytest.mark.parametrize("screen", [(360, "light"), (1280, "dark")])
def test_the_page_is_drawn_whole_and_fits_the_screen(browser, everything, screen, tmp_path):
    width, dark = screen[0], screen[1] == "dark"
    browser.open(everything, width, dark=dark)
    require_quiet(browser, everything)
    assert browser.run("document.querySelectorAll('svg').length") > 7
    assert browser.run(NOT_DRAWN) == []
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(WIDER_THAN_THE_SCREEN) == []
    assert browser.run(SMALLEST_TEXT) >= 8.5
    assert browser.run(CONTRAST) >= 4.5
    shot = Image.open(browser.screenshot(tmp_path / "page.png")).convert("RGB")
    require_drawn(shot, dark)
