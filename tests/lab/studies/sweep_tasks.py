"""Tasks that launchers are tried on: they work, fail, die once or always, or wait."""

import os
import re
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from convdkm.errors import InvalidInputError
from convdkm.lab.studies.comparison.trial import TrialTask
from convdkm.lab.studies.launchers.base import Job, Launcher, Outcome, asked_to_stop, execute
from convdkm.lab.studies.sweeps.sweep import RunTask


@dataclass(eq=False)
class Ended(Job):
    """A task that was done when it was begun."""

    found: Outcome

    def ended(self):
        return True

    def outcome(self):
        return self.found

    def stop(self):
        """Nothing is under way."""


class Here(Launcher):
    """Does one task after another in this process, where no time is lost."""

    poll_seconds = 0.0

    def __init__(self):
        super().__init__(jobs=1)

    def begin(self, task):
        return Ended(execute(task))


@dataclass(frozen=True)
class Fake:
    """Does what its kind says; ``folder`` remembers what it did before."""

    name: str
    kind: str
    folder: str
    log: str | None = None

    def __call__(self):
        return getattr(self, f"_{self.kind}")()

    def _work(self):
        print(f"{self.name} at work")
        return {"name": self.name, "threads": os.environ.get("OMP_NUM_THREADS")}

    def _fail(self):
        raise InvalidInputError("there is something\nto mend")

    def _crash(self):
        raise ZeroDivisionError("division by zero")

    def _die_once(self):
        marker = Path(self.folder) / f"{self.name}.died"
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self._work()

    def _die(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def _wait(self):
        (Path(self.folder) / f"{self.name}.waits").touch()
        while not asked_to_stop():
            time.sleep(0.02)


@dataclass(frozen=True)
class KilledOnce(RunTask):
    """A run whose process is killed after its first epoch, the first time, if it is Gaussian."""

    def __call__(self):
        folder = Path(self.folder)
        marker = folder.with_name(f"{folder.name}.killed")
        if self.config.model.likelihood == "gaussian" and not marker.exists():
            threading.Thread(target=self._kill, args=(folder, marker), daemon=True).start()
        return super().__call__()

    @staticmethod
    def _kill(folder, marker):
        while not (folder / "epochs.csv").is_file() or "\n1," not in _text(folder / "epochs.csv"):
            time.sleep(0.005)
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class KilledTrial(TrialTask):
    """A trial whose process is killed before its fit, the first time, if it is of a kernel."""

    def __call__(self):
        marker = Path(f"{self.result}.killed")
        if self.method == "nngp-linear" and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__()


def check_comparison(call, images, out, launcher):
    """A comparison on a cluster: a trial that is lost and begun again, and one that fails."""
    command = ["compare", images, "--train-size", 20, "--test-size", 30, "--seeds", 1, "-o", out]
    command += ["--launcher", launcher, "--threads", 1, "--retries", 1]
    code, text, err = call(*command, "--methods", "nngp-linear,ckn")
    assert code == 1
    assert re.search(r"\[1/2\] nngp-linear, 20 images, seed 0: \d+\.\d\d%, fitted in \d+ s", text)
    assert " …" not in text, "when a trial begins is not known here"
    assert "failed: ckn, 20 images, seed 0: " in err
    assert "1 of 2 trials finished, 1 failed; the same command tries these again" in text
    assert "- Failed: ckn, seed 0: " in (out / "tables/train-20.md").read_text()
    assert (out / "trials/train-20/nngp-linear/seed-0.json.killed").exists()
    assert (out / "trials/train-20/nngp-linear/seed-0.log").read_text()
    assert not (out / "images").exists()
    code, text, _ = call(*command, "--methods", "nngp-linear")
    assert code == 0
    assert "1 finished before" in text


def _text(path):
    try:
        return path.read_text()
    except OSError:
        return ""
