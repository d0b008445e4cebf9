"""Small files in the formats of the real data sets."""

import gzip
import io
import pickle
import struct
import tarfile

import numpy as np
from PIL import Image

CIFAR10_PARTS = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


def cifar_pixels(count):
    return np.arange(count * 3072, dtype=np.uint64).astype(np.uint8).reshape(count, 3072)


def cifar10_files(count=4):
    content = {
        b"data": cifar_pixels(count),
        b"labels": list(range(count)),
        b"filenames": [b"x"] * count,
    }
    files = {name: pickle.dumps(content, protocol=2) for name in CIFAR10_PARTS}
    names = [f"name {number}".encode() for number in range(10)]
    files["batches.meta"] = pickle.dumps({b"label_names": names}, protocol=2)
    return files


def cifar100_files(train=200, test=100):
    files = {}
    for name, count in (("train", train), ("test", test)):
        content = {
            b"data": cifar_pixels(count),
            b"fine_labels": [number % 100 for number in range(count)],
            b"coarse_labels": [number % 20 for number in range(count)],
        }
        files[name] = pickle.dumps(content, protocol=2)
    names = [f"fine {number}".encode() for number in range(100)]
    files["meta"] = pickle.dumps({b"fine_label_names": names}, protocol=2)
    return files


def write_folder(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def write_archive(path, folder, files):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def idx_bytes(array):
    array = np.asarray(array, dtype=np.uint8)
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def idx_files(train=20, test=10, dot=False, packed=True):
    between = "." if dot else "-"
    pixels = np.arange((train + test) * 784, dtype=np.uint64).astype(np.uint8).reshape(-1, 28, 28)
    labels = np.arange(train + test) % 10
    arrays = {
        f"train-images{between}idx3-ubyte": pixels[:train],
        f"train-labels{between}idx1-ubyte": labels[:train],
        f"t10k-images{between}idx3-ubyte": pixels[train:],
        f"t10k-labels{between}idx1-ubyte": labels[train:],
    }
    files = {name: idx_bytes(array) for name, array in arrays.items()}
    if packed:
        return {f"{name}.gz": gzip.compress(content) for name, content in files.items()}
    return files


def grey_picture(value=128, size=(6, 4)):
    """A grey picture; the size is width and height, as Pillow has it."""
    return Image.new("L", size, value)


def write_classes(folder, classes, count=3, picture=grey_picture):
    for position, name in enumerate(classes):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            picture(40 * position + number).save(folder / name / f"{number}.png")
    return folder
