"""What the page about the methods shows, runs."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[4] / "docs" / "baselines-methods.md"


def test_the_python_of_the_page_runs(capsys):
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(block, PAGE.name, "exec"), {})
    share, learned = re.fullmatch(
        r"(0\.\d\d) right, ([\d,]+) numbers learned\n", capsys.readouterr().out
    ).groups()
    assert float(share) > 0.9
    assert int(learned.replace(",", "")) == 16 * 9 + 32 * 16 * 9 + 10 * (32 * 4 + 1)
