"""Kernels on disk: equal to those in memory, resumable, and refused where they do not belong."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

from convdkm.errors import InvalidInputError
from convdkm.lab.baselines.kernels import NNGPKernel, myrtle, plain
from convdkm.lab.baselines.kernels.store import KernelStore, digest
from convdkm.storage import digests
from damage import unnoticed_flips


@pytest.fixture
def images():
    return torch.randn(11, 1, 4, 4)


@pytest.fixture
def kernel():
    return NNGPKernel(plain(2))


def test_blocks_on_disk_make_the_matrix(tmp_path, images, kernel):
    expected = kernel.matrix(images)
    store = KernelStore(tmp_path / "k", kernel, images, block=4).compute()
    torch.testing.assert_close(store.matrix(), expected, rtol=1e-6, atol=1e-7)
    matrix = store.matrix()
    assert torch.equal(matrix, matrix.T)
    assert torch.equal(store.diagonal(), matrix.diagonal())
    for index in (0, 5, 10):
        assert torch.equal(store[index], matrix[index])
    vectors = torch.randn(11, 3, dtype=torch.float64)
    torch.testing.assert_close(store @ vectors, matrix @ vectors)
    assert len(store) == 11


def test_only_half_of_the_blocks_are_there_and_their_size_is_foreseen(tmp_path, images, kernel):
    store = KernelStore(tmp_path / "k", kernel, images, block=4).compute()
    files = list((tmp_path / "k").glob("block-*.npy"))
    assert len(files) == 6  # of 3 × 3
    assert store.missing() == []
    assert store.missing_pairs() == 0
    foreseen = KernelStore.bytes_needed(11, 4, 4)
    assert sum(file.stat().st_size for file in files) == foreseen


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_blocks_have_the_precision_of_the_kernel_and_round_once(tmp_path, images, dtype):
    kernel = NNGPKernel(plain(2), dtype=dtype)
    ready, parts = kernel.prepare(images), [slice(0, 4), slice(4, 8), slice(8, 11)]
    found = KernelStore(tmp_path / "k", kernel, images, block=4).compute().matrix()
    for row, column in [(0, 0), (0, 1), (1, 2), (2, 2)]:
        rows, columns = parts[row], parts[column]
        fine = kernel.block(ready.part(rows), None if row == column else ready.part(columns))
        assert torch.equal(found[rows, columns], fine.to(dtype).double())
    assert np.load(tmp_path / "k" / "block-00000-00001.npy").dtype == str(dtype)[6:]


def test_a_finished_store_is_not_computed_again(tmp_path, images, kernel, monkeypatch):
    KernelStore(tmp_path / "k", kernel, images, block=4).compute()
    monkeypatch.setattr(NNGPKernel, "block", lambda *_, **__: pytest.fail("computed again"))
    KernelStore(tmp_path / "k", kernel, images, block=4).compute()


def test_what_was_interrupted_is_resumed(tmp_path, images, kernel, monkeypatch):
    whole = KernelStore(tmp_path / "whole", kernel, images, block=4).compute().matrix()
    store = KernelStore(tmp_path / "k", kernel, images, block=4)
    real, calls = NNGPKernel.block, []

    def failing(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(self, *args, **kwargs)

    monkeypatch.setattr(NNGPKernel, "block", failing)
    with pytest.raises(KeyboardInterrupt):
        store.compute()
    assert len(store.missing()) == 3
    with pytest.raises(InvalidInputError, match=r"not finished: block-.*npy is missing; call"):
        store.matrix()
    lines = []
    again = KernelStore(tmp_path / "k", kernel, images, block=4).compute(tell=lines.append)
    assert len(calls) == 4 + 3
    assert lines[0].endswith("3 blocks are missing")
    assert torch.equal(again.matrix(), whole)


KILLED = """
    import os, signal, sys
    import numpy as np
    import torch
    from convdkm.lab.baselines.kernels import NNGPKernel, plain
    from convdkm.lab.baselines.kernels import store

    save, calls = np.save, []

    def save_half_of_the_third(file, values):
        calls.append(1)
        if len(calls) == 3:
            file.write(b"half of a block")
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        save(file, values)

    np.save = save_half_of_the_third
    images = torch.load(sys.argv[1])
    store.KernelStore(sys.argv[2], NNGPKernel(plain(2)), images, block=4).compute()
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
def test_killed_in_the_middle_of_writing_a_block(tmp_path, images, kernel):
    torch.save(images, tmp_path / "images.pt")
    arguments = [str(tmp_path / "images.pt"), str(tmp_path / "k")]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    store = KernelStore(tmp_path / "k", kernel, images, block=4)
    assert len(store.missing()) == 4
    whole = KernelStore(tmp_path / "whole", kernel, images, block=4).compute()
    assert torch.equal(store.compute().matrix(), whole.matrix())


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda x: (NNGPKernel(plain(3)), x, 4), "kernel is"),
        (lambda x: (NNGPKernel(plain(2), flips=True), x, 4), "kernel is"),
        (lambda x: (NNGPKernel(plain(2), dtype=torch.float64), x, 4), "kernel is"),
        (lambda x: (NNGPKernel(plain(2)), x + 1, 4), "images is"),
        (lambda x: (NNGPKernel(plain(2)), x[:5], 4), "images is"),
        (lambda x: (NNGPKernel(plain(2)), x, 5), "block is 4 there and 5 here"),
    ],
)
def test_a_folder_of_another_kernel_is_refused(tmp_path, images, kernel, change, word):
    KernelStore(tmp_path / "k", kernel, images, block=4)
    other, others, block = change(images)
    with pytest.raises(InvalidInputError, match=f"belongs to another kernel: {word}"):
        KernelStore(tmp_path / "k", other, others, block=block)


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_damaged_manifest_is_refused(tmp_path, images, kernel, text):
    KernelStore(tmp_path / "k", kernel, images)
    (tmp_path / "k" / "kernel.json").write_text(text)
    with pytest.raises(InvalidInputError, match=r"kernel\.json is damaged .* delete the folder"):
        KernelStore(tmp_path / "k", kernel, images)


def test_a_folder_of_something_else_is_refused(tmp_path, images, kernel):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(InvalidInputError, match=r"holds files but no kernel\.json"):
        KernelStore(tmp_path, kernel, images)


@pytest.mark.parametrize("content", [b"", b"not an array", None])
def test_a_damaged_block_is_named(tmp_path, images, kernel, content):
    store = KernelStore(tmp_path / "k", kernel, images, block=4).compute()
    path = tmp_path / "k" / "block-00000-00001.npy"
    if content is None:
        np.save(path, np.zeros((2, 2), dtype=np.float32))
    else:
        path.write_bytes(content)
    for read in (store.matrix, lambda: store[1]):
        with pytest.raises(InvalidInputError, match=r"block-00000-00001\.npy is damaged .*delete"):
            read()
    whole = NNGPKernel(plain(2)).matrix(images)
    path.unlink()
    torch.testing.assert_close(store.compute().matrix(), whole, rtol=1e-6, atol=1e-7)


def test_a_flipped_bit_never_passes(tmp_path, images, kernel):
    KernelStore(tmp_path / "k", kernel, images, block=4).compute()
    path = tmp_path / "k" / "block-00000-00001.npy"
    for read in (
        lambda store: store[1],
        lambda store: store @ torch.ones(11, 1).double(),
    ):

        def whole(_, read=read):
            read(KernelStore(tmp_path / "k", kernel, images, block=4))

        assert unnoticed_flips(path, whole, InvalidInputError, 40) == []


@pytest.mark.parametrize("lost", [1, len(digests.LINE), 120])
def test_a_block_whose_end_is_lost_or_blank(tmp_path, images, kernel, lost):
    KernelStore(tmp_path / "k", kernel, images, block=4).compute()
    path = tmp_path / "k" / "block-00000-00001.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-lost] + bytes(lost))
    with pytest.raises(InvalidInputError, match=r"00001\.npy is damaged"):
        KernelStore(tmp_path / "k", kernel, images, block=4).matrix()


def test_a_block_is_checked_once(tmp_path, images, kernel, monkeypatch):
    store = KernelStore(tmp_path / "k", kernel, images, block=4).compute()
    checked = []
    monkeypatch.setattr(digests, "check_digest", lambda path: checked.append(path) or True)
    store.matrix()
    store[3]
    store.matrix()
    assert len(checked) == len(set(checked)) == 6


def test_blocks_of_an_older_version_are_read(tmp_path, images, kernel):
    expected = KernelStore(tmp_path / "k", kernel, images, block=4).compute().matrix()
    for path in (tmp_path / "k").glob("*.npy"):
        path.write_bytes(path.read_bytes()[: -len(digests.LINE)])
    assert torch.equal(KernelStore(tmp_path / "k", kernel, images, block=4).matrix(), expected)


def test_the_manifest_says_what_the_blocks_are(tmp_path, images):
    KernelStore(tmp_path / "k", NNGPKernel(myrtle(5)), images, block=4)
    found = json.loads((tmp_path / "k" / "kernel.json").read_text())
    assert found["images"] == {"shape": [11, 1, 4, 4], "sha256": digest(images)}
    assert found["kernel"]["top"] == {"kind": "GlobalAverage"}
    assert found["kernel"]["layers"][0]["kind"] == "Conv"
    assert (found["dtype"], found["block"], found["format"]) == ("float32", 4, 1)


def test_options_of_a_store(tmp_path, images, kernel):
    with pytest.raises(InvalidInputError, match="block must be a positive number"):
        KernelStore(tmp_path / "k", kernel, images, block=0)
