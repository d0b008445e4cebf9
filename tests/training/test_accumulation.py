"""A batch worked on in pieces: gradients of the whole, and how far off with batch statistics."""

import pytest
import torch
from parallel import CASES, deviation, one_step, require_same, trainer_of

import convdkm as dkm
from convdkm.errors import InvalidInputError
from convdkm.training import MemorySink, fit
from convdkm.training.passes import shares
from convdkm.training.world import World

EXACT = ("image", "local", "none")


@pytest.mark.parametrize("micro_batch", [1000, 128, 50, 7])
@pytest.mark.parametrize("name", EXACT)
def test_pieces_sum_to_the_whole(name, micro_batch):
    whole = one_step(trainer_of(name))
    require_same(one_step(trainer_of(name, micro_batch=micro_batch)), whole, 1e-10)


@pytest.mark.parametrize("name", ["monte-carlo", "gaussian"])
def test_an_image_keeps_its_random_numbers(name, monkeypatch):
    """Samples and crops are those of its place in the batch, whatever the pieces."""
    monkeypatch.setitem(CASES[name], "body", CASES["image"]["body"])
    whole = one_step(trainer_of(name))
    require_same(one_step(trainer_of(name, micro_batch=50)), whole, 1e-10)


def test_batch_statistics_are_those_of_a_piece():
    """The gradient is another one, the nearer the larger the pieces are."""
    whole = one_step(trainer_of("batch"))["gradients"]
    off = {
        size: deviation(one_step(trainer_of("batch", micro_batch=size))["gradients"], whole)
        for size in (128, 64, 32, 8)
    }
    assert 1e-6 < off[128] < off[32] < off[8]


@pytest.mark.parametrize("name", ["batch", "location", "centre", "odd"])
def test_running_averages_follow_the_whole_batch(name):
    """Of the first normaliser, that is, which no other comes before."""
    first = next(n for n, _ in trainer_of(name).model.named_buffers() if "running" in n)
    whole = one_step(trainer_of(name))["statistics"][first]
    start = trainer_of(name).model.state_dict()[first]
    pieces = one_step(trainer_of(name, micro_batch=50))["statistics"][first]
    torch.testing.assert_close(pieces, whole, rtol=1e-12, atol=1e-15)
    if name == "odd":  # the others begin with statistics of the very batch
        assert not torch.allclose(start, whole, rtol=1e-6)


def test_momenta_are_put_back():
    trainer = trainer_of("centre", micro_batch=50)
    one_step(trainer)
    layers = [m for m in trainer.model.modules() if isinstance(m, (dkm.Norm, dkm.Centre))]
    assert {layer.momentum for layer in layers} == {0.1}


@pytest.mark.parametrize("processes", [1, 2, 3, 7])
@pytest.mark.parametrize("micro_batch", [None, 1, 5, 100])
@pytest.mark.parametrize("total", [1, 2, 12, 33])
def test_every_image_is_in_one_piece_of_one_process(total, micro_batch, processes):
    every = [shares(total, World(rank, processes), micro_batch, 0) for rank in range(processes)]
    seen = [i for own in every for s in own for i in range(s.first, s.first + s.count)]
    assert sorted(seen) == list(range(total))
    for together in zip(*every, strict=True):  # all make as many passes
        assert {share.together for share in together} == {sum(share.count for share in together)}
        assert all(share.first < total for share in together)
    if micro_batch:
        assert max(share.count for own in every for share in own) <= micro_batch


def test_a_run_in_pieces():
    recipe = {"inducing": (6, 8), "blocks": 1, "epochs": 2, "batch_size": 40, "train_size": 90}
    recipe |= {"data_norm": "image", "centre": False, "test_size": 40, "precision": "float64"}
    sinks = [MemorySink(), MemorySink()]
    runs = [
        fit("quick", "digits", sinks=[sink], **recipe, micro_batch=size)
        for sink, size in zip(sinks, (None, 16), strict=True)
    ]
    for name in ("test_log_likelihood", "train_log_likelihood"):
        assert runs[1].metrics[name] == pytest.approx(runs[0].metrics[name], rel=1e-6)
    for ours, theirs in zip(sinks[1].steps, sinks[0].steps, strict=True):
        for name in ("objective", "expected_log_likelihood", "head_kl", "kl", "accuracy"):
            assert ours.values[name] == pytest.approx(theirs.values[name], rel=1e-6), name


def test_a_piece_has_images():
    with pytest.raises(InvalidInputError, match="micro_batch must be above 0"):
        fit("quick", "digits", micro_batch=0)
