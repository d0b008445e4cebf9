"""Picture files as tensors."""

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from data_files import grey_picture
from PIL import Image, ImageDraw

from convdkm.data.pictures import picture_shape, read_picture, read_pictures
from convdkm.errors import InvalidInputError


def saved(path, image, **options):
    image.save(path, **options)
    return path


def bomb(path, side=60_000):
    """A tiny PNG file that claims to be enormous."""

    def chunk(kind, content):
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 1000))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + content + chunk(b"IEND", b""))
    return path


@pytest.mark.parametrize("suffix", ["png", "bmp", "gif", "tiff", "pgm", "webp", "jpg"])
def test_grey_files_of_every_format(tmp_path, suffix):
    picture = read_picture(saved(tmp_path / f"a.{suffix}", grey_picture(100)))
    assert picture.shape[1:] == (4, 6)
    torch.testing.assert_close(
        picture, torch.full_like(picture, 100 / 255), rtol=0, atol=0.01 if suffix == "jpg" else 1e-6
    )


def test_colour_is_kept(tmp_path):
    path = saved(tmp_path / "a.png", Image.new("RGB", (2, 3), (255, 0, 51)))
    assert picture_shape(path)[0] == 3
    assert read_picture(path)[:, 0, 0].tolist() == pytest.approx([1, 0, 0.2])


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("RGBA", (10, 20, 30, 0), [1, 1, 1]),
        ("RGBA", (0, 0, 0, 128), [127 / 255] * 3),
        ("RGBA", (255, 0, 51, 255), [1, 0, 0.2]),
        ("LA", (10, 0), [1]),
        ("LA", (51, 255), [0.2]),
        ("1", 1, [1]),
        ("I;16", 65535, [1]),
        ("I;16", 13107, [0.2]),
        ("CMYK", (0, 0, 0, 0), [1, 1, 1]),
    ],
)
def test_every_mode(tmp_path, mode, colour, expected):
    path = tmp_path / ("a.tiff" if mode == "CMYK" else "a.png")
    picture = read_picture(saved(path, Image.new(mode, (2, 2), colour)))
    assert picture[:, 1, 1].tolist() == pytest.approx(expected, abs=5e-3)
    assert picture_shape(path)[0] == len(expected)


def test_16_bit_greys_keep_their_depth(tmp_path):
    levels = np.array([[0, 1, 256], [257, 40_000, 65535]], dtype=np.uint16)
    for name in ("a.png", "a.tiff"):
        picture = read_picture(saved(tmp_path / name, Image.fromarray(levels)))
        expected = torch.from_numpy(levels.astype(np.float32)) / 65535
        torch.testing.assert_close(picture[0], expected)


def test_real_numbers_must_lie_between_0_and_1(tmp_path):
    good = saved(tmp_path / "a.tiff", Image.fromarray(np.full((2, 2), 0.25, dtype=np.float32)))
    assert float(read_picture(good)[0, 0, 0]) == 0.25
    bad = saved(tmp_path / "b.tiff", Image.fromarray(np.full((2, 2), 7, dtype=np.float32)))
    with pytest.raises(InvalidInputError, match=r"b.tiff has grey levels from 7 to 7.*16 bits"):
        read_picture(bad)


def test_palettes_are_grey_or_colour(tmp_path):
    colour = Image.new("RGB", (4, 4), (200, 0, 0)).quantize(4)
    assert read_picture(saved(tmp_path / "a.png", colour)).shape == (3, 4, 4)
    grey = Image.new("P", (4, 4), 7)
    grey.putpalette([level for level in range(256) for _ in range(3)])
    picture = read_picture(saved(tmp_path / "b.png", grey))
    assert picture.shape == (1, 4, 4)
    assert float(picture[0, 0, 0]) == pytest.approx(7 / 255)


def test_a_transparent_colour_is_put_on_white(tmp_path):
    path = saved(tmp_path / "a.png", Image.new("RGB", (2, 2), (9, 9, 9)), transparency=(9, 9, 9))
    assert float(read_picture(path).min()) == 1


def test_rotated_photographs_are_turned_upright(tmp_path):
    image = Image.new("RGB", (8, 4))
    ImageDraw.Draw(image).rectangle((0, 0, 3, 3), fill="white")  # the left half
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    path = saved(tmp_path / "a.png", image, exif=exif)
    assert picture_shape(path) == (3, 8, 4)
    picture = read_picture(path)
    assert picture.shape == (3, 8, 4)
    assert float(picture[:, :4].min()) == 1
    assert float(picture[:, 4:].max()) == 0


def test_many_pictures(tmp_path):
    paths = [saved(tmp_path / f"{i}.png", grey_picture(i)) for i in range(5)]
    images, kept = read_pictures(paths)
    assert images.shape == (5, 1, 4, 6)
    assert kept == [0, 1, 2, 3, 4]
    assert (255 * images[:, 0, 0, 0]).round().tolist() == [0, 1, 2, 3, 4]


def test_one_colour_file_makes_all_colour(tmp_path):
    paths = [
        saved(tmp_path / "a.png", grey_picture(51)),
        saved(tmp_path / "b.png", Image.new("RGB", (6, 4), (255, 0, 0))),
    ]
    images, _ = read_pictures(paths)
    assert images.shape == (2, 3, 4, 6)
    assert images[0, :, 0, 0].tolist() == pytest.approx([0.2] * 3)
    grey, _ = read_pictures(paths, channels=1)
    assert grey[:, 0, 0, 0].tolist() == pytest.approx([0.2, 0.299])
    for channels in (0, 2, 4, "3"):
        with pytest.raises(InvalidInputError, match="channels must be 1"):
            read_pictures(paths, channels=channels)


def test_mixed_sizes_name_two_examples(tmp_path):
    paths = [
        saved(tmp_path / "a.png", grey_picture(size=(6, 4))),
        saved(tmp_path / "b.png", grey_picture(size=(5, 4))),
    ]
    with pytest.raises(
        InvalidInputError, match=r"a.png is 4×6, .*b.png is 4×5; give image_size \(--image-size\)"
    ):
        read_pictures(paths)
    assert read_pictures(paths, image_size=3)[0].shape == (2, 1, 3, 3)
    assert read_pictures(paths, image_size=(3, 2))[0].shape == (2, 1, 3, 2)
    for size in (0, -1, (3,), (3, 0), 2.5):
        with pytest.raises(InvalidInputError, match="image_size"):
            read_pictures(paths, image_size=size)


def test_shrinking_averages(tmp_path):
    stripes = np.tile(np.array([[0, 255]], dtype=np.uint8), (64, 32))
    images, _ = read_pictures([saved(tmp_path / "a.png", Image.fromarray(stripes))], image_size=8)
    assert float((images - 0.5).abs().max()) < 0.05


def damaged_files(folder):
    good = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(256, size=(40, 40), dtype=np.uint8)).save(
        good, "png"
    )
    (folder / "cut.png").write_bytes(good.getvalue()[:300])
    (folder / "empty.png").write_bytes(b"")
    (folder / "text.jpg").write_text("<html>not found</html>")
    (folder / "script.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    bomb(folder / "bomb.png")
    return sorted(folder.glob("*.*"))


def test_an_unreadable_file_is_named(tmp_path):
    for path in damaged_files(tmp_path):
        with pytest.raises(InvalidInputError, match=f"{path.name}.*--skip-bad"):
            read_pictures([path])
    with pytest.raises(InvalidInputError, match=r"bomb.png claims more pixels"):
        read_picture(tmp_path / "bomb.png")
    with pytest.raises(InvalidInputError, match=r"absent.png cannot be read"):
        read_picture(tmp_path / "absent.png")


def test_unreadable_files_can_be_left_out(tmp_path):
    bad = damaged_files(tmp_path)
    good = [saved(tmp_path / f"{name}.png", grey_picture(51)) for name in ("good", "better")]
    told = []
    paths = [good[0], *bad, good[1]]
    images, kept = read_pictures(paths, skip_bad=True, image_size=40, report=told.append)
    assert [paths[position] for position in kept] == good
    assert images.shape == (2, 1, 40, 40)
    torch.testing.assert_close(images, torch.full_like(images, 0.2))
    assert len(told) == len(bad)
    assert all(any(path.name in line for line in told) for path in bad)
    with pytest.raises(InvalidInputError, match="none of 5 files"):
        read_pictures(bad, skip_bad=True)


def test_too_much_for_the_memory_is_refused(tmp_path):
    path = saved(tmp_path / "a.png", grey_picture())
    with pytest.raises(InvalidInputError, match=r"GiB.*this machine has"):
        read_pictures([path] * 3, image_size=1_000_000)
