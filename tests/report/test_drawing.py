"""Markup, axes, charts and pictures."""

import base64
import io
import itertools
import math
import re
from xml.etree import ElementTree

import pytest
import torch
from PIL import Image

import convdkm as dkm
from convdkm.report.charts import Series, line_chart
from convdkm.report.curves import thinned
from convdkm.report.markup import Markup, element, together
from convdkm.report.pictures import (
    CIVIDIS,
    VIRIDIS,
    colour_map,
    image_picture,
    matrix_picture,
    patch_pictures,
)
from convdkm.report.rows import Marks, bar_rows, dot_rows, heat_map
from convdkm.report.scale import axis_for, percent, short
from convdkm.report.shown_predictions import reliability_diagram
from convdkm.training.metrics import Reliability


def drawn(markup):
    """The drawing, as it parses; all of its numbers are finite."""
    tree = ElementTree.fromstring(markup)
    assert not re.search(r"\b(nan|inf)\b", markup)
    return tree


def picture(address):
    head, data = address.split(",")
    assert head == "data:image/png;base64"
    image = Image.open(io.BytesIO(base64.b64decode(data)))
    return image.convert("RGB") if image.mode == "P" else image


def test_everything_is_escaped_unless_it_is_markup():
    assert element("p", "<b>") == "<p>&lt;b&gt;</p>"
    assert element("p", Markup("<b></b>"), title='"') == '<p title="&quot;"><b></b></p>'
    assert element("img", alt="<", src=None) == '<img alt="&lt;">'
    assert element("p", "\udcff\x1b", title="\udcff") == r'<p title="\xff">\xff\x1b</p>'
    assert together("a", None, ["b", ("c", 1)], 2.50) == "abc12.5"


@pytest.mark.parametrize("values", [[0.1, 3, 20], [5], [], [0, 0], [-2, math.nan, 3], [1e-9, 1e9]])
@pytest.mark.parametrize("log", [True, False, None])
def test_an_axis_holds_its_values_and_marks_round_ones(values, log):
    axis = axis_for(values, 10, 110, log=log)
    for value in values:
        if math.isfinite(value):
            assert 10 <= axis(value) <= 110
    ticks = axis.ticks()
    assert len(ticks) < 12
    assert all(axis.low <= tick <= axis.high for tick in ticks)


def test_an_axis_of_whole_numbers():
    assert axis_for([1, 2], 0, 1).ticks(whole=True) == [1, 2]


def test_numbers_as_text():
    assert short(float("nan")) == percent(None) == "–"
    assert short(0.0) == "0"
    assert percent(-0.012) == "−1.2%"


@pytest.mark.parametrize("log", [None, True, False])
def test_a_line_chart_of_anything(log):
    series = [
        Series("a & b", [0, 1, 2], [1, math.nan, 100], 0, ([0.5, 1, 50], [2, 2, 200])),
        Series("c", [], [], 1),
        Series("d", [1], [0.0], 9),
        Series("e", list(range(100)), [1.0] * 100, 3),
    ]
    chart = drawn(line_chart("t < u", series, x_label="x", y_label="y", log=log))
    assert chart.find("figcaption").text == "t < u"
    assert chart.find("svg").attrib["role"] == "img"
    assert len(chart.find("ul")) == 4


def test_rows_of_anything():
    names = ["a", "b" * 60]
    dots = [Marks("K", [1.0, None], 1), Marks("G", [math.nan, 2.0], 0)]
    drawn(dot_rows("dots", names, dots, label="x"))
    drawn(dot_rows("none", names, [Marks("K", [None, None])], label="x"))
    bars = drawn(
        bar_rows("bars", names, [Marks("a", [1.0, 0.0]), Marks("b", [2.0, None])], label="x")
    )
    titles = [title.text for title in bars.iter("title")]
    assert "a, b: 2" in titles


def test_a_heat_map_says_what_is_in_its_cells():
    shades = [[1.0, math.nan], [-0.2, 0.3]]
    heat = drawn(
        heat_map(
            "t",
            ["<x>", "y"],
            shades,
            text=lambda i, j: "",
            hint=lambda i, j: f"{i} {j}",
            labels=("rows", "columns"),
        )
    )
    assert {"0 0", "0 1", "1 0", "1 1"} <= {title.text for title in heat.iter("title")}


def test_a_reliability_diagram_leaves_empty_bins_out():
    nothing = float("nan")
    bins = Reliability(
        torch.tensor([0, 3, 7]),
        torch.tensor([nothing, 0.5, 0.9], dtype=torch.float64),
        torch.tensor([nothing, 1.0, 0.0], dtype=torch.float64),
    )
    diagram = drawn(reliability_diagram("r", bins))
    dots = [circle for circle in diagram.iter("circle") if circle.attrib["class"] == "dot s0"]
    assert len(dots) == 2


@pytest.mark.parametrize("stops", [VIRIDIS, CIVIDIS])
def test_colours_grow_lighter_so_that_they_are_read_in_grey(stops):
    grey = colour_map(stops) @ [0.299, 0.587, 0.114]
    assert all(later > earlier - 0.5 for earlier, later in itertools.pairwise(grey))
    assert grey[-1] - grey[0] > 150


def test_pictures_of_matrices():
    shown = picture(matrix_picture(torch.eye(5), 0, 1))
    assert shown.size == (5, 5)
    assert shown.getpixel((0, 0)) == tuple(colour_map(VIRIDIS)[255])
    assert shown.getpixel((1, 0)) == tuple(colour_map(VIRIDIS)[0])
    assert max(picture(matrix_picture(torch.randn(700, 700), -1, 1)).size) <= 256
    assert picture(matrix_picture(torch.full((2, 2), math.nan), 0, 0)).size == (2, 2)


def test_pictures_of_images_and_patches():
    assert picture(image_picture(torch.rand(1, 4, 6))).size == (6, 4)
    assert picture(image_picture(torch.rand(3, 4, 6))).mode == "RGB"
    assert picture(image_picture(torch.rand(5, 4, 6))).mode == "L"
    zero, patch = patch_pictures(torch.stack([torch.zeros(1, 3, 3), torch.eye(3)[None]]))
    assert picture(zero).getpixel((0, 0)) == 128
    assert picture(patch).getpixel((0, 0)) == 255
    with pytest.raises(dkm.InvalidInputError, match="1 or 3 channels"):
        patch_pictures(torch.zeros(2, 7, 3, 3))


def test_neighbours_are_averaged():
    x, y, low, high = thinned(range(10), range(10), 5)
    assert x == y == [0.5, 2.5, 4.5, 6.5, 8.5]
    assert (low[0], high[0]) == (0, 1)
    assert thinned([], []) == ([], [], [], [])
    assert thinned([1, 2], [3, 4]) == ([1, 2], [3, 4], [3, 4], [3, 4])
    many = thinned(range(1001), range(1001), 100)[0]
    assert len(many) == 100
    assert many[-1] == 995.0  # no single step at the end
