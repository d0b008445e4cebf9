"""Settings of every test: one thread a worker, a fixed seed, and slow tests on request."""

import os
from pathlib import Path

import pytest
import torch

import shape_checks

shape_checks.install()

from convdkm import cli  # noqa: E402

DATA_FOLDER = Path(os.environ.get("CONVDKM_DATA", Path(__file__).parents[2] / "shared" / "data"))


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def pytest_configure(config):
    if os.environ.get("PYTEST_XDIST_WORKER"):
        torch.set_num_threads(1)


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--slow"):
        skip = pytest.mark.skip(reason="slow; run with --slow")
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(skip)


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Folder with the real data sets, named by CONVDKM_DATA."""
    if not DATA_FOLDER.is_dir():
        pytest.skip(f"no data sets at {DATA_FOLDER}; set CONVDKM_DATA to a folder that holds them")
    return DATA_FOLDER


@pytest.fixture
def call(capfd):
    """Run a command in this process: its exit code, and what it printed."""

    def run(*arguments):
        try:
            code = cli.run([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
        return code, *capfd.readouterr()

    return run


@pytest.fixture
def fail(call):
    """Run a command that a user can mend; its message."""

    def run(*arguments):
        code, _, err = call(*arguments)
        assert code in (1, 2)
        assert err.startswith("Error: ")
        return err.removeprefix("Error: ").replace("\n", " ")

    return run
