"""A map that goes two ways."""

import pytest
import torch

import convdkm as dkm
from convdkm.ops.chain import forked
from convdkm.ops.conv import ConvPlan
from convdkm.ops.window import Window, every
from convdkm.runtime.maps import channels_last


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("strides", [(2, 2), (1, 3), (2,), (2, 1, 2)])
def test_both_ways_and_their_gradients(strides):
    maps = channels_last(random(3, 4, *(5,) * len(strides))).requires_grad_()
    whole, part = forked(maps, strides)
    expected = maps[(..., *(slice(None, None, stride) for stride in strides))]
    assert torch.equal(whole, maps)
    assert torch.equal(part, expected)
    (actual,) = torch.autograd.grad((whole**2).sum() + (part**3).sum(), maps)
    (truth,) = torch.autograd.grad((maps**2).sum() + (expected**3).sum(), maps)
    torch.testing.assert_close(actual, truth)


@pytest.mark.parametrize("stride", [1, 2])
def test_only_a_strided_point_is_thinned(stride):
    ii, weight = torch.eye(4, dtype=torch.float64), random(6, 4, 1, 1)
    plan = ConvPlan(ii, weight, Window.of(1, stride), "zero")
    thinned = plan.thinned()
    if stride == 1:
        assert thinned is None
        return
    strides, rest = thinned
    it, tt = random(2, 4, 5, 5), random(2, 5, 5).abs()
    expected = plan.data(it, tt)
    actual = rest.data(every(it, strides), every(tt, strides))
    torch.testing.assert_close(actual, expected)
    assert ConvPlan(ii, random(6, 4, 3, 3), Window.of(3, 2, "same"), "zero").thinned() is None


def test_a_strided_shortcut_has_the_gradients_of_its_parts():
    body = dkm.Conv(4, 6, 3, stride=2)
    short = dkm.Sequential(dkm.Conv(4, 6, 1, stride=2), dkm.Norm())
    skip = dkm.Skip(body, short)
    root = random(9, 4)
    it = random(3, 4, 7, 7).requires_grad_()
    gram = dkm.Gram(root.T @ root / 9, it, 2 + random(3, 7, 7).square())
    out = skip(gram)
    apart = short(gram).combine(body(gram), skip.weight)
    torch.testing.assert_close(out.it, apart.it)
    torch.testing.assert_close(out.tt, apart.tt)
    actual, truth = (
        torch.autograd.grad((each.it**2).sum() + each.tt.sum(), it) for each in (out, apart)
    )
    torch.testing.assert_close(actual, truth)
