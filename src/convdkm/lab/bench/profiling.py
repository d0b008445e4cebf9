"""Where the time of a training step goes, stage by stage, forward and backward.

While a step is profiled, the methods that map the data blocks are wrapped so that the profiler
sees when each stage begins and ends; afterwards they are as they were. A node of the backward pass
belongs to the stage in which its forward was: both bear the same sequence number.
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
"""What the plans of a module do; others go by the module's name."""
CHAIN, INPUT, HEAD, LIKELIHOOD = "inducing chain", "input patches", "head", "likelihood"
OPTIMISER, ACCUMULATION, REST = "optimiser", "summing of gradients", "the rest"
_MARK, _WHOLE = "convdkm: ", "convdkm step"
_NODE = "autograd::engine::evaluate_function: "
_CONVOLUTION_BACKWARD = "aten::convolution_backward"


@dataclass(frozen=True)
class Share:
    """Seconds of one stage in a step."""

    stage: str
    forward: float
    backward: float

    @property
    def total(self) -> float:
        return self.forward + self.backward


@dataclass(frozen=True)
class Span:
    """The sequence numbers of the nodes that a stage made, from ``first`` up to ``last``."""

    stage: str
    first: int
    last: int


def profile_step(model: DeepKernelMachine, contestant: Contestant, steps: int = 3) -> list[Share]:
    """Time of every stage of a training step, the longest first; the mean over some steps."""
    contestant.forget()
    contestant.step()
    forward: dict[str, float] = defaultdict(float)
    backward: dict[str, float] = defaultdict(float)
    for _ in range(steps):
        contestant.forget()
        with marked(model) as spans:
            events = trace(functools.partial(_step, contestant))
        _add(forward, _forward(events), steps)
        _add(backward, _backward(events, spans), steps)
    whole = forward.pop(_WHOLE)
    # The rest of the whole is what lies in no stage, and in no node of the backward pass.
    forward[REST] = max(whole - sum(backward.values()), 0.0)
    shares = [Share(stage, forward[stage], backward[stage]) for stage in {**forward, **backward}]
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
    homes = [(kind, "data", _stage(kind)) for kind in subclasses(Plan)]
    homes += [
        (Window, "convolve", CONVOLUTIONS),
        (_home(model, "plan"), "plan", CHAIN),
        (_home(model.input, "data"), "data", INPUT),
        (_home(getattr(model.plan(), "head", None), "marginals"), "marginals", HEAD),
        (_home(model.likelihood, "expected_log_prob"), "expected_log_prob", LIKELIHOOD),
    ]
    originals = [
        (kind, name, vars(kind)[name], stage) for kind, name, stage in homes if name in vars(kind)
    ]
    for kind, name, method, stage in originals:
        setattr(kind, name, _marked(method, stage, spans))
    try:
        yield spans
    finally:
        for kind, name, method, _ in originals:
            setattr(kind, name, method)


def _home(owner: object, method: str) -> type[Any]:
    """The class that defines a method of an object; the object's own if none does."""
    kinds = type(owner).__mro__
    return next((kind for kind in kinds if method in vars(kind)), type(owner))


def _stage(plan: type) -> str:
    module = plan.__module__.rpartition(".")[2]
    return STAGES.get(module, module)


def _marked(method: Callable[..., Any], stage: str, spans: list[Span]) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(*args: Any, **kwargs: Any) -> Any:
        first = _get_sequence_nr()
        with record_function(_MARK + stage):
            result = method(*args, **kwargs)
        spans.append(Span(stage, first, _get_sequence_nr()))
        return result

    return run


def subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    """All classes that derive from a class."""
    each: type[Any]
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


def _add(total: dict[str, float], part: dict[str, float], steps: int) -> None:
    for stage, seconds in part.items():
        total[stage] += seconds / steps


def _forward(events: list[Any]) -> dict[str, float]:
    """Seconds of every marked stage, without those of the stages inside it."""
    total: dict[str, float] = defaultdict(float)
    open_until: list[tuple[int, str]] = []
    for event in events:
        name = event.name()
        if not name.startswith((_MARK, _WHOLE)):
            continue
        stage = name.removeprefix(_MARK)
        while open_until and event.start_ns() >= open_until[-1][0]:
            open_until.pop()
        seconds = event.duration_ns() / 1e9
        total[stage] += seconds
        if open_until:
            total[open_until[-1][1]] -= seconds
        open_until.append((event.start_ns() + event.duration_ns(), stage))
    return dict(total)


def _backward(events: list[Any], spans: list[Span]) -> dict[str, float]:
    """Seconds of the backward pass, by the stage that each node's forward was in."""
    stages: dict[int, str] = {}
    for span in sorted(spans, key=lambda span: span.first - span.last):
        stages.update(dict.fromkeys(range(span.first, span.last), span.stage))
    seconds: dict[str, float] = defaultdict(float)
    stage = REST
    for event in events:
        if event.name().startswith(_NODE):
            number = event.sequence_nr()
            stage = stages.get(number, REST) if number >= 0 else ACCUMULATION
            seconds[stage] += event.duration_ns() / 1e9
        elif event.name() == _CONVOLUTION_BACKWARD:  # inside the node that began last
            seconds[stage] -= event.duration_ns() / 1e9
            seconds[CONVOLUTIONS] += event.duration_ns() / 1e9
    return dict(seconds)
