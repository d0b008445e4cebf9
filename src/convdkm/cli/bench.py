"""``convdkm bench``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from convdkm.cli.arguments import option, switch
from convdkm.cli.output import console, plain_table, say, warn
from convdkm.errors import InvalidInputError
from convdkm.storage.files import write_json, write_text

if TYPE_CHECKING:
    from convdkm.lab.bench.report import Part

WIDTHS = ("16,32,64", "32,64,128", "64,128,256")


def bench(
    *,
    quick: Annotated[
        bool, switch("--quick", "measure one size of machine, in a few minutes")
    ] = False,
    json: Annotated[Path | None, option("FILE", "write all results to this file")] = None,
    markdown: Annotated[Path | None, option("FILE", "write the tables to this file")] = None,
    widths: Annotated[
        list[str] | None,
        option(
            "N,N,N",
            "inducing points of the three stages; may be repeated (default: 16,32,64; without"
            " --quick also 32,64,128 and 64,128,256)",
        ),
    ] = None,
    batch: Annotated[int, option("N", "images in a batch")] = 256,
    side: Annotated[int, option("N", "height and width of an image")] = 32,
    repeats: Annotated[int, option("N", "repetitions")] = 5,
    steps: Annotated[int, option("N", "training steps that compare float32 with float64")] = 200,
    threads: Annotated[int | None, option("N", "threads of PyTorch (default: all cores)")] = None,
    compile: Annotated[
        bool,
        switch(
            "--compile/--no-compile",
            "compile elementwise functions and the predictor, and record steps",
        ),
    ] = True,
    scaling: Annotated[
        bool, switch("--scaling", "measure how a step scales with its sizes")
    ] = False,
    profile: Annotated[bool, switch("--profile", "measure where the time of a step goes")] = False,
    keep_memory: Annotated[
        bool,
        switch("--keep-memory/--no-keep-memory", "keep freed memory in the process, for all alike"),
    ] = True,
) -> None:
    """Measure speed and memory, compared with a textbook version and a CNN.

    Compares training steps, predictions, memory and precision, with the settings of the published
    runs. Without --quick, it also measures how a step scales with its sizes and where its time
    goes; --scaling and --profile ask for one of these alone. Everything is timed in turn in one
    process, and the figures are medians.
    """
    import torch

    from convdkm.lab.bench.contestants import Workload
    from convdkm.lab.bench.report import run_bench
    from convdkm.runtime.allocator import keep_freed_memory

    sizes = [checked_widths(text) for text in widths or (WIDTHS[:1] if quick else WIDTHS)]
    workloads = [Workload(size, batch, side) for size in sizes]
    if threads is not None:
        if threads < 1:
            raise InvalidInputError(f"--threads must be at least 1, got {threads}")
        torch.set_num_threads(threads)
    kept = keep_freed_memory() if keep_memory else False
    progress = console(stderr=True)
    results = run_bench(
        workloads,
        chosen_parts(quick=quick, scaling=scaling, profile=profile),
        lambda text: progress.print(f"… {text}", style="dim"),
        repeats=repeats,
        steps=steps,
        compiled=compile,
        nudged=not quick,
    )
    results["settings"]["freed_memory_kept"] = kept
    if results["disturbed"]:
        warn(
            f"this machine is busy: {'; '.join(results['disturbed'])}. Do not trust times until it"
            " is quiet; memory and precision are not touched by it"
        )
    show(results)
    if json is not None:
        write_json(json, results)
    if markdown is not None:
        write_text(markdown, as_markdown(results))


def checked_widths(text: str) -> tuple[int, ...]:
    """Inducing points of the stages, from text such as ``16,32,64``."""
    try:
        return tuple(int(part) for part in text.replace("/", ",").split(","))
    except ValueError:
        raise InvalidInputError(
            f"--widths takes a number for each of three stages, such as 16,32,64; got {text!r}"
        ) from None


def chosen_parts(*, quick: bool, scaling: bool, profile: bool) -> tuple[Part, ...]:
    """The parts to run: those asked for, with the comparison if quick; all if none was."""
    asked: dict[Part, bool] = {"compare": quick, "scaling": scaling, "profile": profile}
    return tuple(part for part in asked if asked[part] or not any(asked.values()))


def show(results: dict[str, Any]) -> None:
    """Print machine, tables and remarks."""
    from convdkm.lab.bench.tables import heading, notes, sheets

    screen = console()
    say("\n".join(heading(results)))
    for sheet in sheets(results):
        screen.print(f"\n{sheet.title}", style="bold")
        screen.print(plain_table(*sheet.columns, rows=sheet.rows, right=sheet.right))
    for note in notes(results):
        say(f"Note: {note}")


def as_markdown(results: dict[str, Any]) -> str:
    """Machine, tables and remarks as Markdown."""
    from convdkm.lab.bench.tables import heading, notes, sheets

    parts = ["  \n".join(heading(results)) + "\n", *(each.markdown() for each in sheets(results))]
    if remarks := [f"- {remark}\n" for remark in (*results["disturbed"], *notes(results))]:
        parts.append("".join(remarks))
    return "\n".join(parts)
