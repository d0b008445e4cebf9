"""Convolutional Gaussian processes as baselines."""

import subprocess
import sys
import time

import pytest
import torch

from convdkm.errors import InvalidInputError, NotInitialisedError
from convdkm.lab.baselines.gp import ConvolutionalGP, DeepConvolutionalGaussianProcess

SHALLOW = {"inducing": 15, "size": 3, "epochs": 15, "batch_size": 30, "learning_rate": 0.1}
DEEP = {**SHALLOW, "channels": 3, "hidden_size": 2, "hidden_stride": 2}
BASELINES = [
    (ConvolutionalGP, SHALLOW),
    (ConvolutionalGP, {**SHALLOW, "orthogonal": 6, "located": True}),
    (DeepConvolutionalGaussianProcess, {**DEEP, "size": 2, "epochs": 25}),
]


@pytest.mark.parametrize(("kind", "options"), BASELINES)
def test_it_learns(kind, options, stripes):
    (images, labels), (test_images, test_labels) = stripes
    baseline, said = kind(**options), []
    baseline.tell = said.append
    assert baseline.fit(images, labels) is baseline
    assert float((baseline.predict(test_images) == test_labels).double().mean()) > 0.6
    chances = baseline.probabilities(test_images)
    torch.testing.assert_close(chances.sum(1), torch.ones(60, dtype=torch.float64))
    assert baseline.curve[-1] < baseline.curve[0]
    assert len(said) == options["epochs"]


@pytest.mark.parametrize(("kind", "options"), BASELINES)
def test_the_seed_is_all_that_is_random(kind, options, stripes):
    (images, labels), (test_images, _) = stripes
    first, again, other = (
        kind(**{**options, "epochs": 1, "seed": seed}).fit(images, labels).scores(test_images)
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(("kind", "options"), BASELINES)
def test_it_stops_in_time_and_leaves_the_generator_alone(kind, options, stripes):
    (images, labels), _ = stripes
    baseline = kind(**{**options, "epochs": 100_000})
    baseline.minutes = 1 / 60
    state = torch.random.get_rng_state()
    start = time.process_time()  # of this process: others may keep it waiting
    baseline.fit(images, labels)
    assert time.process_time() - start < 20
    assert baseline.scores(images).isfinite().all()
    assert torch.equal(torch.random.get_rng_state(), state)


def test_parameters_by_hand(stripes):
    (images, labels), _ = stripes
    short = {"epochs": 1, "inducing": 5, "size": 3}
    q = 5 + 5 * 6 // 2
    shallow = ConvolutionalGP(**short).fit(images, labels)
    top = 36 + 2 + 5 * 9 + 3 * q  # weights, kernel, patches, one q for each class
    assert shallow.parameters == top
    more = ConvolutionalGP(**short, orthogonal=2).fit(images, labels)
    assert more.parameters == top + 2 * 9 + 3 * (2 + 3)
    deep = DeepConvolutionalGaussianProcess(**short, channels=2).fit(images, labels)
    hidden = 2 + 5 * 9 + 2 * q
    assert deep.parameters == hidden + 16 + 3 + 5 * (18 + 2) + 3 * q


@pytest.mark.parametrize(("side", "stride"), [(8, 1), (16, 1), (28, 2), (32, 2), (64, 4)])
def test_the_stride_bounds_the_number_of_patches(side, stride):
    assert ConvolutionalGP().stride_for(side, side) == stride
    assert ConvolutionalGP(stride=3).stride_for(side, side) == 3


def test_a_set_that_does_not_fit_is_foreseen(monkeypatch):
    images, labels = torch.zeros(64, 1, 20, 20), torch.arange(64) % 3
    ConvolutionalGP().foresee(images, labels)
    DeepConvolutionalGaussianProcess(hidden=2).foresee(images, labels)
    monkeypatch.setattr("convdkm.lab.baselines.gp.available_memory", lambda: 10_000_000)
    with pytest.raises(InvalidInputError, match=r"kernel of 256 patches .* batch_size of 4, or"):
        ConvolutionalGP().foresee(images, labels)


def test_the_package_is_imported_when_it_is_used():
    code = "import sys, convdkm.lab.baselines.gp as gp; gp.ConvolutionalGP()"
    code += "; print('gpytorch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_without_the_package_the_extra_is_named(monkeypatch, stripes):
    (images, labels), _ = stripes
    monkeypatch.setitem(sys.modules, "gpytorch", None)
    monkeypatch.delitem(sys.modules, "convdkm.lab.baselines.gp_layers", raising=False)
    with pytest.raises(InvalidInputError, match=r"gpytorch; install it by pip .* convdkm\[gp\]"):
        ConvolutionalGP().fit(images, labels)
    with pytest.raises(InvalidInputError, match=r"convdkm\[gp\]"):
        ConvolutionalGP().foresee(images, labels)


def test_another_failed_import_is_not_blamed_on_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "convdkm.numerics", None)
    monkeypatch.delitem(sys.modules, "convdkm.lab.baselines.gp_layers", raising=False)
    monkeypatch.delattr("convdkm.numerics")
    with pytest.raises(ImportError, match="numerics"):
        ConvolutionalGP().foresee(torch.zeros(3, 1, 8, 8), torch.arange(3))


def test_bad_use_is_refused(stripes):
    (images, labels), _ = stripes
    with pytest.raises(NotInitialisedError, match="has to be fitted first"):
        ConvolutionalGP().predict(images)
    with pytest.raises(InvalidInputError, match="inducing must be a positive"):
        ConvolutionalGP(inducing=0)
    with pytest.raises(InvalidInputError, match="stride must be a positive"):
        ConvolutionalGP(stride=0)
    with pytest.raises(InvalidInputError, match="0 or more, got -1 and 0"):
        ConvolutionalGP(hidden=-1)
    with pytest.raises(InvalidInputError, match="schedule must be"):
        ConvolutionalGP(schedule="never")
    with pytest.raises(InvalidInputError, match=r"9×9 do not fit into images of 8×8.*smaller size"):
        ConvolutionalGP(size=9).fit(images, labels)
    with pytest.raises(InvalidInputError, match="of 4×4; use a smaller hidden_size"):
        ConvolutionalGP(hidden=2, hidden_size=5, hidden_stride=1).fit(images, labels)
    with pytest.raises(InvalidInputError, match="9 numbers have no 10 principal"):
        DeepConvolutionalGaussianProcess(channels=10).fit(images, labels)
    with pytest.raises(InvalidInputError, match="need as many different patches"):
        ConvolutionalGP().fit(torch.zeros_like(images), labels)
    fitted = ConvolutionalGP(**{**SHALLOW, "epochs": 1}).fit(images, labels)
    with pytest.raises(InvalidInputError, match=r"as those of fit.*\(90, 1, 8, 7\)"):
        fitted.predict(images[..., 1:])
    with pytest.raises(InvalidInputError, match="labels must be 90 integers"):
        ConvolutionalGP().fit(images, labels.float())
