"""The value that flows: its blocks are checked, it never changes, and it can be cut and scaled."""

import dataclasses

import numpy as np
import pytest
import torch

import convdkm as dkm
import oracle
from oracle.adapter import array, blocks
from oracle.cases import generator_of, normal, random_gram

POINTS, IMAGES, SPACE = 4, 5, (3, 2)
BLOCK_NAMES = ("ii", "it", "tt")


@pytest.fixture
def gram():
    return random_gram(generator_of("gram"), POINTS, IMAGES, SPACE)


def same(one, other):
    return all(torch.equal(getattr(one, b), getattr(other, b)) for b in BLOCK_NAMES)


def test_describes_itself(gram):
    assert gram.num_inducing == POINTS
    assert gram.num_images == len(gram) == IMAGES
    assert gram.space == SPACE
    assert gram.dtype == torch.float64
    assert gram.device == torch.device("cpu")
    assert repr(gram) == (
        "Gram(num_inducing=4, num_images=5, space=(3, 2), dtype=torch.float64, device=cpu)"
    )


def test_cannot_be_changed(gram):
    for name in BLOCK_NAMES:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(gram, name, getattr(gram, name))
    with pytest.raises(dataclasses.FrozenInstanceError):
        del gram.ii


def test_operations_leave_their_operands_alone(gram):
    copy = dkm.Gram(gram.ii.clone(), gram.it.clone(), gram.tt.clone())
    other = gram * 2.0
    for operation in (
        lambda: gram * 3.0,
        lambda: gram.combine(other, 0.3),
        lambda: gram[1:3],
        lambda: gram.to(torch.float32),
        gram.detach,
    ):
        operation()
        assert same(gram, copy)


# -- validation --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "shape"),
    [
        ("ii", (POINTS,)),
        ("ii", (POINTS, POINTS + 1)),
        ("ii", (1, POINTS, POINTS)),
        ("it", (IMAGES,)),
        ("it", (IMAGES, POINTS + 1, *SPACE)),
        ("tt", (IMAGES,)),
        ("tt", (IMAGES + 1, *SPACE)),
        ("tt", (IMAGES, *SPACE[::-1])),
        ("tt", (IMAGES, POINTS, *SPACE)),
    ],
)
def test_wrong_shapes_name_the_block(gram, block, shape):
    wrong = torch.zeros(shape, dtype=torch.float64)
    with pytest.raises(dkm.GramError, match=rf"Gram\.{block} must .*got shape"):
        dataclasses.replace(gram, **{block: wrong})


def test_blocks_must_be_tensors(gram):
    for name in BLOCK_NAMES:
        with pytest.raises(dkm.GramError, match=rf"Gram\.{name} must be a torch.Tensor"):
            dataclasses.replace(gram, **{name: array(getattr(gram, name))})


def test_wrong_dtypes_name_the_block(gram):
    with pytest.raises(dkm.GramError, match=r"Gram\.ii must be torch.float64; got torch.float32"):
        dkm.Gram(gram.ii.float(), gram.it, gram.tt)
    with pytest.raises(dkm.GramError, match=r"Gram\.it must have a floating-point dtype"):
        dkm.Gram(gram.ii, gram.it.long(), gram.tt)
    with pytest.raises(dkm.GramError, match=r"Gram\.tt must have the dtype of Gram\.it"):
        dkm.Gram(gram.ii, gram.it.float(), gram.tt)


def test_wrong_devices_name_the_block(gram):
    for name in ("it", "tt"):
        moved = getattr(gram, name).to("meta")
        with pytest.raises(
            dkm.GramError, match=rf"Gram\.{name} is on meta, but Gram\.ii is on cpu"
        ):
            dataclasses.replace(gram, **{name: moved})


def test_errors_are_library_errors_and_value_errors(gram):
    with pytest.raises(dkm.ConvDKMError):
        dkm.Gram(gram.ii, gram.it, gram.it)
    with pytest.raises(ValueError, match=r"Gram\.tt"):
        dkm.Gram(gram.ii, gram.it, gram.it)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_data_may_have_any_floating_dtype(gram, dtype):
    assert dkm.Gram(gram.ii, gram.it.to(dtype), gram.tt.to(dtype)).dtype == dtype


# -- features ----------------------------------------------------------------------------------


@pytest.mark.parametrize("space", [(), (5,), (3, 2), (2, 3, 2)], ids=str)
def test_from_features_is_the_mean_of_products(space):
    generator = generator_of("features")
    inducing, images = normal(generator, POINTS, 7), normal(generator, IMAGES, 7, *space)
    found = blocks(dkm.Gram.from_features(inducing, images))
    expected = oracle.gram_of_features(array(inducing), array(images))
    for actual, block in zip(found, expected, strict=True):
        assert oracle.deviation(actual, block) < 1e-14


def test_from_features_keeps_the_precision_of_the_images():
    inducing, images = torch.randn(POINTS, 7), torch.randn(IMAGES, 7, *SPACE)
    gram = dkm.Gram.from_features(inducing, images)
    assert (gram.ii.dtype, gram.it.dtype, gram.tt.dtype) == (
        torch.float64,
        torch.float32,
        torch.float32,
    )


@pytest.mark.parametrize(
    ("inducing", "images"),
    [((4, 7), (5, 6, 3)), ((4,), (5, 4)), ((4, 7), (7,)), ((1, 4, 7), (5, 7))],
)
def test_features_that_do_not_fit_are_refused(inducing, images):
    with pytest.raises(dkm.GramError, match="same M"):
        dkm.Gram.from_features(torch.zeros(inducing), torch.zeros(images))


# -- indexing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("index", "chosen"),
    [
        (0, [0]),
        (3, [3]),
        (-1, [4]),
        (-5, [0]),
        (slice(1, 4), [1, 2, 3]),
        (slice(None, None, 2), [0, 2, 4]),
        (slice(2, 2), []),
        ([4, 0], [4, 0]),
        (torch.tensor([1, 1, 3]), [1, 1, 3]),
        (torch.tensor([True, False, False, True, False]), [0, 3]),
        ((4, 0), [4, 0]),
        (np.int64(2), [2]),
        (torch.tensor(2), [2]),
        (range(1, 3), [1, 2]),
    ],
    ids=str,
)
def test_indexing_chooses_images(gram, index, chosen):
    part = gram[index]
    assert len(part) == len(chosen)
    assert torch.equal(part.ii, gram.ii)
    assert torch.equal(part.it, gram.it[chosen] if chosen else gram.it[:0])
    assert torch.equal(part.tt, gram.tt[chosen] if chosen else gram.tt[:0])


@pytest.mark.parametrize("index", [5, -6])
def test_an_image_that_is_not_there(gram, index):
    with pytest.raises(IndexError, match=f"image {index} of a Gram with 5 images"):
        gram[index]


def test_iteration_visits_every_image(gram):
    parts = list(gram)
    assert len(parts) == IMAGES
    assert all(same(part, gram[k]) for k, part in enumerate(parts))


# -- arithmetic --------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0, 2, 0.5, torch.tensor(1.5)])
def test_scaling_multiplies_every_block(gram, factor):
    for scaled in (gram * factor, factor * gram):
        for name in BLOCK_NAMES:
            actual, expected = (
                array(getattr(scaled, name)),
                float(factor) * array(getattr(gram, name)),
            )
            assert oracle.deviation(actual, expected) < 1e-15


def test_scaling_keeps_precisions(gram):
    for factor in (2.0, torch.tensor(2.0), torch.tensor(2.0, dtype=torch.float64)):
        scaled = gram.to(torch.float32) * factor
        assert scaled.ii.dtype == torch.float64
        assert scaled.dtype == torch.float32


def test_scaling_carries_gradients(gram):
    factor = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    scaled = gram * factor
    (scaled.ii.sum() + scaled.it.sum() + scaled.tt.sum()).backward()
    expected = float(gram.ii.sum() + gram.it.sum() + gram.tt.sum())
    assert float(factor.grad) == pytest.approx(expected, rel=1e-12)


def test_impossible_factors_are_refused(gram):
    with pytest.raises(dkm.GramError, match="not negative"):
        gram * -1.0
    with pytest.raises(dkm.GramError, match="one number"):
        gram * torch.ones(2)
    with pytest.raises(TypeError):
        gram * "2"


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0, torch.tensor(0.7, dtype=torch.float64)])
def test_combination_is_that_of_concatenated_features(weight):
    generator = generator_of("combine")
    pairs = [(normal(generator, POINTS, 7), normal(generator, IMAGES, 7, *SPACE)) for _ in range(2)]
    one, other = (dkm.Gram.from_features(*pair) for pair in pairs)
    share = float(weight)
    roots = [(2 * (1 - share)) ** 0.5, (2 * share) ** 0.5]
    joined = [
        torch.cat([root * pair[k] for root, pair in zip(roots, pairs, strict=True)], 1)
        for k in range(2)
    ]
    found, expected = one.combine(other, weight), dkm.Gram.from_features(*joined)
    for name in BLOCK_NAMES:
        actual, block = array(getattr(found, name)), array(getattr(expected, name))
        assert oracle.deviation(actual, block) < 1e-13


def test_combination_is_even_by_default(gram):
    other = gram * 3.0
    assert oracle.deviation(array(gram.combine(other).it), 2 * array(gram.it)) < 1e-15


@pytest.mark.parametrize("weight", [-0.1, 1.1, float("nan")])
def test_weights_outside_the_unit_interval_are_refused(gram, weight):
    with pytest.raises(dkm.GramError, match=r"\[0, 1\]"):
        gram.combine(gram, weight)


def test_grams_that_do_not_match_name_the_block(gram):
    generator = generator_of("mismatch")
    with pytest.raises(dkm.GramError, match="block ii"):
        gram.combine(random_gram(generator, POINTS + 1, IMAGES, SPACE))
    with pytest.raises(dkm.GramError, match="block it"):
        gram.combine(random_gram(generator, POINTS, IMAGES, (2, 3)))
    gram.require_like(gram)


# -- moving ------------------------------------------------------------------------------------


def test_casting_leaves_the_inducing_block_double(gram):
    single = gram.to(torch.float32)
    assert (single.ii.dtype, single.it.dtype, single.tt.dtype) == (
        torch.float64,
        torch.float32,
        torch.float32,
    )
    assert torch.equal(single.it, gram.it.float())
    assert torch.equal(single.ii, gram.ii)


def test_moving_takes_every_block(gram):
    moved = gram.to("meta")
    assert {getattr(moved, name).device.type for name in BLOCK_NAMES} == {"meta"}
    assert moved.ii.dtype == torch.float64
    assert gram.to("meta", torch.float32).dtype == torch.float32


def test_detaching_cuts_every_block(gram):
    tracked = dkm.Gram(*(getattr(gram, b).clone().requires_grad_() for b in BLOCK_NAMES))
    detached = tracked.detach()
    assert not any(getattr(detached, b).requires_grad for b in BLOCK_NAMES)
    assert same(detached, gram)
