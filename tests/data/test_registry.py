"""Known sets: names, places, loading, verifying."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import (
    cifar10_files,
    idx_bytes,
    idx_files,
    write_archive,
    write_classes,
    write_folder,
)

from convdkm.data import (
    KNOWN_SETS,
    MissingDataError,
    data_directory,
    find,
    known_set,
    load,
    verify,
)
from convdkm.errors import InvalidInputError


@pytest.fixture
def no_system_folders(monkeypatch):
    """Fashion-MNIST may be installed on this machine."""
    fashion = replace(KNOWN_SETS["fashion-mnist"], system_folders=("/nowhere/at/all",))
    monkeypatch.setitem(KNOWN_SETS, "fashion-mnist", fashion)


def test_listing_the_sets_imports_nothing_slow():
    program = (
        "import sys, convdkm.data.registry, convdkm.data.download, convdkm.data.loading;"
        "from convdkm.data import KNOWN_SETS, find, fetch, load;"
        "[find(name) for name in KNOWN_SETS];"
        "slow = {'torch', 'numpy', 'sklearn', 'PIL'} & set(sys.modules);"
        "sys.exit(f'imported {slow}' if slow else 0)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_public_name_is_there():
    import convdkm.data

    for name in convdkm.data.__all__:
        assert getattr(convdkm.data, name) is not None
    assert set(convdkm.data.__all__) <= set(dir(convdkm.data))
    with pytest.raises(AttributeError, match="attribute nothing"):
        convdkm.data.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("CIFAR-10", "cifar10"),
        ("cifar_100", "cifar100"),
        ("Fashion MNIST", "fashion-mnist"),
        ("FashionMNIST", "fashion-mnist"),
        ("Digits", "digits"),
    ],
)
def test_names_in_any_spelling(name, expected):
    assert known_set(name).name == expected


def test_unknown_names_suggest_the_nearest(tmp_path):
    with pytest.raises(InvalidInputError, match=r"'cifar1'; did you mean 'cifar10'\? known are"):
        known_set("cifar1")
    with pytest.raises(
        InvalidInputError, match=r"no data set or path 'mnits'; did you mean 'mnist"
    ):
        load("mnits")
    with pytest.raises(InvalidInputError, match=r"known are digits, mnist, .*folder of images"):
        load("something else")
    (tmp_path / "table.csv").write_text("1,2")
    with pytest.raises(InvalidInputError, match=r"table.csv is neither a folder"):
        load(tmp_path / "table.csv")


def test_the_table_is_consistent():
    for name, known in KNOWN_SETS.items():
        assert known_set(name) is known
        assert len(known.class_names) in (0, known.num_classes)
        assert all(len(file.md5) == 32 for file in known.files)
        assert known.download_size == sum(file.size for file in known.files)
        if known.format != "embedded":
            assert known.base_url.startswith("http")
            assert known.base_url.endswith("/")


def test_the_data_directory(tmp_path, monkeypatch):
    monkeypatch.delenv("CONVDKM_DATA", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    assert data_directory() == Path("/home/someone/.local/share/convdkm")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert data_directory() == Path("/data/convdkm")
    monkeypatch.setenv("CONVDKM_DATA", "~/sets")
    assert data_directory() == Path("/home/someone/sets")
    assert data_directory(tmp_path) == tmp_path


def test_sets_are_found(tmp_path, monkeypatch, no_system_folders):
    assert find("mnist", tmp_path) is None
    assert find("fashion-mnist", tmp_path) is None
    raw = write_folder(tmp_path / "MNIST" / "raw", idx_files())
    archive = write_archive(
        tmp_path / "cifar-10-python.tar.gz", "cifar-10-batches-py", cifar10_files()
    )
    assert find("MNIST", tmp_path) == raw
    assert find("cifar10", tmp_path) == archive
    folder = write_folder(tmp_path / "cifar-10-batches-py", cifar10_files())
    assert find("cifar10", tmp_path) == folder
    monkeypatch.setenv("CONVDKM_DATA", str(tmp_path))
    assert find("cifar10") == folder
    assert find("digits") is not None


def test_the_systems_folder_is_looked_in(tmp_path, monkeypatch):
    installed = write_folder(tmp_path / "system", idx_files())
    fashion = KNOWN_SETS["fashion-mnist"]
    assert fashion.system_folders == ("/usr/share/datasets/fashion-mnist",)
    here = replace(fashion, system_folders=(str(installed),))
    monkeypatch.setitem(KNOWN_SETS, "fashion-mnist", here)
    for name in ("fashion-mnist", "fmnist", "Fashion"):
        assert find(name, tmp_path / "data") == installed


def test_every_place_looked_in_is_named(tmp_path, no_system_folders):
    with pytest.raises(MissingDataError) as caught:
        load("fashion-mnist", data_dir=tmp_path)
    for part in (
        str(tmp_path / "FashionMNIST/raw"),
        str(tmp_path / "fashion-mnist"),
        "/nowhere/at/all",
        "`convdkm data fetch fashion-mnist`",
        "--data-dir",
        "CONVDKM_DATA",
    ):
        assert part in str(caught.value)
    files = idx_files()
    files.pop("t10k-labels-idx1-ubyte.gz")
    write_folder(tmp_path / "fashion-mnist", files)
    with pytest.raises(MissingDataError, match=r"fashion-mnist \(lacks t10k-labels\)"):
        load("fashion-mnist", data_dir=tmp_path)


def test_known_sets_are_loaded_by_name(tmp_path):
    write_folder(tmp_path / "mnist", idx_files())
    write_folder(tmp_path / "cifar-10-batches-py", cifar10_files())
    assert load("MNIST", data_dir=tmp_path).name == "mnist"
    assert load("CIFAR-10", data_dir=tmp_path).image_shape == (3, 32, 32)
    assert load("digits").image_shape == (1, 8, 8)


def test_size_and_channels_of_known_sets(tmp_path):
    write_folder(tmp_path / "mnist", idx_files())
    write_folder(tmp_path / "cifar-10-batches-py", cifar10_files())
    data = load("mnist", data_dir=tmp_path, image_size=32, channels=3)
    assert data.image_shape == (3, 32, 32)
    assert data.test_images.shape == (10, 3, 32, 32)
    assert load("cifar10", data_dir=tmp_path, image_size=(8, 16), channels=1).image_shape == (
        1,
        8,
        16,
    )
    with pytest.raises(InvalidInputError, match="channels"):
        load("mnist", data_dir=tmp_path, channels=2)
    with pytest.raises(InvalidInputError, match="image_size"):
        load("mnist", data_dir=tmp_path, image_size=0)


def test_paths_are_loaded(tmp_path, monkeypatch):
    write_classes(tmp_path / "pets", ["cat", "dog"], count=10)
    told = []
    data = load(tmp_path / "pets", test_fraction=0.2, report=told.append)
    assert torch.bincount(data.test_labels).tolist() == [2, 2]
    assert told == ["pets has no test part: 4 images, drawn by seed 0, are kept for it"]
    again = load(str(tmp_path / "pets"), test_fraction=0.2, seed=1)
    assert not torch.equal(again.test_images, data.test_images)
    assert not load(tmp_path / "pets", test_fraction=0).has_test
    for fraction in (-0.1, 1, float("nan")):
        with pytest.raises(InvalidInputError, match="test_fraction"):
            load(tmp_path / "pets", test_fraction=fraction)
    pixels = np.zeros((10, 5, 5), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", images=pixels, labels=np.arange(10) % 2)
    assert load(tmp_path / "a.npz", image_size=7, channels=3).test_images.shape == (2, 3, 7, 7)
    # A path is a path, even if it ends in a known name.
    write_classes(tmp_path / "mnist", ["a", "b"])
    monkeypatch.chdir(tmp_path)
    assert load("./mnist").class_names == ("a", "b")


def test_verifying_tells_what_differs(tmp_path):
    folder = write_folder(tmp_path / "MNIST" / "raw", idx_files())
    found = verify("mnist", tmp_path)
    assert (found.name, found.place, found.train_size, found.test_size) == ("mnist", folder, 20, 10)
    assert found.notes[:2] == (
        "20 training images, where MNIST has 60000",
        "10 test images, where MNIST has 10000",
    )
    assert len([note for note in found.notes if "differs from the published" in note]) == 4
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(idx_bytes(np.zeros(9)))
    with pytest.raises(InvalidInputError, match=r"10 images, but .* has 9 labels"):
        verify("mnist", tmp_path)
    with pytest.raises(MissingDataError, match="CIFAR-100 not found"):
        verify("cifar100", tmp_path)


def test_verifying_an_archive(tmp_path):
    write_archive(tmp_path / "cifar-10-python.tar.gz", "cifar-10-batches-py", cifar10_files())
    assert "differs from the published archive" in verify("cifar10", tmp_path).notes[-1]
    assert verify("digits").notes == ()


def test_real_mnist_is_the_published_one(data_folder):
    assert verify("mnist", data_folder).notes == ()
