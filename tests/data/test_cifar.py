"""CIFAR-10 and CIFAR-100 from folders and archives."""

import io
import pickle
import tarfile

import numpy as np
import pytest
import torch
from data_files import (
    cifar10_files,
    cifar100_files,
    cifar_pixels,
    write_archive,
    write_folder,
)

from convdkm.data import load_cifar10, load_cifar100
from convdkm.errors import InvalidInputError

FOLDER = "cifar-10-batches-py"


@pytest.mark.parametrize("packed", [True, False])
def test_batches_are_read_in_order(tmp_path, packed):
    files = cifar10_files()
    if packed:
        # The order in the archive does not matter.
        turned = dict(reversed(files.items()))
        write_archive(tmp_path / "cifar-10-python.tar.gz", FOLDER, turned)
    else:
        write_folder(tmp_path / FOLDER, files)
    data = load_cifar10(tmp_path)
    assert data.train_images.shape == (20, 3, 32, 32)
    assert data.train_labels[:5].tolist() == [0, 1, 2, 3, 0]
    assert float(data.train_images[0, 1, 0, 1]) == pytest.approx((1025 % 256) / 255)
    assert data.class_names[3] == "name 3"


def test_the_folder_itself_can_be_named(tmp_path):
    assert len(load_cifar10(write_folder(tmp_path / FOLDER, cifar10_files())).test_images) == 4


def test_class_names_do_not_need_their_file(tmp_path):
    files = cifar10_files()
    del files["batches.meta"]
    write_folder(tmp_path / FOLDER, files)
    assert load_cifar10(tmp_path).class_names[0] == "airplane"


def test_files_written_by_python_3_are_read(tmp_path):
    content = pickle.dumps({"data": cifar_pixels(4), "labels": np.arange(4)}, protocol=2)
    files = dict.fromkeys(cifar10_files(), content)
    files["batches.meta"] = pickle.dumps({"label_names": list("abcdefghij")}, protocol=2)
    write_folder(tmp_path / FOLDER, files)
    assert load_cifar10(tmp_path).class_names[9] == "j"


@pytest.mark.parametrize("packed", [True, False])
def test_cifar100_has_fine_labels(tmp_path, packed):
    if packed:
        write_archive(tmp_path / "cifar-100-python.tar.gz", "cifar-100-python", cifar100_files())
    else:
        write_folder(tmp_path / "cifar-100-python", cifar100_files())
    data = load_cifar100(tmp_path)
    assert data.train_images.shape == (200, 3, 32, 32)
    assert data.test_labels.tolist() == list(range(100))
    assert data.class_names[42] == "fine 42"


def test_missing_files_are_named(tmp_path):
    with pytest.raises(InvalidInputError, match=r"CIFAR-10 not found(.|\n)*cifar-10-python.tar.gz"):
        load_cifar10(tmp_path)
    root = write_folder(tmp_path / FOLDER, cifar10_files())
    (root / "data_batch_3").unlink()
    with pytest.raises(InvalidInputError, match="lacks data_batch_3"):
        load_cifar10(tmp_path)


def test_an_incomplete_archive_is_named(tmp_path):
    files = cifar10_files()
    del files["data_batch_2"]
    write_archive(tmp_path / "cifar-10-python.tar.gz", FOLDER, files)
    with pytest.raises(InvalidInputError, match=r"tar.gz does not hold data_batch_2"):
        load_cifar10(tmp_path)


@pytest.mark.parametrize("cut", [10, 400, -30])
def test_a_truncated_archive_is_named(tmp_path, cut):
    path = write_archive(tmp_path / "cifar-10-python.tar.gz", FOLDER, cifar10_files())
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InvalidInputError, match=r"tar.gz cannot be read.*fetch"):
        load_cifar10(tmp_path)


def test_a_foreign_file_is_not_an_archive(tmp_path):
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"<html>404</html>" * 100)
    with pytest.raises(InvalidInputError, match="cannot be read as an archive"):
        load_cifar10(tmp_path)


def test_tricks_with_paths_are_not_followed(tmp_path):
    files = cifar10_files()
    content = files.pop("data_batch_1")
    (tmp_path / "secret").write_bytes(content)
    path = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in (f"../{FOLDER}/data_batch_1", f"/{FOLDER}/data_batch_1", "data_batch_1"):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo(f"{FOLDER}/data_batch_1")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret")
        archive.addfile(link)
        for name, other in files.items():
            member = tarfile.TarInfo(f"{FOLDER}/{name}")
            member.size = len(other)
            archive.addfile(member, io.BytesIO(other))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidInputError, match="does not hold data_batch_1"):
        load_cifar10(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


PIXELS = cifar_pixels(4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2, 3], "not a dictionary"),
        ({b"labels": [0]}, "no entry 'data'"),
        ({b"data": PIXELS}, "no entry 'labels'"),
        ({b"data": PIXELS.astype(np.int64), b"labels": [0, 1, 2, 3]}, "not an array of bytes"),
        ({b"data": [0, 1], b"labels": [0, 1]}, "not an array of bytes"),
        ({b"data": PIXELS[:, :100], b"labels": [0, 1, 2, 3]}, r"shape \(4, 100\), not \(N, 3072\)"),
        ({b"data": PIXELS, b"labels": [0, 1, 2]}, r"4 images but labels of shape \(3,\)"),
        ({b"data": PIXELS, b"labels": [0, 1, 2, 10]}, "run from 0 to 10, not from 0 to 9"),
        ({b"data": PIXELS, b"labels": [-1, 1, 2, 3]}, "run from -1 to 3"),
        ({b"data": PIXELS, b"labels": [0.5, 1, 2, 3]}, "not a list of integers"),
        ({b"data": PIXELS, b"labels": [2**70, 1, 2, 3]}, "too large"),
        ({b"data": PIXELS, b"labels": np.zeros(4)}, "labels of shape"),
    ],
)
def test_a_wrong_batch_is_named(tmp_path, content, message):
    files = {**cifar10_files(), "data_batch_3": pickle.dumps(content, protocol=2)}
    write_folder(tmp_path / FOLDER, files)
    with pytest.raises(InvalidInputError, match=f"data_batch_3 is not a batch.*{message}"):
        load_cifar10(tmp_path)


@pytest.mark.parametrize("size", [0, 1, 100, 12000])
def test_a_truncated_batch_is_named(tmp_path, size):
    files = cifar10_files()
    files["data_batch_3"] = files["data_batch_3"][:size]
    write_folder(tmp_path / FOLDER, files)
    with pytest.raises(InvalidInputError, match="data_batch_3"):
        load_cifar10(tmp_path)


@pytest.mark.parametrize("names", [[b"one"], 5, {b"a": 1}])
def test_wrong_class_names_are_refused(tmp_path, names):
    content = pickle.dumps({b"label_names": names}, protocol=2)
    write_folder(tmp_path / FOLDER, {**cifar10_files(), "batches.meta": content})
    with pytest.raises(InvalidInputError, match=r"batches.meta does not name the classes"):
        load_cifar10(tmp_path)


def test_real_cifar10(data_folder):
    data = load_cifar10(data_folder)
    assert data.train_images.shape == (50_000, 3, 32, 32)
    assert torch.bincount(data.test_labels).tolist() == [1000] * 10
    assert data.class_names[6] == "frog"
    assert data.train_labels[0] == 6
