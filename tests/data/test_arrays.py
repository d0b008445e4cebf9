"""Data sets from arrays, tensors, PyTorch datasets and .npz files."""

import io
import zipfile

import numpy as np
import pytest
import torch
from data_files import grey_picture
from PIL import Image
from torch.utils.data import TensorDataset

from convdkm.data import from_arrays, from_torch, load_npz
from convdkm.errors import InvalidInputError

RANDOM = np.random.default_rng(0)
LABELS = np.array([0, 1, 2, 0, 1, 2])
BYTES = RANDOM.integers(256, size=(6, 8, 9), dtype=np.uint8)


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_layouts_are_recognised(kind):
    colour = RANDOM.integers(256, size=(6, 3, 8, 9), dtype=np.uint8)
    expected = torch.from_numpy(colour).float() / 255
    for images in (colour, np.ascontiguousarray(colour.transpose(0, 2, 3, 1))):
        assert torch.equal(from_arrays(kind(images), kind(LABELS)).train_images, expected)
    grey = from_arrays(kind(BYTES), kind(LABELS)).train_images
    assert torch.equal(grey, torch.from_numpy(BYTES).float().unsqueeze(1) / 255)


def test_a_shape_that_does_not_tell_needs_the_layout():
    images = np.zeros((6, 3, 8, 3), dtype=np.uint8)
    with pytest.raises(InvalidInputError, match=r"both the second and the last axis.*layout="):
        from_arrays(images, LABELS)
    assert from_arrays(images, LABELS, layout="NCHW").image_shape == (3, 8, 3)
    assert from_arrays(images, LABELS, layout="NHWC").image_shape == (3, 3, 8)
    with pytest.raises(InvalidInputError, match="neither the second nor the last axis"):
        from_arrays(np.zeros((6, 5, 8, 7), dtype=np.uint8), LABELS)
    # Tensors are channels first, as everywhere in PyTorch.
    assert from_arrays(torch.zeros(6, 5, 8, 7), LABELS).image_shape == (5, 8, 7)
    with pytest.raises(InvalidInputError, match="layout must be one of"):
        from_arrays(images, LABELS, layout="CHWN")
    with pytest.raises(InvalidInputError, match=r"\(6, 3, 8, 3\), which is not NHW"):
        from_arrays(images, LABELS, layout="NHW")


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (np.full((6, 4, 4), 51, dtype=np.uint8), 0.2),
        (np.full((6, 4, 4), 13107, dtype=np.uint16), 0.2),
        (np.full((6, 4, 4), 13107, dtype=">u2"), 0.2),
        (np.full((6, 4, 4), 0.2, dtype=np.float64), 0.2),
        (np.full((6, 4, 4), 0.2, dtype=np.float16), 0.2),
        (np.full((6, 4, 4), 0.2, dtype=">f4"), 0.2),
        (np.ones((6, 4, 4), dtype=bool), 1.0),
        (torch.full((6, 4, 4), 0.2, requires_grad=True), 0.2),
        ([[[0.2] * 4] * 4] * 6, 0.2),
    ],
)
def test_types_are_scaled(images, expected):
    pixels = from_arrays(images, LABELS).train_images
    assert pixels.dtype == torch.float32
    assert float(pixels.max()) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((6, 4, 4), dtype=np.int64), "train_images is of type torch.int64"),
        (np.full((6, 4, 4), 255.0), "between 0 and 1"),
        (np.full((6, 4, 4), np.nan), "NaN"),
        (np.zeros((6, 16)), r"got the shape \(6, 16\)"),
        (np.zeros((5, 4, 4)), "5 training images but 6 training labels"),
        (np.zeros((6, 4, 4), dtype=object), "not an array of numbers"),
        (np.zeros((6, 4, 4), dtype=complex), "complex"),
        ([[[1], [1, 2]]], "not an array of numbers"),
        ("text", "not an array of numbers"),
    ],
)
def test_wrong_images_are_refused(images, message):
    with pytest.raises(InvalidInputError, match=message):
        from_arrays(images, LABELS)


@pytest.mark.parametrize(
    ("labels", "codes", "names"),
    [
        ([0, 1, 2, 0, 1, 2], [0, 1, 2, 0, 1, 2], ("0", "1", "2")),
        ([5, 9, 5, 9, 12, 12], [0, 1, 0, 1, 2, 2], ("5", "9", "12")),
        ([-1, 1, -1, 1, 1, 1], [0, 1, 0, 1, 1, 1], ("-1", "1")),
        (list("babbac"), [1, 0, 1, 1, 0, 2], ("a", "b", "c")),
        ([b"x", b"y"] * 3, [0, 1] * 3, ("x", "y")),
        (np.array([[0], [1]] * 3), [0, 1] * 3, ("0", "1")),
        (np.array([0, 1] * 3, dtype=np.uint8), [0, 1] * 3, ("0", "1")),
        (np.array([True, False] * 3), [1, 0] * 3, ("0", "1")),
    ],
)
def test_labels_become_class_numbers(labels, codes, names):
    data = from_arrays(BYTES, labels)
    assert data.train_labels.tolist() == codes
    assert data.class_names == names


def test_class_names_fix_the_order():
    data = from_arrays(BYTES, list("babbac"), class_names=["c", "b", "a", "z"])
    assert data.train_labels.tolist() == [1, 2, 1, 1, 2, 0]
    assert data.num_classes == 4
    assert from_arrays(BYTES, LABELS, class_names="xyz").class_names == ("x", "y", "z")
    with pytest.raises(InvalidInputError, match="not among the class names: a"):
        from_arrays(BYTES, list("babbac"), class_names=["b", "c"])
    with pytest.raises(InvalidInputError, match="run from 0 to 2"):
        from_arrays(BYTES, LABELS, class_names=["b", "c"])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.eye(6), r"\(6, 6\); turn one-hot rows"),
        (LABELS / 2, "integers or strings, got float64"),
        ([], "train_labels is empty"),
        ([[1], [1, 2]], "not a list of labels"),
        ([None] * 6, "got object"),
        (np.zeros((6, 1, 1), dtype=int), r"\(6, 1, 1\)"),
    ],
)
def test_wrong_labels_are_refused(labels, message):
    with pytest.raises(InvalidInputError, match=message):
        from_arrays(BYTES, labels)


def test_a_test_part():
    data = from_arrays(BYTES, list("ababab"), BYTES[:2], ["b", "a"], name="toy")
    assert data.test_labels.tolist() == [1, 0]
    assert data.name == "toy"
    assert not from_arrays(BYTES, LABELS).has_test
    with pytest.raises(InvalidInputError, match="no training image has: q"):
        from_arrays(BYTES, list("ababab"), BYTES[:2], ["b", "q"])
    with pytest.raises(InvalidInputError, match="no training image has: 7"):
        from_arrays(BYTES, LABELS, BYTES[:2], [0, 7])
    with pytest.raises(InvalidInputError, match="test_labels is missing"):
        from_arrays(BYTES, LABELS, BYTES)
    with pytest.raises(InvalidInputError, match="both be integers, or strings"):
        from_arrays(BYTES, LABELS, BYTES[:2], ["0", "1"])


class Pairs:
    def __init__(self, pairs, classes=None):
        self.pairs = pairs
        if classes is not None:
            self.classes = classes

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, position):
        return self.pairs[position]


@pytest.mark.parametrize(
    "image",
    [
        grey_picture(51, size=(5, 4)),
        torch.full((1, 4, 5), 0.2),
        torch.full((4, 5), 51, dtype=torch.uint8),
        np.full((4, 5, 1), 51, dtype=np.uint8),
        np.full((4, 5), 0.2),
    ],
    ids=["pillow", "tensor", "bytes", "array", "floats"],
)
def test_pytorch_datasets(image):
    data = from_torch(Pairs([(image, 0), (image, torch.tensor(1))], ["cat", "dog"]))
    assert data.train_images.shape == (2, 1, 4, 5)
    assert float(data.train_images.mean()) == pytest.approx(0.2)
    assert data.class_names == ("cat", "dog")


def test_pytorch_tensor_datasets():
    images, labels = torch.rand(6, 3, 5, 5), torch.tensor([0, 1, 2] * 2)
    data = from_torch(TensorDataset(images, labels), TensorDataset(images[:3], labels[:3]))
    assert torch.equal(data.train_images, images)
    assert torch.equal(data.test_labels, labels[:3])


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "the train dataset is empty"),
        ([(torch.rand(1, 4, 4), 0), 7], "item 1 of the train dataset is not a pair"),
        ([("a", 0)], "item 0 of the train dataset holds a str"),
        ([(torch.rand(1, 4, 4), 0), (torch.rand(1, 4, 5), 1)], "item 1.*bring all to one size"),
        ([(torch.rand(4), 0)], "item 0 of the train dataset must be"),
    ],
)
def test_wrong_pytorch_datasets_are_refused(items, message):
    with pytest.raises(InvalidInputError, match=message):
        from_torch(Pairs(items))


def test_streams_are_refused():
    with pytest.raises(InvalidInputError, match=r"must have a length and items.*generator"):
        from_torch(item for item in [])


@pytest.mark.parametrize(
    "keys",
    [
        ("train_images", "train_labels", "test_images", "test_labels"),
        ("x_train", "y_train", "x_test", "y_test"),
        ("images", "labels"),
        ("x_train", "y_train"),
    ],
)
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_styles(tmp_path, keys, save):
    arrays = [BYTES, LABELS[:, None], BYTES[:3], LABELS[:3, None]]
    save(tmp_path / "toy.npz", **dict(zip(keys, arrays, strict=False)), other=np.zeros(3))
    data = load_npz(tmp_path / "toy.npz")
    assert data.train_images.shape == (6, 1, 8, 9)
    assert data.train_labels.tolist() == LABELS.tolist()
    assert len(data.test_images) == (3 if len(keys) == 4 else 0)
    assert data.name == "toy"


def test_npz_with_names(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, images=BYTES, labels=LABELS, class_names=np.array(["x", "y", "z"]))
    assert load_npz(path).class_names == ("x", "y", "z")
    np.savez(path, images=BYTES, labels=np.array(list("ababab")))
    assert load_npz(path).class_names == ("a", "b")
    np.savez(path, images=BYTES, labels=LABELS, class_names=np.arange(3))
    with pytest.raises(InvalidInputError, match="class_names must be a list of strings"):
        load_npz(path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"pixels": BYTES}, "holds pixels, but must hold one of: train_images"),
        ({"images": BYTES}, "holds images, but must hold"),
        ({"x_train": BYTES, "y_train": LABELS, "x_test": BYTES}, "but no y_test"),
        ({"images": BYTES, "labels": LABELS[:3]}, "6 training images but 3 training labels"),
        ({"images": BYTES, "labels": np.array([None] * 6)}, "arrays of Python objects"),
        ({"images": np.zeros((6, 3, 8, 3)), "labels": LABELS}, "both the second and the last"),
    ],
)
def test_wrong_npz_content_is_named(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InvalidInputError, match=f"a.npz.*{message}"):
        load_npz(tmp_path / "a.npz")


def test_damaged_npz_files_are_named(tmp_path):
    buffer = io.BytesIO()
    np.savez_compressed(buffer, images=BYTES, labels=LABELS)
    good = buffer.getvalue()
    flipped = bytearray(good)
    flipped[100] ^= 255
    no_array = io.BytesIO()
    with zipfile.ZipFile(no_array, "w") as archive:
        archive.writestr("images.npy", b"junk")
        archive.writestr("labels.npy", b"junk")
    for content in (b"", b"junk" * 50, good[:200], good[:-10], bytes(flipped), no_array.getvalue()):
        (tmp_path / "a.npz").write_bytes(content)
        with pytest.raises(InvalidInputError, match=r"a.npz"):
            load_npz(tmp_path / "a.npz")
    with pytest.raises(InvalidInputError, match=r"absent.npz cannot be read"):
        load_npz(tmp_path / "absent.npz")


def test_pillow_colour_items_keep_their_channels():
    picture = Image.new("RGB", (5, 4), (255, 0, 0))
    assert from_torch(Pairs([(picture, 0), (picture, 1)])).image_shape == (3, 4, 5)
