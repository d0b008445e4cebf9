"""A run keeps its split, whatever becomes of the folder that its images came from."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import PHOTO, call, fail, succeed
from PIL import Image

OPTIONS = [*PHOTO, "--epochs", 1, "--batch-size", 8, "--no-flip", "--quiet"]
OPTIONS += ["--test-fraction", 0.4, "--validation", 0.25]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, photos) -> Path:
    """A folder of images without a test part, and a run on it."""
    root = tmp_path_factory.mktemp("split")
    shutil.copytree(photos, root / "photos")
    succeed("train", root / "photos", *OPTIONS, "-o", root / "run")
    return root


@pytest.fixture
def here(trained, tmp_path) -> Path:
    """A copy of both, to change."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace(str(trained), str(tmp_path)))
    return tmp_path


@pytest.fixture(scope="module")
def before(trained):
    return evaluated(trained)[0]


def evaluated(root, *options):
    """The figures of the run, and what was said."""
    outcome = succeed("evaluate", root / "run", "--json", *options)
    return json.loads(outcome.out), outcome.err


def files(root, part):
    """Paths of the images of a part, as the run has written them down."""
    names = json.loads((root / "run" / "split.json").read_text())["parts"][part]["names"]
    return [root / "photos" / name for name in names]


def draw(path, shade=200, size=(8, 10)):
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(sum(path.name.encode()))
    pixels = random.integers(0, 50, (*size, 3)) + shade
    Image.fromarray(pixels.astype(np.uint8)).save(path)


def test_images_that_are_added_change_no_figure(trained, here, before):
    assert before["test_images"] == 12
    assert before["validation_images"] == len(files(here, "validation")) > 0
    for number in range(5):
        draw(here / "photos" / "cat" / f"-{number}.png")
    now, said = evaluated(here)
    assert now == before
    assert "5 images added" in said
    again, said = evaluated(trained)
    assert again == before
    assert said == ""


def test_an_added_class_or_image_of_another_kind_changes_no_figure(here, before):
    draw(here / "photos" / "bird" / "1.png")
    draw(here / "photos" / "cat" / "large.png", size=(20, 30))
    shutil.copy(files(here, "train")[0], here / "photos" / "bird")
    now, said = evaluated(here)
    assert now == before
    assert "3 images added" in said


def test_a_training_image_by_another_name_is_no_test_image(here, before):
    (train, *_), (test, *_) = files(here, "train"), files(here, "test")
    shutil.copy(train, train.with_name("00.png"))
    now, said = evaluated(here)
    assert now == before
    assert "1 image added" in said
    shutil.copy(train, test)
    now, said = evaluated(here)
    assert now["test_images"] == 11
    assert "1 test image left out" in said
    assert test.relative_to(here / "photos").as_posix() in said


def test_renamed_images_stay_in_their_part(here, before):
    for path in (files(here, "train")[0], files(here, "test")[0], files(here, "validation")[0]):
        path.rename(path.with_name(f"a{path.name}"))
    now, said = evaluated(here)
    assert now["test_images"] == 12
    assert now == pytest.approx(before)
    assert "3 images renamed" in said


def test_images_that_are_gone_or_changed_are_named(here, before):
    gone, other, *_ = files(here, "test")
    gone.unlink()
    draw(other)
    now, said = evaluated(here)
    assert now["test_images"] == 11
    assert now["validation_log_likelihood"] == before["validation_log_likelihood"]
    for path, what in ((gone, "removed"), (other, "changed")):
        assert f"1 test image {what} ({path.relative_to(here / 'photos').as_posix()})" in said
    for path in files(here, "test"):
        path.unlink(missing_ok=True)
    assert "none of the test images" in fail("evaluate", here / "run")


def test_going_on_needs_the_training_images(here):
    draw(here / "photos" / "cat" / "new.png")
    draw(files(here, "test")[0])
    outcome = succeed("resume", here / "run", "--epochs", 2, "--quiet")
    assert "1 image added" in outcome.err
    assert "1 test image changed" in outcome.err
    train = files(here, "train")
    draw(train[0])
    train[1].unlink()
    message = fail("resume", here / "run", "--epochs", 3)
    assert "1 training image changed (cat/" in message
    assert "1 training image removed (cat/" in message
    assert "--data" in message
    assert succeed("evaluate", here / "run").code == 0


def test_a_folder_that_has_moved(here, before):
    (here / "photos").rename(here / "elsewhere")
    run, place = here / "run", here / "elsewhere"
    for command in ("evaluate", "resume"):
        more = ["--epochs", 2] if command == "resume" else []
        assert "--data" in fail(command, run, *more)
    now, said = evaluated(here, "--data", place)
    assert now == before
    assert said == ""
    draw(place / "cat" / "new.png")
    assert evaluated(here, "--data", place)[0] == before
    succeed("report", run, "--data", place, "-o", here / "moved.html")
    assert "1 image added" in (here / "moved.html").read_text()
    assert "explained" in succeed("show", run, "--data", place).out
    assert "Without explained" in succeed("show", run).out
    assert "none are needed" in fail("report", run, "--data", place, "--no-data")
    assert "go with a run" in fail("show", "digits", "--data", place)
    succeed("resume", run, "--data", place, "--epochs", 2, "--quiet")
    assert evaluated(here)[0]["test_images"] == 12  # it remembers the place


def test_another_folder_without_a_test_part_is_test_data_as_a_whole(here):
    for number in range(7):
        draw(here / "other" / "cat" / f"{number}.png", shade=40)
        draw(here / "other" / "dog [big]" / f"{number}.png", shade=160)
    now, said = evaluated(here, "--data", here / "other")
    assert now["test_images"] == 14
    assert said == ""
    assert "no training part" in fail("evaluate", here / "run", "--data", here / "other", "--train")
    for path in files(here, "train")[:3]:
        shutil.copy(path, here / "other" / "cat" / f"copy-{path.name}")
    again, said = evaluated(here, "--data", here / "other")
    assert again == now
    assert "3 of 17" in said
    draw(here / "other" / "bird" / "1.png")
    assert "bird" in fail("evaluate", here / "run", "--data", here / "other")


def test_a_folder_of_training_images_alone_cannot_be_scored(here):
    for path in (*files(here, "test"), *files(here, "validation")):
        path.unlink()
    (here / "photos").rename(here / "some")
    message = fail("evaluate", here / "run", "--data", here / "some")
    assert "seen every image" in message


def test_an_npz_file_of_the_same_images_is_known_by_its_pixels(here):
    paths = [*files(here, "train"), *files(here, "test")]
    images = np.stack([np.array(Image.open(path)) for path in paths])
    labels = np.array([path.parent.name for path in paths])
    count = len(files(here, "train"))
    np.savez(here / "part.npz", images=images[count - 2 :], labels=labels[count - 2 :])
    now, said = evaluated(here, "--data", here / "part.npz")
    assert now["test_images"] == 12
    assert "2 of 14" in said


def test_the_page_says_what_has_changed(here):
    files(here, "test")[0].unlink()
    outcome = succeed("report", here / "run")
    page = (here / "run" / "report.html").read_text()
    for text in (page, outcome.err):
        assert "1 test image removed" in text


def test_a_run_of_an_older_version(here, before, digits_run, tmp_path):
    (here / "run" / "split.json").unlink()
    for options in ((), ("--data", here / "photos")):
        now, said = evaluated(here, *options)
        assert now == before
        assert "has no split.json" in said
    assert "has no split.json" in succeed("resume", here / "run", "--epochs", 2, "--quiet").err
    shutil.copytree(here / "photos", here / "copy")
    now, said = evaluated(here, "--data", here / "copy")
    assert now["test_images"] == 30
    assert "scored too" in said
    shutil.copytree(digits_run, tmp_path / "digits")
    (tmp_path / "digits" / "split.json").unlink()
    assert succeed("evaluate", tmp_path / "digits").err == ""


@pytest.mark.parametrize("content", ["", "[]", '{"format": 2}', "[" * 100_000, "cut"])
def test_a_damaged_split_is_no_guess(here, content):
    path = here / "run" / "split.json"
    path.write_text(content if content != "cut" else path.read_text()[:-200])
    for command in ("evaluate", "resume"):
        message = fail(command, here / "run", *(["--epochs", 2] if command == "resume" else []))
        assert "split.json" in message
        assert "damaged" in message
    succeed("report", here / "run")
    assert "damaged" in (here / "run" / "report.html").read_text()


def test_a_known_set_is_scored_whole(digits_run):
    now = json.loads(succeed("evaluate", digits_run, "--data", "digits", "--json").out)
    assert now["test_images"] == 360
    assert call("evaluate", digits_run).err == ""


def test_a_run_that_is_replaced_takes_its_split_along(here):
    succeed(
        "train",
        here / "photos",
        *OPTIONS,
        "--test-fraction",
        0.2,
        "-o",
        here / "run",
        "--overwrite",
    )
    assert evaluated(here)[0]["test_images"] == len(files(here, "test")) == 6
    assert (here / "run" / "replaced-run" / "split.json").is_file()
