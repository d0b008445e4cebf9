"""The program called on small data sets."""

import pytest
from sweep_tasks import Here


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    """As wide as a terminal usually is, one thread, and only what comes with the program."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("CONVDKM_DATA", raising=False)


@pytest.fixture
def here(monkeypatch):
    """Trials are made in this process."""
    monkeypatch.setattr("convdkm.lab.studies.launchers.make_launcher", lambda *_, **__: Here())
