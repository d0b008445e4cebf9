"""``show``: the machine of a run, and one at its start, with the instruments of its layers."""

import csv
import json
import shutil

import pytest
from cli_helpers import QUICK, TINY, call, fail, succeed

from convdkm.cli.output import console
from convdkm.cli.show import machine_table
from convdkm.insight import Reading
from convdkm.insight.summary import LayerSummary
from convdkm.training import Run
from convdkm.training.sinks import read_layers

LAST = "body.stage2.block1.body.second.gram"


def rows(out):
    """The numbers in the table, by layer and column; they end where the names of columns do."""
    lines = out.splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("layer "))
    head, table, block = lines[start], {}, ""
    names = [name for name in head.split() if name not in ("layer", "kind")]
    for line in lines[start + 2 :]:
        if not line.strip():
            break
        inside = line.startswith("  ")
        if not inside and len(line.split()) == 1 and line.strip() != "likelihood":
            block = line.strip()
            continue
        layer = f"{block}.{line.split()[0]}" if inside else line.split()[0]
        padded = line.ljust(len(head))
        cells = {name: padded[: head.index(name) + len(name)] for name in names}
        table[layer] = {name: cell.split(" ")[-1] for name, cell in cells.items()}
    return table


@pytest.fixture
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def copy(digits_run, tmp_path):
    return shutil.copytree(digits_run, tmp_path / "run")


def test_the_machine_layer_by_layer(digits_run, wide):
    final = json.loads((digits_run / "metrics.json").read_text())
    out = succeed("show", digits_run).out
    lines = [line.rstrip() for line in out.splitlines()]
    for block in ("stem", "stage1.block1", "stage2.block1"):
        assert block in lines
    gram = next(line for line in lines if line.startswith("  second.gram")).split()
    assert gram[:4] == ["second.gram", "GramLayer", "8", "8×8"]
    total = next(line for line in lines if line.startswith("all ")).split()
    assert total[1] == f"{final['parameters']:,}"
    assert f"{final['test_accuracy']:.2%}" in out


@pytest.mark.parametrize("width", [80, 100, 120])
def test_no_cell_takes_two_lines(digits_run, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    out = succeed("show", digits_run).out
    assert max(len(line.rstrip()) for line in out.splitlines()) <= width
    assert "…" not in out
    assert "  shortcut.norm " in out
    assert ("GlobalAveragePool" in out) == (width == 120)
    assert ("parameters" in out) == (width >= 100)


def test_the_instruments_are_those_that_training_noted(digits_run, wide):
    out = succeed("show", digits_run).out
    shown, noted = rows(out), read_layers(digits_run / "layers.csv")
    assert sorted(noted) == [0, 1, 2]
    last = noted[2][LAST]
    assert shown["stage2.block1.second.gram"] == {
        "P_i": "8",
        "space": "4×4",
        "parameters": "64",
        "ν": "0.01",
        "KL": f"{last['kl']:.2f}",
        "explained": f"{last['explained']:.1%}",
        "spread": f"{last['spread']:.2g}",
        "gradient": f"{last['gradient']:.1e}",
    }
    for layer in ("input", "head"):
        assert shown[layer]["gradient"] == f"{noted[2][layer]['gradient']:.1e}"
    assert shown["input"]["explained"] == shown["input"]["spread"] == ""
    assert shown["head"]["explained"] == f"{noted[2]['head']['explained']:.1%}"
    assert shown["head"]["spread"] == f"{noted[2]['head']['spread']:.2g}"
    assert "Gradients are those of the last step of epoch 2." in out
    reading = Run.open(digits_run).readings()[LAST]
    assert reading.kl == pytest.approx(last["kl"])
    assert reading.spread is None


def test_without_images_the_rest_is_shown(copy, tmp_path, wide):
    out = succeed("show", copy, "--no-data").out
    assert "explained" not in out
    assert rows(out)["stem.gram"]["gradient"]
    config = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(config.replace("dataset: digits", "dataset: cifar10"))
    out = succeed("show", copy, "--data-dir", tmp_path).out
    (line,) = [line for line in out.splitlines() if "CIFAR-10" in line]
    assert line.startswith("Without explained and spread, which need the images: CIFAR-10 not")
    assert line.endswith("or name the folder that holds it with --data-dir or CONVDKM_DATA.")
    assert "explained" not in rows(out)["stem.gram"]
    assert rows(out)["stem.gram"]["KL"]
    (copy / "config.yaml").write_text(config.replace("image_size: null", "image_size: 10"))
    assert "(1, 10, 10)" in succeed("show", copy).out


def test_a_run_of_before_the_instruments(copy, wide):
    noted = read_layers(copy / "layers.csv")
    with (copy / "layers.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["epoch", "layer", "kl"])
        for epoch in (1, 2):
            for layer, values in noted[epoch].items():
                if "kl" in values:
                    writer.writerow([epoch, layer, values["kl"]])
    old = (copy / "layers.csv").read_text().splitlines()
    out = succeed("show", copy).out
    assert "gradient" not in out.lower()
    assert rows(out)["stem.gram"]["explained"]
    succeed("report", copy, "--no-data")

    succeed("resume", copy, "--epochs", 3, "-q")
    layers = read_layers(copy / "layers.csv")
    assert sorted(layers) == [1, 2, 3]
    assert layers[3][LAST].keys() == noted[2][LAST].keys()
    new = (copy / "layers.csv").read_text().splitlines()
    assert new[0].startswith("epoch,layer,kl,")
    assert [line.rstrip(",") for line in new[1 : len(old)]] == old[1:]
    (copy / "layers.csv").write_text("epoch,layer,kl\n1,body\n2,body,3\n")
    assert "is damaged: line 2 of" in succeed("show", copy).out


# -- at the start ----------------------------------------------------------------------------------


def test_a_machine_at_its_start_is_that_with_which_a_run_begins(arrays, tmp_path, wide):
    folder = tmp_path / "run"
    succeed("train", arrays, *QUICK, *TINY, "--epochs", 1, "-o", folder, "-q")
    noted = read_layers(folder / "layers.csv")[0]
    given = [text.removeprefix("--") for text in TINY]
    options = [part for text in given for part in ("--set", text)]
    options += ["--preset", "quick", "--set", "whitening=none", "--set", "crop=1"]
    out = succeed("show", arrays, *options).out
    assert out.startswith(
        f"{arrays}: 3 classes, images 1×8×8, whitening none; preset quick, at its"
    )
    shown = rows(out)
    for name, values in noted.items():
        layer = name.removeprefix("body.").replace(".body.", ".")
        assert shown[layer]["gradient"] == f"{values['gradient']:.1e}"
        if "spread" in values:
            assert shown[layer]["spread"] == f"{values['spread']:.2g}"
            assert shown[layer]["explained"] == f"{values['explained']:.1%}"
    assert shown["stem.norm"]["gradient"] == ""


def test_a_known_data_set_needs_no_preset(tmp_path):
    out = succeed("show", "digits", "--set", "train_size=60", "--set", "inducing=6").out
    assert "preset quick, at its start" in out
    file = tmp_path / "small.yaml"
    file.write_text("train_size: 60\ninducing: [5]\n")
    assert rows(succeed("show", "digits", "--config", file).out)["input"]["P_i"] == "5"


def test_what_cannot_be_shown_is_said(digits_run, tmp_path):
    assert "'quick'" in fail("show", "digits", "--preset", "quik")
    assert "is a run, which has settings of its own: --preset" in fail(
        "show", digits_run, "--preset", "quick"
    )
    assert "--set needs NAME=VALUE" in fail("show", "digits", "--set", "inducing")
    assert "inducing is given twice" in fail(
        "show", "digits", "--set", "inducing=4", "--set", "inducing=5"
    )
    assert "go with a run" in fail("show", "digits", "--checkpoint", "best")
    assert "go with a run" in fail("show", "digits", "--no-data")
    assert "there is no data set or path" in fail("show", tmp_path / "x", "--preset", "quick")
    missing = call("show", "cifar10", "--data-dir", tmp_path)
    assert missing.code == 1
    assert missing.err.startswith("Error: CIFAR-10 not found.")


# -- the table -------------------------------------------------------------------------------------

LARGE = [
    ("stage3.block3", "shortcut.centre", "Centre", 2048, (32, 32), 0, None, None),
    ("stage3.block3", "second.kernel.0", "Noise", 2048, (32, 32), 0, None, None),
    ("stage3.block3", "second.gram", "GramLayer", 2048, (32, 32), 4_194_304, 0.01, 123456.7),
    ("", "pool", "GlobalAveragePool", 2048, (), 0, None, None),
]


@pytest.mark.parametrize(("without", "read", "width"), [((), False, 80), (("kind",), True, 100)])
def test_a_large_machine_fits(monkeypatch, without, read, width):
    monkeypatch.setenv("COLUMNS", str(width))
    layers = [
        LayerSummary(f"body.{block}.{part}", block, part, *rest) for block, part, *rest in LARGE
    ]
    gram = layers[2].name
    seen = {gram: Reading(123456.7, 1.0, 123455.7, 0.99999, 1.234e-5)} if read else {}
    screen = console()
    with screen.capture() as captured:
        screen.print(machine_table(layers, seen, {gram: 1.2e-10} if read else {}, without))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) == 2 + 1 + len(layers) + 2, "no cell takes two lines"
    assert "123457" in captured.get()
    assert ("1.2e-05" in captured.get()) == read
