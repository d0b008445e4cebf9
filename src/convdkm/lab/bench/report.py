"""The whole bench: what to run, and all that came out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from typing import Any, Literal

from convdkm.errors import InvalidInputError
from convdkm.lab.bench.compare import compare
from convdkm.lab.bench.contestants import NU, Workload, machine, ours
from convdkm.lab.bench.host import machine_facts, signs_of_others
from convdkm.lab.bench.precision import compare_precisions
from convdkm.lab.bench.profiling import profile_step
from convdkm.lab.bench.scaling import growth
from convdkm.training.environment import environment

Part = Literal["compare", "scaling", "profile"]
Say = Callable[[str], None]
SCALING_BATCH = 64
"""Images of a batch in the middle of the curves of growth, at most."""


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        workloads: sizes; parts that need one take the first.
        parts: which parts.
        repeats: times that everything is repeated.
        steps: of the comparison of precisions.
        compiled: let the machine compile its kernels, and record its steps.
        nudged: beside float32, train in float64 from a start that is moved a little.
    """

    workloads: tuple[Workload, ...]
    parts: tuple[Part, ...] = ("compare", "scaling", "profile")
    repeats: int = 5
    steps: int = 200
    compiled: bool = False
    nudged: bool = True

    def __post_init__(self) -> None:
        for name, value in (("repeats", self.repeats), ("steps", self.steps)):
            if value < 1:
                raise InvalidInputError(f"{name} must be at least 1, got {value}")


def run_bench(plan: Plan, say: Say) -> dict[str, Any]:
    """Run the parts of the bench.

    Args:
        plan: what to run.
        say: is told what is going on.

    Returns:
        Plain values: the ratios of the first workload by name, then where and when, then all that
        was measured, part by part.
    """
    disturbed = signs_of_others()
    facts = environment()
    results: dict[str, Any] = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine_facts(),
        "versions": {"python": facts["python"], **facts["packages"]},
        "git": facts["git"],
        "settings": {
            "repeats": plan.repeats,
            "compiled": plan.compiled,
            "nu": NU,
            "parts": list(plan.parts),
        },
        "disturbed": disturbed,
    }
    first = plan.workloads[0]
    if "compare" in plan.parts:
        rows = [compare(each, plan.repeats, say, compiled=plan.compiled) for each in plan.workloads]
        say(f"float32 beside float64: {plan.steps} steps each")
        precision = compare_precisions(plan.steps, nudged=plan.nudged)
        ratios = {**rows[0].ratios(), "objective_float32_vs_float64": precision.single}
        results = {**ratios, **results}
        results |= {"rows": [row.facts() for row in rows], "precision": asdict(precision)}
    if "scaling" in plan.parts:
        base = replace(first, batch=min(first.batch, SCALING_BATCH))
        results["scaling"] = [
            {
                "axis": each.axis.name,
                "sizes": each.axis.sizes,
                "seconds": each.seconds,
                "bytes": each.bytes,
                "time_exponent": each.time,
                "memory_exponent": each.memory,
                "time_theory": each.axis.time,
                "memory_theory": each.axis.memory,
                "around": asdict(base),
            }
            for each in growth(base, plan.repeats, say, compiled=plan.compiled)
        ]
    if "profile" in plan.parts:
        say(f"{first.name}: profile of a step")
        model = machine(first, compiled=plan.compiled)
        shares = profile_step(model, ours(first, model), min(plan.repeats, 3))
        results["profile"] = {"around": asdict(first), "stages": [asdict(each) for each in shares]}
    return results
