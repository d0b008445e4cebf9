"""The tables as data: complete, consistent, and every row a machine that can be built."""

import math

import pytest
import torch

from convdkm.architectures import build_model
from convdkm.errors import InvalidInputError
from convdkm.lab.studies.sweeps.planning import Scale, settings
from convdkm.lab.studies.sweeps.specification import (
    CATEGORIES,
    METRICS,
    Published,
    categories_of,
    category,
    chosen_rows,
)

ROWS = {
    "nu": 11,
    "normalisation": 5,
    "rescaling": 6,
    "top": 4,
    "likelihood": 2,
    "inducing": 6,
    "comparison": 12,
    "regularisation": 4,
}
EVERY_ROW = [(name, row.name) for name in CATEGORIES for row in category(name).runnable_rows]


@pytest.mark.parametrize("name", CATEGORIES)
def test_every_row_has_every_published_figure(name):
    table = category(name)
    assert len(table.rows) == ROWS[name]
    assert set(table.published) <= set(METRICS)
    for rows in table.published.values():
        assert set(rows) <= {row.name for row in table.rows}
        assert {len(figures) for figures in rows.values()} == {len(table.datasets)}
    for metric in table.metrics:
        lacking = {row.name for row in table.rows} - set(table.published[metric])
        printed_elsewhere = name == "nu" and metric == "test_accuracy"
        assert lacking == ({"1000", "10", "0.1", "0.001"} if printed_elsewhere else set())
    full = {"likelihood": 2, "comparison": 1, "regularisation": 2}.get(name, 4)
    assert len(table.metrics) == full


def test_a_figure_is_mean_error_and_emphasis():
    figure = category("nu").figure("test_accuracy", "1", "mnist")
    assert figure == Published(mean=99.2, error=0.02, bold=True, unit=0.01)
    assert category("nu").figure("test_log_likelihood", "0", "cifar100").mean == -2.0552
    assert category("nu").figure("test_accuracy", "1", "digits") is None
    assert category("inducing").seconds_per_epoch["512/1024/2048"] == 1380
    with pytest.raises(ValueError, match=r"reads like '99\.20 ± 0\.02 bold'"):
        Published.model_validate("99.20 +- 0.02")


def test_the_best_published_is_always_bold():
    for name in CATEGORIES:
        for metric, rows in category(name).published.items():
            for column in range(len(category(name).datasets)):
                best = max((figures[column] for figures in rows.values()), key=lambda f: f.mean)
                assert best.bold, (name, metric, column)


def test_the_five_categories_of_table_1_share_their_base_row():
    names = [each.name for each in categories_of("selection")]
    assert len(names) == 5
    rows = {
        "nu": "1",
        "normalisation": "batch/batch",
        "rescaling": "batch/batch",
        "top": "gap",
        "likelihood": "categorical",
    }
    same = [
        settings(category(name), row, "cifar10", Scale())
        for name in names
        for row in category(name).rows
        if row.name == rows[name]
    ]
    assert len(same) == 5
    assert all(config == same[0] for config in same)
    figures = {category(n).published["test_accuracy"][rows[n]][0].mean for n in names}
    assert figures == {99.20}


def test_the_paper_s_recipe_and_its_exception():
    infinite, *_ = category("nu").rows
    config = settings(category("nu"), infinite, "mnist", Scale())
    assert math.isinf(config.model.nu)
    assert config.training.learning_rate == 0.001
    assert config.training.epochs == 100
    assert config.model.inducing == (128, 256, 512)
    assert settings(category("nu"), infinite, "cifar10", Scale()).training.learning_rate == 0.01
    largest = category("inducing").rows[-1]
    config = settings(category("inducing"), largest, "cifar10", Scale())
    assert (config.model.nu, config.training.epochs) == (0.01, 200)
    assert config.model.inducing == (512, 1024, 2048)
    only = category("comparison").runnable_rows
    assert [settings(category("comparison"), row, "cifar10", Scale()) for row in only] == [config]


@pytest.mark.parametrize(("name", "row"), EVERY_ROW, ids=lambda text: text)
def test_every_row_is_a_machine_that_trains(name, row):
    (chosen,) = chosen_rows(name, [row])[name]
    scale = Scale() if name in ("inducing", "comparison") else Scale(inducing=(8, 8, 8))
    config = settings(category(name), chosen, "mnist", scale)
    small = {"blocks": (1, 1, 1), "inducing": (8, 8, 8), "samples": 8}
    model = build_model(config.updated(small).model, 1, 10, torch.float64)
    images, labels = torch.rand(16, 1, 8, 8), torch.arange(16) % 10
    model.initialise(images.double(), labels)
    objective = model.objective(images.double(), labels, num_data=16)
    objective.total.backward()
    assert objective.total.isfinite()


def test_unknown_tables_and_rows_suggest_the_nearest():
    with pytest.raises(InvalidInputError, match=r"'liklihood'\. Did you mean 'likelihood'\?"):
        categories_of("liklihood")
    with pytest.raises(InvalidInputError, match="Did you mean 'gaussian'"):
        chosen_rows("likelihood", ["gausian"])
    with pytest.raises(InvalidInputError, match="There are 16/32/64, 32/64/128"):
        chosen_rows("inducing", ["tiny"])
    with pytest.raises(InvalidInputError, match="has no row 'novak-2018'"):
        chosen_rows("comparison", ["novak-2018"])


def test_rows_may_be_written_in_other_ways():
    names = [row.name for row in chosen_rows("nu", ["1e-2", "∞", "1.0"])["nu"]]
    assert names == ["inf", "1", "0.01"]
    assert chosen_rows("inducing", ["16 / 32 / 64"])["inducing"][0].name == "16/32/64"
    both = chosen_rows("selection", ["batch/location"])
    assert [name for name, rows in both.items() if rows] == ["normalisation", "rescaling"]
    one = chosen_rows("selection", ["rescaling:batch/location"])
    assert [name for name, rows in one.items() if rows] == ["rescaling"]


def test_every_metric_has_a_title():
    assert all(title[0].isupper() for title in METRICS.values())
