"""Where a run was made: versions, machine, and the state of the code."""

from __future__ import annotations

import platform
import subprocess
import sys
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("convdkm", "torch", "numpy", "scikit-learn", "safetensors", "pillow", "pydantic")


def environment() -> dict[str, Any]:
    """Versions, machine, command line and git state, as plain values."""
    import torch

    return {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": sys.argv,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "git": git_state(Path(__file__).parent),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit of the code in ``folder``, and whether files differ from it; None outside git."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()

    try:
        commit = git("rev-parse", "HEAD")
        # A package installed inside somebody else's repository is not part of it.
        git("ls-files", "--error-unmatch", str(Path(__file__)))
        return {"commit": commit, "modified": bool(git("status", "--porcelain", "-uno"))}
    except (OSError, subprocess.SubprocessError):
        return None
