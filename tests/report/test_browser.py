"""Pages in a real browser: no complaint, nothing loaded, all drawn, readable on a telephone."""

import pytest
from browser import Browser, find_browser
from PIL import Image

from convdkm.report import write_report

PROGRAM = find_browser()
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="no Chromium here; scripts/install_chromium.sh installs it"
)

NOT_DRAWN = """
[...document.querySelectorAll('img, svg')].filter(each => {
  const box = each.getBoundingClientRect();
  const empty = each.tagName === 'IMG' && !(each.complete && each.naturalWidth > 0);
  return empty || box.width <= 0 || box.height <= 0;
}).map(each => each.outerHTML.slice(0, 200))
"""
WIDER_THAN_THE_SCREEN = """
[...document.querySelectorAll('body *')].filter(each => {
  const box = each.getBoundingClientRect();
  const boxed = each.closest('.scroll') && !each.classList.contains('scroll');
  return !boxed && !each.closest('svg') && box.right > document.documentElement.clientWidth + 1;
}).map(each => each.outerHTML.slice(0, 200))
"""
SMALLEST_TEXT = """
Math.min(...[...document.querySelectorAll('svg text')].filter(each => each.textContent).map(
  each => parseFloat(getComputedStyle(each).fontSize) *
    Math.hypot(each.getCTM().a, each.getCTM().b)))
"""
CONTRAST = """
(() => {
  const light = text => {
    const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map(Number).map(
      v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const body = getComputedStyle(document.body);
  const paper = light(body.backgroundColor);
  return [...document.querySelectorAll('h1, h2, .lead, dt, dd, a, svg text')].map(each => {
    const style = getComputedStyle(each);
    const ink = light(each.namespaceURI.endsWith('svg') ? style.fill : style.color);
    const cell = each.classList.contains('light');
    return cell ? 21 : (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  }).reduce((a, b) => Math.min(a, b), 21);
})()
"""


@pytest.fixture(scope="module")
def browser():
    with Browser(PROGRAM) as running:
        yield running


@pytest.fixture(scope="module")
def pages(digits_run, other_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("looked at")
    return {
        "one run": write_report([digits_run], folder / "one.html", images=4),
        "several runs": write_report([digits_run, other_run], folder / "several.html"),
    }


def require_quiet(browser, page):
    """No error, no warning, and nothing asked for but the page itself."""
    assert browser.of("Runtime.exceptionThrown") == []
    assert browser.of("Runtime.consoleAPICalled") == []
    assert browser.of("Log.entryAdded") == []
    assert browser.of("Network.loadingFailed") == []
    asked = {sent["request"]["url"] for sent in browser.of("Network.requestWillBeSent")}
    assert {url for url in asked if not url.startswith("data:")} == {page.resolve().as_uri()}


@pytest.mark.parametrize("which", ["one run", "several runs"])
@pytest.mark.parametrize("screen", [(360, "light"), (1280, "light"), (1280, "dark")])
def test_a_page_is_drawn_whole_and_fits_the_screen(browser, pages, which, screen, tmp_path):
    page, width, dark = pages[which], screen[0], screen[1] == "dark"
    browser.open(page, width, dark=dark)
    browser.run("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    require_quiet(browser, page)
    assert browser.run("document.querySelectorAll('svg').length") > 4
    assert browser.run(NOT_DRAWN) == []
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(WIDER_THAN_THE_SCREEN) == []
    assert browser.run(SMALLEST_TEXT) >= 8.5
    assert browser.run(CONTRAST) >= 4.5
    shot = Image.open(browser.screenshot(tmp_path / "page.png")).convert("RGB")
    assert shot.width == width
    assert shot.height > 1500
    require_drawn(shot, dark)


def require_drawn(shot, dark):
    """Not blank: many colours, and something in every stretch of the page."""
    colours = shot.getcolors(shot.width * shot.height)
    assert len(colours) > 100
    paper = max(colours)[1]
    assert (sum(paper) < 3 * 60) == dark
    for top in range(0, shot.height - 800, 800):
        part = shot.crop((0, top, shot.width, top + 800))
        assert len(part.getcolors(shot.width * 800)) > 20, f"blank below {top}"


def test_links_lead_to_their_sections(browser, pages):
    browser.open(pages["one run"], 800)
    places = "[...document.querySelectorAll('nav a')].map(a => !!document.querySelector(a.hash))"
    found = browser.run(places)
    assert len(found) == 9
    assert all(found)
