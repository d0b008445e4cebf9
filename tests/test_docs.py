"""What the README and the guide show, runs."""

import re
import runpy
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("page", "count"),
    [
        ("README.md", 6),
        ("docs/guide.md", 14),
        ("docs/exact.md", 6),
        ("docs/finite-width.md", 6),
        ("docs/running.md", 4),
        ("docs/predicting.md", 5),
        ("docs/pretrained.md", 3),
        ("docs/report.md", 2),
        ("docs/experiments.md", 1),
        ("docs/baselines.md", 1),
    ],
)
def test_the_python_of_a_page_runs(page, count, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert len(blocks) == count
    module = types.ModuleType("page_of_the_docs")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in blocks:
        exec(compile(block, page, "exec"), module.__dict__)


def test_every_page_that_is_linked_exists():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_script_explains_itself(monkeypatch, capsys):
    scripts = sorted((ROOT / "benchmarks").glob("*.py"))
    assert scripts
    for script in scripts:
        monkeypatch.setattr(sys, "argv", [script.name, "--help"])
        with pytest.raises(SystemExit) as stop:
            runpy.run_path(str(script), run_name="__main__")
        assert stop.value.code == 0
        assert "usage:" in capsys.readouterr().out
