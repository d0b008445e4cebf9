"""Folders of pictures."""

import pytest
import torch
from data_files import grey_picture, idx_files, write_classes, write_folder
from PIL import Image

from convdkm.data import load_image_folder, load_images
from convdkm.errors import InvalidInputError


def test_train_and_test_folders(tmp_path):
    write_classes(tmp_path / "train", ["cat", "dog"], count=3)
    write_classes(tmp_path / "test", ["dog", "cat"], count=2)
    data = load_image_folder(tmp_path)
    assert data.class_names == ("cat", "dog")
    assert data.train_images.shape == (6, 1, 4, 6)
    assert data.train_labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.test_labels.tolist() == [0, 0, 1, 1]
    # In the test folder the dogs were painted first.
    assert (255 * data.test_images[:, 0, 0, 0]).round().tolist() == [40, 41, 0, 1]
    assert data.name == tmp_path.name


def test_classes_alone_have_no_test_part(tmp_path):
    data = load_image_folder(write_classes(tmp_path, ["a", "b"]))
    assert not data.has_test
    assert data.train_labels.tolist() == [0, 0, 0, 1, 1, 1]


def test_numbers_are_sorted_as_numbers(tmp_path):
    names = [str(number) for number in range(12)]
    assert load_image_folder(write_classes(tmp_path, names, count=1)).class_names == tuple(names)


def test_what_is_hidden_or_no_picture_is_left_alone(tmp_path):
    write_classes(tmp_path, ["a", "b"])
    write_classes(tmp_path, [".cache", "__MACOSX"])
    (tmp_path / "a" / ".hidden.png").write_bytes(b"junk")
    (tmp_path / "a" / "Thumbs.db").write_bytes(b"junk")
    (tmp_path / "notes.txt").write_text("text")
    grey_picture().save(tmp_path / "b" / "LOUD.PNG")
    (tmp_path / "b" / "deeper").mkdir()
    grey_picture().save(tmp_path / "b" / "deeper" / "d.png")
    data = load_image_folder(tmp_path)
    assert torch.bincount(data.train_labels).tolist() == [3, 5]


def test_folders_beside_train_and_test_are_told(tmp_path):
    write_classes(tmp_path / "train", ["a", "b"])
    write_classes(tmp_path / "val", ["a", "b"])
    told = []
    assert not load_image_folder(tmp_path, report=told.append).has_test
    assert len(told) == 1
    assert "the folders val of" in told[0]


def test_size_and_channels_are_options(tmp_path):
    data = load_image_folder(write_classes(tmp_path, ["a", "b"]), image_size=8, channels=3)
    assert data.image_shape == (3, 8, 8)


def test_wrong_folders_are_explained(tmp_path):
    with pytest.raises(InvalidInputError, match="absent is not a folder"):
        load_image_folder(tmp_path / "absent")
    with pytest.raises(InvalidInputError, match="no folders of classes; expected FOLDER/train"):
        load_image_folder(tmp_path)
    write_classes(tmp_path, ["a"])
    with pytest.raises(InvalidInputError, match="one class alone, 'a'"):
        load_image_folder(tmp_path)
    (tmp_path / "b").mkdir()
    with pytest.raises(InvalidInputError, match=r"no picture found in .*b \(looked for .bmp"):
        load_image_folder(tmp_path)


def test_test_classes_must_be_trained(tmp_path):
    write_classes(tmp_path / "train", ["a", "b"])
    write_classes(tmp_path / "test", ["a", "c", "d"])
    with pytest.raises(InvalidInputError, match=r"test has classes that .*train lacks: c, d"):
        load_image_folder(tmp_path)


def test_a_known_set_is_recognised(tmp_path):
    write_folder(tmp_path / "MNIST" / "raw", idx_files())
    with pytest.raises(InvalidInputError, match=r"holds MNIST: name the data set mnist"):
        load_image_folder(tmp_path)


def test_a_bad_picture_is_named_or_left_out(tmp_path):
    write_classes(tmp_path / "train", ["a", "b"])
    write_classes(tmp_path / "test", ["a", "b"])
    (tmp_path / "train" / "a" / "1.png").write_bytes(b"junk")
    (tmp_path / "test" / "b" / "2.png").write_bytes(b"junk")
    with pytest.raises(InvalidInputError, match=r"train/a/1.png.*--skip-bad"):
        load_image_folder(tmp_path)
    told = []
    data = load_image_folder(tmp_path, skip_bad=True, report=told.append)
    assert data.train_labels.tolist() == [0, 0, 1, 1, 1]
    assert data.test_labels.tolist() == [0, 0, 0, 1, 1]
    assert (255 * data.train_images[:, 0, 0, 0]).round().tolist() == [0, 2, 40, 41, 42]
    assert len(told) == 2


def test_a_class_whose_pictures_are_all_bad_is_noticed(tmp_path):
    write_classes(tmp_path / "train", ["a", "b"], count=1)
    write_classes(tmp_path / "test", ["a", "b"])
    (tmp_path / "train" / "a" / "0.png").write_bytes(b"junk")
    with pytest.raises(InvalidInputError, match="classes without a training image: a"):
        load_image_folder(tmp_path, skip_bad=True)


def test_pictures_to_classify(tmp_path):
    write_classes(tmp_path, ["x", "y/z"], count=2)
    Image.new("RGB", (6, 4)).save(tmp_path / "photo.jpg")
    images, paths = load_images(tmp_path)
    assert images.shape == (5, 3, 4, 6)
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == [
        "photo.jpg",
        "x/0.png",
        "x/1.png",
        "y/z/0.png",
        "y/z/1.png",
    ]
    one, _ = load_images(tmp_path / "x" / "0.png", channels=1, image_size=5)
    assert one.shape == (1, 1, 5, 5)
    several, paths = load_images([str(tmp_path / "y"), tmp_path / "x" / "1.png"])
    assert several.shape == (3, 1, 4, 6)
    assert paths[-1].name == "1.png"


def test_pictures_that_are_not_there(tmp_path):
    with pytest.raises(InvalidInputError, match=r"no file or folder .*absent"):
        load_images(tmp_path / "absent.png")
    with pytest.raises(InvalidInputError, match="no picture found in"):
        load_images(tmp_path)
    with pytest.raises(InvalidInputError, match="no picture was given"):
        load_images([])
    (tmp_path / "bad.png").write_bytes(b"junk")
    with pytest.raises(InvalidInputError, match=r"bad.png is not a picture.*--skip-bad"):
        load_images(tmp_path)
    grey_picture().save(tmp_path / "good.png")
    told = []
    _, paths = load_images(tmp_path, skip_bad=True, report=told.append)
    assert [path.name for path in paths] == ["good.png"]
    assert "bad.png" in told[0]
