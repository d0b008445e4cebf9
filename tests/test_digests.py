"""Digests inside files of any kind."""

import pytest

from convdkm.errors import CannotWriteError
from convdkm.storage import digests
from convdkm.storage.digests import DamagedError, check_digest, sealing
from damage import unnoticed_flips


def written(path, before=b"numbers " * 40, after=b" and more"):
    with sealing(path) as temporary:
        temporary.write_bytes(before + digests.LINE + after)
    return path


def test_a_file_is_what_was_written_but_for_the_digits(tmp_path):
    path = written(tmp_path / "a")
    content = path.read_bytes()
    assert content.startswith(b"numbers numbers")
    assert content.endswith(b" and more")
    assert len(content) == 40 * 8 + len(digests.LINE) + 9
    assert digests.BLANK.encode() not in content
    assert check_digest(path)
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_every_single_bit_counts(tmp_path):
    path = written(tmp_path / "a", b"ab", b"c")
    content = path.read_bytes()
    for place in range(len(content)):
        for bit in range(8):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            path.write_bytes(changed)
            with pytest.raises(DamagedError, match="does not match its digest"):
                check_digest(path)


def test_a_file_without_a_digest_is_told_from_a_damaged_one(tmp_path):
    for content in (b"", b"something else", b"sha256: of what?"):
        (tmp_path / "a").write_bytes(content)
        assert not check_digest(tmp_path / "a")


def test_a_part_of_a_file_does_not_pass(tmp_path):
    path = written(tmp_path / "a")
    content = path.read_bytes()
    for part in (content[:-9], content[1:], content + b"!", content.replace(b"more", b"less")):
        path.write_bytes(part)
        with pytest.raises(DamagedError):
            check_digest(path)


def test_a_sample_of_flips_of_a_large_file(tmp_path):
    path = written(tmp_path / "a", bytes(range(256)) * 4000)
    assert unnoticed_flips(path, check_digest, DamagedError, 50) == []
    assert check_digest(path)


def test_what_cannot_be_written_is_named_and_the_old_file_stays(tmp_path, monkeypatch):
    path = written(tmp_path / "a")
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CannotWriteError, match=r"a cannot be written: No space left.*free some"):
        written(path, b"new")
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["a"]
