"""The whole bench: all of its results, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from typing import Any, Literal

from convdkm.checks import check_positive
from convdkm.lab.bench.compare import compare
from convdkm.lab.bench.contestants import NU, Workload, machine, ours
from convdkm.lab.bench.host import machine_facts, signs_of_others
from convdkm.lab.bench.precision import compare_precisions
from convdkm.lab.bench.profiling import profile_step
from convdkm.lab.bench.scaling import growth
from convdkm.training.environment import environment

Part = Literal["compare", "scaling", "profile"]
SCALING_BATCH = 64
"""Images of a batch in the middle of the curves of growth, at most."""


def run_bench(
    workloads: Sequence[Workload],
    parts: Sequence[Part],
    say: Callable[[str], None],
    *,
    repeats: int,
    steps: int,
    compiled: bool,
    nudged: bool,
) -> dict[str, Any]:
    """Run parts of the bench.

    Args:
        workloads: sizes; parts that need one take the first.
        parts: which parts.
        say: is told what is going on.
        repeats: times that everything is repeated.
        steps: of the comparison of precisions.
        compiled: let the machine compile its kernels, and record its steps.
        nudged: beside float32, train in float64 from a start that is moved a little.

    Returns:
        Plain values: the ratios of the first workload by name, then where and when, then all that
        was measured, part by part.
    """
    check_positive(repeats=repeats, steps=steps)
    disturbed = signs_of_others()
    facts = environment()
    results: dict[str, Any] = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine_facts(),
        "versions": {"python": facts["python"], **facts["packages"]},
        "git": facts["git"],
        "settings": {"repeats": repeats, "compiled": compiled, "nu": NU, "parts": list(parts)},
        "disturbed": disturbed,
    }
    first = workloads[0]
    if "compare" in parts:
        rows = [compare(each, repeats, say, compiled=compiled) for each in workloads]
        say(f"float32 beside float64: {steps} steps each")
        precision = compare_precisions(steps, nudged=nudged)
        ratios = {**rows[0]["ratios"], "objective_float32_vs_float64": precision["single"]}
        results = {**ratios, **results, "rows": rows, "precision": precision}
    if "scaling" in parts:
        base = replace(first, batch=min(first.batch, SCALING_BATCH))
        results["scaling"] = growth(base, repeats, say, compiled=compiled)
    if "profile" in parts:
        say(f"{first.name}: profile of a step")
        model = machine(first, compiled=compiled)
        shares = profile_step(model, ours(first, model), min(repeats, 3))
        results["profile"] = {"around": asdict(first), "stages": [asdict(each) for each in shares]}
    return results
