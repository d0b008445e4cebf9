"""Data sets and whitening."""

import os
import pickle

import numpy as np
import pytest
import torch

from convdkm import InvalidInputError, NotInitialisedError
from convdkm.data import ZCA, load_cifar10, load_digits


def test_digits_are_split_by_class():
    data = load_digits()
    assert data.train_images.shape == (1437, 1, 8, 8)
    assert data.test_images.shape == (360, 1, 8, 8)
    assert float(data.train_images.min()) == 0
    assert float(data.train_images.max()) == 1
    assert int(torch.bincount(data.test_labels).min()) >= 34


def write_cifar(folder, count=4):
    root = folder / "cifar-10-batches-py"
    root.mkdir()
    pixels = np.arange(count * 3072, dtype=np.uint64).astype(np.uint8).reshape(count, 3072)
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        content = {b"data": pixels, b"labels": list(range(count)), b"filenames": [b"x"] * count}
        (root / name).write_bytes(pickle.dumps(content, protocol=2))
    return root


def test_cifar_batches_are_read_in_order(tmp_path):
    write_cifar(tmp_path)
    data = load_cifar10(tmp_path)
    assert data.train_images.shape == (20, 3, 32, 32)
    assert data.train_labels[:5].tolist() == [0, 1, 2, 3, 0]
    assert float(data.train_images[0, 1, 0, 1]) == pytest.approx((1025 % 256) / 255)


def test_a_pickle_cannot_run_code(tmp_path):
    root = write_cifar(tmp_path)
    marker = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {marker}",)

    (root / "test_batch").write_bytes(pickle.dumps({b"data": Evil(), b"labels": []}, protocol=2))
    with pytest.raises(InvalidInputError, match=r"test_batch.*not allowed"):
        load_cifar10(tmp_path)
    assert not marker.exists()


def test_missing_and_truncated_files_are_named(tmp_path):
    with pytest.raises(InvalidInputError, match="data_batch_1"):
        load_cifar10(tmp_path)
    root = write_cifar(tmp_path)
    (root / "data_batch_3").write_bytes((root / "data_batch_3").read_bytes()[:100])
    with pytest.raises(InvalidInputError, match="data_batch_3"):
        load_cifar10(tmp_path)


def test_real_cifar10(data_folder):
    data = load_cifar10(data_folder)
    assert data.train_images.shape == (50_000, 3, 32, 32)
    assert torch.bincount(data.test_labels).tolist() == [1000] * 10


def test_zca_equals_the_formula():
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(24, 24, generator=generator)
    images = (torch.randn(300, 24, generator=generator) @ basis + 3).reshape(300, 2, 3, 4)
    whitened = ZCA(0.1).fit(images)(images)

    standard = images.double()
    axes = (0, 2, 3)
    standard = (standard - standard.mean(axes, keepdim=True)) / standard.std(
        axes, correction=0, keepdim=True
    )
    flat = standard.flatten(1)
    flat = flat - flat.mean(0)
    covariance = flat.T @ flat / len(flat)
    values, vectors = torch.linalg.eigh(covariance)
    flat = flat @ vectors @ torch.diag((values + 0.1 * values.mean()) ** -0.5) @ vectors.T
    expected = flat.reshape(images.shape)
    expected = expected / expected.std(axes, correction=0, keepdim=True)
    torch.testing.assert_close(whitened.double(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(whitened.std(axes, correction=0), torch.ones(2), rtol=1e-4, atol=0)


def test_zca_refuses_what_it_was_not_fitted_to():
    with pytest.raises(NotInitialisedError, match="fit"):
        ZCA()(torch.zeros(2, 1, 3, 3))
    zca = ZCA().fit(torch.randn(20, 1, 3, 3))
    with pytest.raises(InvalidInputError, match="9 pixels"):
        zca(torch.zeros(2, 1, 4, 4))
    with pytest.raises(InvalidInputError, match="epsilon"):
        ZCA(-1)
