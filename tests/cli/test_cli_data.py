"""``convdkm data``: list, verify, fetch."""

import hashlib
import threading
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from cli_helpers import call, fail, succeed

from convdkm.data.registry import KNOWN_SETS, OfficialFile

ARCHIVE = "cifar-10-python.tar.gz"


class SilentHandler(SimpleHTTPRequestHandler):
    """Serves a folder without a word."""

    def log_message(self, *arguments):
        pass


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A server of this machine with a file in place of CIFAR-10's."""
    folder = tmp_path / "served"
    folder.mkdir()
    content = b"not quite 170 MB" * 1000
    (folder / ARCHIVE).write_bytes(content)
    file = OfficialFile(ARCHIVE, len(content), hashlib.md5(content).hexdigest())
    small = replace(KNOWN_SETS["cifar10"], files=(file,))
    monkeypatch.setitem(KNOWN_SETS, "cifar10", small)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SilentHandler, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_the_list_says_what_is_where(tmp_path):
    out = succeed("data", "list", "--data-dir", tmp_path).out
    assert max(map(len, out.splitlines()[:-1])) <= 80 or str(tmp_path) in out
    for name in KNOWN_SETS:
        assert f"\n{name} " in out
    assert "embedded" in out
    assert "not here" in out
    assert f"Data directory: {tmp_path}" in out


def test_a_set_is_fetched_from_a_mirror(mirror, tmp_path):
    place = tmp_path / "data"
    outcome = succeed("data", "fetch", "cifar-10", "--mirror", mirror, "--data-dir", place)
    assert outcome.out == f"cifar10: {place / ARCHIVE}\n"
    assert (place / ARCHIVE).read_bytes() == (tmp_path / "served" / ARCHIVE).read_bytes()
    assert ARCHIVE in outcome.err
    assert "not here" not in _line(succeed("data", "list", "--data-dir", place).out, "cifar10")
    again = succeed(
        "data", "fetch", "cifar10", "--mirror", "http://127.0.0.1:9", "--data-dir", place
    )
    assert again.out == outcome.out


def test_force_replaces_a_damaged_file(mirror, tmp_path):
    place = tmp_path / "data"
    command = ["data", "fetch", "cifar10", "--mirror", mirror, "--data-dir", place]
    succeed(*command)
    whole = (place / ARCHIVE).read_bytes()
    (place / ARCHIVE).write_bytes(whole[:-1])
    succeed(*command)
    assert (place / ARCHIVE).read_bytes() != whole
    succeed(*command, "--force")
    assert (place / ARCHIVE).read_bytes() == whole


def test_a_file_that_is_not_the_published_one_is_not_kept(mirror, tmp_path):
    (tmp_path / "served" / ARCHIVE).write_bytes(b"something else")
    outcome = call("data", "fetch", "cifar10", "--mirror", mirror, "--data-dir", tmp_path / "data")
    assert outcome.code == 1
    assert "Traceback" not in outcome.err
    assert list((tmp_path / "data").glob("*.gz")) == []


def test_mistakes_in_fetching(mirror, tmp_path):
    command = ["data", "fetch", "cifar10", "--data-dir", tmp_path / "data", "--mirror"]
    assert "404" in _last(call(*command, f"{mirror}/nothing"))
    assert "http" in _last(call(*command, "ftp://somewhere"))
    assert "'cifar10'" in fail("data", "fetch", "cifra10")
    assert succeed("data", "fetch", "digits").out == "digits: embedded\n"


def test_verification(tmp_path):
    assert "1,437 + 360 images" in succeed("data", "verify", "digits").out
    outcome = call("data", "verify", "cifar10", "digits", "--data-dir", tmp_path)
    assert outcome.code == 1
    assert "cifar10: CIFAR-10 not found" in outcome.out
    assert "digits: right" in outcome.out
    assert "'mnist'" in fail("data", "verify", "mnits")


def test_a_damaged_archive_is_found(tmp_path):
    (tmp_path / ARCHIVE).write_bytes(b"damaged")
    outcome = call("data", "verify", "--data-dir", tmp_path, "cifar10")
    assert outcome.code == 1
    assert ARCHIVE in outcome.out


def _line(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"{name} "))


def _last(outcome) -> str:
    assert outcome.code == 1
    return outcome.err.splitlines()[-1]
