"""Two hosts, made of network namespaces, train one machine over torchrun's rendezvous."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from parallel import RECIPE, finished, require_same_runs, rows, step_of

from convdkm.cli import run as run_command

PORT = 29577


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True)


def end_all_on(name):
    """Kill what runs in a namespace."""
    inside = subprocess.run(["ip", "netns", "pids", name], capture_output=True, check=False)
    for process in inside.stdout.split():
        with suppress(ProcessLookupError):
            os.kill(int(process), signal.SIGKILL)


@pytest.fixture
def hosts():
    """Names, addresses and interfaces of two namespaces joined by a cable; or a reason to skip."""
    if shutil.which("ip") is None:
        pytest.skip("there is no `ip` to make network namespaces with; install iproute2")
    number = os.getpid() % 250
    names = [f"convdkm-{os.getpid()}-{side}" for side in "ab"]
    cables = [f"dkm{os.getpid() % 10**7}{side}" for side in "ab"]
    addresses = [f"10.213.{number}.{host}" for host in (1, 2)]
    try:
        try:
            for name in names:
                ip("netns", "add", name)
            ip("link", "add", cables[0], "type", "veth", "peer", "name", cables[1])
            for name, cable, address in zip(names, cables, addresses, strict=True):
                ip("link", "set", cable, "netns", name)
                inside = ("-n", name)
                ip(*inside, "addr", "add", f"{address}/24", "dev", cable)
                ip(*inside, "link", "set", cable, "up")
                ip(*inside, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
        yield list(zip(names, addresses, cables, strict=True))
    finally:
        for name in names:
            end_all_on(name)
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def on_host(host, leader, *arguments):
    """A started torchrun inside a namespace, one of two."""
    name, address, cable = host
    options = [
        *("--nnodes=2", "--nproc-per-node=1", "--rdzv-id=test", "--rdzv-backend=c10d"),
        f"--rdzv-endpoint={leader}:{PORT}",
        f"--rdzv-conf=is_host={str(address == leader).lower()}",
        f"--local-addr={address}",
    ]
    program = [sys.executable, "-m", "torch.distributed.run", *options, "-m", "convdkm"]
    return subprocess.Popen(
        ["ip", "netns", "exec", name, *program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": cable},
    )


def test_two_hosts_train_as_one_process(hosts, tmp_path):
    whole, folder = tmp_path / "whole", tmp_path / "run"
    recipe = [*RECIPE, "--epochs=1"]
    leader = hosts[0][1]
    started = [on_host(host, leader, "train", *recipe, "-o", folder) for host in hosts]
    assert run_command(["train", *recipe, "-o", str(whole)]) == 0
    outputs = [finished(process)[0] for process in started]
    assert [str(folder) in out for out in outputs] == [True, False], "one process speaks"
    require_same_runs(folder, whole)


def test_a_host_that_is_cut_off_does_not_hold_the_other_up(hosts, tmp_path):
    """No process dies and no connection is closed: only the time tells."""
    folder = tmp_path / "run"
    recipe = [*RECIPE, "--epochs=1000", "--timeout-minutes=0.3"]
    first, second = (on_host(host, hosts[0][1], "train", *recipe, "-o", folder) for host in hosts)
    end = time.monotonic() + 90
    try:
        while not (folder / "steps.csv").exists() or len(rows(folder / "steps.csv")) < 2:
            assert first.poll() is None, "the run has ended"
            assert time.monotonic() < end, "no step in 90 s"
            time.sleep(0.01)
        ip("-n", hosts[0][0], "link", "set", hosts[0][2], "down")
        _, err = first.communicate(timeout=60)
    finally:
        for name, _, _ in hosts:
            end_all_on(name)
        first.communicate()
        second.communicate()
    done = len(rows(folder / "steps.csv"))
    assert f"training stopped after step {done}, which is saved: another process" in err
    assert step_of(folder) == done
