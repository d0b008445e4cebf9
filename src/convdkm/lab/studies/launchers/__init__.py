"""Engines that run tasks: this machine, Ray, SLURM. One interface, thin adapters."""

from __future__ import annotations

from pathlib import Path

from convdkm.errors import InvalidInputError
from convdkm.lab.studies.launchers.base import Launcher, Resources
from convdkm.options import nearest

__all__ = ["LAUNCHERS", "Launcher", "Resources", "check_name", "make_launcher"]

LAUNCHERS = ("local", "ray", "slurm")


def check_name(name: str) -> None:
    """Raise if there is no launcher of that name."""
    if name not in LAUNCHERS:
        raise InvalidInputError(
            f"there is no launcher {name!r}.{nearest(name, LAUNCHERS)} There are"
            f" {', '.join(LAUNCHERS)}."
        )


def make_launcher(
    name: str,
    folder: Path,
    resources: Resources,
    *,
    jobs: int | None = None,
    address: str | None = None,
    partition: str | None = None,
    hours: float = 24.0,
    device: str | None = None,
) -> Launcher:
    """The launcher of that name; it keeps its files in ``folder``."""
    check_name(name)
    if name == "ray":
        from convdkm.lab.studies.launchers.ray import RayLauncher

        return RayLauncher(address, resources)
    if name == "slurm":
        from convdkm.lab.studies.launchers.slurm import SlurmLauncher

        return SlurmLauncher(folder, resources, hours=hours, partition=partition, jobs=jobs)
    from convdkm.lab.studies.launchers.local import LocalLauncher

    return LocalLauncher(jobs, resources, device)
