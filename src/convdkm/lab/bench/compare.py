"""The contestants side by side: times of steps, forward passes and predictions, memory, FLOPs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from statistics import median
from typing import Any

from convdkm.lab.bench.contestants import (
    LAYOUTS,
    Contestant,
    Workload,
    cnn,
    machine,
    networks,
    ours,
    textbook,
)
from convdkm.lab.bench.measure import in_turn, timed
from convdkm.model import DeepKernelMachine
from convdkm.runtime.elementwise import compiled_engine
from convdkm.runtime.memory import available_memory
from convdkm.training.cost import FEWEST, countable, line

OURS, CHECKPOINTED, TEXTBOOK = "ours", "ours, checkpointed", "textbook"
MEMORY_SHARE = 0.6
"""Share of the available memory that the textbook step may take."""
SETTLING = 2.0
"""Seconds of steps, or of predictions, that each contestant makes before any counts."""
_PROBE = 8


def compare(
    workload: Workload, repeats: int, say: Callable[[str], None], *, compiled: bool
) -> dict[str, Any]:
    """Time the contestants in turn, and measure the memory of a step of each.

    Returns:
        Plain values: the sizes of the workload; under ``train`` and ``predict`` the medians and all
        times of every contestant; the memory layout in which the network is fastest, to train
        (``floor``) and to predict (``predict_floor``); the machine's ``ratios`` to the others; and
        ``notes`` on how the figures came about. Beside the times are the FLOPs, of which compiled
        functions have as many as PyTorch's, and FLOPs per second. A
        textbook step that ran with a smaller batch is scaled up to the batch of the workload.
    """
    say(f"{workload.name}: making the machine from data")
    model = machine(workload, compiled=compiled)
    notes: list[str] = []
    if compiled and compiled_engine() is None:
        notes.append("nothing compiles here: the machine ran by PyTorch's own operations")
    batch = _textbook_batch(workload, model)
    if batch < workload.batch:
        notes.append(
            f"{workload.name}: a textbook step of {workload.batch} images does not fit into the"
            f" memory that is free; it ran with {batch}, and its figures are those times"
            f" {workload.batch // batch}"
        )
    plain, floors = ours(workload, model, compiled=compiled), networks(workload)
    written = textbook(replace(workload, batch=batch), model)
    contestants = {OURS: plain, TEXTBOOK: written, **floors}

    say(f"{workload.name}: training steps, {repeats} in turn")
    actions = {name: each.lap for name, each in contestants.items()}
    actions[CHECKPOINTED] = _checkpointing(model)(plain.lap)
    laps = in_turn(actions, repeats, settling=SETTLING)
    say(f"{workload.name}: predictions, {3 * repeats} in turn")
    predictors = {name: timed(each.predict) for name, each in contestants.items() if each.predict}
    predictions = in_turn(predictors, 3 * repeats, settling=SETTLING)
    say(f"{workload.name}: memory")
    memory = {name: each.memory() for name, each in contestants.items()}
    memory[CHECKPOINTED] = _checkpointing(model)(plain.memory)()
    flops = counted(workload, model, list(floors))

    train: dict[str, dict[str, Any]] = {}
    for name, (steps, forwards) in laps.items():
        size = batch if name == TEXTBOOK else workload.batch
        scale = workload.batch / size
        step, done = scale * median(steps), flops[name]["step"]
        train[name] = {
            "step": step,
            "forward": scale * median(forwards),
            "images_per_second": size / median(steps),
            "memory": scale * memory[name],
            "flops": done,
            "flops_per_second": done / step,
            "run_with_batch": size,
            "step_seconds": steps,
            "forward_seconds": forwards,
        }
    predict: dict[str, dict[str, Any]] = {
        name: {
            "seconds": median(seconds),
            "images_per_second": workload.batch / median(seconds),
            "flops": flops[name]["predict"],
            "flops_per_second": flops[name]["predict"] / median(seconds),
            "all_seconds": seconds,
        }
        for name, (seconds,) in predictions.items()
    }
    floor = min(floors, key=lambda name: train[name]["step"])
    predict_floor = min(floors, key=lambda name: predict[name]["seconds"])
    dkm, network = train[OURS], train[floor]
    predicted, by_network = predict[OURS], predict[predict_floor]
    return {
        **asdict(workload),
        "train": train,
        "predict": predict,
        "floor": floor,
        "predict_floor": predict_floor,
        "ratios": {
            "train_step_textbook_over_ours": train[TEXTBOOK]["step"] / dkm["step"],
            "train_step_ours_over_cnn": dkm["step"] / network["step"],
            "predict_ours_over_cnn": predicted["seconds"] / by_network["seconds"],
            "train_memory_ours_over_cnn": dkm["memory"] / network["memory"],
            "train_memory_checkpointed_over_cnn": train[CHECKPOINTED]["memory"] / network["memory"],
            "train_flops_textbook_over_ours": train[TEXTBOOK]["flops"] / dkm["flops"],
            "train_flops_ours_over_cnn": dkm["flops"] / network["flops"],
            "predict_flops_ours_over_cnn": predicted["flops"] / by_network["flops"],
        },
        "notes": notes,
    }


def counted(
    workload: Workload, model: DeepKernelMachine, layouts: list[str]
) -> dict[str, dict[str, float]]:
    """FLOPs of a step and of a prediction of every contestant, from those of a few images."""
    plain = countable(model)

    def count(make: Callable[[Workload], Contestant]) -> dict[str, float]:
        few = {size: make(replace(workload, batch=size)) for size in (FEWEST, 2 * FEWEST)}
        found = {"step": line(lambda size: few[size].step()).at(workload.batch)}
        if predicts := {size: each.predict for size, each in few.items() if each.predict}:
            found["predict"] = line(lambda size: predicts[size]()).at(workload.batch)
        return found

    every = {name: count(partial(cnn, layout=LAYOUTS[name])) for name in layouts}
    every[TEXTBOOK] = count(partial(textbook, model=plain))
    every[OURS] = count(partial(ours, model=plain))
    with _checkpointing(plain):
        every[CHECKPOINTED] = count(partial(ours, model=plain))
    return every


@contextmanager
def _checkpointing(model: DeepKernelMachine) -> Iterator[None]:
    """The machine's activation checkpointing is on inside the block, or in a decorated function."""
    model.checkpointing = True
    try:
        yield
    finally:
        model.checkpointing = False


def _textbook_batch(workload: Workload, model: DeepKernelMachine) -> int:
    """The batch, or the largest of its halves whose textbook step fits into memory."""
    batch, available = workload.batch, available_memory()
    if available is None:
        return batch
    probe = min(_PROBE, batch)
    small = textbook(replace(workload, batch=probe), model)
    small.step()
    needed = small.memory() / probe
    while batch > probe and batch * needed > MEMORY_SHARE * available:
        batch //= 2
    return batch
