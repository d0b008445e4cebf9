"""The record of a split: written, read, and found again in a set that has changed."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from data_files import write_classes
from PIL import Image

from convdkm.data import Dataset, load
from convdkm.data.dataset import Origin
from convdkm.data.split_record import SplitRecord
from convdkm.errors import InvalidInputError

LABELS = torch.tensor([0, 1] * 6)
IMAGES = torch.rand(12, 1, 3, 3, generator=torch.Generator().manual_seed(0))


def made(images=IMAGES, labels=LABELS, names=(), class_names=("a", "b")):
    """A set without a test part."""
    origins = tuple(
        Origin(name, f"file of {int(1e6 * images[i, 0, 0, 0])}") for i, name in enumerate(names)
    )
    empty = images[:0], labels[:0]
    return Dataset(images, labels, *empty, 2, "toy", class_names, train_origins=origins)


def recorded(data, tmp_path, size=None):
    """The record of a split in three parts, after a journey through a file."""
    whole = data.with_split(0.25)
    part = whole if size is None else whole.subset(size)
    rest, held = part.divided(0.25)
    parts = {"train": rest.train, "validation": held, "test": rest.test}
    SplitRecord.of(parts, data.class_names, len(data.train)).write(tmp_path / "split.json")
    return parts, SplitRecord.read(tmp_path / "split.json")


def same(found, parts):
    return all(
        torch.equal(found.parts[name].images, part.images)
        and torch.equal(found.parts[name].labels, part.labels)
        for name, part in parts.items()
    )


NAMES = tuple(f"{'ab'[label]}/{number}.png" for number, label in enumerate(LABELS.tolist()))


@pytest.mark.parametrize("names", [(), NAMES])
@pytest.mark.parametrize("size", [None, 6])
def test_a_split_is_found_again(tmp_path, names, size):
    data = made(names=names)
    parts, record = recorded(data, tmp_path, size)
    assert record.unused == (0 if size is None else 3)
    found = record.find(data)
    assert same(found, parts)
    assert found.told("toy") is None
    turned = made(IMAGES.flip(0), LABELS.flip(0), names[::-1])
    assert same(record.find(turned), parts)
    assert record.is_of(turned)
    assert not record.is_of(made(1 - IMAGES))
    assert SplitRecord.read(tmp_path / "nothing.json") is None


def test_images_moved_into_the_test_part_of_a_set_stay_what_they_are(tmp_path):
    data = made(names=NAMES)
    parts, record = recorded(data, tmp_path)
    divided = data.with_split(0.5, seed=7)
    found = record.find(divided)
    assert same(found, parts)


def test_images_of_the_same_content_are_told_apart_by_class(tmp_path):
    """A set may hold an image twice, under two labels, and use one of them."""
    images = IMAGES.clone()
    images[1:] = images[0]
    data = made(images)
    parts, record = recorded(data, tmp_path, 6)
    found = record.find(data)
    assert same(found, parts)
    assert found.told("toy") is None


def test_what_has_become_of_images_is_told_part_by_part(tmp_path):
    data = made(names=NAMES)
    _, record = recorded(data, tmp_path)
    train, test = (record.parts[name] for name in ("train", "test"))
    number = {entry.name: NAMES.index(entry.name) for entry in (*train, *test)}
    images, names = IMAGES.clone(), list(NAMES)
    images[number[train[0].name]] = 0.5  # other pixels
    names[number[train[1].name]] = "a/renamed.png"
    images[number[test[0].name]] = images[number[train[2].name]]  # a copy of a training image
    keep = torch.arange(12) != number[test[1].name]
    kept = [name for name, kept in zip(names, keep.tolist(), strict=True) if kept]
    found = record.find(made(images[keep], LABELS[keep], kept))
    assert found.changes["changed"] == {"train": [train[0].name]}
    assert found.changes["replaced"] == {"test": [test[0].name]}
    assert found.changes["removed"] == {"test": [test[1].name]}
    assert found.renamed == [f"{train[1].name} → a/renamed.png"]
    assert found.added == 0
    assert len(found.parts["test"]) == len(test) - 2
    assert found.told("toy") == (
        f"toy has changed since this run was made: 1 training image changed ({train[0].name}); 1"
        f" test image removed ({test[1].name}); 1 test image left out, now with the content of"
        f" another image of the run ({test[0].name}); 1 image renamed ({train[1].name} →"
        " a/renamed.png)"
    )
    assert found.differences(["validation"]) == []


def test_long_lists_are_cut(tmp_path):
    data = made(
        IMAGES.repeat(4, 1, 1, 1) * torch.linspace(0.5, 1, 48).reshape(-1, 1, 1, 1),
        LABELS.repeat(4),
    )
    _, record = recorded(data, tmp_path)
    text = record.find(made(1 - data.train_images, data.train_labels)).told("toy")
    assert "27 training images removed (no. 1, no. 2," in text
    assert "no. 10 and 17 more)" in text
    assert "48 images added" in text


def test_labels_go_by_the_names_of_classes(tmp_path):
    data = made(names=NAMES)
    parts, record = recorded(data, tmp_path)
    more = replace(data, num_classes=3, class_names=("0", "a", "b"), train_labels=LABELS + 1)
    assert same(record.find(more), parts)
    other = replace(data, train_labels=1 - LABELS)
    found = record.find(other)
    assert torch.equal(found.parts["test"].labels, 1 - parts["test"].labels)
    assert len(found.changes["relabelled"]["test"]) == len(parts["test"])
    renamed = replace(data, class_names=("a", "c"))
    found = record.find(renamed)
    assert same(found, parts)
    assert "now of another class" in found.told("toy")


def test_a_file_is_known_by_its_bytes_and_by_its_pixels(tmp_path):
    folder = write_classes(tmp_path / "photos", ["cat", "dog"], count=8)
    data = load(folder, test_fraction=0, image_size=3)
    parts, record = recorded(data, tmp_path)
    other = load(folder, test_fraction=0, image_size=2)  # the same files, other pixels
    assert record.find(other).told("x") is None
    for path in folder.rglob("*.png"):
        Image.open(path).save(path.with_suffix(".bmp"))
        path.unlink()
    found = record.find(load(folder, test_fraction=0, image_size=3))
    assert same(found, parts)
    assert "16 images renamed" in found.told("x")


def test_resized_arrays_are_known_by_what_they_were(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (12, 6, 6), dtype=np.uint8)
    np.savez(tmp_path / "set.npz", images=images, labels=LABELS.numpy())
    _, record = recorded(load(tmp_path / "set.npz", test_fraction=0, image_size=3), tmp_path)
    smaller = load(tmp_path / "set.npz", test_fraction=0, image_size=2)
    assert record.find(smaller).told("x") is None


def test_names_that_are_not_text_survive(tmp_path):
    names = (*NAMES[:-1], "b/\udcff.png")
    data = made(names=names)
    _, record = recorded(data, tmp_path)
    assert names[-1] in [entry.name for part in record.parts.values() for entry in part]


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.pop("unused"),
        lambda c: c["parts"].pop("test"),
        lambda c: c["parts"]["train"]["labels"].append(0),
        lambda c: c["parts"]["train"]["labels"].__setitem__(0, 7),
        lambda c: c["parts"]["train"]["digests"].__setitem__(0, None),
        lambda c: c.update(format=2),
        lambda c: c.update(image_shape=None),
    ],
)
def test_a_damaged_record_says_so(tmp_path, change):
    recorded(made(), tmp_path)
    path = tmp_path / "split.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(InvalidInputError, match=r"split\.json, which says.*is damaged.*remove it"):
        SplitRecord.read(path)
