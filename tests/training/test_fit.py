"""fit, resume and Run: in memory and as a folder."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

import convdkm as dkm
from convdkm.config import RunConfig
from convdkm.data import Dataset, load_digits
from convdkm.errors import InvalidInputError
from convdkm.training import CheckpointStore, MemorySink, Run, fit, resume
from convdkm.training.environment import environment, git_state
from convdkm.training.sinks import read_csv
from run_figures import without_clocks

TINY = {
    "inducing": (6, 8),
    "blocks": (1, 1),
    "epochs": 2,
    "batch_size": 30,
    "train_size": 90,
    "test_size": 40,
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "a"
    return fit("quick", "digits", folder=folder, **TINY)


def test_the_folder_can_be_read(kept):
    names = {path.name for path in kept.folder.iterdir()}
    assert {
        "config.yaml",
        "environment.json",
        "metrics.json",
        "steps.csv",
        "epochs.csv",
        "layers.csv",
        "log.txt",
        "checkpoints",
    } <= names
    assert RunConfig.from_file(kept.folder / "config.yaml") == kept.config
    metrics = json.loads((kept.folder / "metrics.json").read_text())
    for part in ("test", "train"):
        for name in ("accuracy", "log_likelihood", "brier", "ece"):
            assert f"{part}_{name}" in metrics
    assert metrics["steps"] == 6
    assert metrics["seconds"] > 0
    assert len(read_csv(kept.folder / "steps.csv")) == 6
    assert len(read_csv(kept.folder / "epochs.csv")) == 2
    made = json.loads((kept.folder / "environment.json").read_text())
    assert made["packages"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert {"python", "platform", "command", "git"} <= made.keys()


@pytest.mark.parametrize("content", ["{", '{"test_accuracy": ', "[1]"])
def test_a_run_with_damaged_figures_opens_and_says_so(kept, tmp_path, content):
    folder = tmp_path / "run"
    shutil.copytree(kept.folder, folder)
    (folder / "metrics.json").write_text(content)
    opened = Run.open(folder)
    assert opened.metrics == {}
    assert "metrics.json" in opened.warning
    assert Run.open(kept.folder).warning is None


def test_a_run_opens_to_the_same_predictions(kept):
    opened = Run.open(kept.folder)
    images = load_digits().test_images[:50]
    before, after = kept.predict(images), opened.predict(images)
    assert torch.equal(before.log_probs, after.log_probs)
    assert opened.metrics == kept.metrics
    assert opened.class_names == tuple("0123456789")
    assert opened.image_shape == (1, 8, 8)
    assert opened.step == 6


def test_predictions_do_not_depend_on_the_batch(kept):
    images = load_digits().test_images[:20]
    whole = kept.predict(images)
    one = kept.predict(images, batch_size=1)
    torch.testing.assert_close(one.log_probs, whole.log_probs, rtol=1e-4, atol=1e-5)


def test_images_as_bytes_arrays_and_tensors(kept):
    bytes_ = (load_digits().test_images[:5] * 255).round().to(torch.uint8)
    expected = kept.predict(bytes_.float() / 255).log_probs
    assert torch.equal(kept.predict(bytes_).log_probs, expected)
    assert torch.equal(kept.predict(bytes_.numpy()).log_probs, expected)
    with pytest.raises(InvalidInputError, match=r"shape \(1, 8, 8\), got \(1, 9, 9\)"):
        kept.predict(torch.zeros(2, 1, 9, 9))
    with pytest.raises(InvalidInputError, match="no images"):
        kept.predict(torch.zeros(0, 1, 8, 8))


def test_in_memory_equals_on_disk(kept):
    sink = MemorySink()
    run = fit("quick", "digits", sinks=[sink], **TINY)
    assert run.folder is None
    assert without_clocks(run.metrics) == without_clocks(kept.metrics)
    assert len(sink.epochs) == 2


def test_the_seed_matters(kept):
    other = fit("quick", "digits", seed=1, **TINY)
    assert without_clocks(other.metrics) != without_clocks(kept.metrics)


def require_same(folder, whole):
    """A run that was stopped and went on has left what one has that never was."""
    for name in ("steps.csv", "epochs.csv"):
        ours, theirs = read_csv(folder / name), read_csv(whole / name)
        assert list(map(without_clocks, ours)) == list(map(without_clocks, theirs))
    assert (folder / "layers.csv").read_text() == (whole / "layers.csv").read_text()
    metrics = [json.loads((each / "metrics.json").read_text()) for each in (folder, whole)]
    assert without_clocks(metrics[0]) == without_clocks(metrics[1])
    models = [
        CheckpointStore(each / "checkpoints").load()[0].part("model") for each in (folder, whole)
    ]
    assert all(torch.equal(value, models[1][name]) for name, value in models[0].items())


def test_stop_and_resume(kept, tmp_path):
    sink = MemorySink()
    stopped = fit(
        "quick",
        "digits",
        folder=tmp_path / "b",
        sinks=[sink],
        stop=lambda: len(sink.steps) == 2,
        **TINY,
    )
    assert stopped.metrics == {}
    assert stopped.step == 2
    assert not (tmp_path / "b" / "metrics.json").exists()
    resume(tmp_path / "b")
    require_same(tmp_path / "b", kept.folder)


OFTEN = {**TINY, "evaluate_every": 1, "evaluation_batch": 10, "validation": 0.1, "calibrate": 50}


@pytest.fixture(scope="module")
def often(tmp_path_factory):
    """A run that is evaluated after every epoch, a few images at a time."""
    sink = MemorySink()
    run = fit("quick", "digits", folder=tmp_path_factory.mktemp("o") / "o", sinks=[sink], **OFTEN)
    assert ("info", "scoring 40 test, 81 training, 9 validation images") in sink.messages
    for part, count in (("test", 40), ("training", 81), ("validation", 9)):
        done = [work[1:] for work in sink.work if work[0] == f"scoring {part} images"]
        whole = [(min(n, count), count) for n in range(0, count + 10, 10)]
        assert done[-len(whole) :] == whole
    return run.folder


@pytest.mark.parametrize(
    "moment",
    [("validation", 1), ("test", 1), ("validation", 2), ("test", 2), ("test", 3), ("training", 1)],
    ids=lambda moment: f"{moment[0]} {moment[1]}",
)
def test_scoring_stops_within_a_batch_and_is_made_up_for(often, tmp_path, moment):
    """After either epoch, and after the last step, whose scores all come once more."""
    part, time = moment
    folder, sink = tmp_path / "run", MemorySink()

    def asked():
        begun = [done for what, done, _ in sink.work if what == f"scoring {part} images"]
        return begun.count(0) >= time and begun[-1] > 0

    stopped = fit("quick", "digits", folder=folder, sinks=[sink], stop=asked, **OFTEN)
    then = "scoring test images", 0, 40  # the next are not begun
    assert sink.work[-1][1] == 10 or (part == "validation" and sink.work[-1] == then)
    assert stopped.metrics == {}
    assert stopped.step == 3 * min(time, 2) if part != "training" else 6
    assert not (folder / "metrics.json").exists()
    again = MemorySink()
    resume(folder, sinks=[again], stop=lambda: len(again.work) > 1)  # stopped there once more
    assert again.infos[0].first_step == stopped.step
    assert not again.steps
    resume(folder, sinks=[again])
    assert {level for level, _ in again.messages} == {"info"}
    require_same(folder, often)


def test_an_epoch_that_was_noted_but_not_saved_is_noted_once(often, tmp_path, monkeypatch):
    """The program was stopped in an evaluation, went on, and ended before it could save."""
    folder, sink = tmp_path / "run", MemorySink()
    options = {"folder": folder, "sinks": [sink], "stop": lambda: bool(sink.work), **OFTEN}
    fit("quick", "digits", **options)

    def killed(*_, as_best=False):
        if not as_best:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointStore, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            resume(folder)
    assert len(read_csv(folder / "epochs.csv")) == 1
    resume(folder)
    require_same(folder, often)


def test_resuming_a_finished_run_trains_no_more(kept):
    sink = MemorySink()
    again = resume(kept.folder, sinks=[sink])
    assert sink.steps == []
    assert without_clocks(again.metrics) == without_clocks(kept.metrics)


def test_a_checkpoint_cut_in_half(kept, tmp_path):
    folder = tmp_path / "c"
    shutil.copytree(kept.folder, folder)
    last = folder / "checkpoints" / "last.safetensors"
    last.write_bytes(last.read_bytes()[:1000])
    opened = Run.open(folder)
    assert "going back to the checkpoint before it" in opened.warning
    sink = MemorySink()
    resumed = resume(folder, sinks=[sink])
    assert "last.safetensors" in str(sink.messages[0])
    assert without_clocks(resumed.metrics) == without_clocks(kept.metrics)


def test_a_folder_in_use_is_not_touched(kept, tmp_path):
    before = (kept.folder / "steps.csv").read_bytes()
    with pytest.raises(InvalidInputError, match=r"is not empty.*convdkm resume"):
        fit("quick", "digits", folder=kept.folder, **TINY)
    assert (kept.folder / "steps.csv").read_bytes() == before
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InvalidInputError, match="does not hold a run"):
        fit("quick", "digits", folder=tmp_path, overwrite=True, **TINY)
    assert (tmp_path / "thesis.tex").exists()
    with pytest.raises(InvalidInputError, match="is a file"):
        fit("quick", "digits", folder=tmp_path / "thesis.tex", **TINY)


def test_overwrite(tmp_path):
    fit("quick", "digits", folder=tmp_path / "d", **{**TINY, "epochs": 1})
    run = fit("quick", "digits", folder=tmp_path / "d", overwrite=True, **{**TINY, "epochs": 2})
    assert len(read_csv(run.folder / "epochs.csv")) == 2


def test_a_failure_at_the_start_leaves_no_folder(tmp_path):
    with pytest.raises(InvalidInputError, match="did you mean 'mnist'"):
        fit("quick", "mnits", folder=tmp_path / "e", **TINY)
    with pytest.raises(InvalidInputError, match="device 'cuda:17'"):
        fit("quick", "digits", folder=tmp_path / "e", device="cuda:17", **TINY)
    with pytest.raises(InvalidInputError, match=r"2 stages.*but 3 blocks"):
        fit("quick", "digits", folder=tmp_path / "e", **{**TINY, "blocks": (1, 1, 1)})
    assert not (tmp_path / "e").exists()


def arrays():
    digits = load_digits()
    return (
        digits.train_images[:60].numpy(),
        digits.train_labels[:60].numpy(),
        digits.test_images[:30].numpy(),
        digits.test_labels[:30].numpy(),
    )


SMALL = {"inducing": (6, 8), "blocks": (1, 1), "epochs": 1, "batch_size": 30}


def test_data_from_python():
    train_images, train_labels, test_images, test_labels = arrays()
    four = fit("quick", (train_images, train_labels, test_images, test_labels), **SMALL)
    assert four.metrics["test_images"] == 30
    pair = fit("quick", (train_images, train_labels), **SMALL)
    assert pair.metrics["train_images"] + pair.metrics["test_images"] == 60
    tensors = torch.utils.data.TensorDataset(
        torch.from_numpy(train_images), torch.from_numpy(train_labels)
    )
    assert fit("quick", tensors, **SMALL).metrics["train_images"] == pair.metrics["train_images"]
    with pytest.raises(InvalidInputError, match="data must be a name"):
        fit("quick", 3)


def test_string_labels():
    train_images, train_labels, *_ = arrays()
    names = np.array(["zero", "one", "two"])
    chosen = train_labels < 3
    run = fit("quick", (train_images[chosen], names[train_labels[chosen]]), **SMALL)
    assert set(run.class_names) == {"zero", "one", "two"}


def test_validation_chooses_the_best(tmp_path):
    options = {**TINY, "validation": 0.2, "evaluate_every": 1}
    run = fit("quick", "digits", folder=tmp_path / "f", **options)
    assert run.metrics["train_images"] == 72
    assert "validation_log_likelihood" in run.metrics
    rows = read_csv(tmp_path / "f" / "epochs.csv")
    scores = [row["validation_log_likelihood"] for row in rows]
    best = Run.open(tmp_path / "f", "best")
    assert best.step == 3 * (1 + scores.index(max(scores)))


def own_machine():
    body = dkm.Sequential(
        dkm.ArcCosine(), dkm.Conv(6, 6, 3), dkm.GramLayer(6), dkm.Norm(), dkm.GlobalAveragePool()
    )
    return dkm.DeepKernelMachine(dkm.PatchInput(1, 6), body, dkm.GPHead(6, 10), dkm.Categorical(10))


def test_a_machine_of_ones_own(tmp_path):
    sink = MemorySink()
    options = {"epochs": 2, "train_size": 60, "test_size": 30, "batch_size": 30}
    run = fit(
        own_machine(),
        load_digits(),
        folder=tmp_path / "g",
        sinks=[sink],
        stop=lambda: len(sink.steps) == 1,
        **options,
    )
    assert run.step == 1
    with pytest.raises(InvalidInputError, match="of your own"):
        Run.open(tmp_path / "g")
    with pytest.raises(InvalidInputError, match="of your own"):
        resume(tmp_path / "g")
    done = resume(tmp_path / "g", data=load_digits(), model=own_machine())
    assert done.metrics["steps"] == 4
    images = load_digits().test_images[:5]
    opened = Run.open(tmp_path / "g", model=own_machine())
    assert torch.equal(opened.predict(images).log_probs, done.predict(images).log_probs)


@pytest.mark.parametrize(
    "options",
    [
        {"likelihood": "gaussian"},
        {"top": "linear+mix"},
        {"nu": float("inf")},
        {"precision": "float64"},
        {"precision": "bfloat16", "optimiser": "muon"},
        {"whitening": "zca", "inducing_patches": "raw"},
        {"whitening": "zca-paper", "augment": "before-whitening"},
        {"whitening": "standardise", "inducing_patches": "standardised"},
        {"statistics": "batch", "centre": "none"},
        {"centre": True},
    ],
    ids=str,
)
def test_variants_train_and_open(tmp_path, options):
    run = fit("quick", "digits", folder=tmp_path / "h", **{**TINY, "epochs": 1, **options})
    opened = Run.open(tmp_path / "h")
    images = load_digits().test_images[:10]
    assert torch.equal(opened.predict(images).log_probs, run.predict(images).log_probs)
    assert 0 <= run.metrics["test_accuracy"] <= 1


def test_bfloat16_is_for_the_products_of_training():
    exact, mixed = (
        fit("quick", "digits", **TINY | {"epochs": 1}, precision=precision)
        for precision in ("float32", "bfloat16")
    )
    assert mixed.model.dtype == torch.float32
    assert mixed.metrics != exact.metrics
    assert mixed.metrics["train_log_likelihood"] == pytest.approx(
        exact.metrics["train_log_likelihood"], abs=0.1
    )
    images = load_digits().test_images[:5]
    assert mixed.predict(images).probs.dtype == exact.predict(images).probs.dtype


@pytest.mark.parametrize(
    ("known", "precision"),
    [({"amx_bf16": True}, "bfloat16"), ({"avx512_bf16": True}, "bfloat16"), ({}, "float32")],
)
def test_automatic_precision_goes_by_the_processor(monkeypatch, known, precision):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known, raising=False)
    options = TINY | {"epochs": 1, "device": "cpu", "optimiser": "muon"}
    options["inducing_choice"] = "distinct"
    asked, automatic = (
        fit("quick", "digits", **options, precision=each) for each in (precision, "auto")
    )
    for name in ("train_log_likelihood", "test_log_likelihood"):
        assert automatic.metrics[name] == asked.metrics[name]


@pytest.mark.parametrize("preset", ["paper", "paper-benchmark", "published", "skr"])
def test_the_papers_presets_run(preset):
    run = fit(preset, "digits", inducing=(6, 8, 10), epochs=1, train_size=60, test_size=20)
    assert run.metrics["steps"] == 1
    assert run.model.likelihood.samples == 1000
    assert run.config.training.betas == (0.8, 0.9)


def test_shapes_from_data_survive_a_stop(tmp_path):
    """Parameters that have no shape before data is seen are in the optimiser of a resumed run."""
    options = {**TINY, "data_scale": "location", "top": "linear"}
    sink = MemorySink()
    stop = {"sinks": [sink], "stop": lambda: len(sink.steps) == 2}
    fit("quick", "digits", folder=tmp_path / "i", **stop, **options)
    done = resume(tmp_path / "i")
    assert without_clocks(done.metrics) == without_clocks(fit("quick", "digits", **options).metrics)


def test_not_a_run(tmp_path):
    with pytest.raises(InvalidInputError, match="does not exist"):
        Run.open(tmp_path / "nowhere")
    with pytest.raises(InvalidInputError, match=r"has no config\.yaml"):
        resume(tmp_path)


def test_environment(tmp_path):
    assert git_state(tmp_path) is None
    assert json.dumps(environment())


@pytest.mark.parametrize(("size", "warned"), [(60, True), (64, False)])
def test_zca_of_too_few_images_is_warned_of(size, warned):
    sink = MemorySink()
    options = {**TINY, "epochs": 1, "train_size": size, "whitening": "zca"}
    fit("quick", "digits", sinks=[sink], **options)
    text = "ZCA fitted to 60 images of 64 values makes test images unlike them; --whitening"
    assert any(message.startswith(text) for _, message in sink.messages) is warned


@pytest.mark.parametrize(
    ("size", "side", "chosen", "why"),
    [
        (60, 8, "standardise", "60 images of 64 values"),
        (64, 8, "zca", None),
        (80, 65, "standardise", "4,225 values (all channels)"),
    ],
)
def test_the_whitening_that_fits_is_chosen_said_and_written_down(size, side, chosen, why, tmp_path):
    folder, sink = tmp_path / "run", MemorySink()
    random = np.random.default_rng(0)
    images = random.random((size, side, side), dtype=np.float32)
    data = (images, np.arange(size) % 2, images[:10], np.arange(10) % 2)
    options = {"inducing": 4, "blocks": 1, "input_stride": 8 if side > 8 else 1, "epochs": 1}
    run = fit("quick", data, folder=folder, sinks=[sink], **options)
    assert run.config.training.whitening == chosen
    assert RunConfig.from_file(folder / "config.yaml").training.whitening == chosen
    said = [text for _, text in sink.messages if "in place of zca" in text]
    assert len(said) == (why is not None)
    assert all(why in text for text in said)
    (folder / "metrics.json").unlink()
    again = resume(folder, data=data)
    assert type(again.whitening) is type(run.whitening)
    assert without_clocks(again.metrics) == without_clocks(run.metrics)


def test_zca_of_images_that_are_too_large_is_refused_before_any_work(tmp_path, monkeypatch):
    def work(*_):
        raise AssertionError("eigenvectors are asked for")

    monkeypatch.setattr(torch.linalg, "eigh", work)
    images, labels = np.zeros((4, 64, 64, 3), dtype=np.uint8), np.arange(4) % 2
    data, folder = (images, labels, images, labels), tmp_path / "run"
    with pytest.raises(InvalidInputError, match=r"12,288 values.*8,192.*--whitening standardise"):
        fit("quick", data, folder=folder, whitening="zca")
    assert not folder.exists()


def test_whole_data_sets_are_whitened_as_in_training(kept):
    data = load_digits().subset(90, 40)
    assert isinstance(data, Dataset)
    figures = kept.evaluate(data.test_images, data.test_labels)
    assert figures["accuracy"] == kept.metrics["test_accuracy"]
    assert figures["log_likelihood"] == kept.metrics["test_log_likelihood"]


def test_resuming_with_other_data_is_refused(kept, tmp_path):
    other = replace(load_digits(), class_names=tuple("abcdefghij"))
    with pytest.raises(InvalidInputError, match="90 training images now of another class"):
        resume(kept.folder, data=other)
    shutil.copytree(kept.folder, tmp_path / "older")
    (tmp_path / "older" / "split.json").unlink()
    with pytest.raises(InvalidInputError, match="not what this run was trained on: class_names"):
        resume(tmp_path / "older", data=other)


def test_a_run_on_arrays_goes_on_with_its_split(tmp_path):
    """Whatever was added to them since, and wherever; but not with other labels."""
    images, labels = load_digits().train_images, load_digits().train_labels
    data = (images[:150], labels[:150])
    options = {**TINY, "train_size": None, "test_size": None, "validation": 0.1}
    whole = fit("quick", data, folder=tmp_path / "whole", **options)
    sink = MemorySink()
    options |= {"sinks": [sink], "stop": lambda: len(sink.steps) == 2}
    fit("quick", data, folder=tmp_path / "run", **options)
    more, their_labels = images[:170].flip(0), labels[:170].flip(0)
    with pytest.raises(InvalidInputError, match="training images now of another class"):
        resume(tmp_path / "run", data=(more, 9 - their_labels))
    resumed = resume(tmp_path / "run", data=(more, their_labels), sinks=[sink])
    assert without_clocks(resumed.metrics) == without_clocks(whole.metrics)
    assert any("20 images added" in text for _, text in sink.messages)


def test_the_data_set_of_a_configuration(kept):
    options = {"epochs": 1}
    assert fit(kept.config, **options).config.data.dataset == "digits"
    assert fit(kept.config, load_digits(), **options).metrics["train_images"] == 90
    assert fit("quick", "Digits", **{**TINY, **options}).config.training.calibrate == 2048
