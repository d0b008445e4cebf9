"""Random crops, flips and cutout."""

import pytest
import torch
from torch.nn import functional as F

from convdkm.data import random_crop_flip
from convdkm.data.augment import resized
from convdkm.errors import InvalidInputError


def one_by_one(images, margin, flip, generator):
    """The same draws, used image by image."""
    count, _, height, width = images.shape
    corners = torch.randint(2 * margin + 1, (2, count, 1), generator=generator)
    mirrored = torch.rand(count, 1, generator=generator) >= 0.5 if flip else torch.zeros(count, 1)
    made = []
    for i, image in enumerate(images):
        top, left = int(corners[0, i]), int(corners[1, i])
        crop = F.pad(image, (margin,) * 4)[:, top : top + height, left : left + width]
        made.append(crop.flip(2) if mirrored[i] else crop)
    return torch.stack(made)


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("margin", [0, 1, 4])
@pytest.mark.parametrize("shape", [(50, 3, 8, 8), (20, 1, 5, 9), (1, 2, 1, 1)])
def test_equals_a_loop_over_images(shape, margin, flip):
    images = torch.rand(shape)
    made = random_crop_flip(
        images, margin=margin, flip=flip, generator=torch.Generator().manual_seed(3)
    )
    expected = one_by_one(images, margin, flip, torch.Generator().manual_seed(3))
    assert torch.equal(made, expected)
    assert made.is_contiguous()


def test_all_offsets_and_both_flips_occur():
    image = torch.arange(1.0, 10).reshape(1, 1, 3, 3)
    made = random_crop_flip(image.expand(2000, -1, -1, -1), margin=1)
    assert len(made.flatten(1).unique(dim=0)) == 2 * 9


def test_without_margin_and_flip_nothing_changes():
    images = torch.rand(5, 3, 4, 4)
    assert torch.equal(random_crop_flip(images, margin=0, flip=False), images)


def test_images_to_mirror_may_be_given():
    images, generator = torch.rand(6, 3, 4, 5), torch.Generator().manual_seed(3)
    which = torch.tensor([True, False, False, True, True, False])
    made = random_crop_flip(images, margin=0, flip=which, generator=generator)
    assert torch.equal(made[which], images[which].flip(3))
    assert torch.equal(made[~which], images[~which])


@pytest.mark.parametrize("side", [1, 2, 3, 20])
def test_cutout_hides_a_square_about_every_pixel_alike(side):
    height, width, count = 4, 5, 4000
    generator = torch.Generator().manual_seed(3)
    images = torch.ones(count, 2, height, width)
    made = random_crop_flip(images, margin=0, flip=False, cutout=side, generator=generator)
    found, times = made.unique(dim=0, return_counts=True)
    expected = torch.ones(height * width, 2, height, width)
    for place, image in enumerate(expected):
        top, left = place // width - side // 2, place % width - side // 2
        image[:, max(top, 0) : top + side, max(left, 0) : left + side] = 0
    kinds, expected_times = expected.unique(dim=0, return_counts=True)
    assert torch.equal(found, kinds)
    share = count * expected_times / (height * width)
    assert ((times - share).abs() <= 5 * share.sqrt()).all()


def test_cutout_changes_neither_crop_nor_flip():
    images = 1 + torch.rand(30, 3, 6, 6)
    plain, cut = (
        random_crop_flip(images, margin=1, cutout=n, generator=torch.Generator().manual_seed(3))
        for n in (0, 3)
    )
    assert torch.equal(torch.where(cut == 0, cut, plain), cut)
    assert 3 <= ((plain != 0) & (cut == 0)).sum() / (30 * 3) <= 9


def test_no_images_are_no_error():
    assert random_crop_flip(torch.rand(0, 3, 4, 4)).shape == (0, 3, 4, 4)


def test_resized_images_are_averages():
    images = torch.rand(2, 3, 8, 6)
    assert resized(images, 1.0) is images
    small = resized(images, 0.5)
    assert small.shape == (2, 3, 4, 3)
    flat = torch.full((1, 1, 9, 9), 0.25)
    assert torch.allclose(resized(flat, 0.7), torch.full((1, 1, 6, 6), 0.25))
    assert resized(images, 0.01).shape == (2, 3, 1, 1)
    assert torch.allclose(small.mean(), images.mean(), atol=0.02)


def test_wrong_input_is_refused():
    with pytest.raises(InvalidInputError, match=r"\(5, 4, 4\)"):
        random_crop_flip(torch.rand(5, 4, 4))
    for value in (-1, 1.5):
        with pytest.raises(InvalidInputError, match="margin must be an integer of 0 or more"):
            random_crop_flip(torch.rand(5, 3, 4, 4), margin=value)
        with pytest.raises(InvalidInputError, match="cutout must be an integer of 0 or more"):
            random_crop_flip(torch.rand(5, 3, 4, 4), cutout=value)
