"""MNIST and Fashion-MNIST: the IDX format."""

import gzip

import numpy as np
import pytest
import torch
from data_files import idx_bytes, idx_files, write_folder

from convdkm.data import load_idx
from convdkm.data.idx import read_idx
from convdkm.errors import InvalidInputError


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("dot", [True, False])
@pytest.mark.parametrize("folder", ["MNIST/raw", "mnist", "MNIST", "."])
def test_every_layout_is_read(tmp_path, folder, dot, packed):
    write_folder(tmp_path / folder, idx_files(dot=dot, packed=packed))
    data = load_idx("mnist", tmp_path)
    assert data.train_images.shape == (20, 1, 28, 28)
    assert data.test_labels.tolist() == list(range(10))
    assert float(data.train_images[0, 0, 1, 2]) == pytest.approx(30 / 255)
    assert data.name == "mnist"


def test_fashion_has_class_names(tmp_path):
    write_folder(tmp_path / "FashionMNIST" / "raw", idx_files())
    assert load_idx("fashion-mnist", tmp_path).class_names[9] == "Ankle boot"


def test_a_gzipped_file_without_its_suffix_is_read(tmp_path):
    path = tmp_path / "labels"
    path.write_bytes(gzip.compress(idx_bytes([3, 1, 4])))
    assert read_idx(path, axes=1).tolist() == [3, 1, 4]


GOOD = idx_bytes(np.zeros((4, 28, 28)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "starts with nothing", id="empty"),
        pytest.param(
            b"not an idx file at all", "starts with 6e 6f 74 20, not 00 00 08 03", id="foreign"
        ),
        pytest.param(idx_bytes([1, 2, 3]), "starts with 00 00 08 01, not 00 00 08 03", id="labels"),
        pytest.param(GOOD[:2] + b"\x0d" + GOOD[3:], "starts with 00 00 0d 03", id="other-type"),
        pytest.param(GOOD[:10], "ends in its header", id="cut-header"),
        pytest.param(GOOD[:-1], "only 3135 of 3136 are there", id="cut-data"),
        pytest.param(GOOD + b"x", "more bytes than its header announces", id="too-long"),
        pytest.param(GOOD[:4] + b"\xff" * 12, "its header is damaged", id="mad-header"),
        pytest.param(gzip.compress(GOOD)[:-20], "damaged or was cut short", id="cut-gzip"),
        pytest.param(gzip.compress(GOOD)[:5], "damaged or was cut short", id="cut-gzip-header"),
        pytest.param(
            gzip.compress(GOOD)[:-8] + b"12345678", "damaged or was cut short", id="wrong-checksum"
        ),
        pytest.param(b"\x1f\x8b" + b"nonsense" * 9, "damaged or was cut short", id="foreign-gzip"),
    ],
)
def test_damaged_files_are_named(tmp_path, content, message):
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=f"train-images-idx3-ubyte .*{message}"):
        read_idx(path, axes=3)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("train-labels-idx1-ubyte", np.zeros(19), r"has 20 images, but .* has 19 labels"),
        ("t10k-labels-idx1-ubyte", np.full(10, 10), "the label 10, but those of MNIST end at 9"),
        ("train-images-idx3-ubyte", np.zeros((20, 28, 27)), "images 28×27.* are 28×28"),
    ],
)
def test_files_that_do_not_fit_are_named(tmp_path, name, array, message):
    write_folder(tmp_path, {**idx_files(packed=False), name: idx_bytes(array)})
    with pytest.raises(InvalidInputError, match=message):
        load_idx("mnist", tmp_path)


def test_other_formats_are_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="CIFAR-10 is not made of IDX files"):
        load_idx("cifar10", tmp_path)


def test_real_mnist(data_folder):
    data = load_idx("mnist", data_folder)
    assert data.train_images.shape == (60_000, 1, 28, 28)
    assert data.train_labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert torch.bincount(data.test_labels).tolist()[:3] == [980, 1135, 1032]


def test_mnist_is_not_taken_for_fashion_mnist(data_folder):
    with pytest.raises(InvalidInputError, match="holds MNIST, not Fashion-MNIST"):
        load_idx("fashion-mnist", data_folder / "MNIST" / "raw")
