"""Where the time of a training step goes, stage by stage, forward and backward.

While a step is profiled, the methods that map the data blocks are wrapped so that the profiler
sees when each stage begins and ends; afterwards they are as they were. A node of the backward pass
belongs to the stage of its forward pass: both have the same sequence number.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch._C._autograd import _get_sequence_nr
from torch.autograd.profiler import record_function

from convdkm.lab.bench.contestants import Contestant
from convdkm.model import DeepKernelMachine
from convdkm.ops.base import Plan
from convdkm.ops.window import Window
from convdkm.runtime.memory import trace

CONVOLUTIONS = "convolutions"
STAGES = {
    "chain": "skip connections",
    "conv": CONVOLUTIONS,
    "gram": "Gram layers",
    "kernel": "kernels",
    "noise": "jitter",
    "norm": "normalisation",
    "pool": "pooling",
}
"""Stages of the plans of a module; others have the module's name."""
CHAIN, INPUT, HEAD, LIKELIHOOD = "inducing chain", "input patches", "head", "likelihood"
OPTIMISER, ACCUMULATION, REST = "optimiser", "summing of gradients", "the rest"
_MARK, _WHOLE = "convdkm: ", "convdkm step"
_NODE = "autograd::engine::evaluate_function: "
_CONVOLUTION_BACKWARD = "aten::convolution_backward"

Span = tuple[str, int, int]
"""A stage, and the sequence numbers of its nodes: the first, and that after the last."""


@dataclass(frozen=True)
class Share:
    """Seconds of one stage in a step."""

    stage: str
    forward: float
    backward: float

    @property
    def total(self) -> float:
        return self.forward + self.backward


def profile_step(model: DeepKernelMachine, contestant: Contestant, steps: int) -> list[Share]:
    """Time of every stage of a training step, the longest first; the mean over some steps."""
    contestant.forget()
    contestant.step()
    forward: dict[str, float] = defaultdict(float)
    backward: dict[str, float] = defaultdict(float)
    for _ in range(steps):
        contestant.forget()
        with marked(model) as spans:
            events = trace(functools.partial(_step, contestant))
        _add_forward(events, forward)
        _add_backward(events, spans, backward)
    # The rest of the whole is what lies in no stage, and in no node of the backward pass.
    forward[REST] = max(forward.pop(_WHOLE) - sum(backward.values()), 0.0)
    shares = [
        Share(stage, forward[stage] / steps, backward[stage] / steps)
        for stage in {**forward, **backward}
    ]
    return sorted(shares, key=lambda share: -share.total)


def _step(contestant: Contestant) -> None:
    with record_function(_WHOLE):
        contestant.loss().backward()
        with record_function(_MARK + OPTIMISER):
            contestant.optimiser.step()


@contextmanager
def marked(model: DeepKernelMachine) -> Iterator[list[Span]]:
    """Mark the stages of a model's forward pass for the profiler, inside the block."""
    spans: list[Span] = []
    methods = [(kind, "data", _stage(kind)) for kind in subclasses(Plan)]
    methods.append((Window, "convolve", CONVOLUTIONS))
    for owner, name, stage in (
        (model, "plan", CHAIN),
        (model.input, "data", INPUT),
        (getattr(model.plan(), "head", None), "marginals", HEAD),
        (model.likelihood, "expected_log_prob", LIKELIHOOD),
    ):
        methods += [(kind, name, stage) for kind in type(owner).__mro__ if name in vars(kind)][:1]
    originals = [
        (kind, name, vars(kind)[name], stage) for kind, name, stage in methods if name in vars(kind)
    ]
    for kind, name, method, stage in originals:
        setattr(kind, name, _marked(method, stage, spans))
    try:
        yield spans
    finally:
        for kind, name, method, _ in originals:
            setattr(kind, name, method)


def _stage(plan: type) -> str:
    module = plan.__module__.rpartition(".")[2]
    return STAGES.get(module, module)


def _marked(method: Callable[..., Any], stage: str, spans: list[Span]) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(*args: Any, **kwargs: Any) -> Any:
        first = _get_sequence_nr()
        with record_function(_MARK + stage):
            result = method(*args, **kwargs)
        spans.append((stage, first, _get_sequence_nr()))
        return result

    return run


def subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    """All classes that derive from a class."""
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


def _add_forward(events: list[Any], seconds: dict[str, float]) -> None:
    """Add the time of every marked stage, without that of the stages inside it."""
    open_until: list[tuple[int, str]] = []
    for event in events:
        if not event.name().startswith((_MARK, _WHOLE)):
            continue
        stage, duration = event.name().removeprefix(_MARK), event.duration_ns()
        while open_until and event.start_ns() >= open_until[-1][0]:
            open_until.pop()
        seconds[stage] += duration / 1e9
        if open_until:
            seconds[open_until[-1][1]] -= duration / 1e9
        open_until.append((event.start_ns() + duration, stage))


def _add_backward(events: list[Any], spans: list[Span], seconds: dict[str, float]) -> None:
    """Add the time of the backward pass, by the stage of each node's forward pass."""
    stages: dict[int, str] = {}
    for stage, first, last in sorted(spans, key=lambda span: span[1] - span[2]):
        stages.update(dict.fromkeys(range(first, last), stage))
    current = REST
    for event in events:
        duration = event.duration_ns() / 1e9
        if event.name().startswith(_NODE):
            number = event.sequence_nr()
            current = stages.get(number, REST) if number >= 0 else ACCUMULATION
            seconds[current] += duration
        elif event.name() == _CONVOLUTION_BACKWARD:  # inside the node that began last
            seconds[current] -= duration
            seconds[CONVOLUTIONS] += duration
