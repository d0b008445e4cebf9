"""What ``convdkm sweep`` and ``convdkm compare`` share: options of launching, and how it ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from convdkm.cli.arguments import option
from convdkm.cli.interrupt import Interrupt
from convdkm.cli.output import say, say_path, warn
from convdkm.storage.text import in_shell

if TYPE_CHECKING:
    from convdkm.lab.studies.launchers import Launcher
    from convdkm.lab.studies.study import Study, Tell

launch = partial(option, group="Launching")
LauncherName = Annotated[str, launch("NAME", "local, ray or slurm")]
Address = Annotated[
    str | None, launch("ADDRESS", "ray: of the cluster (default: RAY_ADDRESS, or one started here)")
]
Partition = Annotated[str | None, launch("NAME", "slurm: partition")]
Hours = Annotated[float, launch("X", "slurm: limit of a job, after which it is queued again")]


def telling(*, quiet: bool) -> Tell:
    """Words go to the screen, unless all is to be quiet; warnings to standard error."""
    from convdkm.lab.studies.study import Tell

    return Tell((lambda _: None) if quiet else say, warn)


def carry_out(
    study: Study[Any, Any],
    launcher: Launcher,
    tell: Tell,
    *,
    dry_run: bool,
    show: Callable[[], None] = lambda: None,
    see: str = "",
) -> None:
    """Do what a study asks for; the last line printed is its folder.

    With ``dry_run``, only say what would be done. Afterwards ``show`` shows the results, and
    ``see`` is printed if nothing is left to do.
    """
    from convdkm.lab.studies.study import conduct

    with Interrupt(study.stopping) as interrupt:
        report = conduct(study, launcher, tell=tell, stop=interrupt, rehearsal=dry_run)
    if report is None:
        return
    show()
    finished = f"{report.done} of {report.total} {study.noun}s finished"
    if report.left:
        again = " ".join(map(in_shell, ["convdkm", *sys.argv[1:]]))
        say(f"Stopped with {finished}. Go on with\n  {again}")
    elif report.failed:
        print(f"{finished}, {report.failed} failed; {study.after_failures}")
    if see and not report.left:
        say(see)
    say_path(study.folder.path)
    if report.left:
        sys.exit(interrupt.exit_code)
    if report.failed:
        sys.exit(1)
