"""The folder of a run: one writer, nothing of the user's touched, nothing that gets stuck."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
import torch
import yaml
from safetensors.torch import save_file

from convdkm.config import EARLIER, RunConfig
from convdkm.errors import InvalidInputError
from convdkm.presets import preset
from convdkm.training import MemorySink, Run, fit, resume
from convdkm.training.checkpoint import FILES
from convdkm.training.folder import MARKER, REPLACED, writing
from convdkm.training.session import prepared
from convdkm.training.world import World

TINY = {
    "inducing": (6,),
    "blocks": (1,),
    "epochs": 1,
    "batch_size": 30,
    "train_size": 60,
    "test_size": 30,
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    fit("quick", "digits", folder=folder, **TINY)
    return folder


@pytest.fixture
def copied(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def figures(folder):
    values = json.loads((folder / "metrics.json").read_text())
    return {name: value for name, value in values.items() if not name.endswith("seconds")}


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != MARKER
    }


# -- one writer --------------------------------------------------------------------------------


def test_a_second_writer_is_refused_and_told_who_the_first_is(copied):
    before = contents(copied)
    told = rf"is being written by process {os.getpid()} on .+ since 20.*; wait .* or stop it"
    with writing(copied, resuming=True):
        for attempt in (
            lambda: resume(copied, epochs=2),
            lambda: fit("quick", "digits", folder=copied, overwrite=True, **TINY),
        ):
            with pytest.raises(InvalidInputError, match=told):
                attempt()
        assert Run.open(copied).metrics, "readers are not held up"
    assert contents(copied) == before
    assert resume(copied, epochs=2).metrics["epochs"] == 2


def test_two_new_runs_do_not_share_a_folder(tmp_path):
    folder = tmp_path / "run"
    with (
        writing(folder),
        pytest.raises(InvalidInputError, match="is being written by process"),
    ):
        fit("quick", "digits", folder=folder, **TINY)


def test_the_lock_ends_with_its_process(tmp_path):
    folder = tmp_path / "run"
    hold = (
        "import os, signal, sys; from pathlib import Path;"
        "from convdkm.training.folder import writing\n"
        "with writing(Path(sys.argv[1])): os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", hold, str(folder)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (folder / MARKER).is_file()
    assert fit("quick", "digits", folder=folder, **TINY).metrics


def test_figures_of_another_state_than_the_checkpoint_are_left_out(copied):
    values = json.loads((copied / "metrics.json").read_text())
    (copied / "metrics.json").write_text(json.dumps({**values, "steps": values["steps"] + 5}))
    opened = Run.open(copied)
    assert opened.metrics == {}
    assert "the figures after step 7, and the checkpoint that was read is of step 2" in (
        opened.warning
    )


# -- overwriting -------------------------------------------------------------------------------


def test_overwriting_moves_aside_what_the_run_wrote_and_nothing_else(copied, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "last.safetensors").write_text("of another project")
    notes = {"notes.md": "years of work", "checkpoints/mine.txt": "mine", "plots/a.csv": "1"}
    for name, text in notes.items():
        (copied / name).parent.mkdir(exist_ok=True)
        (copied / name).write_text(text)
    (copied / "link").symlink_to(elsewhere)
    old = (copied / "checkpoints" / "last.safetensors").read_bytes()

    sink = MemorySink()
    again = {**TINY, "seed": 1}
    fit("quick", "digits", folder=copied, overwrite=True, sinks=[sink], **again)
    assert (copied / REPLACED / "checkpoints" / "last.safetensors").read_bytes() == old
    assert any(REPLACED in text for _, text in sink.messages)
    assert Run.open(copied / REPLACED).config.training.seed == 0
    assert Run.open(copied).config.training.seed == 1

    fit("quick", "digits", folder=copied, overwrite=True, **{**TINY, "seed": 2})
    assert Run.open(copied / REPLACED).config.training.seed == 1
    for name, text in notes.items():
        assert (copied / name).read_text() == text
    assert (copied / "link").is_symlink()
    assert (elsewhere / "last.safetensors").read_text() == "of another project"


def test_links_in_a_run_are_moved_and_not_followed(copied, tmp_path):
    big = tmp_path / "big disk"
    shutil.move(copied / "checkpoints", big)
    (copied / "checkpoints").symlink_to(big)
    (copied / "log.txt").unlink()
    (copied / "log.txt").symlink_to(big / "last.safetensors")
    before = contents(big)
    fit("quick", "digits", folder=copied, overwrite=True, **TINY)
    assert contents(big) == before
    assert (copied / REPLACED / "checkpoints").is_symlink()
    assert not (copied / "checkpoints").is_symlink()


def test_a_project_with_a_config_file_is_no_run(tmp_path):
    (tmp_path / "config.yaml").write_text("name: my project\n")
    (tmp_path / "checkpoints").mkdir()
    foreign = tmp_path / "checkpoints" / "last.safetensors"
    save_file({"weight": torch.zeros(2)}, foreign)
    before = contents(tmp_path)
    for overwrite in (False, True):
        with pytest.raises(InvalidInputError, match="does not hold a run"):
            fit("quick", "digits", folder=tmp_path, overwrite=overwrite, **TINY)
    assert contents(tmp_path) == before
    assert not (tmp_path / MARKER).exists()


def test_a_run_from_before_there_were_markers_is_one(copied):
    (copied / MARKER).unlink()
    with pytest.raises(InvalidInputError, match="--overwrite"):
        fit("quick", "digits", folder=copied, **TINY)
    assert resume(copied, epochs=2).metrics["epochs"] == 2
    (copied / MARKER).unlink()
    fit("quick", "digits", folder=copied, overwrite=True, **TINY)
    assert Run.open(copied / REPLACED).metrics["epochs"] == 2


def test_the_place_for_what_is_replaced_may_be_taken(copied):
    (copied / REPLACED).mkdir()
    (copied / REPLACED / "notes.md").write_text("mine")
    before = contents(copied)
    with pytest.raises(InvalidInputError, match=rf"{REPLACED} .* move it away"):
        fit("quick", "digits", folder=copied, overwrite=True, **TINY)
    assert contents(copied) == before


def test_a_failure_takes_back_what_it_began_and_nothing_else(tmp_path):
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "new", tmp_path / "empty"):
        with pytest.raises(InvalidInputError, match="cuda:17"):
            fit("quick", "digits", folder=folder, device="cuda:17", **TINY)
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


def test_a_failure_in_overwriting_leaves_the_old_run(copied):
    before = contents(copied)
    with pytest.raises(InvalidInputError, match="cuda:17"):
        fit("quick", "digits", folder=copied, overwrite=True, device="cuda:17", **TINY)
    assert contents(copied) == before


# -- killed before it began --------------------------------------------------------------------

KILLED = """
import os, signal, sys
from importlib import import_module
module = import_module("convdkm.training.{module}")
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
module.{name} = die
from convdkm import fit
fit("quick", "digits", folder=sys.argv[1], **{options})
"""


def killed_in(module, name, folder):
    """A run whose process died when it came to a function."""
    code = KILLED.format(module=module, name=name, options=TINY)
    done = subprocess.run([sys.executable, "-c", code, str(folder)], check=False)
    assert done.returncode == -signal.SIGKILL
    return folder


@pytest.mark.parametrize(
    ("module", "name"),
    [("session", "drawn"), ("session", "fitted_whitening"), ("loop", "Trainer.save")],
)
def test_a_run_killed_before_its_first_checkpoint_starts_anew(module, name, finished, tmp_path):
    folder = killed_in(module, name, tmp_path / "run")
    assert resume(folder).metrics
    assert figures(folder) == figures(finished)
    assert not list(folder.rglob("*.tmp"))


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_run_killed_while_its_settings_were_written_is_no_obstacle(overwrite, tmp_path):
    folder = killed_in("folder", "write_text", tmp_path / "run")
    (folder / ".config.yaml.4711.tmp").write_text("data:\n  data")
    (folder / "notes.md").write_text("mine")
    told = r"stopped before its settings were written.*start it again.*made by\n  -c .*run"
    with pytest.raises(InvalidInputError, match=re.compile(told, re.DOTALL)):
        resume(folder)
    assert fit("quick", "digits", folder=folder, overwrite=overwrite, **TINY).metrics
    assert not list(folder.rglob("*.tmp"))
    assert (folder / "notes.md").read_text() == "mine"


# -- settings ----------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["", "{}", "# all comments\n", None])
def test_without_settings_those_of_the_checkpoint_are_used(content, copied):
    (copied / "config.yaml").unlink()
    if content is not None:
        (copied / "config.yaml").write_text(content)
    reason = "is missing" if content is None else "is empty"
    opened = Run.open(copied)
    assert f"config.yaml {reason}; the settings are those of the checkpoint" in opened.warning
    assert opened.config.model.inducing == (6,)
    assert opened.config.data.train_size == 60
    sink = MemorySink()
    assert resume(copied, epochs=2, sinks=[sink]).metrics["train_images"] == 60
    assert any("config.yaml" in text for level, text in sink.messages if level == "warning")
    assert RunConfig.from_file(copied / "config.yaml").training.epochs == 2


def test_the_machine_is_the_one_that_was_trained(copied):
    path = copied / "config.yaml"
    path.write_text(path.read_text().replace("jitter: ", "jitter: 1"))
    opened = Run.open(copied)
    assert "another machine than the checkpoint (jitter)" in opened.warning
    kept = RunConfig.of(opened.config.model_dump())
    assert kept.model.jitter == pytest.approx(RunConfig().model.jitter)


def in_earlier_form(settings):
    """Settings as earlier versions wrote them: part of the recipe stood with the data."""
    moved = {name: settings["training"].pop(name) for name in EARLIER}
    return {**settings, "data": {**settings["data"], **moved}}


def test_a_run_of_an_earlier_version_is_opened_and_resumed(copied, finished, tmp_path):
    path = copied / "config.yaml"
    path.write_text(yaml.safe_dump(in_earlier_form(yaml.safe_load(path.read_text()))))
    for place in (copied / "checkpoints").glob("*.safetensors"):
        tensors, description = FILES.read(place)
        earlier = {**description, "config": in_earlier_form(description["config"])}
        FILES.write(place, tensors, earlier)
    now, before = Run.open(finished), Run.open(copied)
    assert before.warning is None
    assert before.config == now.config
    again = shutil.copytree(finished, tmp_path / "again")
    resumed = [resume(folder, epochs=2).model.state_dict() for folder in (copied, again)]
    assert all(torch.equal(value, resumed[1][name]) for name, value in resumed[0].items())


def test_a_session_that_is_prepared_has_not_begun():
    session = prepared(preset("quick").config("digits", **TINY), None, World())
    assert (session.result.step, session.result.metrics) == (0, {})
    before = {name: value.clone() for name, value in session.result.model.state_dict().items()}
    run = session.run()
    assert run is session.result
    assert run.step == 2
    assert any(
        not torch.equal(value, before[name]) for name, value in run.model.state_dict().items()
    )
