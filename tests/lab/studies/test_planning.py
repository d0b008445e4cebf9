"""Which runs a table needs, where they lie, and what the scale changes."""

import pytest

from convdkm.config import RunConfig
from convdkm.errors import InvalidInputError
from convdkm.lab.studies.sweeps.planning import (
    Record,
    Scale,
    Selection,
    SweepFolder,
    difference,
    plan,
    scale_notes,
    settings,
)
from convdkm.lab.studies.sweeps.specification import categories_of, category, chosen_rows
from convdkm.lab.studies.sweeps.sweep import RunTask
from convdkm.storage.files import write_text
from convdkm.training.folder import writing


def selection(table, datasets=("mnist", "cifar10", "cifar100"), seeds=4, rows=None):
    chosen = chosen_rows(table, rows)
    names = {name: tuple(row.name for row in group) for name, group in chosen.items()}
    return Selection(datasets=datasets, rows=names, seeds=seeds)


def planned(table, chosen, scale):
    return Record(scale=scale, tables={table: chosen})


def test_the_paper_s_tables_need_as_many_runs_as_the_paper_made():
    # 28 rows, of which five are the base model; three data sets and four seeds.
    assert len(plan([selection("selection")], Scale())) == (28 - 4) * 3 * 4
    assert len(plan([selection("inducing")], Scale())) == 6 * 3 * 4
    # Table 3 is one row of Table 2.
    both = [selection("inducing"), selection("comparison", ("cifar10",))]
    assert len(plan(both, Scale())) == 6 * 3 * 4


def test_a_run_has_a_place_of_its_own_that_does_not_change():
    runs = plan([selection("selection", ("cifar10",), 1)], Scale())
    places = [run.place for run in runs]
    assert len(set(places)) == len(places)
    assert "cifar10/selection/base/seed-0" in places
    assert "cifar10/selection/nu-inf/seed-0" in places
    assert "cifar10/selection/nu-0.0001/seed-0" in places
    assert "cifar10/selection/inducing-scale-local_data-scale-location/seed-0" in places
    assert "cifar10/selection/top-gap+mix/seed-0" in places
    (largest,) = plan([selection("comparison", ("cifar10",), 1)], Scale())
    assert largest.place == "cifar10/benchmark/inducing-512-1024-2048/seed-0"
    assert largest.config.training.seed == 0


def test_the_scale_changes_the_size_and_keeps_what_the_table_is_about():
    table = category("top")
    row = table.rows[1]
    quick = settings(table, row, "digits", Scale(preset="quick", train_size=100))
    assert quick.model.inducing == (16, 32)
    assert quick.training.epochs == 40
    assert quick.data.train_size == 100
    assert (quick.model.nu, quick.model.top) == (1, "linear")
    published = settings(table, row, "cifar10", Scale(preset="published", epochs=5))
    assert published.model.strides == (2, 2, 2)
    assert published.model.inducing == (128, 256, 512)
    assert (published.model.nu, published.training.epochs) == (1, 5)
    infinite = category("nu").rows[0]
    own = settings(category("nu"), infinite, "mnist", Scale(preset="quick"))
    assert own.training.learning_rate == 0.03


def test_the_runs_of_a_table_are_whitened_alike():
    """And as they always were: what is left to the data elsewhere is the paper's ZCA here."""
    for few in (None, 100):
        scale = Scale(preset="quick", train_size=few)
        runs = plan([selection("top", ("cifar10", "digits"), 1)], scale)
        found = {(run.dataset, run.config.training.whitening) for run in runs}
        assert found == {("cifar10", "zca"), ("digits", "scale")}
    asked_for = Scale(others={"whitening": "standardise"})
    run, *_ = plan([selection("top", ("cifar10",), 1)], asked_for)
    assert run.config.training.whitening == "standardise"


def test_what_varies_cannot_be_fixed():
    table = category("inducing")
    with pytest.raises(InvalidInputError, match="choose rows with --rows, such as --rows 16/32/64"):
        settings(table, table.rows[0], "mnist", Scale(inducing=(8, 8, 8)))
    table = category("top")
    with pytest.raises(InvalidInputError, match="--rows gap, in place of --set top"):
        settings(table, table.rows[0], "mnist", Scale(others={"top": "linear"}))


def test_other_options_are_part_of_the_scale(tmp_path):
    table = category("nu")
    small = Scale(preset="quick", others={"gram_scale": "1.0", "milestones": "0.5,0.9"})
    run = settings(table, table.rows[0], "mnist", small)
    assert run.model.gram_scale == 1
    assert run.training.milestones == (0.5, 0.9)
    notes = scale_notes((table,), small, selection("nu", ("mnist",), 4))
    assert notes[1:] == ["gram_scale 1.0", "milestones 0.5,0.9"]
    folder = SweepFolder(tmp_path / "out")
    folder.add(planned("nu", selection("nu", ("mnist",), 1, ["1"]), small))
    folder.add(planned("nu", selection("nu", ("mnist",), 2, ["1"]), small))
    with pytest.raises(InvalidInputError, match=r"\(gram scale 1.0 and not unset, milestones"):
        folder.add(planned("nu", selection("nu", ("mnist",), 1, ["1"]), Scale(preset="quick")))


def test_the_scale_is_said_in_words():
    tables = categories_of("likelihood")
    whole = selection("likelihood")
    assert scale_notes(tables, Scale(), whole) == []
    assert scale_notes(tables, Scale(epochs=100, preset="paper"), whole) == []
    small = Scale(preset="quick", epochs=2, train_size=1000, inducing=(8, 8))
    assert scale_notes(tables, small, selection("likelihood", ("digits",), 1)) == [
        "preset quick in place of paper, with a size and recipe of its own",
        "2 epochs in place of 100",
        "1,000 training images in place of all",
        "inducing points 8/8 in place of 128/256/512",
        "1 seed in place of 4",
        "data that the paper's table does not have: digits",
    ]


def test_a_folder_keeps_to_one_scale(tmp_path):
    folder = SweepFolder(tmp_path / "out")
    folder.add(planned("nu", selection("nu", ("mnist",), 1, ["1"]), Scale(epochs=2)))
    with pytest.raises(InvalidInputError, match=r"another scale \(epochs 2 and not 3\)"):
        folder.add(planned("nu", selection("nu", ("mnist",), 1), Scale(epochs=3)))
    folder.add(planned("nu", selection("nu", ("cifar10",), 2, ["0.1", "inf"]), Scale(epochs=2)))
    folder.add(planned("top", selection("top", ("mnist",), 1), Scale(epochs=2)))
    record = folder.read()
    assert record.tables["nu"].datasets == ("mnist", "cifar10")
    assert record.tables["nu"].rows == {"nu": ("inf", "1", "0.1")}
    assert record.tables["nu"].seeds == 2
    assert set(record.tables) == {"nu", "top"}


def test_a_folder_that_is_something_else_is_left_alone(tmp_path):
    write_text(tmp_path / "thesis.tex", "years of work")
    with pytest.raises(InvalidInputError, match="holds no sweep; choose another --output"):
        SweepFolder(tmp_path).add(planned("nu", selection("nu"), Scale()))
    with pytest.raises(InvalidInputError, match=r"has no sweep.json. `convdkm sweep TABLE"):
        SweepFolder(tmp_path).read()
    with pytest.raises(InvalidInputError, match="does not exist"):
        SweepFolder(tmp_path / "nowhere").read()
    write_text(tmp_path / "sweep.json", '{"scale": 3}')
    with pytest.raises(InvalidInputError, match=r"sweep\.json is damaged"):
        SweepFolder(tmp_path).read()


def test_two_sweeps_do_not_work_in_one_folder(tmp_path):
    with (
        SweepFolder(tmp_path).locked(),
        pytest.raises(
            InvalidInputError,
            match=r"a sweep is being made in .* by process \d+ on .* since .*; wait for it",
        ),
        SweepFolder(tmp_path).locked(),
    ):
        pass
    with SweepFolder(tmp_path).locked():
        pass


def test_a_run_with_other_settings_is_noticed(tmp_path):
    folder = SweepFolder(tmp_path)
    run, *_ = plan([selection("top", ("digits",), 1)], Scale(preset="quick", epochs=2))
    assert folder.status(run).state == "missing"
    other = run.config.updated({"epochs": 3, "device": "cpu", "data_dir": "/data"})
    write_text(folder.of(run) / "config.yaml", other.to_yaml())
    assert folder.status(run).state == "other"
    assert folder.status(run).error == "epochs 3 and not 2"
    same = run.config.updated({"device": "cpu", "data_dir": "/data"})
    assert difference(same, run.config) == ""
    write_text(folder.of(run) / "config.yaml", same.to_yaml())
    assert folder.status(run).state == "missing"
    folder.note_failure(run, "it broke", 2)
    assert folder.status(run).state == "failed"
    assert folder.status(run).error == "it broke"
    folder.clear_failure(run)
    write_text(folder.of(run) / "metrics.json", '{"test_accuracy": 0.5}')
    assert folder.status(run).state == "missing", "the figures are not whole"


def test_a_run_is_made_by_one_process_at_a_time(tmp_path):
    folder = tmp_path / "digits" / "seed-0"
    task = RunTask("a run", str(folder), RunConfig())
    with (
        writing(folder),
        pytest.raises(InvalidInputError, match="is being written by process"),
    ):
        task()
