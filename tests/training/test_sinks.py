"""Sinks: what is written can be read, survives a kill, and does not end a run needlessly."""

import ast
import math
import subprocess
import sys
import time
from pathlib import Path

import pytest

from convdkm import InvalidInputError
from convdkm.training import sinks as sinks_module
from convdkm.training import tables as tables_module
from convdkm.training.sinks import (
    CsvSink,
    EpochRecord,
    LayersRecord,
    LogSink,
    MemorySink,
    RunInfo,
    Sink,
    Sinks,
    StepRecord,
    TensorBoardSink,
    read_csv,
    read_layers,
)

FILES = ("steps.csv", "epochs.csv", "layers.csv")
INFO = RunInfo(
    name="digits",
    epochs=3,
    steps_per_epoch=4,
    num_data=1437,
    parameters=1234,
    detail={"preset": "small", "ν": "1"},
)


def step_record(step, steps_per_epoch=4):
    values = {"objective": -1 / step, "accuracy": 1 - 0.1 ** (step % 7), "seconds": step * 0.1}
    return StepRecord(step, (step - 1) // steps_per_epoch + 1, values)


def epoch_record(epoch, steps_per_epoch=4):
    values = {"objective": -1 / epoch, "test_accuracy": 1 - 0.3**epoch}
    return EpochRecord(epoch, epoch * steps_per_epoch, values)


def layers_record(epoch, steps_per_epoch=4):
    of_gram = {
        "kl": epoch / 3,
        "explained": 0.25,
        "spread": 0.5**epoch,
        "gradient": 1 / (1 + epoch),
    }
    values = {"input": {"gradient": 2.0}, "body.0": of_gram, "body.1.left": {"kl": epoch / 7}}
    return LayersRecord(epoch, epoch * steps_per_epoch, values)


def run(sink, first, last, steps_per_epoch=4):
    for step in range(first, last + 1):
        if step == 1:
            sink.layers(layers_record(0))
        sink.step(step_record(step, steps_per_epoch))
        if step % steps_per_epoch == 0:
            sink.layers(layers_record(step // steps_per_epoch, steps_per_epoch))
            sink.epoch(epoch_record(step // steps_per_epoch, steps_per_epoch))


def contents(folder):
    return {name: (folder / name).read_bytes() for name in FILES if (folder / name).exists()}


# -- CSV -------------------------------------------------------------------------------------------


def test_values_come_back_exactly(tmp_path):
    awkward = [0.1 + 0.2, 1e-300, -5e-324, 1 / 3, 2**53 + 1.0, math.inf, -0.0, 1e22]
    with CsvSink(tmp_path) as sink:
        for step, value in enumerate(awkward, 1):
            sink.step(StepRecord(step, 1, {"objective": value, "count": 3}))
        sink.step(StepRecord(len(awkward) + 1, 1, {"objective": math.nan, "count": 4}))
    rows = read_csv(tmp_path / "steps.csv")
    assert [row["objective"] for row in rows[:-1]] == awkward
    assert math.isnan(rows[-1]["objective"])
    assert rows[0] == {"step": 1, "epoch": 1, "objective": awkward[0], "count": 3}


def test_scalars_of_other_libraries_are_written_as_numbers(tmp_path):
    numpy = pytest.importorskip("numpy")
    with CsvSink(tmp_path) as sink:
        sink.step(StepRecord(1, 1, {"objective": numpy.float64(0.1)}))
    assert (tmp_path / "steps.csv").read_text() == "step,epoch,objective\n1,1,0.1\n"


def test_epochs_and_layers_have_files_of_their_own(tmp_path):
    with CsvSink(tmp_path / "new" / "folder") as sink:
        run(sink, 1, 8)
    folder = tmp_path / "new" / "folder"
    assert [row["epoch"] for row in read_csv(folder / "epochs.csv")] == [1, 2]
    assert read_layers(folder / "layers.csv") == {
        epoch: layers_record(epoch).values for epoch in (0, 1, 2)
    }
    assert (
        (folder / "layers.csv")
        .read_text()
        .startswith(
            "epoch,layer,kl,scale_kl,shape_kl,explained,spread,gradient\n"
            "0,input,,,,,,2.0\n0,body.0,0.0,,,0.25,1.0,1.0\n0,body.1.left,0.0,,,,,\n1,input,"
        )
    )
    assert read_csv(folder / "absent.csv") == []


def test_missing_keys_are_blank_and_new_keys_add_columns(tmp_path):
    with CsvSink(tmp_path) as sink:
        sink.step(StepRecord(1, 1, {"a": 1, "b": 2}))
        sink.step(StepRecord(2, 1, {"b": 3}))
        sink.step(StepRecord(3, 1, {"c, quoted": 4, "a": 5}))
        sink.step(StepRecord(4, 1, {"b": 6}))
    assert (tmp_path / "steps.csv").read_text() == (
        'step,epoch,a,b,"c, quoted"\n1,1,1.0,2.0,\n2,1,,3.0,\n3,1,5.0,,4.0\n4,1,,6.0,\n'
    )
    rows = read_csv(tmp_path / "steps.csv")
    assert rows[1] == {"step": 2, "epoch": 1, "b": 3}
    assert rows[2] == {"step": 3, "epoch": 1, "a": 5, "c, quoted": 4}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["steps.csv"]


def test_rows_are_visible_at_once(tmp_path):
    with CsvSink(tmp_path) as sink:
        for step in range(1, 6):
            sink.step(step_record(step))
            assert len(read_csv(tmp_path / "steps.csv")) == step


@pytest.mark.parametrize("killed_at", [1, 3, 4, 6, 8, 11])
@pytest.mark.parametrize("checkpoint", [0, 2, 3, 4, 8])
def test_a_resumed_run_leaves_the_files_of_an_unbroken_one(tmp_path, killed_at, checkpoint):
    with CsvSink(tmp_path / "unbroken") as sink:
        run(sink, 1, 12)
    with CsvSink(tmp_path / "broken") as sink:
        run(sink, 1, killed_at)
    done = min(checkpoint, killed_at)
    with CsvSink(tmp_path / "broken", keep_through_step=done) as sink:
        assert len(read_csv(tmp_path / "broken" / "steps.csv")) == done
        run(sink, done + 1, 12)
    assert contents(tmp_path / "broken") == contents(tmp_path / "unbroken")


@pytest.mark.parametrize("name", FILES)
def test_a_torn_end_is_dropped_wherever_it_was_torn(tmp_path, name):
    with CsvSink(tmp_path) as sink:
        run(sink, 1, 8)
    whole = contents(tmp_path)
    last_line = len(whole[name].splitlines(keepends=True)[-1])
    for lost in range(1, last_line + 1):
        (tmp_path / name).write_bytes(whole[name][:-lost])
        if name != "layers.csv":
            rows = read_csv(tmp_path / name)
            assert len(rows) == len(whole[name].splitlines()) - 2
        with CsvSink(tmp_path, keep_through_step=4) as sink:
            run(sink, 5, 8)
        assert contents(tmp_path) == whole


OLD_LAYERS = "epoch,layer,kl\n1,body.0,0.5\n1,body.1.left,0.25\n2,body.0,0.75\n2,body.1.left,1.5\n"


def test_a_run_of_before_the_instruments_is_read_and_goes_on(tmp_path):
    with CsvSink(tmp_path) as sink:
        run(sink, 1, 8)
    (tmp_path / "layers.csv").write_text(OLD_LAYERS)
    old = {"body.0": {"kl": 0.5}, "body.1.left": {"kl": 0.25}}
    assert read_layers(tmp_path / "layers.csv")[1] == old
    with CsvSink(tmp_path, keep_through_step=6) as sink:
        assert read_layers(tmp_path / "layers.csv") == {1: old}
        run(sink, 7, 12)
    layers = read_layers(tmp_path / "layers.csv")
    assert layers == {1: old, 2: layers_record(2).values, 3: layers_record(3).values}
    lines = (tmp_path / "layers.csv").read_text().splitlines()
    assert lines[0] == "epoch,layer,kl,gradient,explained,spread"
    assert lines[1] == "1,body.0,0.5,,,"


def test_columns_of_dropped_rows_are_dropped(tmp_path):
    with CsvSink(tmp_path) as sink:
        sink.step(StepRecord(1, 1, {"a": 1}))
        sink.step(StepRecord(2, 1, {"a": 1, "b": 1}))
    CsvSink(tmp_path, keep_through_step=1).close()
    assert (tmp_path / "steps.csv").read_text() == "step,epoch,a\n1,1,1.0\n"
    CsvSink(tmp_path, keep_through_step=0).close()
    assert contents(tmp_path) == {}


def test_a_new_run_does_not_overwrite_another(tmp_path):
    with CsvSink(tmp_path) as sink:
        run(sink, 1, 2)
    with pytest.raises(InvalidInputError, match=r"steps\.csv holds the record of another run"):
        CsvSink(tmp_path)


def test_a_damaged_row_is_named(tmp_path):
    (tmp_path / "steps.csv").write_text("step,epoch,a\n1,1,1.0\n2,1\n3,1,1.0\n")
    with pytest.raises(InvalidInputError, match=r"line 3 of .*steps\.csv has 2 cells"):
        read_csv(tmp_path / "steps.csv")


def test_a_rewrite_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    sink = CsvSink(tmp_path)
    sink.step(StepRecord(1, 1, {"a": 1}))
    before = contents(tmp_path)

    def full_disk(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tables_module.os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        sink.step(StepRecord(2, 1, {"b": 1}))
    assert contents(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["steps.csv"]


def test_a_killed_process_loses_nothing_it_had_finished(tmp_path):
    script = f"""
import sys
from convdkm.training.sinks import CsvSink, EpochRecord, StepRecord
sink = CsvSink({str(tmp_path)!r})
for step in range(1, 1_000_000):
    sink.step(StepRecord(step, 1, {{"objective": step / 3}}))
    print(step, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        reported = [int(process.stdout.readline()) for _ in range(50)]
        process.kill()
        reported += [int(line) for line in process.stdout.read().splitlines()]
    rows = read_csv(tmp_path / "steps.csv")
    assert len(rows) in (len(reported), len(reported) + 1)
    assert all(row["objective"] == row["step"] / 3 for row in rows)


# -- several sinks ---------------------------------------------------------------------------------


class Broken(MemorySink):
    """Fails in one method."""

    def __init__(self, where, *, essential=False, error=None):
        super().__init__()
        self.essential, self.error = essential, error or OSError(28, "No space left on device")

        def fail(*arguments):
            raise self.error

        setattr(self, where, fail)


def exercise(sink):
    sink.start(INFO)
    run(sink, 1, 4)
    sink.message("all is well")
    sink.close()


def test_the_base_class_does_nothing():
    exercise(Sink())


def test_records_go_to_every_sink():
    first, second = MemorySink(), MemorySink()
    exercise(Sinks([first, Sinks([second])]))
    for sink in (first, second):
        assert sink.infos == [INFO]
        assert [record.step for record in sink.steps] == [1, 2, 3, 4]
        assert sink.epochs == [epoch_record(1)]
        assert sink.readings == [layers_record(0), layers_record(1)]
        assert sink.messages == [("info", "all is well")]
        assert sink.closed


@pytest.mark.parametrize("where", ["start", "step", "epoch", "layers", "message"])
@pytest.mark.parametrize("position", [0, 1])
def test_a_sink_that_fails_is_reported_once_and_dropped(where, position):
    broken, healthy = Broken(where), MemorySink()
    together = Sinks([healthy])
    together.sinks.insert(position, broken)
    exercise(together)
    assert [record.step for record in healthy.steps] == [1, 2, 3, 4]
    warnings = [text for level, text in healthy.messages if level == "warning"]
    assert warnings == [
        "Broken failed and is used no more: OSError: [Errno 28] No space left on device."
        " Training goes on."
    ]
    assert broken.closed
    assert together.sinks == [healthy]


def test_all_may_fail():
    together = Sinks([Broken("step"), Broken("message"), Broken("step")])
    exercise(together)
    assert together.sinks == []


@pytest.mark.parametrize("where", ["start", "step", "epoch", "layers", "message", "close"])
def test_the_failure_of_an_essential_sink_is_raised(where):
    healthy = MemorySink()
    together = Sinks([Broken(where, essential=True), healthy])
    assert together.essential
    with pytest.raises(OSError, match="No space left"), together:
        exercise(together)
    assert healthy.closed


def test_closing_never_hides_what_stopped_the_run():
    with (
        pytest.raises(ZeroDivisionError),
        Sinks([Broken("close", essential=True), healthy := MemorySink()]),
    ):
        raise ZeroDivisionError
    assert healthy.closed


def test_only_the_files_are_essential(tmp_path):
    assert CsvSink(tmp_path).essential
    assert not any(sink.essential for sink in (MemorySink(), Sink(), Sinks([MemorySink()])))


def test_an_interrupt_passes():
    healthy = MemorySink()
    with pytest.raises(KeyboardInterrupt):
        Sinks([Broken("step", error=KeyboardInterrupt()), healthy]).step(step_record(1))


def test_a_message_is_one_line_of_the_log(tmp_path):
    sink = LogSink(tmp_path)
    sink.message("first\n2026-01-01T00:00:00+00:00 error: forged\r\x1b[2J\udcff", "warning")
    (line,) = (tmp_path / "log.txt").read_text(encoding="utf-8").splitlines()
    assert " warning: first 2026" in line
    assert line.endswith(r"forged \x1b[2J\xff")


# -- TensorBoard -----------------------------------------------------------------------------------


def events(folder):
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    accumulator = module.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return accumulator


def scalars(folder, tag):
    return {event.step: event.value for event in events(folder).Scalars(tag)}


def test_tensorboard_holds_the_values(tmp_path):
    pytest.importorskip("tensorboard")
    with TensorBoardSink(tmp_path, every_steps=2) as sink:
        exercise(sink)
    objectives = scalars(tmp_path, "step/objective")
    assert objectives == pytest.approx({2: -1 / 2, 4: -1 / 4})
    assert scalars(tmp_path, "epoch/test_accuracy") == pytest.approx({4: 0.7})
    assert scalars(tmp_path, "layer_kl/body.1.left") == pytest.approx({0: 0, 4: 1 / 7})
    assert scalars(tmp_path, "layer_spread/body.0") == pytest.approx({0: 1, 4: 0.5})
    assert scalars(tmp_path, "layer_gradient/input") == pytest.approx({0: 2, 4: 2})
    [text] = events(tmp_path).Tensors("run/text_summary")
    assert b"| preset | small |" in text.tensor_proto.string_val[0]


def test_tensorboard_forgets_the_steps_after_the_checkpoint(tmp_path):
    pytest.importorskip("tensorboard")
    with TensorBoardSink(tmp_path, every_steps=1) as sink:
        run(sink, 1, 8)
    time.sleep(1.1)  # event files are ordered by a name that holds the second they were made
    with TensorBoardSink(tmp_path, every_steps=1, keep_through_step=5) as sink:
        sink.step(StepRecord(6, 2, {"objective": 100.0}))
    assert list(scalars(tmp_path, "step/objective")) == [1, 2, 3, 4, 5, 6]
    assert scalars(tmp_path, "step/objective")[6] == 100
    assert list(scalars(tmp_path, "epoch/objective")) == [4]


def test_tensorboard_takes_nan(tmp_path):
    pytest.importorskip("tensorboard")
    with TensorBoardSink(tmp_path, every_steps=1) as sink:
        sink.step(StepRecord(1, 1, {"objective": math.nan}))
    assert math.isnan(scalars(tmp_path, "step/objective")[1])


def test_without_tensorboard_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(InvalidInputError, match=r"pip install convdkm\[tensorboard\]"):
        TensorBoardSink(tmp_path)


@pytest.mark.parametrize("name", ["sinks", "tables", "view"])
def test_logging_does_not_import_torch_by_itself(name):
    source = Path(sinks_module.__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    imported = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imported.append(node.module)
    assert not any(module.split(".")[0] in ("torch", "tensorboard") for module in imported)
