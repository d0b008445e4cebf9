"""Files that are small and ask for much, or keep a reader waiting: an error, at once."""

import gzip
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
import zlib

import numpy as np
import pytest
from PIL import Image

from convdkm.config import RunConfig
from convdkm.data import load
from convdkm.data.cifar import load_cifar10
from convdkm.data.idx import read_idx
from convdkm.data.pictures import LARGE, picture_shape, read_picture, read_pictures
from convdkm.data.unpickle import unpickle
from convdkm.errors import InvalidInputError
from convdkm.lab.studies.sweeps.figures import read_published
from convdkm.report.write import require_free
from convdkm.storage.files import parse_json, read_json, read_mapping
from convdkm.storage.yaml_file import read_yaml
from convdkm.training import Run
from convdkm.training.sinks import read_csv

LIMITED = """
import resource, sys
limit = int(sys.argv[1])
{imports}
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + limit, used + limit))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    {action}
except {error} as error:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, error)
"""


def refused(imports, action, error, *arguments, limit=400_000_000):
    """Run Python in a process that cannot take much memory; what it says, and the KiB it took."""
    program = LIMITED.format(imports=imports, action=action, error=error)
    done = subprocess.run(
        [sys.executable, "-c", program, str(limit), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
    )
    taken, message = done.stdout.split(" ", 1)
    return message, int(taken)


# -- archives of arrays ----------------------------------------------------------------------------


def zeros_npz(path, shape, dtype="|u1", *, actual=None):
    """An archive of images that are all zero, written piece by piece, and of labels."""
    head = io.BytesIO()
    header = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(head, header)
    size = int(np.prod(shape)) if actual is None else actual
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("images.npy", "w", force_zip64=True) as member:
            member.write(head.getvalue())
            for _ in range(size // 2**20):
                member.write(bytes(2**20))
        labels = io.BytesIO()
        np.save(labels, np.arange(shape[0]) % 2)
        archive.writestr("labels.npy", labels.getvalue())
    return path


def test_an_archive_that_unpacks_to_more_than_there_is(tmp_path):
    path = zeros_npz(tmp_path / "bomb.npz", (256, 1024, 1024))
    assert path.stat().st_size < 2_000_000
    # As if the machine had half a gigabyte left: enough for the bytes, not for the numbers.
    imports = (
        "from convdkm.data import load; from convdkm.data import pixels;"
        " from convdkm.errors import InvalidInputError;"
        " pixels.available_memory = lambda: 2**29"
    )
    message, taken = refused(imports, "load(sys.argv[2])", "InvalidInputError", path)
    assert "its images take 1.3 GiB, but this machine has 0.5 GiB of memory left" in message
    assert taken < 50_000


def test_an_array_that_claims_more_than_any_machine_has(tmp_path):
    path = zeros_npz(tmp_path / "claims.npz", (2, 2**24, 2**24), actual=2**20)
    with pytest.raises(InvalidInputError, match=r"claims.npz: its images take \d+\.\d GiB"):
        load(path)


def test_a_gzipped_file_of_mnist_that_unpacks_to_too_much(tmp_path, monkeypatch):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(struct.pack(">4B3I", 0, 0, 8, 3, 10_000, 100, 100)))
    monkeypatch.setattr("convdkm.data.pixels.available_memory", lambda: 2**28)
    with pytest.raises(InvalidInputError, match=r"take 0.5 GiB, but this machine has 0.2 GiB"):
        read_idx(path, axes=3)


# -- pickles ---------------------------------------------------------------------------------------

PICKLES = {
    "a number to remember by": b"\x80\x02]r\xff\xff\xff\x1e.",
    "a number in letters": b"]p520000000\n.",
    "a length": b"\x80\x05\x96" + struct.pack("<Q", 2**33) + b".",
    "a length of bytes": b"\x80\x04\x8e" + struct.pack("<Q", 2**33) + b".",
}


@pytest.mark.parametrize("name", PICKLES)
def test_a_pickle_of_a_few_bytes_takes_no_gigabytes(name, tmp_path):
    path = tmp_path / "bomb"
    path.write_bytes(PICKLES[name])
    imports = "import pickle; from convdkm.data.unpickle import unpickle"
    action = "unpickle(open(sys.argv[2], 'rb').read())"
    message, taken = refused(imports, action, "pickle.UnpicklingError", path, limit=2**40)
    assert "pickle" in message
    assert taken < 20_000


def test_a_shape_that_is_no_shape():
    class Array:
        def __reduce__(self):
            maker = np.zeros(1, np.uint8).__reduce__()
            state = (1, ("ab", 2**31), np.dtype("u1"), False, b"xx")
            return maker[0], maker[1], state

    with pytest.raises(pickle.UnpicklingError, match="shape of an array is not made of integers"):
        unpickle(pickle.dumps(Array(), protocol=2))


def test_a_pickle_of_very_many_steps(monkeypatch):
    monkeypatch.setattr("convdkm.data.unpickle.MOST_STEPS", 1000)
    with pytest.raises(pickle.UnpicklingError, match="more than 1,000 steps"):
        unpickle(b"(" + b"]" * 2000 + b"l.")
    assert unpickle(pickle.dumps(list(range(400)))) == list(range(400))


def test_an_archive_of_cifar_with_an_endless_name(tmp_path):
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz", compresslevel=1) as archive:
        member = tarfile.TarInfo("long")
        member.type, member.size = tarfile.GNUTYPE_LONGNAME, 2**26
        archive.addfile(member, io.BytesIO(bytes(2**26)))
    with pytest.raises(InvalidInputError, match="claims a header of 67108864 bytes"):
        load_cifar10(tmp_path)


# -- pictures --------------------------------------------------------------------------------------


def png_header(path, side, depth=16):
    def chunk(kind, content):
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, depth, 0, 0, 0, 0))
    rows = chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + rows)
    return path


def tiff_header(path, side, depth=16):
    """A TIFF of two pages, whose first claims to be large."""
    tags = [(256, side), (257, side), (258, depth), (259, 1), (262, 1), (273, 200), (278, side)]
    tags += [(277, 1), (279, 2 * side * side % 2**32)]
    page = struct.pack("<H", len(tags))
    page += b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags))
    content = b"II*\0" + struct.pack("<I", 8) + page + struct.pack("<I", 8)
    path.write_bytes(content + bytes(2000))
    return path


@pytest.mark.parametrize("make", [png_header, tiff_header])
@pytest.mark.parametrize("side", [9_500, 12_000, 60_000])
def test_a_picture_beyond_a_sensible_size_is_not_decoded(tmp_path, make, side, monkeypatch):
    path = make(tmp_path / "bomb.tiff", side)
    for limit in (Image.MAX_IMAGE_PIXELS, None):  # some libraries switch Pillow's own off
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        for read in (picture_shape, read_picture, lambda path: read_pictures([path])):
            with pytest.raises(InvalidInputError, match="claims more pixels than a picture can"):
                read(path)


def test_a_picture_that_is_large_for_the_machine(tmp_path, monkeypatch):
    side = 2050
    assert side**2 > LARGE
    path = tmp_path / "large.png"
    Image.new("1", (side, side)).save(path)
    assert read_pictures([path] * 2, image_size=8)[0].shape == (2, 1, 8, 8)
    monkeypatch.setattr("convdkm.data.pixels.available_memory", lambda: 2**26)
    with pytest.raises(InvalidInputError, match=r"its pixels, decoded, take 0.1 GiB, but"):
        read_picture(path)


def test_large_pictures_are_brought_to_size_one_by_one(tmp_path):
    path = tmp_path / "large.png"
    Image.new("RGB", (3000, 3000)).save(path)  # 108 MB as numbers
    imports = "from pathlib import Path; from convdkm.data.pictures import read_pictures"
    action = "read_pictures([Path(sys.argv[2])] * 8, image_size=8); raise ValueError('all read')"
    message, taken = refused(imports, action, "ValueError", path, limit=2**40)
    assert "all read" in message
    assert taken < 400_000


# -- settings --------------------------------------------------------------------------------------

LAUGHS = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
MERGES = LAUGHS.replace("[", "{<<: [").replace("]", "]}")
YAMLS = {
    "decimal": ("seed: " + "9" * 5000, "a number of 5,000 digits"),
    "hexadecimal": ("seed: 0x" + "f" * 1_000_000, "a number of 1,000,002 digits"),
    "base sixty": ("seed: " + ":".join(["1"] * 300_000), "digits"),
    "signed": ("seed: -" + "9" * 5000, "digits"),
    "deep": ("inducing: " + "[" * 200_000, "more than 50 levels deep"),
    "deep mapping": ("{a: " * 100_000, "more than 50 levels deep"),
    "laughs": (LAUGHS, "more than 100,000 values"),
    "merges": (MERGES, "more than 100,000 values"),
    "itself": ("a: &a [*a]", "an alias of what it is part of"),
    "many": ("a: [" + "1," * 200_000 + "]", "more than 100,000 values"),
    "a date that is none": ("a: 2001-99-99", "is not YAML"),
}


@pytest.mark.parametrize("name", YAMLS)
def test_settings_that_grow_are_refused(name, tmp_path):
    text, message = YAMLS[name]
    path = tmp_path / "config.yaml"
    path.write_text(text)
    begun = time.monotonic()
    with pytest.raises(InvalidInputError, match=message) as caught:
        RunConfig.from_file(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert time.monotonic() - begun < 10


def test_settings_may_use_aliases_and_long_values_are_cut_short(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("a: &a [1, 2]\nb: [*a, *a]\nc: " + "x" * 5000)
    assert read_yaml(path)["b"] == [[1, 2], [1, 2]]
    path.write_text("epochs: [" + "12345, " * 10_000 + "]")
    with pytest.raises(InvalidInputError) as caught:
        RunConfig.from_file(path)
    assert len(str(caught.value)) < 1000


def test_json_that_is_deep_or_has_endless_numbers(tmp_path):
    path = tmp_path / "metrics.json"
    for text in ("[" * 200_000, '{"a": ' * 100_000, "9" * 1000, '{"epochs": ' + "9" * 400 + "}"):
        path.write_text(text)
        assert read_mapping(path) is None
        with pytest.raises(json.JSONDecodeError):
            read_json(path)
    assert parse_json('{"a": [1, -2.5, 1e3]}') == {"a": [1, -2.5, 1000.0]}


# -- what is no regular file -----------------------------------------------------------------------


@pytest.fixture
def pipe(tmp_path):
    """A pipe that nobody writes to; a reader that waits for it is let go, and the test fails."""
    path = tmp_path / "pipe.png"
    os.mkfifo(path)
    waited = []

    def release():
        waited.append(True)
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))

    timer = threading.Timer(10, release)
    timer.start()
    yield path
    timer.cancel()
    assert not waited, "a reader waited for the pipe"


def test_a_pipe_keeps_nobody_waiting(pipe, tmp_path):
    archive, idx = tmp_path / "pipe.npz", tmp_path / "train-images-idx3-ubyte"
    os.link(pipe, archive)
    os.link(pipe, idx)
    for read in (
        lambda: read_picture(pipe),
        lambda: read_pictures([pipe]),
        lambda: load(archive),
        lambda: read_idx(idx, axes=3),
        lambda: read_yaml(pipe),
        lambda: RunConfig.from_file(pipe),
        lambda: read_json(pipe),
        lambda: read_csv(pipe),
        lambda: read_published(pipe),
        lambda: require_free(pipe, force=False),
    ):
        with pytest.raises(InvalidInputError, match="not a regular file"):
            read()


def test_a_device_is_no_picture_and_no_settings(tmp_path):
    link = tmp_path / "zero.png"
    link.symlink_to("/dev/zero")
    for read in (read_picture, read_yaml):
        with pytest.raises(InvalidInputError, match="not a regular file"):
            read(link)


def test_pipes_in_a_folder_of_pictures_can_be_left_out(pipe, tmp_path):
    Image.new("L", (4, 4)).save(tmp_path / "good.png")
    told = []
    images, kept = read_pictures([pipe, tmp_path / "good.png"], skip_bad=True, report=told.append)
    assert (len(images), kept) == (1, [1])
    assert "pipe.png" in told[0]


def test_a_run_whose_files_are_pipes(tmp_path):
    for name in ("config.yaml", "metrics.json"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(InvalidInputError, match="is not the folder of a run"):
        Run.open(tmp_path)
