"""Help pages: complete, readable at 80 columns, and there at once."""

import json
import subprocess
import sys

import pytest
from cli_helpers import call, fail, start, succeed

from convdkm import __version__
from convdkm.config import SECTION

PAGES = [
    [],
    ["train"],
    ["resume"],
    ["evaluate"],
    ["predict"],
    ["export"],
    ["show"],
    ["report"],
    ["verify"],
    ["presets"],
    ["pretrained"],
    ["bench"],
    ["sweep"],
    ["tables"],
    ["compare"],
    ["data"],
    ["data", "list"],
    ["data", "verify"],
    ["data", "fetch"],
]


@pytest.mark.parametrize("page", PAGES, ids=" ".join)
def test_a_page_fits_into_80_columns_and_says_what_everything_is(page):
    text = succeed(*page, "--help").out
    assert max(map(len, text.splitlines())) <= 80
    assert text.startswith(f"Usage: {' '.join(['convdkm', *page])} ")
    assert "…" not in text.replace(",…", "").replace("COMMAND …", "").replace("mps, …", "").replace(
        "NAME…", ""
    ).replace("FOLDER…", "").replace("RUN…", "").replace("FILE…", ""), "something was cut off"
    for sign in ("[[", "{", "<bool>", "[dim]", "[required]"):
        assert sign not in text


def test_every_field_of_the_configuration_is_an_option_of_train():
    text = succeed("train", "--help").out
    for name in SECTION:
        if name != "dataset":
            assert f" --{name.replace('_', '-')}" in text
    for group in ("Data:", "Machine:", "Training:"):
        assert f"\n{group}\n" in text
    assert "--nu X,…" in text
    assert "--top gap|linear|gap+mix|linear+mix" in text


@pytest.mark.parametrize("alone", [[], ["data"]])
def test_without_a_command_the_help_is_shown(alone):
    assert succeed(*alone).out.strip() == succeed(*alone, "--help").out.strip()


def test_the_version():
    assert succeed("--version").out == f"convdkm {__version__}\n"


def test_an_unknown_command_suggests_the_nearest():
    assert "'train'" in fail("trian")
    assert "'fetch'" in fail("data", "fetsh")
    assert "See `convdkm show --help`" in fail("show")


@pytest.mark.parametrize(
    ("arguments", "words", "command"),
    [
        (["train", "digits", "cifar10"], "cifar10", "train"),
        (["train", "--epochs"], "--epochs", "train"),
        (["train", "--epohcs", "1"], "--epochs", "train"),
        (["export", "run"], "FILE", "export"),
        (["report", "run", "--images", "many"], "--images", "report"),
        (["data", "fetch"], "NAME", "data fetch"),
    ],
    ids=" ".join,
)
def test_a_mistake_in_a_command_points_to_its_help(arguments, words, command):
    outcome = call(*arguments)
    assert outcome.code == 2
    assert outcome.err.startswith("Error: ")
    assert words in outcome.err
    assert outcome.err.endswith(f" See `convdkm {command} --help`\n")
    assert not outcome.out


ONE_PROGRAM = """
import sys
from convdkm.cli.app import build_app
app = build_app()
assert "pydantic" not in sys.modules
for arguments in (["data", "list"], ["train", "--help"]):
    app(arguments, prog_name="convdkm", standalone_mode=False)
"""


def test_one_program_has_all_commands_with_all_their_options():
    done = subprocess.run(
        [sys.executable, "-c", ONE_PROGRAM], capture_output=True, text=True, check=True
    )
    assert "fashion-mnist" in done.stdout
    assert "--learning-rate" in done.stdout


LOADED = """
import json, sys
from convdkm.cli import run
code = run(json.loads(sys.argv[1]))
print(json.dumps([code, sorted({name.split(".")[0] for name in sys.modules})]), file=sys.stderr)
"""


def loaded(*arguments: str) -> set[str]:
    """The packages that a command has imported by its end."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, json.dumps(arguments)],
        capture_output=True,
        text=True,
        check=True,
    )
    code, names = json.loads(done.stderr.splitlines()[-1])
    assert code == 0 or "--help" not in arguments
    return set(names)


@pytest.mark.parametrize("command", [["--help"], ["--version"]])
def test_help_waits_for_nothing_slow(command):
    assert not loaded(*command) & {"torch", "numpy", "sklearn", "scipy", "pydantic"}


@pytest.mark.parametrize(
    "command",
    [
        ["train", "--help"],
        ["train", "--epochs", "0"],
        ["train", "cifra10"],
        ["data", "list"],
        ["sweep", "liklihood"],
        ["compare", "--list"],
        ["compare", "digits", "--methods", "mytrle5"],
    ],
    ids=" ".join,
)
def test_what_needs_no_machine_does_not_wait_for_one(command):
    assert not loaded(*command) & {"torch", "numpy", "sklearn", "scipy"}


def test_the_module_runs_and_its_errors_are_exit_codes():
    process = start("train", "--epochs", 0)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert out == ""
    assert err.startswith("Error: ")
    assert "Traceback" not in err


def test_memory_that_is_not_there_is_an_error_of_one_line(monkeypatch):
    def names():
        raise MemoryError

    monkeypatch.setattr("convdkm.presets.names", names)
    assert "out of memory" in fail("presets")


def test_an_error_of_the_program_itself_is_not_hidden(monkeypatch):
    def names():
        raise RuntimeError("a bug")

    monkeypatch.setattr("convdkm.presets.names", names)
    with pytest.raises(RuntimeError, match="a bug"):
        call("presets")
