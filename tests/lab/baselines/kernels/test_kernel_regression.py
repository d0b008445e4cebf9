"""Regression on labels with these kernels, as a baseline."""

import math
import shutil
from collections import namedtuple

import pytest
import torch
from brute_force import brute_matrix

import convdkm as dkm
from convdkm.errors import InvalidInputError, NotInitialisedError
from convdkm.lab.baselines import kernel_regression as module
from convdkm.lab.baselines.base import Baseline
from convdkm.lab.baselines.kernel_regression import KernelRegression, calibrated
from convdkm.lab.baselines.kernels import NNGPKernel, myrtle, plain
from convdkm.lab.baselines.kernels.solvers import leave_one_out, solve_directly

DOUBLE = {"dtype": torch.float64}


def pictures(count, seed=0):
    """Bars that lie, stand, or neither, somewhere in 6×6 pixels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    images = 0.3 * torch.randn(count, 1, 6, 6, generator=generator)
    for image, label in zip(images, labels, strict=True):
        place = int(torch.randint(1, 5, (1,), generator=generator))
        if label == 0:
            image[0, place] += 2
        elif label == 1:
            image[0, :, place] += 2
    return images, labels


@pytest.fixture
def train():
    return pictures(30)


@pytest.fixture
def test():
    return pictures(12, seed=1)


def test_scores_are_those_of_the_formula():
    images, labels = pictures(6)
    images = images[..., :4, :4].double()
    new = images[:2] + 0.1
    architecture = plain(1)
    machine = KernelRegression(NNGPKernel(architecture, **DOUBLE), ridge=0.1).fit(images, labels)
    kernel = brute_matrix(architecture, images)
    targets = torch.eye(3, dtype=torch.float64)[labels] - 1 / 3
    ridge = 0.1 * kernel.diagonal().mean() * torch.eye(6, dtype=torch.float64)
    expected = brute_matrix(architecture, new, images) @ torch.linalg.solve(kernel + ridge, targets)
    torch.testing.assert_close(machine.scores(new), expected, rtol=1e-9, atol=1e-11)
    assert torch.equal(machine.predict(new), expected.argmax(1))
    assert machine.parameters == 6 * 3
    assert machine.ridge_ == 0.1
    assert machine.loo_ is None
    assert machine.probabilities(new) is None
    assert isinstance(machine, Baseline)


@pytest.mark.parametrize("architecture", [plain(2), plain(2, dkm.Flatten())], ids=lambda a: a.name)
def test_it_learns(train, test, architecture):
    machine = KernelRegression(NNGPKernel(architecture)).fit(*train)
    assert float((machine.predict(test[0]) == test[1]).double().mean()) > 0.8


@pytest.mark.parametrize("on_disk", [False, True])
def test_conjugate_gradients_equal_cholesky(train, test, tmp_path, on_disk):
    kernel = NNGPKernel(plain(2), **DOUBLE)
    folder = tmp_path / "k" if on_disk else None
    direct = KernelRegression(kernel).fit(*train)
    steps = KernelRegression(
        kernel, solver="cg", folder=folder, block=8, rank=5, tolerance=1e-11
    ).fit(*train)
    assert steps.ridge_ == direct.ridge_
    torch.testing.assert_close(steps.scores(test[0]), direct.scores(test[0]), rtol=1e-6, atol=1e-8)
    assert steps.solved_.iterations > 1
    assert direct.solved_ is None


def test_cholesky_from_disk_and_a_second_fit_that_computes_nothing(
    train, test, tmp_path, monkeypatch
):
    kernel = NNGPKernel(plain(2), **DOUBLE)
    expected = KernelRegression(kernel).fit(*train).scores(test[0])
    lines = []
    first = KernelRegression(kernel, folder=tmp_path / "k", block=8)
    first.tell = lines.append
    first.fit(*train)
    torch.testing.assert_close(first.scores(test[0]), expected)
    assert lines[0].startswith("kernel conv2-gap: 465 pairs, about ")
    monkeypatch.setattr(NNGPKernel, "seconds_per_pair", lambda *_: pytest.fail("a trial"))
    second = KernelRegression(kernel, folder=tmp_path / "k", block=8).fit(*train)
    torch.testing.assert_close(second.scores(test[0]), expected)


def test_the_ridge_is_that_of_leaving_one_out(train):
    kernel = NNGPKernel(plain(2), **DOUBLE)
    grid = (1e-3, 1e-1, 10.0)
    machine = KernelRegression(kernel, grid=grid).fit(*train)
    matrix = kernel.matrix(train[0])
    targets = torch.eye(3, dtype=torch.float64)[train[1]] - 1 / 3
    expected = leave_one_out(matrix, targets, [r * float(matrix.diagonal().mean()) for r in grid])
    assert machine.ridge_ == grid[expected.best]
    assert machine.loo_.errors == pytest.approx(expected.errors)


def test_conjugate_gradients_choose_the_ridge_on_some_points(train):
    kernel = NNGPKernel(plain(1), **DOUBLE)
    machine = KernelRegression(kernel, solver="cg", loo_points=10, seed=3).fit(*train)
    chosen = torch.randperm(30, generator=torch.Generator().manual_seed(3))[:10]
    part = kernel.matrix(train[0][chosen])
    targets = torch.eye(3, dtype=torch.float64)[train[1][chosen]] - 1 / 3
    mean = float(kernel.variance(train[0]).mean())
    expected = leave_one_out(part, targets, [ridge * mean for ridge in machine.grid])
    assert machine.loo_.errors == pytest.approx(expected.errors)
    assert machine.ridge_ == machine.grid[expected.best]


def test_training_on_flips_equals_the_doubled_set(train, test):
    kernel = NNGPKernel(plain(2), **DOUBLE)
    images, labels = train
    both = torch.cat([images, images.flip(-1)])
    matrix = kernel.matrix(both)
    targets = (torch.eye(3, dtype=torch.float64)[labels] - 1 / 3).repeat(2, 1)
    ridge = 0.03 * float(matrix.diagonal().mean())
    weights = solve_directly(matrix, targets, ridge)
    expected = kernel.matrix(test[0], both) @ weights
    machine = KernelRegression(kernel, ridge=0.03, augment_flips=True).fit(*train)
    torch.testing.assert_close(machine.scores(test[0]), expected, rtol=1e-8, atol=1e-10)

    # A point is left out with its mirror image: both are missed by the same.
    found = KernelRegression(kernel, grid=(0.03,), augment_flips=True).fit(*train).loo_
    system = matrix + ridge * torch.eye(60, dtype=torch.float64)
    for point in (0, 7):
        rest = [i for i in range(60) if i not in (point, point + 30)]
        fitted = torch.linalg.solve(system[rest][:, rest], targets[rest])
        missed = targets[point] - matrix[point, rest] @ fitted
        torch.testing.assert_close(found.residuals[point], missed, rtol=1e-8, atol=1e-10)


def test_averaging_over_flips_is_another_kernel(train, test):
    kernel = NNGPKernel(plain(2), flips=True)
    machine = KernelRegression(kernel, ridge=0.1).fit(*train)
    mirrored = machine.scores(test[0].flip(-1))
    torch.testing.assert_close(machine.scores(test[0]), mirrored, rtol=1e-4, atol=1e-5)


def test_probabilities_fit_the_points_left_out(train, test):
    machine = KernelRegression(NNGPKernel(plain(2))).fit(*train)
    found = machine.probabilities(test[0])
    torch.testing.assert_close(found.sum(1), torch.ones(12, dtype=torch.float64))
    assert torch.equal(found.argmax(1), machine.predict(test[0]))
    left_out = -torch.log(found[torch.arange(12), test[1]]).mean()
    assert float(left_out) < math.log(3)


def test_calibration_finds_the_temperature():
    logits = 2 * torch.randn(4000, 3, dtype=torch.float64)
    labels = torch.distributions.Categorical(logits=logits).sample()
    assert calibrated(0.1 * logits, labels) == pytest.approx(0.1, rel=0.1)


def test_a_kernel_that_does_not_fit_in_memory_is_refused(train, monkeypatch):
    small = NNGPKernel(plain(2), memory=1 << 20)
    monkeypatch.setattr(module, "available_memory", lambda: (1 << 20) + 40_000)
    monkeypatch.setattr(NNGPKernel, "prepare", lambda *_: pytest.fail("work was begun"))
    with pytest.raises(
        InvalidInputError,
        match=r"of 30 images needs 1\.\d MiB of memory, and 1\.0 MiB are free; about 2\d images",
    ) as caught:
        KernelRegression(small).fit(*train)
    assert "solver='cg' with a folder" in str(caught.value)
    # What is said to fit does.
    count = int(str(caught.value).split("about ")[1].split()[0])
    KernelRegression(small).foresee(train[0][:count], train[1][:count])
    with pytest.raises(InvalidInputError):
        KernelRegression(small).foresee(train[0][: count + 1], train[1][: count + 1])


def test_on_disk_the_images_themselves_must_fit_in_memory(train, tmp_path, monkeypatch):
    small = NNGPKernel(plain(2), memory=1 << 20)
    monkeypatch.setattr(module, "available_memory", lambda: (1 << 20) + 5_000)
    machine = KernelRegression(small, solver="cg", rank=1, folder=tmp_path / "k")
    # Two maps and an image of 36 numbers of 4 bytes, and 24 for the preconditioner: 456 bytes.
    with pytest.raises(InvalidInputError, match=r"are free; about 10 images would fit$"):
        machine.foresee(*train)
    machine.foresee(train[0][:10], train[1][:10])


def test_a_kernel_that_does_not_fit_on_disk_is_refused(train, tmp_path, monkeypatch):
    Usage = namedtuple("Usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10_000, 9_000, 1_000))
    machine = KernelRegression(
        NNGPKernel(plain(2)), solver="cg", folder=tmp_path / "a" / "b", block=8
    )
    with pytest.raises(InvalidInputError, match=r"30 images needs 0\.0 MiB in .*about 22 images"):
        machine.fit(*train)
    assert not (tmp_path / "a").exists()


def test_a_kernel_that_takes_too_long_is_refused(train, monkeypatch):
    monkeypatch.setattr(NNGPKernel, "seconds_per_pair", lambda *_: 10.0)
    machine = KernelRegression(NNGPKernel(plain(2)))
    machine.minutes = 10
    with pytest.raises(
        InvalidInputError,
        match=r"of 30 images takes about 78 min .* the 10 min allowed; about 10 images would fit",
    ):
        machine.fit(*train)


def test_bad_use_is_refused(train):
    kernel = NNGPKernel(plain(1))
    with pytest.raises(NotInitialisedError, match="KernelRegression has to be fitted first"):
        KernelRegression(kernel).predict(train[0])
    machine = KernelRegression(kernel, ridge=1.0).fit(*train)
    with pytest.raises(InvalidInputError, match=r"\(N, 1, 6, 6\) as those of fit.*\(30, 1, 6, 5\)"):
        machine.scores(train[0][..., :5])
    with pytest.raises(InvalidInputError, match="labels must be 30 integers"):
        machine.fit(train[0], train[1][:5])
    with pytest.raises(InvalidInputError, match="squares of 2×2"):
        KernelRegression(NNGPKernel(myrtle(5))).foresee(*train)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ridge": 0}, "ridge must be 'loo' or a positive number, got 0"),
        ({"ridge": "best"}, "ridge must be 'loo' or a positive number, got 'best'"),
        ({"solver": "lu"}, "solver must be one of 'cholesky', 'cg'"),
        ({"loo_points": 1}, "loo_points must be at least 2"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(InvalidInputError, match=message):
        KernelRegression(NNGPKernel(plain(1)), **options)


def test_two_ways_of_flipping_at_once_are_refused():
    for options in ({"flips": True}, {"normalise": True}):
        with pytest.raises(InvalidInputError, match="augment_flips=True takes a kernel with"):
            KernelRegression(NNGPKernel(plain(1), **options), augment_flips=True)
