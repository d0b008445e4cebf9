"""Pretrained machines: listed, found, checked, fetched, and what they predict."""

import functools
import hashlib
import json
import shutil
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

import convdkm as dkm
from convdkm import pretrained
from convdkm.data import DownloadError, load_digits
from convdkm.errors import InvalidInputError
from convdkm.pretrained import PretrainedError, find, is_known, known, located, places
from convdkm.training import CheckpointError, Run
from damage import flipped_bits

FILE = pretrained.PACKAGED / "digits.safetensors"


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch, tmp_path):
    """No folder of the user's."""
    monkeypatch.delenv(pretrained.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """The index alone; the folder that its files were in before."""
    monkeypatch.setattr(pretrained, "PACKAGED", tmp_path / "package")
    monkeypatch.setattr(pretrained, "CLONE", tmp_path / "clone")
    shutil.copytree(FILE.parent, tmp_path / "files")
    (tmp_path / "package").mkdir()
    shutil.copy(FILE.parent / "index.json", tmp_path / "package")
    return tmp_path / "files"


def test_every_file_that_is_here_is_what_the_index_says():
    for name, machine in known().items():
        here = [each / machine.file for each in places() if (each / machine.file).is_file()]
        assert len(here) <= 1
        for path in here:
            content = path.read_bytes()
            assert hashlib.sha256(content).hexdigest() == machine.sha256
            assert len(content) == machine.size
            assert (path.parent == pretrained.PACKAGED) == (machine.size < 1_000_000)
            run = Run.load(path, device="cpu")
            assert run.image_shape == machine.image_shape
            assert run.class_names == machine.class_names
            assert run.metrics == machine.figures
            assert run.config.data.data_dir is None
        assert (pretrained.CLONE / f"{name}.md").is_file()


def test_the_digits_have_the_figures_of_the_index():
    data, predictor = load_digits(), dkm.load_pretrained("digits")
    prediction = predictor.predict(data.test_images)
    figures = known()["digits"].figures
    right = (prediction.labels == data.test_labels).double().mean().item()
    likelihood = prediction.log_probs.gather(1, data.test_labels[:, None]).mean().item()
    assert right == pytest.approx(figures["test_accuracy"], abs=1e-9)
    assert likelihood == pytest.approx(figures["test_log_likelihood"], abs=1e-3)
    assert predictor.class_names == data.class_names
    assert predictor.sample_shape == (1, 8, 8)
    assert {each.dtype for each in predictor.state_dict().values()} <= {
        torch.float32,
        torch.float64,
    }


def test_the_machine_itself_predicts_the_same_and_can_be_trained():
    images = load_digits().test_images
    run = dkm.load_pretrained("digits", folded=False)
    folded = dkm.load_pretrained("digits").predict(images)
    assert (run.predict(images).probs - folded.probs).abs().max() < 1e-5
    model = run.model.train()
    objective = model.objective(images[:20], load_digits().test_labels[:20], num_data=20)
    objective.total.backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())


def test_an_unknown_name_is_an_error_with_a_suggestion_and_the_list():
    with pytest.raises(PretrainedError, match=r"'digts'. Did you mean 'digits'\? There are: "):
        dkm.load_pretrained("digts")
    assert not is_known("digts")


def test_what_is_there_comes_before_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert located("digits") == FILE
    assert str(located("nothing")) == "nothing"
    (tmp_path / "digits").mkdir()
    assert str(located("digits")) == "digits"


def test_a_missing_file_says_where_it_may_lie_and_its_checksum(elsewhere, tmp_path):
    with pytest.raises(PretrainedError) as caught:
        dkm.load_pretrained("digits")
    text, machine = str(caught.value), known()["digits"]
    for part in (machine.sha256, f"{machine.size:,} bytes", pretrained.VARIABLE, "package"):
        assert part in text
    assert str(tmp_path / "cache/convdkm/pretrained") in text


def test_folders_are_looked_in_in_order(elsewhere, tmp_path, monkeypatch):
    given, clone, cache = tmp_path / "given", tmp_path / "clone", places()[-1]
    (tmp_path / "pyproject.toml").touch()
    for folder in (cache, clone, given):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(elsewhere / FILE.name, folder)
        monkeypatch.setenv(pretrained.VARIABLE, str(given))
        assert find("digits").parent == folder
        assert find("digits", elsewhere).parent == elsewhere
    assert dkm.load_pretrained("digits", folder=elsewhere).class_names


def test_a_damaged_file_and_one_of_another_version_are_refused(elsewhere):
    for _ in flipped_bits(elsewhere / FILE.name, 3):
        with pytest.raises(PretrainedError, match=r"its SHA-256 should be .* but is"):
            dkm.load_pretrained("digits", folder=elsewhere)
    dkm.load_pretrained("digits", folder=elsewhere)
    index = json.loads((elsewhere / "index.json").read_text())
    index["digits"]["sha256"] = "0" * 64
    (elsewhere / "index.json").write_text(json.dumps(index))
    with pytest.raises(PretrainedError, match="0000 but is"):
        dkm.load_pretrained("digits", folder=elsewhere)


def test_a_folder_may_have_machines_of_its_own(tmp_path):
    entry = json.loads((FILE.parent / "index.json").read_text())["digits"]
    shutil.copy(FILE, tmp_path / "mine.safetensors")
    index = {"mine": {**entry, "file": "mine.safetensors"}}
    (tmp_path / "index.json").write_text(json.dumps(index))
    assert {"mine", "digits"} <= known(tmp_path).keys()
    assert dkm.load_pretrained("mine", folder=tmp_path).sample_shape == (1, 8, 8)
    assert "mine" not in known()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "no index of pretrained machines"),
        ("[]", "it holds no names"),
        ('{"a": 1}', "of 'a' is wrong"),
        ('{"a": {"file": "../x"}}', "of 'a' is wrong"),
    ],
)
def test_a_damaged_index_is_named(tmp_path, content, words):
    (tmp_path / "index.json").write_text(content)
    with pytest.raises(PretrainedError, match=words) as caught:
        known(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_file_of_the_index_lies_in_its_folder(tmp_path):
    entry = json.loads((FILE.parent / "index.json").read_text())["digits"]
    (tmp_path / "index.json").write_text(json.dumps({"a": {**entry, "file": "../a"}}))
    with pytest.raises(PretrainedError, match="file of 'a' is wrong"):
        known(tmp_path)


def test_a_file_is_fetched_from_the_release(elsewhere, monkeypatch):
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(elsewhere))
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            address = f"http://127.0.0.1:{server.server_address[1]}/"
            monkeypatch.setattr(pretrained, "ADDRESS", address)
            path = find("digits")
            assert path == places()[-1] / FILE.name
            assert path.read_bytes() == FILE.read_bytes()
            path.write_bytes(b"of an earlier release")
            assert find("digits").read_bytes() == FILE.read_bytes()
            path.unlink()
            (elsewhere / FILE.name).write_bytes(b"something else")
            with pytest.raises(DownloadError, match="not the published file: its SHA-256"):
                find("digits")
        finally:
            server.shutdown()
    assert not path.exists()


@pytest.fixture(scope="module")
def run():
    options = {"inducing": (6, 8), "blocks": (1, 1), "epochs": 1, "whitening": "zca"}
    return dkm.fit("quick", "digits", train_size=200, test_size=40, **options)


@pytest.mark.parametrize(
    ("storage", "tolerance"),
    [("float64", 1e-6), ("float32", 1e-5), ("float16", 1e-3), ("bfloat16", 3e-2)],
)
def test_a_machine_comes_back_from_a_file(run, tmp_path, storage, tolerance):
    path, images = tmp_path / "machine.safetensors", load_digits().test_images
    run.save(path, storage=storage)
    again = Run.load(path)
    assert (again.predict(images).probs - run.predict(images).probs).abs().max() < tolerance
    assert (again.config, again.class_names, again.image_shape) == (
        run.config,
        run.class_names,
        run.image_shape,
    )
    assert (again.metrics, again.step) == (run.metrics, run.step)
    assert {p.dtype for p in again.model.parameters()} == {torch.float64}
    assert again.whitening.matrix.dtype == torch.float32


def test_half_precision_makes_files_smaller(run, tmp_path):
    sizes = []
    for storage in ("float64", "float32", "float16"):
        run.save(tmp_path / "a", storage=storage)
        sizes.append((tmp_path / "a").stat().st_size)
    assert sizes == sorted(sizes, reverse=True)


def test_what_cannot_be_saved_is_refused(run, tmp_path):
    with pytest.raises(InvalidInputError, match="storage must be one of"):
        run.save(tmp_path / "a", storage="float8")
    weight = next(p for n, p in run.model.named_parameters() if n.endswith("conv.weight"))
    before = weight.detach().clone()
    with torch.no_grad():
        weight[0, 0, 0, 0] = 1e5
    try:
        with pytest.raises(InvalidInputError, match=r"conv.weight is not finite in float16; bfloa"):
            run.save(tmp_path / "a", storage="float16")
    finally:
        with torch.no_grad():
            weight.copy_(before)
    model = dkm.resnet(1, 10, (6,), (1,))
    own = dkm.fit(model, "digits", epochs=1, train_size=40, test_size=10)
    with pytest.raises(InvalidInputError, match="a machine of your own"):
        own.save(tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_damage_to_a_saved_machine_is_noticed(run, tmp_path):
    path = tmp_path / "machine.safetensors"
    run.save(path)
    for _ in flipped_bits(path, 3, "tensors"):
        with pytest.raises(CheckpointError, match="damaged"):
            Run.load(path)
    run.predictor().save(path)
    with pytest.raises(CheckpointError, match=r"it is a predictor; .* and Run.save writes one"):
        Run.load(path)
