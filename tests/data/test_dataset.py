"""The data set itself: its checks, subsets and splits."""

import pytest
import torch

from convdkm.data import Dataset, load_digits
from convdkm.errors import InvalidInputError


def small(train=(0, 0, 0, 0, 1, 1, 1, 1, 2, 2), test=(0, 1, 2), **options):
    return Dataset(
        torch.rand(len(train), 1, 3, 3),
        torch.tensor(train, dtype=torch.int64),
        torch.rand(len(test), 1, 3, 3),
        torch.tensor(test, dtype=torch.int64),
        **{"num_classes": 3, **options},
    )


def test_digits_are_split_by_class():
    data = load_digits()
    assert data.train_images.shape == (1437, 1, 8, 8)
    assert data.test_images.shape == (360, 1, 8, 8)
    assert float(data.train_images.min()) == 0
    assert float(data.train_images.max()) == 1
    assert int(torch.bincount(data.test_labels).min()) >= 34
    assert data.class_names == tuple("0123456789")
    # The split that figures in the documentation rest on.
    assert data.test_labels[:12].tolist() == [7, 6, 3, 7, 7, 3, 2, 8, 9, 3, 2, 6]
    with pytest.raises(InvalidInputError, match="test_size"):
        load_digits(test_size=5)


def test_names_and_shape():
    data = small(name="toy", class_names=("a", "b", "c"))
    assert data.image_shape == (1, 3, 3)
    assert data.has_test
    assert repr(data) == "Dataset('toy', 10 training and 3 test images 1×3×3, 3 classes)"
    assert small().class_names == ("0", "1", "2")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_images": torch.rand(10, 1, 3, 4)}, r"training images 1×3×4 but test images 1×3×3"),
        ({"train_images": torch.rand(9, 1, 3, 3)}, r"9 training images but 10 training labels"),
        ({"train_images": torch.rand(10, 9)}, r"\(N, channels, height, width\).*\(10, 9\)"),
        ({"train_images": torch.rand(10, 1, 3, 3).double()}, "float64"),
        ({"train_images": torch.rand(10, 1, 0, 3)}, "no pixels"),
        ({"train_images": torch.rand(0, 1, 3, 3)}, "no training images"),
        ({"train_images": 255 * torch.ones(10, 1, 3, 3)}, r"between 0 and 1.*divide.*255"),
        ({"train_images": -torch.ones(10, 1, 3, 3)}, "between 0 and 1"),
        ({"train_images": torch.full((10, 1, 3, 3), torch.nan)}, r"NaN.*10 images.*position 0"),
        ({"test_images": torch.full((3, 1, 3, 3), torch.inf)}, r"test images.*NaN or infinite"),
        ({"train_labels": torch.zeros(10)}, r"int64.*float32"),
        ({"train_labels": torch.zeros(10, 1).long()}, r"\(10, 1\)"),
        ({"train_labels": torch.arange(10)}, "run from 0 to 9.*between 0 and 2"),
        ({"train_labels": torch.arange(10) - 8}, "run from -8 to 1"),
        ({"num_classes": 0}, "num_classes"),
        ({"class_names": ("a",)}, "3 classes but 1 class names"),
        ({"class_names": ("a", "b", "a")}, "must differ; a stands"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    good = small()
    fields = {name: getattr(good, name) for name in good.__dataclass_fields__}
    with pytest.raises(InvalidInputError, match=message):
        Dataset(**{**fields, **change})


def test_one_bad_pixel_is_found():
    images = torch.rand(10, 1, 3, 3)
    images[7, 0, 2, 1] = torch.nan
    with pytest.raises(InvalidInputError, match="in 1 images, the first at position 7"):
        Dataset(images, torch.zeros(10).long(), images[:0], torch.zeros(0).long(), 1)


def test_test_classes_must_be_trained():
    with pytest.raises(InvalidInputError, match=r"'toy' has test images.*: cat, dog"):
        small(train=(1, 1), test=(0, 1, 2), name="toy", class_names=("cat", "cow", "dog"))


def test_subsets_keep_the_proportions():
    data = small(train=[0] * 60 + [1] * 30 + [2] * 10, test=[0] * 6 + [1] * 3 + [2])
    part = data.subset(train_size=20, test_size=5)
    assert torch.bincount(part.train_labels).tolist() == [12, 6, 2]
    assert sorted(torch.bincount(part.test_labels).tolist()) == [1, 1, 3]
    assert torch.bincount(data.subset(3).train_labels).tolist() == [1, 1, 1]
    assert len(data.subset(train_size=20).test_images) == 10
    assert torch.equal(data.subset(20, seed=1).train_images, data.subset(20, seed=1).train_images)
    assert not torch.equal(data.subset(20).train_images, data.subset(20, seed=1).train_images)


def test_a_tiny_subset_keeps_test_images_of_its_classes_alone():
    part = small().subset(train_size=1)
    assert part.test_labels.unique().tolist() == part.train_labels.tolist()


def test_subset_refuses_what_is_not_there():
    with pytest.raises(InvalidInputError, match=r"train_size is 11, but .* has 10"):
        small().subset(11)
    with pytest.raises(InvalidInputError, match="test_size must be a positive integer"):
        small().subset(test_size=0)
    with pytest.raises(InvalidInputError, match="no test images"):
        small(test=()).subset(test_size=1)


def test_held_out_images_are_the_rest():
    data = small(train=[0] * 60 + [1] * 30 + [2] * 10)
    rest, images, labels = data.hold_out(0.1, seed=3)
    assert torch.bincount(labels).tolist() == [6, 3, 1]
    assert torch.bincount(rest.train_labels).tolist() == [54, 27, 9]
    together = torch.cat([rest.train_images, images]).flatten(1)
    assert torch.equal(together.unique(dim=0), data.train_images.flatten(1).unique(dim=0))
    assert torch.equal(rest.test_images, data.test_images)


def test_holding_out_leaves_every_class_an_image():
    rest, _, labels = small(train=[0] * 20 + [1, 2]).hold_out(0.9)
    assert torch.bincount(rest.train_labels).tolist() == [1, 1, 1]
    assert labels.unique().tolist() == [0]
    with pytest.raises(InvalidInputError, match="one training image a class"):
        small(train=[0, 1, 2]).hold_out(0.5)
    for fraction in (0, 1, -0.1, float("nan")):
        with pytest.raises(InvalidInputError, match="between 0 and 1"):
            small().hold_out(fraction)


def test_a_test_part_can_be_made():
    data = small(train=[0] * 20 + [1] * 20 + [2] * 20, test=())
    assert not data.has_test
    split = data.with_split(0.25)
    assert torch.bincount(split.test_labels).tolist() == [5, 5, 5]
    assert len(split.train_images) == 45
    with pytest.raises(InvalidInputError, match="a test part already, of 15 images"):
        split.with_split(0.25)
