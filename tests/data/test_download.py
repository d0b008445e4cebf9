"""Downloads, against a server on this machine."""

import errno
import hashlib
import os
import threading
from collections import namedtuple
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from data_files import idx_files, write_folder

from convdkm.data import DownloadError, download, fetch, load
from convdkm.data.registry import KNOWN_SETS, OfficialFile
from convdkm.errors import InvalidInputError

CONTENT = os.urandom(700_000)
NAME = "cifar-10-python.tar.gz"


class Handler(BaseHTTPRequestHandler):
    """Serves ``server.files``; ``server.faults`` are taken one by one, one a request."""

    def do_GET(self):
        asked = self.headers.get("Range")
        self.server.asked.append((self.path, asked))
        fault = self.server.faults.pop(0) if self.server.faults else None
        content = self.server.files.get(self.path)
        if isinstance(fault, int):
            return self.send_error(fault)
        if content is None:
            return self.send_error(404)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        if self.server.ranges and asked:
            if start >= len(content):
                return self.send_error(416)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            start = 0
            self.send_response(200)
        body = content[start:]
        if fault != "no length":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if fault == "break" else body)
        return None

    def log_message(self, *arguments):
        """Say nothing."""


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.files = {f"/{NAME}": CONTENT}
        running.faults, running.asked, running.ranges = [], [], True
        running.url = f"http://127.0.0.1:{running.server_address[1]}"
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """CIFAR-10 with the checksum of the content served here."""
    file = OfficialFile(NAME, len(CONTENT), hashlib.md5(CONTENT).hexdigest())
    changed = replace(KNOWN_SETS["cifar10"], files=(file,))
    monkeypatch.setitem(KNOWN_SETS, "cifar10", changed)
    return changed


def get(server, folder, **options):
    waited = options.pop("waited", [])
    return fetch("cifar10", folder, base_url=server.url, timeout=5, sleep=waited.append, **options)


def test_a_whole_file(server, tmp_path):
    told = []
    place = get(server, tmp_path / "new", progress=lambda *state: told.append(state))
    assert place == tmp_path / "new" / NAME
    assert place.read_bytes() == CONTENT
    assert [path.name for path in place.parent.iterdir()] == [NAME]
    assert told[-1] == (NAME, len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


def test_what_is_there_is_not_fetched_again(server, tmp_path):
    get(server, tmp_path)
    assert get(server, tmp_path) == tmp_path / NAME
    assert len(server.asked) == 1
    get(server, tmp_path, force=True)  # its checksum is right
    assert len(server.asked) == 1
    (tmp_path / NAME).write_bytes(b"damaged")
    get(server, tmp_path)
    assert len(server.asked) == 1
    get(server, tmp_path, force=True)
    assert (tmp_path / NAME).read_bytes() == CONTENT


def test_several_files_and_a_folder_of_their_own(server, tmp_path, monkeypatch):
    contents = idx_files()
    files = tuple(
        OfficialFile(name, len(content), hashlib.md5(content).hexdigest())
        for name, content in contents.items()
    )
    changed = replace(KNOWN_SETS["mnist"], files=files)
    monkeypatch.setitem(KNOWN_SETS, "mnist", changed)
    server.files = {f"/{name}": content for name, content in contents.items()}
    # One of the files is there already.
    first = dict([next(iter(contents.items()))])
    write_folder(tmp_path / "MNIST" / "raw", first)
    assert fetch("MNIST", tmp_path, base_url=f"{server.url}/") == tmp_path / "MNIST" / "raw"
    assert len(server.asked) == 3
    assert len(load("mnist", data_dir=tmp_path).train_images) == 20


def test_a_broken_download_is_resumed_at_once(server, tmp_path):
    server.faults = ["break", "break"]
    waited = []
    get(server, tmp_path, waited=waited)
    assert (tmp_path / NAME).read_bytes() == CONTENT
    assert waited == [1.0, 2.0]
    half = len(CONTENT) // 2
    assert [asked for _, asked in server.asked][:2] == [None, f"bytes={half}-"]


def test_a_broken_download_is_resumed_by_the_next_call(server, tmp_path):
    server.faults = ["break"] * 2
    with pytest.raises(DownloadError, match=r"failed 2 times.*connection broke after.*resumes it"):
        get(server, tmp_path, attempts=2)
    part = tmp_path / f"{NAME}.part"
    assert part.read_bytes() == CONTENT[: part.stat().st_size]
    assert not (tmp_path / NAME).exists()
    kept = part.stat().st_size
    get(server, tmp_path)
    assert server.asked[-1][1] == f"bytes={kept}-"
    assert (tmp_path / NAME).read_bytes() == CONTENT
    assert not part.exists()


def test_a_server_without_ranges_starts_again(server, tmp_path):
    server.ranges = False
    (tmp_path / f"{NAME}.part").write_bytes(CONTENT[:1000])
    get(server, tmp_path)
    assert (tmp_path / NAME).read_bytes() == CONTENT


@pytest.mark.parametrize(
    "part",
    [b"x" * 1000, CONTENT + b"x", b"y" * len(CONTENT), CONTENT],
    ids=["foreign", "too long", "foreign, full length", "complete"],
)
def test_a_part_that_does_not_fit_is_replaced(server, tmp_path, part):
    (tmp_path / f"{NAME}.part").write_bytes(part)
    get(server, tmp_path)
    assert (tmp_path / NAME).read_bytes() == CONTENT
    assert len(server.asked) == (1 if part == CONTENT else 2)


def test_a_wrong_checksum(server, tmp_path, known):
    server.files[f"/{NAME}"] = b"something else"
    actual = hashlib.md5(b"something else").hexdigest()
    with pytest.raises(
        DownloadError, match=f"{NAME} is not the published.*{known.files[0].md5} but is {actual}"
    ):
        get(server, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_answer_without_length(server, tmp_path):
    server.faults = ["no length"]
    told = []
    get(server, tmp_path, progress=lambda *state: told.append(state))
    assert told[-1] == (NAME, len(CONTENT), None)


def test_a_missing_file_is_not_asked_for_twice(server, tmp_path):
    server.files = {}
    with pytest.raises(DownloadError, match=rf"{NAME}: the server answered 404.*mirror"):
        get(server, tmp_path)
    assert len(server.asked) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_busy_server_is_asked_again(server, tmp_path):
    server.faults = [503, 429]
    get(server, tmp_path)
    assert len(server.asked) == 3
    (tmp_path / NAME).unlink()
    server.faults = [500] * 3
    with pytest.raises(DownloadError, match=r"failed 3 times.*answered 500"):
        get(server, tmp_path, attempts=3)


def test_no_server(tmp_path):
    with pytest.raises(DownloadError, match=r"failed 2 times.*refused"):
        fetch(
            "cifar10",
            tmp_path,
            base_url="http://127.0.0.1:1",
            attempts=2,
            timeout=1,
            sleep=lambda _: None,
        )


def test_a_full_disk_is_noticed_before(server, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: usage(10**6, 10**6 - 5, 5))
    with pytest.raises(DownloadError, match="700000 more bytes are needed, 5 are free"):
        get(server, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up(server, tmp_path, monkeypatch):
    write, room = os.write, [2]

    def failing(file, block):
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        room[0] -= 1
        return write(file, block)

    monkeypatch.setattr("os.write", failing)
    with pytest.raises(DownloadError, match=r"more bytes are needed.* bytes that arrived are kept"):
        get(server, tmp_path)
    assert not (tmp_path / NAME).exists()
    kept = (tmp_path / f"{NAME}.part").stat().st_size
    room[0] = 1000
    get(server, tmp_path)
    assert server.asked[-1][1] == f"bytes={kept}-"
    assert (tmp_path / NAME).read_bytes() == CONTENT


def test_other_errors_of_writing(server, tmp_path, monkeypatch):
    def failing(file, block):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("os.write", failing)
    with pytest.raises(DownloadError, match=r"cannot write .*part: Input/output error"):
        get(server, tmp_path)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DownloadError, match=r"cannot make the folder .*--data-dir"):
        get(server, tmp_path / "file" / "below")


def test_only_web_addresses(tmp_path):
    with pytest.raises(InvalidInputError, match="starts with http"):
        fetch("cifar10", tmp_path, base_url="file:///etc")


def test_the_embedded_set_needs_no_fetching(tmp_path):
    assert fetch("digits", tmp_path, force=True).name == "sklearn"
