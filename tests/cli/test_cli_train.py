"""``convdkm train``: what can be asked for, and what comes of it."""

import csv
import json
from datetime import datetime

import pytest
import yaml
from cli_helpers import PHOTO, QUICK, TINY, call, fail, succeed

from convdkm.cli.inputs import resolve


def test_a_run_is_a_folder_that_a_person_can_read(digits_run):
    assert {path.name for path in digits_run.iterdir()} >= {
        "config.yaml",
        "environment.json",
        "metrics.json",
        "steps.csv",
        "epochs.csv",
        "layers.csv",
        "log.txt",
        "checkpoints",
    }
    config = yaml.safe_load((digits_run / "config.yaml").read_text())
    assert config["data"]["dataset"] == "digits"
    assert config["model"]["inducing"] == [8, 8]
    with (digits_run / "epochs.csv").open() as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["1", "2"]
    assert json.loads((digits_run / "metrics.json").read_text())["train_images"] == 90


def test_the_last_line_is_the_folder_and_quiet_leaves_the_epochs_out(arrays, tmp_path):
    folder = tmp_path / "a folder"
    command = ["train", arrays, *QUICK, *TINY, "--epochs", 1, "-o", folder]
    loud = succeed(*command)
    quiet = succeed(*command, "--overwrite", "--quiet")
    assert loud.last_line == quiet.last_line == str(folder)
    assert "1/1" in loud.out
    assert "1/1" not in quiet.out
    assert "accuracy" in quiet.out
    assert quiet.err == ""


def test_memory_is_foreseen_saved_and_kept(tmp_path, monkeypatch):
    kept = []
    for home in ("cli.following", "runtime.allocator"):
        monkeypatch.setattr(f"convdkm.{home}.keep_freed_memory", lambda: kept.append(True))
    folder = tmp_path / "run"
    options = ["--epochs", 1, "--checkpointing", "--no-compile", "--device", "cpu"]
    shown = succeed("train", *QUICK, *TINY, *options, "-o", folder).out
    assert "memory     less than 0." in shown
    settings = yaml.safe_load((folder / "config.yaml").read_text())["training"]
    assert (settings["checkpointing"], settings["compile"]) == (True, False)
    succeed("resume", folder, "--epochs", 2, "--quiet")
    succeed("evaluate", folder)
    assert len(kept) == 3


def test_the_settings_of_a_run_make_another_like_it(digits_run, tmp_path):
    again = tmp_path / "again"
    succeed("train", "--config", digits_run / "config.yaml", "-o", again, "-q")
    first, second = (
        json.loads((folder / "metrics.json").read_text()) for folder in (digits_run, again)
    )
    for values in (first, second):
        del values["seconds"], values["cpu_seconds"]
    assert first == second
    assert (again / "config.yaml").read_text() == (digits_run / "config.yaml").read_text()


def test_every_choice_can_be_given_as_an_option():
    options = {"channels": 3, "arccos_order": 0, "nu": "inf", "top": "linear+mix", "crop": "2"}
    settings, _ = resolve("cifar10", "paper", None, options)
    assert settings.data.channels == 3
    assert settings.model.nu == float("inf")


@pytest.mark.parametrize("flag", ["--channels=1", "--arccos-order=0"])
def test_choices_that_are_numbers_are_taken_as_text(flag, arrays, tmp_path):
    message = fail("train", arrays, flag, "--epochs", 0, "-o", tmp_path / "run")
    assert "epochs" in message
    assert "Input should be 0, 1 or 2" not in message
    assert "channels" not in message


# -- precedence ------------------------------------------------------------------------------------


def settings_of(tmp_path, content, *arguments, **options):
    path = tmp_path / "settings.yaml"
    path.write_text(content)
    dataset, preset = (*arguments, None, None)[:2]
    return resolve(dataset, preset, path, options)


def test_nothing_said_is_the_digits_with_the_quick_preset():
    settings, preset = resolve(None, None, None, {})
    assert (settings.data.dataset, preset) == ("digits", "quick")
    assert settings.training.flip is False  # of the preset, for the digits
    settings, preset = resolve("CIFAR-10", None, None, {})
    assert (settings.data.dataset, preset) == ("cifar10", "paper")


def test_a_file_overrides_a_preset_and_flags_override_the_file(tmp_path):
    content = "preset: paper-benchmark\ndataset: mnist\nepochs: 7\nmodel: {nu: 0.5}\n"
    settings, preset = settings_of(tmp_path, content, epochs="9")
    assert preset == "paper-benchmark"
    assert settings.data.dataset == "mnist"
    assert settings.model.inducing == (16, 32, 64)
    assert settings.model.nu == 0.5
    assert settings.training.epochs == 9


def test_the_command_line_overrides_the_names_in_a_file(tmp_path):
    content = "preset: paper-benchmark\ndata: {dataset: mnist, crop: 3}\n"
    settings, preset = settings_of(tmp_path, content, "digits", "quick")
    assert (settings.data.dataset, preset, settings.training.crop) == ("digits", "quick", 3)


def test_paths_are_kept_whole_so_that_a_run_goes_on_from_anywhere(tmp_path, monkeypatch):
    (tmp_path / "pictures").mkdir()
    monkeypatch.chdir(tmp_path)
    settings, _ = resolve("pictures", None, None, {"data_dir": "here"})
    assert settings.data.dataset == str(tmp_path / "pictures")
    assert settings.data.data_dir == str(tmp_path / "here")


def test_a_new_folder_is_made_for_every_run_even_in_the_same_second(arrays, tmp_path, monkeypatch):
    class Noon(datetime):
        @classmethod
        def now(cls):
            return cls(2024, 5, 7, 12)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("convdkm.cli.train.datetime", Noon)
    command = ["train", arrays, *QUICK, *TINY, "--epochs", 1, "--quiet"]
    folders = [succeed(*command).last_line for _ in range(2)]
    first = "runs/shades-quick-20240507-120000"
    assert folders == [first, f"{first}-2"]
    assert all((tmp_path / folder / "metrics.json").is_file() for folder in folders)


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--epochs", "0"], ["epochs", "0"]),
        (["--epochs", "many"], ["epochs", "many"]),
        (["--nu", "-1"], ["nu", "-1"]),
        (["--nu", "1,2,3"], ["nu", "5 layers", "3"]),
        (["--inducing", "16,x"], ["inducing", "'x'"]),
        (["--inducing", ""], ["inducing", "stage"]),
        (["--inducing", "8,8,8", "--blocks", "1,1"], ["inducing", "blocks", "stage"]),
        (["--strides", "1,2,2"], ["strides"]),
        (["--learning-rate", "nan"], ["learning_rate", "nan"]),
        (["--betas", "0.9"], ["betas", "two"]),
        (["--top", "gpa"], ["top", "gap", "gpa"]),
        (["--channels", "2"], ["channels", "1 or 3", "2"]),
        (["--device", "cuda:77"], ["cuda:77", "this machine has cpu"]),
        (["--device", "gpu"], ["gpu", "this machine has cpu"]),
        (["--epoch", "1"], ["--epoch", "--epochs", "convdkm train --help"]),
        (["--epochs"], ["--epochs", "argument", "convdkm train --help"]),
        (["--preset", "quikc"], ["quikc", "'quick'", "paper-benchmark"]),
        (["--config", "nowhere.yaml"], ["nowhere.yaml"]),
        (["digits", "mnist"], ["mnist", "unexpected"]),
        (["cifra10"], ["cifra10", "'cifar10'", "fashion-mnist", ".npz"]),
        (["mnist"], []),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_folder(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if arguments == ["mnist"]:
        outcome = call("train", "mnist", "--data-dir", tmp_path / "empty")
        assert outcome.code == 1
        assert "convdkm data fetch mnist" in outcome.err
        assert "Traceback" not in outcome.err
    else:
        small = [] if "--inducing" in arguments else ["--inducing", "8,8", "--blocks", "1,1"]
        message = fail("train", *small, "--train-size", 50, *arguments)
        assert all(word.lower() in message.lower() for word in words), message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("lerning_rate: 1", ["lerning_rate", "'learning_rate'"]),
        ("model: {inducin: 8}", ["inducin", "'inducing'"]),
        ("model: {epochs: 8}", ["epochs", "'training'"]),
        ("modle: {nu: 1}", ["modle", "'model'"]),
        ("epochs: [", ["settings.yaml", "YAML"]),
        ("- 1", ["settings.yaml", "options"]),
        ("epochs: none", ["settings.yaml", "epochs"]),
        ("preset: 3", ["preset", "'3'"]),
        ("dataset: 3", ["data set", "'3'"]),
        ("preset: papre", ["papre", "'paper'"]),
        ("data: 5", ["settings.yaml", "data"]),
    ],
)
def test_a_mistake_in_a_file_names_the_key_and_the_nearest(content, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.yaml").write_text(content)
    outcome = call("train", "--config", "settings.yaml")
    assert outcome.code == 1
    assert "Traceback" not in outcome.err
    assert all(word in outcome.err for word in words), outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["settings.yaml"]


def test_a_folder_in_use_is_never_touched_without_leave(digits_run, tmp_path):
    before = (digits_run / "metrics.json").read_bytes()
    message = fail("train", *TINY, "--epochs", 1, "-o", digits_run)
    assert "--overwrite" in message
    assert f"convdkm resume {digits_run}" in message
    assert (digits_run / "metrics.json").read_bytes() == before

    (tmp_path / "thesis.tex").write_text("years of work")
    message = fail("train", *TINY, "--epochs", 1, "-o", tmp_path, "--overwrite")
    assert "does not hold a run" in message
    assert (tmp_path / "thesis.tex").read_text() == "years of work"

    message = fail("train", *TINY, "-o", tmp_path / "thesis.tex")
    assert "is a file" in message


def test_a_folder_that_cannot_be_made_is_an_error_of_one_line(arrays):
    message = fail("train", arrays, *PHOTO, "--epochs", 1, "-o", "/proc/nowhere/run")
    assert "/proc/nowhere" in message
