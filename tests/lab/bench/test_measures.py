"""The instruments of the bench: clock, memory meter, slopes, kept memory, signs of other work."""

import platform
import subprocess
import sys
import time

import pytest
import torch

from convdkm.lab.bench import host
from convdkm.lab.bench.measure import SETTLED, in_turn, slope, timed
from convdkm.runtime.allocator import keep_freed_memory
from convdkm.runtime.memory import available_memory, peak_memory

KIB = 1024


def test_the_meter_counts_what_stands_at_the_worst_moment():
    def action():
        first, second = torch.empty(KIB), torch.empty(2 * KIB)
        del first
        third = torch.empty(4 * KIB)
        return second, third

    assert peak_memory(action) == 4 * 6 * KIB


def test_the_meter_does_not_count_what_stood_before():
    before = [torch.empty(100 * KIB)]

    def action():
        before.clear()
        return torch.empty(KIB)

    assert peak_memory(action) == 4 * KIB


def test_nor_what_an_earlier_reading_has_seen():
    kept = []
    peak_memory(lambda: kept.append(torch.empty(100 * KIB)))

    def action():
        kept.clear()
        return torch.empty(KIB)

    assert peak_memory(action) == 4 * KIB


def test_the_meter_counts_activations_and_gradients():
    parameter = torch.randn(KIB, requires_grad=True)
    size, depth = 4 * KIB, 5

    def step():
        value = parameter
        for _ in range(depth):
            value = value.exp()  # keeps its result for the backward pass
        value.sum().backward()

    # All results, a gradient that comes in and one that goes out; the sum and its gradient.
    assert peak_memory(step) == (depth + 2) * size + 2 * 4
    assert parameter.grad is not None


def test_the_meter_sees_temporaries_inside_an_operator():
    # In float64 a convolution unfolds its input: 9 times the image.
    images, weight = torch.randn(1, 4, 32, 32).double(), torch.randn(4, 4, 3, 3).double()
    image = images.numel() * 8
    assert peak_memory(lambda: torch.conv2d(images, weight, padding=1)) >= 9 * image


def test_memory_that_is_free_is_told_or_not_known():
    free = available_memory()
    assert free is None or free > 2**20


def test_short_actions_are_repeated_until_they_have_settled():
    calls = {"short": 0, "long": 0}

    def action(name, seconds):
        def lap():
            calls[name] += 1
            time.sleep(seconds)
            return (seconds,)

        return lap

    actions = {"short": action("short", 0.01), "long": action("long", 0.2)}
    times = in_turn(actions, repeats=2, settling=0.1)
    assert calls["long"] == SETTLED + 2
    assert SETTLED + 2 < calls["short"] <= 12
    assert {name: len(parts[0]) for name, parts in times.items()} == {"short": 2, "long": 2}


def test_actions_are_done_in_turn_and_the_warm_up_does_not_count():
    order = []

    def action(name):
        def lap():
            order.append(name)
            return float(len(order)), 0.5

        return lap

    times = in_turn({"a": action("a"), "b": action("b")}, repeats=2)
    assert "".join(order) == "ababab"
    assert times["a"] == [(3.0, 5.0), (0.5, 0.5)]
    assert times["b"][0] == (4.0, 6.0)
    assert timed(lambda: None)()[0] >= 0


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.5])
def test_the_slope_is_the_exponent_of_a_power_law(exponent):
    sizes = (8, 16, 40, 100)
    assert slope(sizes, [3.0 * size**exponent for size in sizes]) == pytest.approx(exponent)


def test_other_work_on_the_machine_shows(monkeypatch):
    monkeypatch.setattr(host, "load_average", lambda: 5.0)
    monkeypatch.setattr(host, "slowdown", lambda: 1.9)
    load, products = host.signs_of_others()
    assert "load average was 5.0" in load
    assert "differed 1.9-fold" in products
    monkeypatch.setattr(host, "load_average", lambda: None)
    monkeypatch.setattr(host, "slowdown", lambda: 1.01)
    assert host.signs_of_others() == []


def test_the_machine_is_described():
    facts = host.machine_facts()
    assert facts["processor"]
    assert facts["cores"] >= 1
    assert facts["threads"] == torch.get_num_threads()
    assert host.slowdown(5) >= 1


FAULTS = """
import resource, sys, torch
from convdkm.runtime.allocator import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

print(keep_freed_memory() if sys.argv[1] == "keep" else False)
def work():
    first, second = torch.ones(2**24), torch.ones(2**23)  # 64 and 32 MiB

for _ in range(12):  # until every block has found its place
    work()
before = faults()
for _ in range(4):
    work()
print(faults() - before)
"""


def faults(mode: str) -> tuple[bool, int]:
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, mode], capture_output=True, text=True, check=True
    )
    took, count = done.stdout.split()
    return took == "True", int(count)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_kept_memory_is_not_taken_from_the_kernel_again():
    (kept, few), (_, many) = faults("keep"), faults("leave")
    assert kept
    # Huge pages may make the faults few; then there is nothing to save.
    assert few < 100 or few < many / 2


def test_elsewhere_memory_is_left_as_it_is(monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Plan 9")
    assert keep_freed_memory() is False
