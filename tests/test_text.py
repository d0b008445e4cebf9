"""Text of others, made fit for where it is written."""

import csv
import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convdkm.storage.text import (
    csv_cell,
    csv_line,
    in_latex,
    in_markdown,
    in_shell,
    legible,
    name_text,
    named_path,
    one_line,
    original,
)

names = st.binary(min_size=1).map(lambda content: content.decode("utf-8", "surrogateescape"))


@given(names | st.text(alphabet=r"\x0123456789abcdef"))
def test_a_name_is_had_back_from_its_text(name):
    text = name_text(name)
    text.encode()
    assert text == one_line(text) == legible(text)
    if text != name or "\\x" in name:
        assert original(text) == name


@given(st.text())
def test_nothing_steers_a_terminal_or_leaves_its_line(text):
    for shown in (legible(text), one_line(text), in_latex(text), in_markdown(text)):
        assert not set(shown) & {"\x1b", "\x9b", "\x07", "\r", "\u202e"}
    assert len(one_line(text).splitlines()) <= 1
    assert len(in_latex(text).splitlines()) <= 1
    assert len(in_markdown(text).splitlines()) <= 1


def test_lines_and_letters_stay():
    assert legible("ν = 1\n\tähm – ok") == "ν = 1\n\tähm – ok"
    assert legible("\x1b[31m\u202e\udcff\r") == r"\x1b[31m\xe2\x80\xae\xff\x0d"
    assert name_text(r"C:\data\new") == r"C:\data\new"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@sum(a)", "\t=1", "\r=1", "＝1"])
def test_no_cell_is_a_formula(text):
    shown = next(csv.reader([csv_line([csv_cell(text), "plain"])]))[0]
    assert not shown.startswith(("=", "+", "-", "@", "\t", "\r", "＝"))
    assert csv_cell(-1.5) == -1.5
    assert csv_line([-1.5, None, "a,b"]) == '-1.5,,"a,b"\n'


def test_markdown_has_no_markup_of_others():
    shown = in_markdown("a | b\n<script>x</script> ![i](http://x) `c` *d* &amp;")
    assert shown.startswith(r"a \| b &lt;script&gt;")
    assert r"!\[i\](" in shown
    assert r"\`c\` \*d\* &amp;amp;" in shown


def test_a_path_can_be_pasted_into_a_shell(tmp_path):
    for name in (b"r\xfcn", b"it's", b"two\nlines", b"a b", b"x\\y\x1b"):
        path = os.fsdecode(os.path.join(os.fsencode(tmp_path), name))
        command = ["bash", "-c", f"printf %s {in_shell(path)}"]
        assert subprocess.run(command, capture_output=True, check=True).stdout == os.fsencode(path)


def test_a_path_of_settings_is_as_it_stands_or_as_it_was_written_down(tmp_path):
    stray = os.fsdecode(os.path.join(os.fsencode(tmp_path), b"\xff"))
    assert str(named_path(name_text(stray))) == stray
    literal = tmp_path / r"\xff"
    literal.mkdir()
    assert named_path(str(literal)) == literal
