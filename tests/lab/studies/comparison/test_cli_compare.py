"""``convdkm compare``: from plan to page, what fails and what is refused, and wrong input."""

import json
import re
import sys

import pytest
from comparison_helpers import DIGITS, made_up

from convdkm.config import RunConfig
from convdkm.lab.baselines import NNGPKernel, kernel_regression
from convdkm.lab.baselines.methods import NAMES
from convdkm.lab.studies.comparison.folder import ComparisonFolder, PlannedTrial

QUICK = ["--methods", "nngp-linear,myrtle5", "--seeds", 2]


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_comparison_from_plan_to_page(call, tmp_path, here, bright):
    out = tmp_path / "out"
    command = ["compare", bright, *QUICK, "--train-size", "20,40", "--test-size", 30, "-o", out]
    code, text, err = call(*command)
    assert code == 0, err
    assert "bright.npz: 2 methods × 2 training sizes (20, 40) × 2 seeds, 8 trials" in text
    assert "[8/8] myrtle5, 40 images, seed 1 …" in text
    assert "## Methods compared on bright: 20 training images" in text
    assert "| NNGP, vectorised |" in text
    assert text.splitlines()[-1] == str(out)
    trials = {
        f"trials/train-{size}/{name}/seed-{seed}"
        for size in (20, 40)
        for name in ("nngp-linear", "myrtle5")
        for seed in (0, 1)
    }
    assert files(out) == {
        "comparison.json",
        ".comparison.lock",
        "report.html",
        *(f"{trial}.{end}" for trial in trials for end in ("json", "log")),
        *(f"tables/train-{size}.{end}" for size in (20, 40) for end in ("md", "tex", "csv")),
        "tables/accuracy-by-size.png",
        "tables/accuracy-by-seconds.png",
    }
    assert (out / "tables/train-20.md").read_text() in text
    trial = PlannedTrial("myrtle5", 20, 0)
    result = ComparisonFolder(out).status(trial)
    assert (result.train_images, result.test_images) == (20, 30)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("seed-*.json")}

    code, text, _ = call(*command, "--methods", "ckn-supervised")
    assert code == 1
    assert "8 finished before" in text
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert "| NNGP, vectorised |" in text
    assert "Failed: ckn-supervised, seeds 0, 1: " in text
    assert "8 of 12 trials finished, 4 failed; the same command tries these again" in text

    code, text, err = call("tables", out, "--format", "csv", "--no-figures", "-o", tmp_path / "t")
    assert code == 0
    assert text.count("myrtle5,Myrtle5,") == 2
    assert len(err.splitlines()) == 6
    assert files(tmp_path / "t") == {
        f"train-{size}.{end}" for size in (20, 40) for end in ("md", "tex", "csv")
    }
    code, text, _ = call("report", out, "-o", tmp_path / "page.html")
    assert (code, text) == (0, f"{tmp_path / 'page.html'}\n")


def test_a_failed_method_does_not_stop_the_others_and_is_tried_again(
    call, tmp_path, here, plain_images
):
    """Images of one colour cannot be normalised, which is found out in the fit."""
    out = tmp_path / "out"
    command = ["compare", plain_images, "--methods", "nngp-linear,myrtle10-tuned,myrtle5"]
    command += ["--train-size", 30, "--test-size", 20, "--whitening", "none", "--seeds", 1]
    command += ["-f", "none", "-o", out]
    code, text, err = call(*command)
    assert code == 1
    reason = "10 images are of one colour and cannot be normalised"
    assert f"Warning: failed: myrtle10-tuned, 30 images, seed 0: {reason}" in err.replace("\n", " ")
    assert "2 of 3 trials finished, 1 failed" in text
    failure = json.loads((out / "trials/train-30/myrtle10-tuned/seed-0.json").read_text())
    assert failure["state"] == "failed"
    assert failure["error"].startswith(reason)
    assert not (out / "trials/train-30/myrtle10-tuned/seed-0.kernel").exists()
    table = (out / "tables/train-30.md").read_text()
    assert f"- Failed: myrtle10-tuned, seed 0: {reason}" in table
    assert re.search(r"\| Tuned Myrtle10 DA CG +\| +failed \| +– \|", table)
    code, text, _ = call(*command)
    assert code == 1
    assert "2 finished before" in text
    assert "[3/3] myrtle10-tuned" in text


def test_a_kernel_that_does_not_fit_is_refused_with_the_figure_before_any_work(
    call, tmp_path, here, bright, monkeypatch
):
    monkeypatch.setattr(kernel_regression, "available_memory", lambda: 260 * 2**20)
    out = tmp_path / "out"
    command = ["compare", bright, "--methods", "nngp-linear", "--train-size", "30,700"]
    code, text, err = call(*command, "--seeds", 1, "-f", "none", "-o", out)
    assert code == 1
    words = err.replace("\n", " ")
    assert "refused: nngp-linear, 700 images, 1 trial: " in words
    assert "of 700 images needs 278" in words
    assert "260.0 MiB are free; about" in words
    assert "1 of 2 trials finished, 1 failed" in text
    assert "700 images, seed 0 …" not in text
    table = (out / "tables/train-700.md").read_text()
    assert "Failed before any work: nngp-linear, seed 0" in table

    monkeypatch.setattr(kernel_regression, "available_memory", lambda: 300 * 2**20)
    code, text, err = call(*command, "--seeds", 1, "-f", "none", "-o", out)
    assert code == 0, err
    assert "1 finished before" in text


def test_where_nothing_can_be_tried_there_is_an_error_and_no_folder(
    fail, tmp_path, here, bright, monkeypatch
):
    monkeypatch.setattr(kernel_regression, "available_memory", lambda: 2**20)
    out = tmp_path / "out"
    message = fail("compare", bright, "--methods", "kernels", "--train-size", 30, "-o", out)
    assert message.startswith("no method can be tried. nngp-linear, 30 images: ")
    assert "1.0 MiB are free" in message
    assert not (out / "comparison.json").exists()


def test_a_method_whose_extra_is_not_installed_says_which(
    call, tmp_path, here, monkeypatch, bright
):
    monkeypatch.setitem(sys.modules, "gpytorch", None)
    monkeypatch.delitem(sys.modules, "convdkm.lab.baselines.gp_layers", raising=False)
    command = ["compare", bright, "--methods", "conv-gp,nngp-linear", "--train-size", 30]
    code, text, err = call(*command, "--seeds", 1, "-o", tmp_path / "out")
    assert code == 1
    assert "pip install convdkm[gp]" in err
    assert "Failed before any work: conv-gp, seed 0: " in text
    assert "1 of 2 trials finished, 1 failed" in text


def test_a_list_of_methods(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    code, text, _ = call("compare", "--list")
    assert code == 0
    assert all(f"\n{name} " in f"\n{text}" for name in NAMES)
    squeezed = "".join(text.split())
    assert squeezed.count("convdkm[gp],installed") == 3
    assert "notinstalled" not in squeezed
    monkeypatch.setattr("convdkm.lab.baselines.methods.find_spec", lambda name: None)
    _, text, _ = call("compare", "--list")
    assert "".join(text.split()).count("convdkm[gp],notinstalled") == 3


def test_a_dry_run_says_what_fits_and_changes_nothing(call, tmp_path, bright, monkeypatch):
    monkeypatch.setattr(kernel_regression, "available_memory", lambda: 260 * 2**20)
    out = tmp_path / "out"
    command = ["compare", bright, "--methods", "nngp-linear,cnn", "--train-size", "30,700"]
    code, text, _ = call(*command, "--dry-run", "-o", out)
    assert code == 0
    assert "2 methods × 2 training sizes (30, 700) × 3 seeds, 12 trials" in text
    assert "nngp-linear, 30 images: about 0 s to fit" in text
    assert "nngp-linear, 700 images: refused: " in text
    assert "cnn, 700 images: fits" in text
    assert "more than the budget" not in text
    assert not out.exists()
    monkeypatch.setattr(NNGPKernel, "seconds_per_pair", lambda *_: 1.0)
    _, text, _ = call(*command[:4], "--train-size", 30, "--dry-run", "--test-size", 30, "-o", out)
    expected = "nngp-linear, 30 images: about 7 min 45 s to fit, 15 min 00 s to predict; refused"
    assert expected in text


def test_another_scale_is_refused_before_any_work(fail, tmp_path):
    made_up(tmp_path, ("cnn",), scale=DIGITS)
    message = fail("compare", "digits", "--methods", "cnn", "--budget", 3, "-o", tmp_path)
    assert "holds a comparison at another scale (minutes 10 and not 3)" in message
    message = fail("compare", "digits", "--whitening", "none", "-o", tmp_path)
    assert "whitening scale and not none" in message


def test_few_images_are_not_whitened_by_zca_unless_asked_for(call, tmp_path, here, bright):
    """Images of 4×4 have 16 values."""
    out = tmp_path / "out"
    command = ["compare", bright, "--methods", "nngp-linear", "--seeds", 1, "-f", "none"]
    code, text, err = call(*command, "--train-size", "15,20", "-o", out)
    assert code == 0
    assert "Warning: whitening standardise in place of zca: ZCA fitted to 15 images of 16" in err
    assert "Whitening standardise, preset quick" in text
    code, text, err = call(*command, "--train-size", 30, "-o", out)
    assert (code, "Warning" in err) == (0, False)
    assert ComparisonFolder(out).read().scale.whitening == "standardise"
    assert ComparisonFolder(out).read().plan == {"nngp-linear": {15: 1, 20: 1, 30: 1}}
    out = tmp_path / "insisted"
    code, text, err = call(*command, "--train-size", 15, "--whitening", "zca", "-o", out)
    assert code == 0
    assert "--whitening standardise does not" in err.replace("\n", " ")
    assert ComparisonFolder(out).read().scale.whitening == "zca"
    code, text, err = call(*command, "--train-size", 16, "-o", tmp_path / "enough")
    assert (code, "Warning" in err) == (0, False)
    assert "Whitening zca" in text


def test_training_and_comparing_whiten_alike(call, tmp_path, here, bright):
    """By ZCA where it fits, and not where images are few or large."""
    options = ["--test-size", 20, "--preset", "quick"]
    machine = ["--inducing", 4, "--blocks", 1, "--input-stride", 9, "--epochs", 1]
    sides = {(17, 4): "zca", (15, 4): "standardise", (30, 65): "standardise"}
    for (size, side), expected in sides.items():
        run, folder = tmp_path / f"run-{size}-{side}", tmp_path / f"comparison-{size}-{side}"
        more = [*options, "--train-size", size, "--image-size", side]
        code, _, err = call("train", bright, *more, *machine, "--strides", 1, "-o", run, "-q")
        assert code == 0, err
        baselines = ["--methods", "nngp-linear", "--seeds", 1, "-f", "none"]
        code, _, warned = call("compare", bright, *more, *baselines, "-o", folder)
        assert code == 0, warned
        assert RunConfig.from_file(run / "config.yaml").training.whitening == expected
        assert ComparisonFolder(folder).read().scale.whitening == expected
        for text in (err, warned):
            assert ("whitening standardise in place of zca" in text) == (expected != "zca")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["digits", "--methods", "mytrle5"], "Did you mean 'myrtle5'?"),
        (["digitz"], "did you mean 'digits'"),
        ([], "name a data set"),
        (["digits", "--train-size", "many"], "such as 500,1000, or all; got 'many'"),
        (["digits", "--train-size", "0"], "got '0'"),
        (["digits", "--train-size", "5000"], "asks for 5,000 images, and digits has 1,437"),
        (["digits", "--train-size", "5"], "less than one image for each of the 10 classes"),
        (["digits", "--seeds", "0"], "--seeds must be at least 1, got 0"),
        (["digits", "--threads", "0"], "--threads must be at least 1, got 0"),
        (["digits", "--cpus", "0"], "--threads must be at least 1, got 0"),
        (["digits", "--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["digits", "--launcher", "slrum"], "Did you mean 'slurm'?"),
        (["digits", "--budget", "0"], "--budget must be a positive number of minutes"),
        (["digits", "--budget", "nan"], "--budget must be a positive number of minutes"),
        (["digits", "--test-size", "0"], "test_size must be above 0, got 0"),
        (["digits", "--test-size", "9999"], "test_size is 9999"),
        (["digits", "--whitening", "zac"], "whitening must be 'auto', 'zca'"),
        (["digits", "--preset", "quik"], "Did you mean 'quick'?"),
        (["digits", "--format", "pdf"], "there is no format 'pdf'"),
        (["cifar10", "--data-dir", "/nowhere"], "/nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input(fail, tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    assert words in fail("compare", *options)
    assert not any(tmp_path.iterdir())


def test_curves_belong_to_sweeps(fail, tmp_path):
    made_up(tmp_path, ("cnn",))
    assert "belong to the tables of a sweep" in fail("tables", tmp_path, "--curves", "file.csv")
