"""``predict`` on many images: memory, files that are gone on with, names of every kind."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import PHOTO, call, fail, start, succeed
from PIL import Image

from convdkm.cli import output as cli_output
from convdkm.data import picture_stream
from convdkm.storage.text import original

BATCH = 8


def write_pictures(folder, count, size=(10, 8)):
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(count)
    for number in range(count):
        pixels = random.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:04d}.png")
    return folder


@pytest.fixture(scope="module")
def machine(tmp_path_factory, photos):
    """A run that predicts a few images at a time."""
    folder = tmp_path_factory.mktemp("small") / "run"
    options = ["--epochs", 1, "--batch-size", 8, "--evaluation-batch", BATCH]
    succeed("train", photos, *PHOTO, *options, "-o", folder)
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return write_pictures(tmp_path_factory.mktemp("many") / "pictures", 100)


def parts(folder):
    return [path for path in folder.iterdir() if path.suffix == ".part"]


# -- memory ----------------------------------------------------------------------------------------


def test_few_images_are_decoded_before_they_are_needed(machine, pictures, tmp_path, monkeypatch):
    alive = most = 0

    class Counted:
        def __init__(self):
            nonlocal alive, most
            alive += 1
            most = max(most, alive)

        def __del__(self):
            nonlocal alive
            alive -= 1

    read = picture_stream.read_picture

    def counting(*arguments):
        picture = read(*arguments)
        picture.counted = Counted()
        return picture

    monkeypatch.setattr(picture_stream, "read_picture", counting)
    succeed("predict", machine, pictures, "-o", tmp_path / "found.csv")
    assert BATCH <= most <= 3 * BATCH
    assert alive == 0


def test_memory_does_not_grow_with_the_number_of_images(tmp_path):
    """The peak of the whole process; the images alone would take 90 MB more."""
    few, many = tmp_path / "few", tmp_path / "many"
    write_pictures(tmp_path / "classes" / "a", 6, size=(64, 64))
    write_pictures(tmp_path / "classes" / "b", 7, size=(64, 64))
    options = ["--epochs", 1, "--batch-size", 4, "--evaluation-batch", 50, "--input-stride", 8]
    succeed("train", tmp_path / "classes", *PHOTO, *options, "-o", tmp_path / "run")
    source = tmp_path / "classes" / "a" / "0000.png"
    for folder, count in ((few, 100), (many, 2000)):
        folder.mkdir()
        for number in range(count):
            os.link(source, folder / f"{number}.png")
    peaks = {}
    for folder in (few, many):
        before = "import resource, sys; from convdkm import cli; code = cli.run(sys.argv[1:]); "
        after = "print(code, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        arguments = ["predict", tmp_path / "run", folder, "-o", tmp_path / f"{folder.name}.csv"]
        done = subprocess.run(
            [sys.executable, "-c", before + after, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=True,
        )
        code, peaks[folder] = map(int, done.stdout.split())
        assert code == 0, done.stderr
    assert len((tmp_path / "many.csv").read_text().splitlines()) == 2001
    assert peaks[many] - peaks[few] < 30_000  # KiB


# -- going on --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "json"])
def test_a_killed_prediction_goes_on_and_ends_the_same(machine, tmp_path, ending):
    pictures = write_pictures(tmp_path / "pictures", 800)
    whole, found = tmp_path / f"whole.{ending}", tmp_path / f"found.{ending}"
    succeed("predict", machine, pictures, "-o", whole)
    process = start("predict", machine, pictures, "-o", found)
    deadline = time.monotonic() + 60
    while not any(part.stat().st_size > 2000 for part in parts(tmp_path)):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (part,) = parts(tmp_path)
    assert not found.exists()
    with part.open("r+b") as file:  # as if the last row had been torn as well
        file.truncate(part.stat().st_size - 7)
    outcome = succeed("predict", machine, pictures, "-o", found)
    assert "goes on after" in outcome.err
    assert found.read_bytes() == whole.read_bytes()
    assert not parts(tmp_path)


def stop_at(folder, position):
    """Make an image unusable, which ends a prediction there."""
    path = folder / f"{position:04d}.png"
    Image.new("RGB", (3, 3)).save(path)
    return path


def test_an_error_on_the_way_keeps_what_there_is(machine, tmp_path):
    pictures, output = write_pictures(tmp_path / "pictures", 30), tmp_path / "found.csv"
    wrong = stop_at(pictures, 20)
    message = fail("predict", machine, pictures, "-o", output)
    assert f"{wrong} has 3×3" in message
    (part,) = parts(tmp_path)
    assert f"kept in {part}: 16 predictions" in message
    assert not output.exists()
    kept = part.read_text()
    wrong.unlink()
    outcome = succeed("predict", machine, pictures, "-o", output)
    assert "goes on after 16 predictions" in outcome.err
    assert "29 predictions written" in outcome.err
    assert output.read_text().startswith(kept)
    assert len(output.read_text().splitlines()) == 30
    assert not parts(tmp_path)


def test_other_options_or_another_machine_begin_anew(machine, photo_run, tmp_path):
    pictures, output = write_pictures(tmp_path / "pictures", 20), tmp_path / "found.csv"
    stop_at(pictures, 17)
    for command in (
        ["predict", machine, pictures, "-o", output, "--resize"],
        ["predict", photo_run, pictures, "-o", output, "--resize"],
    ):
        fail("predict", machine, pictures, "-o", output)
        assert parts(tmp_path)
        outcome = succeed(*command)
        assert "another machine or other options; all begins anew" in outcome.err
        assert not parts(tmp_path)
        output.unlink()


def test_an_image_that_was_changed_or_added_is_predicted(machine, tmp_path):
    pictures, output = write_pictures(tmp_path / "pictures", 30), tmp_path / "found.json"
    (pictures / "0002.png").write_bytes(b"bad")
    wrong = stop_at(pictures, 25)
    command = ["predict", machine, pictures, "-o", output, "--skip-bad"]
    assert fail(*command)
    Image.new("RGB", (10, 8), "red").save(pictures / "0010.png")
    wrong.unlink()
    outcome = succeed(*command)
    assert "images have changed since" in outcome.err
    assert "goes on after 9 predictions" in outcome.err
    fresh = tmp_path / "fresh.json"
    succeed(*command[:-3], "-o", fresh, "--skip-bad")
    assert output.read_bytes() == fresh.read_bytes()
    names = [row["image"] for row in json.loads(output.read_text())]
    assert str(pictures / "0002.png") not in names
    assert len(names) == 28


def test_two_at_a_time_do_not_write_the_same_file(machine, pictures, tmp_path, monkeypatch):
    from convdkm.cli import predict

    output = tmp_path / "found.csv"
    inner = predict.predicted_rows
    messages = []

    def meanwhile(*arguments):
        if not messages:
            messages.append("")
            messages[0] = fail("predict", machine, pictures, "-o", output)
        return inner(*arguments)

    monkeypatch.setattr(predict, "predicted_rows", meanwhile)
    succeed("predict", machine, pictures, "-o", output)
    assert f"predictions are being written to {output} by process" in messages[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["found.csv"]
    assert len(output.read_text().splitlines()) == 101


def test_what_is_written_to_is_a_regular_file(machine, pictures, tmp_path):
    os.mkfifo(tmp_path / "found.csv")
    assert "not a regular file" in fail("predict", machine, pictures, "-o", tmp_path / "found.csv")


# -- rows ------------------------------------------------------------------------------------------


def test_all_forms_say_the_same_of_many_images(machine, pictures):
    found = json.loads(succeed("predict", machine, pictures, "-f", "json").out)
    table = list(
        csv.DictReader(io.StringIO(succeed("predict", machine, pictures, "-f", "csv").out))
    )
    shown = succeed("predict", machine, pictures).out.splitlines()
    assert len(found) == len(table) == 100
    assert [row["class"] for row in table] == [row["class"] for row in found]
    assert [float(row["probability"]) for row in table] == [row["probability"] for row in found]
    assert sum("%" in line for line in shown) == 100
    assert shown[0].split()[0] == "image"
    assert sum(line.startswith("image ") for line in shown) == 1
    assert len({line.index("%") for line in shown if "%" in line}) == 1


def test_an_image_does_not_depend_on_those_before_it(machine, pictures):
    rows = json.loads(succeed("predict", machine, pictures, "-f", "json").out)
    alone = json.loads(succeed("predict", machine, pictures / "0042.png", "-f", "json").out)
    assert alone[0]["probability"] == pytest.approx(rows[42]["probability"], rel=1e-5)


def test_a_bar_is_shown_on_a_terminal_alone(machine, pictures, tmp_path, monkeypatch):
    assert "predicting" not in call("predict", machine, pictures, "-o", tmp_path / "a.csv").err
    monkeypatch.setenv("FORCE_COLOR", "1")
    outcome = succeed("predict", machine, pictures, "-o", tmp_path / "b.csv")
    assert "predicting" in outcome.err
    assert "100/100" in outcome.err


# -- names -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def odd_names(tmp_path_factory):
    """Pictures whose names are not UTF-8, steer a terminal, or look like a formula."""
    folder = os.fsencode(tmp_path_factory.mktemp("odd"))
    names = [b"caf\xe9.png", b"\x1b[31mred.png", b"two\nlines.png", b"a\\xe9.png", b"=1+1.png"]
    for name in names:
        Image.new("RGB", (10, 8), (9, 99, 200)).save(os.fsdecode(os.path.join(folder, name)))
    return os.fsdecode(folder), sorted(names)


@pytest.mark.parametrize("ending", ["csv", "json", "txt"])
def test_any_name_is_written(machine, odd_names, tmp_path, ending, monkeypatch):
    folder, names = odd_names
    monkeypatch.chdir(folder)
    output = tmp_path / f"found.{ending}"
    succeed("predict", machine, *map(os.fsdecode, names), "-o", output)
    text = output.read_text(encoding="utf-8")
    assert "\x1b" not in text
    assert (r"caf\\xe9.png" if ending == "json" else r"caf\xe9.png") in text
    if ending == "json":
        assert [os.fsencode(original(row["image"])) for row in json.loads(text)] == names
    if ending == "csv":
        cells = [row["image"] for row in csv.DictReader(io.StringIO(text))]
        assert [os.fsencode(original(cell.removeprefix("'"))) for cell in cells] == names
        assert "'=1+1.png" in cells
        assert len(text.splitlines()) == 1 + len(names)


def test_nothing_that_is_shown_steers_the_terminal(machine, odd_names, tmp_path, capfd):
    folder, _ = odd_names
    (tmp_path / "\x1b]0;title\x07.png").write_bytes(b"bad")
    shown = succeed("predict", machine, folder).out
    for outcome in (call("predict", machine, tmp_path), call("evaluate", tmp_path / "\x1b[2J")):
        assert outcome.code == 1
        shown += outcome.err
    shown += call("predict", machine, folder, tmp_path, "--skip-bad", "-f", "csv").err
    assert "\x1b" not in shown
    assert r"\x1b]0;title\x07.png" in shown
    cli_output.warn("\x1b[31m")
    cli_output.console().print("\x1b[31m")
    table = cli_output.plain_table("\x1b[31m")
    table.add_row("\x9b31m")
    cli_output.console().print(table)
    out, err = capfd.readouterr()
    assert not {"\x1b", "\x9b"} & set(out + err)


def test_a_data_set_a_run_and_outputs_that_are_not_utf_8(tmp_path):
    place = os.path.join(os.fsencode(tmp_path), b"\xe4")
    for name in (b"cat", b"d\xf6g"):
        os.makedirs(os.path.join(place, b"d\xe4ta", name))
        for number in range(6):
            path = os.path.join(place, b"d\xe4ta", name, b"\xe9%d.png" % number)
            Image.new("RGB", (10, 8), (40 * number, 99, len(name))).save(os.fsdecode(path))
    data, run, exported = (
        os.fsdecode(os.path.join(place, name))
        for name in (b"d\xe4ta", b"r\xfcn", b"\xff.safetensors")
    )
    options = [*PHOTO, "--epochs", 1, "--batch-size", 4]
    assert succeed("train", data, *options, "-o", run).last_line == run
    assert "TensorBoard" in Path(run, "log.txt").read_text(encoding="utf-8")
    succeed("resume", run, "--epochs", 2)
    assert "accuracy" in succeed("evaluate", run).out
    succeed("evaluate", run, "--data", data)
    assert r"d\xe4ta" in succeed("show", run).out
    succeed("export", run, exported)
    for source in (run, exported):
        for ending in ("csv", "json", "txt"):
            output = os.fsdecode(os.path.join(place, b"\xf6ut.")) + ending
            succeed("predict", source, data, "-o", output)
            assert "xf6g" in Path(output).read_text(encoding="utf-8")
    page = succeed("report", run).last_line
    assert r"d\xf6g" in Path(page).read_text(encoding="utf-8")


def test_a_path_is_printed_as_it_is_for_other_programs(tmp_path, arrays):
    folder = os.fsdecode(os.path.join(os.fsencode(tmp_path), b"r\xfcn"))
    process = start(
        "train", arrays, *PHOTO, "--epochs", 1, "--quiet", "-o", folder, errors="surrogateescape"
    )
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert out.splitlines()[-1] == folder
