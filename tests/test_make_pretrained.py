"""The script that makes pretrained machines of runs."""

import json
import runpy
from pathlib import Path

import pytest

import convdkm as dkm
from convdkm import pretrained
from convdkm.data import load_digits

ROOT = Path(__file__).parents[1]
main = runpy.run_path(str(ROOT / "scripts" / "make_pretrained.py"))["main"]
OPTIONS = {"inducing": (6, 8), "blocks": (1, 1), "train_size": 200, "test_size": 60}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "a"
    return dkm.fit("quick", "digits", folder=folder, epochs=2, **OPTIONS)


def test_file_card_and_entry_are_made_of_a_run(run, tmp_path, capsys):
    main([str(run.folder), "tiny", "--folder", str(tmp_path), "--notes", "Of few images."])
    assert capsys.readouterr().out.strip() == str(tmp_path / "tiny.safetensors")
    machine = pretrained.known(tmp_path)["tiny"]
    assert machine.figures == json.loads((run.folder / "metrics.json").read_text())
    images = load_digits().test_images
    loaded = dkm.load_pretrained("tiny", folder=tmp_path).predict(images)
    assert (loaded.probs - run.predict(images).probs).abs().max() < 2e-3
    card = (tmp_path / "tiny.md").read_text()
    for part in (
        machine.sha256,
        f"{run.metrics['test_accuracy']:.4f}",
        f"{run.metrics['parameters']:,}",
        "200 training images, 60 test images",
        "Of few images.",
        "Apache-2.0",
    ):
        assert part in card
    main([str(run.folder), "another", "--folder", str(tmp_path), "--storage", "float32"])
    assert {"tiny", "another"} <= pretrained.known(tmp_path).keys()


def test_what_cannot_be_published(run, tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match="a name is of small letters, digits and hyphens"):
        main([str(run.folder), "Tiny 1", "--folder", str(tmp_path)])
    monkeypatch.setitem(main.__globals__, "TOLERANCE", 0.0)
    with pytest.raises(SystemExit, match="--storage float32 is more precise"):
        main([str(run.folder), "tiny", "--folder", str(tmp_path)])
    (stopped := tmp_path / "stopped").mkdir()
    dkm.fit("quick", "digits", folder=stopped, epochs=2, stop=lambda: True, **OPTIONS)
    with pytest.raises(SystemExit, match="no final figures: finish it with convdkm resume"):
        main([str(stopped), "tiny", "--folder", str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["stopped"]


def test_the_card_has_the_command_without_places():
    command_of = main.__globals__["command_of"]
    words = "convdkm train cifar10 --data-dir /d -o /r --epochs 20 --output=/r -q --seed 1"
    assert command_of({"command": words.split()}) == "convdkm train cifar10 --epochs 20 --seed 1"
