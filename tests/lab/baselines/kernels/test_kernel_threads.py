"""Kernels worked out by several threads."""

import threading

import pytest
import torch

import convdkm as dkm
from convdkm.lab.baselines.kernels import (
    LocalAverage,
    NNGPKernel,
    myrtle,
    plain,
    residual,
    tiles,
)
from convdkm.lab.baselines.kernels.nngp import in_threads


@pytest.fixture
def cores():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_jobs_come_back_in_order(count, cores):
    cores(3)
    asked = iter(range(40))
    found = list(in_threads(lambda job: job**2, asked, count))
    assert found == [(job, job**2) for job in range(40)]
    assert torch.get_num_threads() == 3


def test_each_thread_has_one_core_and_no_gradients(cores):
    cores(2)
    both = threading.Barrier(2, timeout=20)

    def work(_):
        both.wait()
        return threading.get_ident(), torch.get_num_threads(), torch.is_grad_enabled()

    found = [result for _, result in in_threads(work, range(2), 2)]
    assert len({each[0] for each in found}) == 2
    assert {each[1:] for each in found} == {(1, False)}


def test_an_error_stops_the_rest(cores):
    cores(2)
    done = []

    def work(job):
        done.append(job)
        if job == 3:
            raise ValueError("job 3 cannot be done")

    with pytest.raises(ValueError, match="job 3"):
        list(in_threads(work, range(1000), 2))
    assert len(done) < 20
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    "architecture",
    [plain(2, dkm.Flatten()), residual(1, LocalAverage(3)), myrtle(5)],
    ids=lambda architecture: architecture.name,
)
def test_values_do_not_depend_on_the_threads(architecture, monkeypatch, cores):
    monkeypatch.setattr(tiles, "SLAB", 3 * 8**3)
    images = torch.randn(11, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    kernel = NNGPKernel(architecture, flips=True, normalise=True)
    values = []
    for count in (1, 2, 3):
        cores(count)
        assert kernel.check(images).threads == count
        values.append((kernel.matrix(images), kernel.matrix(images[:4], images)))
    for matrix, block in values[1:]:
        torch.testing.assert_close(matrix, values[0][0], rtol=1e-6, atol=0)
        torch.testing.assert_close(block, values[0][1], rtol=1e-6, atol=0)


def test_threads_share_the_budget(cores):
    images = torch.randn(3, 2, 8, 8)
    cores(4)
    least = NNGPKernel(myrtle(5)).check(images).least
    for memory, threads in [(least, 1), (2 * least, 2), (3 * least - 1, 2), (100 * least, 4)]:
        assert NNGPKernel(myrtle(5), memory=memory).check(images).threads == threads
