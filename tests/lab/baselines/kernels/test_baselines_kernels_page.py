"""What the page shows, runs."""

import re
from pathlib import Path


def test_the_python_of_the_page_runs():
    page = (Path(__file__).parents[4] / "docs" / "baselines-kernels.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "baselines-kernels.md", "exec"), {})
