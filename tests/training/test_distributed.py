"""Several processes make the steps that one would make, and outlive each other."""

import sys

import pytest
import torch
from parallel import CASES, finished, one_step, torchrun, trainer_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="gloo on Linux")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Every case, worked out by two processes; their results by rank."""
    folder = tmp_path_factory.mktemp("shared")
    _, err = finished(torchrun(trainer_of.__code__.co_filename, folder))
    assert "Warning" not in err
    return [torch.load(folder / f"{rank}.pt") for rank in (0, 1)]


def deviation(ours, theirs):
    """The largest difference relative to the largest number of each tensor."""
    assert ours.keys() == theirs.keys()
    return max(
        float((ours[name] - theirs[name]).abs().max() / theirs[name].abs().max().clamp(min=1e-12))
        for name in ours
    )


@pytest.mark.parametrize("name", CASES)
def test_two_processes_give_the_gradients_of_one(shared, name):
    whole = one_step(trainer_of(name))
    for result in (each[name] for each in shared):
        assert result["images"] == whole["images"]
        for what in ("gradients", "statistics", "figures"):
            if whole[what]:
                assert deviation(result[what], whole[what]) < 1e-9, what
