"""Files that are written as a whole."""

import os
import stat

import pytest

import convdkm as dkm
from convdkm.storage.files import replacing


def permissions(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o022, 0o027, 0o002], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.skipif(os.name == "nt", reason="permissions are those of POSIX")
def test_files_have_the_permissions_that_the_user_gives_to_new_files(tmp_path, umask):
    predictor = dkm.load_pretrained("digits")
    machine = tmp_path / "machine.safetensors"
    predictor.save(machine)
    with replacing(tmp_path / "private.txt") as temporary:
        temporary.unlink()
        os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY, 0o600))
    for path in (machine, tmp_path / "private.txt"):
        assert permissions(path) == 0o666 & ~umask


def test_nothing_is_left_of_a_file_that_failed(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("before")
    with pytest.raises(RuntimeError), replacing(path):
        raise RuntimeError
    assert [each.name for each in tmp_path.iterdir()] == ["file.txt"]
    assert path.read_text() == "before"


@pytest.mark.parametrize(("ending", "reader"), [("onnx", "onnxruntime"), ("pt2", "torch.export")])
def test_exported_programs_are_not_taken_for_damaged_files(tmp_path, ending, reader):
    path = tmp_path / f"machine.{ending}"
    path.write_bytes(b"a program")
    with pytest.raises(dkm.ConvDKMError, match=rf"exported program, for {reader}.*safetensors"):
        dkm.load_predictor(path)
