"""The contestants side by side: time of a step, of its forward pass, of predictions, and memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from convdkm.lab.bench.contestants import (
    Contestant,
    Workload,
    machine,
    networks,
    ours,
    textbook,
)
from convdkm.lab.bench.measure import Times, in_turn, timed
from convdkm.model import DeepKernelMachine
from convdkm.runtime.elementwise import compiled_engine
from convdkm.runtime.memory import available_memory, peak_memory

OURS, CHECKPOINTED, TEXTBOOK = "ours", "ours, checkpointed", "textbook"
MEMORY_SHARE = 0.6
"""Share of the available memory that the textbook step may take."""
SETTLING = 2.0
"""Seconds of steps, or of predictions, that each contestant makes before any counts."""
_PROBE = 8


@dataclass(frozen=True)
class Training:
    """A training step of one contestant.

    Attributes:
        batch: images of a step as it was run.
        step, forward: seconds of the whole and of the forward pass, repeat by repeat.
        memory: bytes at the worst moment, beyond what stood before.
    """

    batch: int
    step: Times
    forward: Times
    memory: int

    def scaled(self, batch: int) -> dict[str, float]:
        """Median times and memory for a batch of another size, taken to be proportional to it."""
        times = batch / self.batch
        step = times * self.step.median
        return {
            "step": step,
            "forward": times * self.forward.median,
            "images_per_second": batch / step,
            "memory": times * self.memory,
        }


@dataclass(frozen=True)
class Comparison:
    """What was measured for one workload, by contestant.

    Attributes:
        floor: the layout of the network that trains faster.
        predict_floor: the layout of the network that predicts faster.
    """

    workload: Workload
    train: dict[str, Training]
    predict: dict[str, Times]
    floor: str
    predict_floor: str
    notes: list[str] = field(default_factory=list)

    def ratios(self) -> dict[str, float]:
        """The machine beside the others."""
        batch = self.workload.batch
        train = {name: each.scaled(batch) for name, each in self.train.items()}
        own, floor = train[OURS], train[self.floor]
        return {
            "train_step_textbook_over_ours": train[TEXTBOOK]["step"] / own["step"],
            "train_step_ours_over_cnn": own["step"] / floor["step"],
            "predict_ours_over_cnn": self.predict[OURS].median
            / self.predict[self.predict_floor].median,
            "train_memory_ours_over_cnn": own["memory"] / floor["memory"],
            "train_memory_checkpointed_over_cnn": train[CHECKPOINTED]["memory"] / floor["memory"],
        }

    def facts(self) -> dict[str, Any]:
        """Everything as plain values."""
        batch = self.workload.batch
        return {
            **asdict(self.workload),
            "train": {
                name: {
                    **each.scaled(batch),
                    "run_with_batch": each.batch,
                    "step_seconds": each.step.seconds,
                    "forward_seconds": each.forward.seconds,
                }
                for name, each in self.train.items()
            },
            "predict": {
                name: {
                    "seconds": each.median,
                    "images_per_second": batch / each.median,
                    "all_seconds": each.seconds,
                }
                for name, each in self.predict.items()
            },
            "floor": self.floor,
            "predict_floor": self.predict_floor,
            "ratios": self.ratios(),
            "notes": self.notes,
        }


def compare(
    workload: Workload, repeats: int, say: Callable[[str], None], *, compiled: bool = False
) -> Comparison:
    """Time the contestants in turn, and measure the memory of a step of each."""
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
    plain = ours(workload, model, compiled=compiled)
    contestants = {OURS: plain, TEXTBOOK: textbook(workload, model, batch)}
    floors = networks(workload)

    say(f"{workload.name}: training steps, {repeats} in turn")
    checkpointed = _checkpointing(model)
    laps = in_turn(
        {
            **{name: each.lap for name, each in (contestants | floors).items()},
            CHECKPOINTED: checkpointed(plain.lap),
        },
        repeats,
        settling=SETTLING,
    )
    say(f"{workload.name}: predictions, {3 * repeats} in turn")
    predictors = {
        name: timed(each.predict)
        for name, each in {OURS: plain, **floors}.items()
        if each.predict is not None
    }
    predictions = in_turn(predictors, 3 * repeats, settling=SETTLING)
    predict = {name: times[0] for name, times in predictions.items()}

    say(f"{workload.name}: memory")
    memory = {name: _memory(each, each.step) for name, each in (contestants | floors).items()}
    memory[CHECKPOINTED] = _memory(plain, checkpointed(plain.step))
    train = {
        name: Training(batch if name == TEXTBOOK else workload.batch, step, forward, memory[name])
        for name, (step, forward) in laps.items()
    }
    return Comparison(
        workload,
        train,
        predict,
        min(floors, key=lambda name: train[name].step.median),
        min(floors, key=lambda name: predict[name].median),
        notes,
    )


def _memory(contestant: Contestant, step: Callable[[], object]) -> int:
    contestant.forget()
    return peak_memory(step)


def _checkpointing(
    model: DeepKernelMachine,
) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Turns an action into the same with the machine's activation checkpointing switched on."""

    def switched(action: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            model.checkpointing = True
            try:
                return action()
            finally:
                model.checkpointing = False

        return run

    return switched


def _textbook_batch(workload: Workload, model: DeepKernelMachine) -> int:
    """The batch, or the largest of its halves whose textbook step fits into memory."""
    available = available_memory()
    probe = min(_PROBE, workload.batch)
    if available is None:
        return workload.batch
    small = textbook(workload, model, probe)
    small.step()
    needed = _memory(small, small.step) / probe
    batch = workload.batch
    while batch > probe and batch * needed > MEMORY_SHARE * available:
        batch //= 2
    return batch
