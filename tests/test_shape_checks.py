"""Shapes in annotations are checked while tests run, and cost nothing elsewhere."""

import subprocess
import sys

import pytest
import torch
from jaxtyping import TypeCheckError

import convdkm as dkm
from convdkm.head import HeadPlan
from convdkm.numerics import explained, gaussian_kl, mix, whitened_kl
from convdkm.ops import inducing

EYE = torch.eye(3, dtype=torch.float64)


@pytest.mark.parametrize(
    ("function", "arguments", "said"),
    [
        (gaussian_kl, (EYE, torch.eye(4, dtype=torch.float64)), r"'prior'.*f64\[4,4\].*P=3"),
        (explained, (torch.ones(5),), r"'whitened'.*f32\[5\].*N P \*space"),
        (mix, (EYE, torch.ones(2, 4, 5)), r"'blocks'.*f32\[2,4,5\]|'matrix'"),
        (whitened_kl, (EYE, torch.ones(2, 5, dtype=torch.float64)), r"'mean'.*f64\[2,5\]"),
        (inducing.noisy, (EYE.float(), 0.1, 0.1), r"'ii'.*f32\[3,3\].*Float64"),
        (inducing.mixed, (torch.ones(2, 4, 3, 3, dtype=torch.float64), EYE), r"'ii'.*f64\[3,3\]"),
        (dkm.Marginals, (torch.zeros(6, 2), torch.zeros(6)), r"'variance'.*f32\[6\]"),
        (dkm.Prediction, (torch.zeros(6, 2), torch.zeros(6, 3)), r"'variance'.*f32\[6,3\]"),
        (HeadPlan, (torch.zeros(2), EYE, torch.zeros(2, 3), EYE[:2]), r"'spread'.*f64\[2,3\]"),
    ],
)
def test_a_wrong_shape_is_caught(function, arguments, said):
    with pytest.raises(TypeCheckError) as caught:
        function(*arguments)
    caught.match(f"(?s){said}")


def test_production_needs_neither_of_the_checkers():
    """The package works where they are not installed; here their import would fail."""
    program = (
        "import sys; sys.modules.update(jaxtyping=None, beartype=None)\n"
        "import torch, convdkm as dkm\n"
        "x = torch.rand(6, 3, 8, 8)\n"
        "model = dkm.resnet(3, 2, (4, 4), (1, 1)).initialise(x, torch.arange(6) % 2)\n"
        "dkm.Marginals(torch.zeros(6, 2), torch.zeros(5))\n"
        "print(tuple(model.eval().predict(x).probs.shape))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "(6, 2)"
