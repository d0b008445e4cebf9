"""``evaluate``, ``predict`` and ``presets``."""

import csv
import io
import json
import shutil

import numpy as np
import pytest
import yaml
from cli_helpers import PHOTO, fail, succeed
from PIL import Image

from convdkm.config import RunConfig

# -- evaluate --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def final(digits_run):
    return json.loads((digits_run / "metrics.json").read_text())


def test_the_figures_are_those_of_the_run(digits_run, final):
    figures = json.loads(succeed("evaluate", digits_run, "--train", "--json").out)
    for part in ("test", "train", "validation"):
        for name in ("accuracy", "log_likelihood", "brier", "ece", "entropy", "mutual_information"):
            key = f"{part}_{name}"
            assert figures[key] == pytest.approx(final[key], rel=1e-6, abs=1e-9)
    assert figures["test_images"] == 40


def test_the_table_has_a_column_for_every_part(digits_run, final):
    lines = succeed("evaluate", digits_run).out.splitlines()
    assert lines[0].split() == ["test", "validation"]
    accuracy = next(line for line in lines if line.startswith("accuracy"))
    assert f"{final['test_accuracy']:.2%}" in accuracy
    assert "train" in succeed("evaluate", digits_run, "--train").out


@pytest.mark.parametrize("which", ["best", "previous"])
def test_another_checkpoint(digits_run, which):
    assert "test_accuracy" in succeed("evaluate", digits_run, "--checkpoint", which, "--json").out


def test_a_wrong_checkpoint_device_or_data_set(digits_run, photos, tmp_path):
    assert "'last', 'previous', 'best'" in fail("evaluate", digits_run, "--checkpoint", "first")
    assert "this machine has cpu" in fail("evaluate", digits_run, "--device", "cuda:77")
    message = fail("evaluate", digits_run, "--data", photos)
    assert "dog [big]" in message
    assert "'mnist'" in fail("evaluate", digits_run, "--data", "mnits")


def test_another_data_set_of_the_same_classes(photo_run, photos):
    figures = json.loads(succeed("evaluate", photo_run, "--data", photos, "--json").out)
    assert figures["test_images"] == 12


# -- predict ---------------------------------------------------------------------------------------


def test_a_table_of_a_folder_names_the_classes(photo_run, photos):
    out = succeed("predict", photo_run, photos).out
    header, _, *lines = out.splitlines()
    assert header.split() == ["image", "class", "probability", "entropy", "mutual", "information"]
    assert "dog [big]" in out
    assert max(map(len, out.splitlines())) <= 80
    assert sum("%" in line for line in lines) == 30


def test_json_and_csv_hold_every_probability(photo_run, photos):
    files = [photos / "dog [big]" / "3.png", photos / "cat" / "4.png"]
    found = json.loads(succeed("predict", photo_run, *files, "--format", "json").out)
    assert [row["image"] for row in found] == [str(file) for file in files]
    for row in found:
        assert row["class"] in ("cat", "dog [big]")
        assert sum(row["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        assert row["probability"] == max(row["probabilities"].values())
        assert 0 <= row["mutual_information"] <= row["entropy"] <= np.log(2) + 1e-6
    text = succeed("predict", photo_run, *files, "-f", "csv").out
    table = list(csv.DictReader(io.StringIO(text)))
    assert [row["class"] for row in table] == [row["class"] for row in found]
    assert float(table[0]["p(dog [big])"]) == found[0]["probabilities"]["dog [big]"]


def test_the_ending_of_a_file_is_its_format(photo_run, photos, tmp_path):
    image = photos / "cat" / "0.png"
    outcome = succeed("predict", photo_run, image, "-o", tmp_path / "found.json")
    assert outcome.out == ""
    assert "1 prediction written" in outcome.err
    assert json.loads((tmp_path / "found.json").read_text())[0]["image"] == str(image)
    succeed("predict", photo_run, image, "-o", tmp_path / "found.csv")
    assert (tmp_path / "found.csv").read_text().startswith("image,class,")
    succeed("predict", photo_run, image, "-o", tmp_path / "found.csv", "-f", "json")
    assert json.loads((tmp_path / "found.csv").read_text())
    assert "'table', 'csv', 'json'" in fail("predict", photo_run, image, "-f", "xml")


def test_images_of_another_size_or_kind(photo_run, tmp_path):
    grey, colour = tmp_path / "grey.png", tmp_path / "large.png"
    Image.new("L", (10, 8), 200).save(grey)
    Image.new("RGB", (30, 20), (200, 10, 10)).save(colour)
    message = fail("predict", photo_run, grey, colour)
    assert "8×10" in message
    assert "20×30" in message
    assert str(colour) in message
    assert "--resize" in message
    found = json.loads(succeed("predict", photo_run, grey, colour, "--resize", "-f", "json").out)
    assert len(found) == 2
    assert len(json.loads(succeed("predict", photo_run, grey, "-f", "json").out)) == 1


def test_a_colour_image_for_a_machine_of_grey_ones(digits_run, tmp_path):
    Image.new("RGBA", (8, 8), (200, 10, 10, 128)).save(tmp_path / "colour.png")
    found = succeed("predict", digits_run, tmp_path / "colour.png", "-f", "json").out
    assert len(json.loads(found)) == 1


def test_an_image_that_cannot_be_read_is_named_or_left_out(photo_run, photos, tmp_path):
    folder = tmp_path / "mixed"
    shutil.copytree(photos / "cat", folder)
    (folder / "bad.png").write_bytes(b"not a picture")
    message = fail("predict", photo_run, folder)
    assert "bad.png" in message
    assert "--skip-bad" in message
    outcome = succeed("predict", photo_run, folder, "--skip-bad", "-f", "json")
    assert len(json.loads(outcome.out)) == 15
    assert "bad.png" in outcome.err
    assert "no file or folder" in fail("predict", photo_run, tmp_path / "nothing.png")
    assert "none of 1 files" in fail("predict", photo_run, folder / "bad.png", "--skip-bad")


def test_a_gaussian_likelihood_has_no_mutual_information(arrays, photos, tmp_path):
    folder = tmp_path / "run"
    options = [*PHOTO, "--likelihood", "gaussian", "--epochs", 1, "--nu", "inf"]
    outcome = succeed("train", arrays, *options, "-o", folder)
    assert "mean entropy" in outcome.out
    assert "mutual" not in outcome.out
    assert "mutual" not in succeed("evaluate", folder, "--json").out
    image = photos / "cat" / "0.png"
    command = ["predict", folder, image, "--resize"]
    assert succeed(*command).out.splitlines()[2].endswith("–")
    assert json.loads(succeed(*command, "-f", "json").out)[0]["mutual_information"] is None
    row = next(csv.DictReader(io.StringIO(succeed(*command, "-f", "csv").out)))
    assert row["mutual_information"] == ""
    assert "inf" in succeed("show", folder).out


# -- presets ---------------------------------------------------------------------------------------


def test_presets_are_listed_with_what_they_are():
    out = succeed("presets").out
    assert max(map(len, out.splitlines())) <= 80
    for name in ("paper", "paper-benchmark", "published", "skr", "quick"):
        assert f"\n{name} " in out


def test_a_preset_is_printed_as_a_file_to_start_from(tmp_path):
    out = succeed("presets", "quick", "--dataset", "MNIST").out
    assert max(map(len, out.splitlines())) <= 80
    content = yaml.safe_load(out)
    assert content["data"]["dataset"] == "mnist"
    path = tmp_path / "quick.yaml"
    path.write_text(out)
    assert RunConfig.from_file(path).model.inducing == (16, 32, 64)
    assert "'quick'" in fail("presets", "quik")
    assert "'cifar10'" in fail("presets", "quick", "--dataset", "cifra10")
