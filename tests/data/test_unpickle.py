"""Pickles are read without being trusted."""

import contextlib
import os
import pickle
import subprocess

import numpy as np
import pytest
from data_files import cifar10_files, write_folder

from convdkm.data import load_cifar10
from convdkm.data.unpickle import unpickle
from convdkm.errors import InvalidInputError


class Call:
    """Pickles as a call of any function."""

    def __init__(self, function, *arguments, state=None):
        self.name = f"call of {function.__name__}"
        self.parts = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.parts


@pytest.mark.parametrize("dtype", ["u1", "<i8", ">i4", "f4"])
@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_plain_data_come_back(protocol, dtype):
    array = np.arange(12).reshape(3, 4).astype(dtype)
    content = {"a": array, b"b": [1, 2.5, "text", None, True], "c": array.T}
    back = unpickle(pickle.dumps(content, protocol=protocol))
    np.testing.assert_array_equal(back["a"], array)
    assert back["a"].dtype == array.dtype
    np.testing.assert_array_equal(back["c"], array.T)
    assert back[b"b"] == content[b"b"]


def test_python_2_strings_are_bytes():
    assert unpickle(b"\x80\x02}q\x00U\x04dataq\x01K\x07s.") == {b"data": 7}


@pytest.mark.parametrize(
    "evil",
    [
        Call(os.system, "touch ran"),
        Call(eval, "open('ran', 'w')"),
        Call(exec, "open('ran', 'w')"),
        Call(subprocess.Popen, ["touch", "ran"]),
        Call(getattr, dict, "fromkeys"),
        Call(__import__, "os"),
        Call(np.load, "ran"),
        Call(np.frombuffer, b"123"),
        np.float64(1.5),
        np.array([Call(os.system, "touch ran")], dtype=object),
        np.array([1, None], dtype=object),
        np.array(["text"]),
        np.zeros(3, dtype=[("a", "u1")]),
        Call(np.dtype, "O"),
        Call(np.ndarray, (2,)),
        os.getcwd,
        np.dtype,
        {1, 2},
    ],
    ids=lambda evil: evil.name if isinstance(evil, Call) else type(evil).__name__,
)
def test_nothing_else_is_made(evil, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for protocol in (2, 4):
        content = pickle.dumps({b"data": evil, b"labels": [0]}, protocol=protocol)
        write_folder(tmp_path / "cifar-10-batches-py", {**cifar10_files(), "test_batch": content})
        with pytest.raises(InvalidInputError, match="test_batch is not a batch"):
            load_cifar10(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_what_was_asked_for_is_named():
    with pytest.raises(pickle.UnpicklingError, match="system, which is not allowed"):
        unpickle(pickle.dumps(Call(os.system, "true")))
    with pytest.raises(pickle.UnpicklingError, match="arrays of type 'O8' are not allowed"):
        unpickle(pickle.dumps(np.array([None]), protocol=2))


def test_an_array_must_fit_its_bytes():
    content = pickle.dumps(np.zeros(300, dtype=np.uint8), protocol=2)
    # M is the opcode of a number of two bytes; the first one is the array's size.
    with pytest.raises(pickle.UnpicklingError, match=r"shape \(65535,\) does not fit"):
        unpickle(content.replace(b"M\x2c\x01", b"M\xff\xff", 1))


@pytest.mark.parametrize("attribute", ["what", "__class__", "anything"])
def test_the_stand_ins_cannot_be_altered_for_later(attribute):
    # GLOBAL numpy.dtype, then BUILD with a state: sets attributes of what it got.
    state = pickle.dumps((None, {attribute: "bytes"}), protocol=2)[2:-1]
    content = b"\x80\x02cnumpy\ndtype\n" + state + b"b."
    with contextlib.suppress(pickle.UnpicklingError):
        unpickle(content)
    array = np.arange(3, dtype=np.uint8)
    np.testing.assert_array_equal(unpickle(pickle.dumps(array, protocol=2)), array)


def test_random_damage_never_raises_anything_else():
    good = pickle.dumps({b"data": np.arange(64, dtype=np.uint8), b"labels": [1, 2]}, protocol=2)
    generator = np.random.default_rng(0)
    for _ in range(500):
        damaged = bytearray(good)
        for position in generator.integers(len(good), size=3):
            damaged[position] = generator.integers(256)
        with contextlib.suppress(pickle.UnpicklingError):
            unpickle(bytes(damaged))
