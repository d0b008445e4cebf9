"""Fetching published files, of data sets and machines: resumable, checked, whole or not at all."""

from __future__ import annotations

import http.client
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from convdkm.data.checksums import Checksum
from convdkm.data.registry import data_directory, find, known_set
from convdkm.errors import InvalidInputError
from convdkm.storage.files import NO_ROOM

_BLOCK = 2**18
_MAY_PASS = (408, 425, 429, 500, 502, 503, 504)

Progress = Callable[[str, int, "int | None"], None]
"""Called with a file's name, the bytes that are there, and their total where it is known."""


class DownloadError(InvalidInputError):
    """A file that could not be fetched."""


class _BrokenError(Exception):
    """A connection that failed in a way that may pass; the part that arrived is kept."""


@dataclass(frozen=True)
class _Job:
    """One file: where from, where to, what it is, and what names another folder for it."""

    url: str
    target: Path
    size: int
    checksum: Checksum
    option: str
    timeout: float
    progress: Progress | None

    @property
    def part(self) -> Path:
        return self.target.with_name(f"{self.target.name}.part")

    def here(self) -> int:
        """Bytes that have arrived."""
        return self.part.stat().st_size if self.part.exists() else 0

    def free(self) -> int:
        """Bytes that are free on the disk."""
        return shutil.disk_usage(self.part.parent).free

    def no_space(self, needed: int) -> DownloadError:
        kept = f" The {self.here()} bytes that arrived are kept." if self.here() else ""
        return DownloadError(
            f"no space for {self.target}: {needed} more bytes are needed, {self.free()} are free on"
            f" the disk.{kept} Free some and run the same again, or name another folder with"
            f" {self.option}"
        )

    @contextmanager
    def writing(self, needed: int = 0) -> Iterator[None]:
        """Whatever keeps the part from being written, ``needed`` bytes of it, is an error."""
        try:
            yield
        except OSError as error:
            if error.errno in NO_ROOM:
                raise self.no_space(needed) from error
            raise DownloadError(
                f"cannot write {self.part}: {error.strerror}; name another folder with"
                f" {self.option}"
            ) from error


def fetch(
    name: str,
    data_dir: str | Path | None = None,
    *,
    progress: Progress | None = None,
    base_url: str | None = None,
    force: bool = False,
    attempts: int = 4,
    timeout: float = 30.0,
    sleep: Callable[[float], None] = time.sleep,
) -> Path:
    """Download a known set into the data directory; returns where it lies.

    Nothing is done if the set is there already, unless ``force``; and files whose checksums are
    right are never fetched twice. A download that breaks off is resumed by the next call.

    Args:
        base_url: a mirror, in place of the official address.
        attempts: how often to try each file while the connection fails.
        timeout: seconds without an answer after which a connection counts as failed.
        sleep: waits between attempts, 1, 2, 4, … seconds.
    """
    known = known_set(name)
    place = find(name, data_dir)
    if place is not None and (not force or not known.files):
        return place
    base = base_url if base_url is not None else known.base_url
    if urlsplit(base).scheme not in ("http", "https"):
        raise DownloadError(
            f"the address of a mirror starts with http:// or https://, got {base!r}"
        )
    folder = data_directory(data_dir) / known.folders[0]
    for file in known.files:
        fetch_file(
            f"{base.rstrip('/')}/{file.name}",
            folder / file.name,
            file.size,
            Checksum("MD5", file.md5),
            progress=progress,
            attempts=attempts,
            timeout=timeout,
            sleep=sleep,
        )
    return folder if known.format == "idx" else folder / known.files[0].name


def fetch_file(
    url: str,
    target: Path,
    size: int,
    checksum: Checksum,
    *,
    option: str = "--data-dir",
    progress: Progress | None = None,
    attempts: int = 4,
    timeout: float = 30.0,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Download one file, unless it is there already; a download that broke off is resumed.

    Args:
        url: of the file.
        target: where it goes.
        size: in bytes.
        checksum: that it has to have.
        option: what names another folder, for messages.
        progress, attempts, timeout, sleep: as in :func:`fetch`.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DownloadError(
            f"cannot make the folder {target.parent}: {error.strerror}; name another with {option}"
        ) from error
    if target.is_file() and checksum.fits(target):
        return
    job = _Job(url, target, size, checksum, option, timeout, progress)
    for _ in range(2 if job.here() else 1):  # a part that was there may be of another file
        _receive_patiently(job, attempts, sleep)
        actual = checksum.of(job.part)
        if actual == checksum.digits:
            with job.writing():
                job.part.replace(target)
            return
        job.part.unlink()
    raise DownloadError(
        f"{url} is not the published file: its {checksum.kind} should be {checksum.digits} but is"
        f" {actual}; what was fetched is deleted. Try again later, or from a mirror"
    )


def _receive_patiently(job: _Job, attempts: int, sleep: Callable[[float], None]) -> None:
    """Try until the part is complete, waiting longer each time."""
    for attempt in range(1, attempts + 1):
        try:
            _receive(job)
            return
        except _BrokenError as error:
            if attempt == attempts:
                kept = f"; {job.here()} bytes are kept in {job.part}" if job.here() else ""
                raise DownloadError(
                    f"fetching {job.url} failed {attempts} times, at last with: {error}{kept}."
                    " Running the same again resumes it"
                ) from error
            sleep(2.0 ** (attempt - 1))


def _receive(job: _Job) -> None:
    """Ask for what is missing, and append it to the part."""
    start = job.here()
    headers = {"User-Agent": "convdkm", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        with urlopen(Request(job.url, headers=headers), timeout=job.timeout) as answer:
            content_range = answer.headers.get("Content-Range", "")
            if answer.status != http.client.PARTIAL_CONTENT or not content_range.startswith(
                f"bytes {start}-"
            ):
                start = 0  # the server sends the whole file again
            length = answer.headers.get("Content-Length")
            total = start + int(length) if length and length.isdigit() else None
            _store(job, answer, start, total)
    except HTTPError as error:
        with error:
            _judge(job, error, start)
    except (OSError, http.client.HTTPException) as error:  # writing has errors of its own
        reason = error.reason if isinstance(error, URLError) else error
        raise _BrokenError(str(reason) or type(reason).__name__) from error


def _judge(job: _Job, error: HTTPError, start: int) -> None:
    """Decide what an answer other than a file means."""
    if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and start:
        if not job.checksum.fits(job.part):  # not a beginning of this file
            job.part.unlink()
            raise _BrokenError("the part on disk did not fit and was deleted") from error
        return
    if error.code in _MAY_PASS:
        raise _BrokenError(f"the server answered {error.code} {error.reason}") from error
    raise DownloadError(
        f"{job.url}: the server answered {error.code} {error.reason}; the file may have moved. Try"
        f" a mirror, or put the file into {job.target.parent} by hand"
    ) from error


def _store(job: _Job, answer: BinaryIO, start: int, total: int | None) -> None:
    """Write the answer to the part, from ``start`` on."""
    missing = (job.size if total is None else total) - start
    if total is not None and missing > job.free():
        raise job.no_space(missing)
    done = start
    with job.writing(missing):
        # Unbuffered: what was written is there, and closing cannot fail for want of space.
        part = job.part.open("ab" if start else "wb", buffering=0)
    with part:
        while block := answer.read(_BLOCK):
            with job.writing(missing + start - done):
                rest = memoryview(block)
                while rest:  # an unbuffered file may take it in pieces
                    rest = rest[os.write(part.fileno(), rest) :]
            done += len(block)
            if job.progress is not None:
                job.progress(job.target.name, done, total)
    if total is not None and done < total:
        raise _BrokenError(f"the connection broke after {done} of {total} bytes")
