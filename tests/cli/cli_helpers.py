"""Calling the program, in this process or in one of its own."""

import contextlib
import io
import os
import subprocess
import sys
from dataclasses import dataclass

import torch

from convdkm import cli

SMALL = ["--train-size=100", "--test-size=40", "--batch-size=32"]
TINY = [*SMALL, "--inducing=8,8", "--blocks=1,1"]
QUICK = ["--preset", "quick", "--whitening", "none", "--crop", "1"]
PHOTO = [*QUICK, "--inducing", "8", "--blocks", "1"]


@dataclass
class Outcome:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        return self.out.splitlines()[-1]


def call(*arguments: object) -> Outcome:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.run([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
    return Outcome(code, out.getvalue(), err.getvalue())


def succeed(*arguments: object) -> Outcome:
    outcome = call(*arguments)
    assert outcome.code == 0, outcome.err
    return outcome


def fail(*arguments: object) -> str:
    """Run a command that a user can mend; its message, of one line after any warnings."""
    outcome = call(*arguments)
    assert outcome.code in (1, 2)
    *before, message = outcome.err.splitlines()
    assert message.startswith("Error: ")
    assert all(line.startswith("Warning: ") for line in before), outcome.err
    return message.removeprefix("Error: ")


def start(*arguments: object, program: tuple[str, ...] = ("-m", "convdkm"), **options):
    """Run a command in a process of its own, with as many threads as this one."""
    threads = str(torch.get_num_threads())
    return subprocess.Popen(
        [sys.executable, *program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": threads, "PYTHONWARNINGS": "default"},
        **options,
    )
