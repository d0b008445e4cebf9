"""``convdkm verify``: runs, exported files and kernels on disk, whole, old and damaged."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from cli_helpers import call, fail, succeed

from convdkm.lab.baselines.kernels import NNGPKernel, plain
from convdkm.lab.baselines.kernels.store import KernelStore
from convdkm.storage import digests
from damage import cut, flipped_bits, rewrite

TABLES = ("steps.csv", "epochs.csv", "layers.csv")
RUN = ("config.yaml", "split.json", "environment.json", "metrics.json", *TABLES)
CHECKPOINTS = tuple(f"checkpoints/{name}.safetensors" for name in ("last", "previous", "best"))


@pytest.fixture
def run(digits_run, tmp_path) -> Path:
    return shutil.copytree(digits_run, tmp_path / "run")


@pytest.fixture(scope="module")
def exported(digits_run, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    for ending in ("safetensors", "onnx", "pt2"):
        succeed("export", digits_run, folder / f"digits.{ending}")
    return folder


def states(*paths) -> tuple[int, dict[str, str]]:
    """The exit code, and what is said of each file."""
    outcome = call("verify", *paths)
    assert outcome.err == ""
    lines = [line.split(": ", 1) for line in outcome.out.splitlines()]
    return outcome.code, {Path(name).name: state for name, state in lines}


def test_a_run_that_is_whole(run):
    code, found = states(run)
    assert code == 0
    assert set(found) == {Path(name).name for name in (*RUN, *CHECKPOINTS)}
    for name in CHECKPOINTS:
        assert found[Path(name).name] == "ok"
    assert all(found[name].startswith("readable") for name in RUN)
    assert found["steps.csv"] == "readable (6 steps)"


def test_a_file_of_a_run_alone(run):
    assert states(run / CHECKPOINTS[0]) == (0, {"last.safetensors": "ok"})


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_flipped_bit_in_a_checkpoint(run, name):
    for _ in flipped_bits(run / name, 2):
        code, found = states(run)
        assert code == 1
        assert found.pop(Path(name).name).startswith("damaged (")
        assert not [state for state in found.values() if state.startswith("damaged")]


def test_a_run_of_an_older_version(run):
    for name in CHECKPOINTS:
        rewrite(run / name)
    code, found = states(run)
    assert code == 0
    assert found["last.safetensors"].startswith("no digest (written by an older version")


def test_tensors_that_are_missing(run):
    rewrite(run / CHECKPOINTS[0], lambda _, tensors: tensors.pop("optimiser.0.exp_avg"))
    rewrite(run / CHECKPOINTS[1], lambda _, tensors: tensors.pop("model.head.mean"))
    code, found = states(run)
    assert code == 1
    assert "does not fit parameter" in found["last.safetensors"]
    assert "does not belong to these settings" in found["previous.safetensors"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.yaml", "model: [", "is not YAML"),
        ("config.yaml", "epochs: many", "epochs"),
        ("metrics.json", '{"steps": 5}', "of step 5, and the last checkpoint of 6"),
        ("metrics.json", '{"steps"', "damaged"),
        ("metrics.json", "[]", "damaged"),
        ("steps.csv", "step,epoch,objective\n1,1,-2.0\n3,1,-2.0\n", "step 3 stands where step 2"),
        ("steps.csv", "step,epoch,objective\n1,1,-2.0\n", "ends at step 1"),
        ("epochs.csv", "epoch,step\n1\n2,6\n", "line 2"),
        ("layers.csv", "epoch,layer,kl\n0,a,much\n", "much"),
        ("environment.json", "\x00", "damaged"),
        ("split.json", '{"format": 1, "parts": {}}', "class_names"),
        ("config.yaml", "", "is empty"),
    ],
)
def test_a_damaged_table_or_setting(run, name, content, words):
    (run / name).write_text(content)
    code, found = states(run)
    assert code == 1
    assert found[name].startswith("damaged (")
    assert words in found[name]


def test_settings_that_are_not_those_of_the_checkpoint(run):
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("nu: ", "nu: 1"))
    code, found = states(run)
    assert code == 1
    assert found["config.yaml"].startswith(
        "damaged (config.yaml describes another machine than the checkpoint (nu)"
    )
    (run / "config.yaml").write_text(text.replace("  epochs: 2", "  epochs: 3"))
    code, found = states(run)
    assert code == 0
    assert "epochs is 3, and was 2" in found["config.yaml"]


def test_a_checkpoint_that_is_missing(run):
    (run / CHECKPOINTS[0]).unlink()
    code, found = states(run)
    assert (code, found["last.safetensors"]) == (1, "damaged (it is missing)")
    shutil.rmtree(run / "checkpoints")
    (run / "metrics.json").unlink()
    code, found = states(run)
    assert (code, found["checkpoints"]) == (0, "readable (there is no checkpoint yet)")


def test_exported_files(exported):
    code, found = states(*exported.iterdir())
    assert code == 0
    assert found == dict.fromkeys(("digits.safetensors", "digits.onnx", "digits.pt2"), "ok")


@pytest.mark.parametrize("ending", ["safetensors", "onnx", "pt2"])
def test_a_damaged_exported_file(exported, tmp_path, ending):
    path = Path(shutil.copy(exported / f"digits.{ending}", tmp_path))
    for _ in flipped_bits(path, 20):
        code, found = states(path)
        assert code == 1
        assert found[path.name].startswith("damaged (")
    cut(path)
    assert states(path)[0] == 1


@pytest.mark.parametrize("ending", ["safetensors", "onnx", "pt2"])
def test_an_exported_file_of_an_older_version(exported, tmp_path, ending):
    path = Path(shutil.copy(exported / f"digits.{ending}", tmp_path))
    if ending == "safetensors":
        rewrite(path, key="convdkm-predictor")
    elif ending == "onnx":
        onnx = pytest.importorskip("onnx")
        model = onnx.load(path)
        kept = [each for each in model.metadata_props if each.key != digests.KEY]
        del model.metadata_props[:]
        model.metadata_props.extend(kept)
        onnx.save(model, path)
    else:
        content = path.read_bytes()
        path.write_bytes(content[: -len(digests.LINE) - 2] + bytes(2))
        torch.export.load(path)
    code, found = states(path)
    assert code == 0
    assert found[path.name].startswith("no digest")


def test_the_checksums_of_a_program_are_used_where_there_is_no_digest(exported, tmp_path):
    path = Path(shutil.copy(exported / "digits.pt2", tmp_path))
    content = bytearray(path.read_bytes()[: -len(digests.LINE) - 2] + bytes(2))
    content[content.index(b"class_names")] ^= 1
    path.write_bytes(content)
    code, found = states(path)
    assert code == 1
    assert "the checksum of" in found[path.name]


def test_a_kernel_on_disk(tmp_path):
    folder, images = tmp_path / "k", torch.randn(7, 1, 4, 4)
    KernelStore(folder, NNGPKernel(plain(2)), images, block=4).compute()
    code, found = states(folder)
    assert code == 0
    assert found.pop("kernel.json") == "readable (3 of 3 blocks are computed)"
    assert set(found.values()) == {"ok"}

    block = folder / "block-00000-00001.npy"
    for _ in flipped_bits(block, 20):
        code, found = states(folder)
        assert code == 1
        assert found[block.name].startswith("damaged (")
    block.write_bytes(block.read_bytes()[: -len(digests.LINE)])
    assert states(folder)[1][block.name].startswith("no digest")
    block.unlink()
    code, found = states(folder)
    assert (code, found["kernel.json"]) == (0, "readable (2 of 3 blocks are computed)")
    manifest = json.loads((folder / "kernel.json").read_text())
    (folder / "kernel.json").write_text(json.dumps({**manifest, "block": 0}))
    assert states(folder)[0] == 1


def test_what_is_none_of_these(tmp_path, digits_run):
    (tmp_path / "notes.txt").write_text("hello")
    assert "neither the folder of a run" in fail("verify", tmp_path)
    assert "something else" in fail("verify", tmp_path / "notes.txt")
    assert "nothing of that name" in fail("verify", digits_run, tmp_path / "machine.onnx")
