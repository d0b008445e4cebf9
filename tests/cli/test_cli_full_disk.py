"""Files that cannot be written: what failed, what is saved, and how to go on."""

import shutil
import subprocess
from pathlib import Path

import pytest
from cli_helpers import QUICK, TINY, call, fail, succeed
from safetensors import SafetensorError
from safetensors.torch import save_file

from convdkm.storage import files, tensor_file
from convdkm.storage.text import csv_line
from convdkm.training.run import Run
from run_figures import final_figures

OPTIONS = [*QUICK, *TINY, "--epochs", 2, "-q"]


def full(*_, **__):
    raise OSError(28, "No space left on device")


def message(*arguments) -> str:
    """What a command that fails says: no traceback, and its own words alone."""
    outcome = call(*arguments)
    assert outcome.code == 1
    assert outcome.err.startswith("Error: ")
    return outcome.err


@pytest.fixture(scope="module")
def whole(arrays, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    succeed("train", arrays, *OPTIONS, "-o", folder)
    return folder


def failing_after(count: int, function):
    """A function that finds the disk full after it was called so many times."""
    calls = []

    def replaced(*arguments, **options):
        calls.append(1)
        if len(calls) > count:
            raise SafetensorError("I/O error: No space left on device (os error 28)")
        return function(*arguments, **options)

    return replaced


@pytest.mark.parametrize(("after", "step"), [(1, 0), (2, 0), (3, 4)])
def test_a_checkpoint_that_cannot_be_written(arrays, whole, tmp_path, after, step):
    folder = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tensor_file, "save_file", failing_after(after, save_file))
        text = message("train", arrays, *OPTIONS, "-o", folder)
    name = "last" if after == 2 else "best"
    assert f"{name}.safetensors cannot be written: No space left on device; free some" in text
    assert f"Saved so far is step {step}, in {folder}/checkpoints/last.safetensors" in text
    assert f"convdkm resume {folder}" in text
    assert Run.open(folder).step == step
    assert not list(folder.rglob("*.tmp"))
    succeed("resume", folder, "-q")
    assert final_figures(folder) == final_figures(whole)


def test_the_first_checkpoint_that_cannot_be_written(arrays, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    monkeypatch.setattr("convdkm.storage.tensor_file.save_file", full)
    text = message("train", arrays, *OPTIONS, "-o", folder)
    assert "last.safetensors cannot be written" in text
    assert "Nothing of the run is saved; train again" in text
    assert not folder.exists()


@pytest.mark.parametrize("rows", [0, 5])
def test_a_table_that_cannot_be_written(arrays, whole, tmp_path, monkeypatch, rows):
    """Its failure stops the run, since what is missing from it would be missing for good."""
    folder = tmp_path / "run"

    def fills(cells):
        first, *others = cells  # a title, or a step or an epoch, of which there are fewer
        full_now = first.isdecimal() and int(first) > rows
        return full() if full_now else csv_line([first, *others])

    with monkeypatch.context() as patched:
        patched.setattr("convdkm.training.tables.csv_line", fills)
        text = message("train", arrays, *OPTIONS, "-o", folder)
    assert "steps.csv cannot be written: No space left on device; free some space" in text
    assert f"Saved so far is step {rows // 4 * 4}" in text
    succeed("resume", folder, "-q")
    assert final_figures(folder) == final_figures(whole)
    succeed("verify", folder)


def test_the_figures_of_the_end_that_cannot_be_written(arrays, whole, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(files, "replacing", failing_on("metrics.json"))
        text = message("train", arrays, *OPTIONS, "-o", folder)
    assert "metrics.json cannot be written" in text
    assert "Saved so far is step 8" in text
    succeed("resume", folder, "-q")
    assert final_figures(folder) == final_figures(whole)


def failing_on(name: str):
    """``files.replacing`` on a disk that is full when a file of that name comes."""

    def replacing(path):
        with files.writing(path):
            return full() if path.name == name else whole_files(path)

    whole_files = files.replacing
    return replacing


@pytest.mark.parametrize("ending", ["safetensors", "pt2", "onnx"])
def test_an_exported_file_that_cannot_be_written(digits_run, tmp_path, monkeypatch, ending):
    path = tmp_path / f"machine.{ending}"
    path.write_text("the old one")
    monkeypatch.setattr("os.fsync", full)
    assert f"{path} cannot be written: No space left" in fail("export", digits_run, path, "--force")
    assert path.read_text() == "the old one"
    assert list(tmp_path.iterdir()) == [path]


def test_predictions_that_cannot_be_written(photo_run, photos, tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", full)
    text = fail("predict", photo_run, photos, "-o", tmp_path / "all.csv")
    assert f"{tmp_path / 'all.csv'} cannot be written: No space left" in text
    (part,) = tmp_path.iterdir()
    assert f"kept in {part}: 30 predictions, after which the same command goes on" in text
    monkeypatch.undo()
    succeed("predict", photo_run, photos, "-o", tmp_path / "all.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["all.csv"]


# -- the real thing --------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 640 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    made = (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=640k", "tmpfs", str(place)],
            capture_output=True,
            text=True,
            check=False,
        )
        if shutil.which("mount")
        else None
    )
    if made is None or made.returncode:
        pytest.skip("a small disk cannot be mounted here; it takes the rights of root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("room", [130, 260])
def test_a_disk_that_is_full(arrays, whole, small_disk, room):
    folder, filler = small_disk / "run", small_disk / "filler"
    filler.write_bytes(bytes((640 - room) * 1024))
    text = message("train", arrays, *OPTIONS, "-o", folder)
    assert "cannot be written: No space left on device; free some space" in text
    assert "Saved so far is step" in text
    assert "Traceback" not in text
    filler.unlink()
    succeed("resume", folder, "-q")
    assert final_figures(folder) == final_figures(whole)
    succeed("verify", folder)
    path = small_disk / "machine.safetensors"
    succeed("export", folder, path)
    before = path.read_bytes()
    with pytest.raises(OSError, match="No space left"):
        filler.write_bytes(bytes(640 * 1024))
    assert "cannot be written: No space left" in fail("export", folder, path, "--force")
    assert path.read_bytes() == before
