"""The methods by name: what they stand for, what they need, and how they are made."""

import math
import subprocess
import sys

import pytest
import torch

from convdkm.errors import InvalidInputError
from convdkm.lab.baselines.methods import GROUPS, METHODS, NAMES, QUICK, STEPS, chosen, method
from convdkm.lab.baselines.setting import Setting
from convdkm.lab.studies.sweeps.specification import category

KERNELS = [each.name for each in METHODS if each.group == "kernels"]


MACHINES = ("dkm", "dkm-nu1", "inducing-nngp")


def test_every_row_of_table_3_has_its_method():
    rows = [row for each in METHODS for row in each.rows]
    assert sorted(rows) == sorted(row.name for row in category("comparison").rows)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dataset", ["digits", "mnist", "cifar10", "/a/folder"])
def test_every_method_can_be_made(name, dataset, tmp_path):
    baseline = method(name).build(Setting(dataset, seed=3, side=8, folder=tmp_path))
    config = getattr(baseline, "config", None)
    seed = baseline.seed if config is None else config.training.seed
    assert seed == 3
    if name in KERNELS:
        assert baseline.folder == tmp_path
    if name in ("dkm", "dkm-nu1", "inducing-nngp", "cnn"):
        assert config.training.device == "cpu"


@pytest.mark.parametrize(
    ("dataset", "flip"), [("mnist", False), ("digits", False), ("cifar10", True)]
)
def test_mirror_images_only_where_they_are_of_the_same_class(dataset, flip):
    setting = Setting(dataset, side=8)
    assert setting.flip is flip
    made = {each.name: each.build(setting) for each in METHODS}
    assert made["nngp-lap-flip"].kernel.flips is flip
    assert made["nngp-gap-da"].augment_flips is flip
    assert made["myrtle10-tuned"].augment_flips is flip
    for name in ("dkm", "cnn", "conv-gp", "conv-dgp", "ckn-supervised"):
        assert made[name].config.training.flip is flip
        assert made[name].config.training.crop == setting.augmentation["crop"]
    for each in METHODS:
        assert ("without flips" in each.title(flip=flip)) is (each.flips and not flip)


def test_machines_differ_in_nu_and_the_inducing_nngp_in_what_shrinks_without_learned_grams():
    made = {name: method(name).build(Setting("cifar10")).config.model for name in MACHINES}
    assert [made[name].nu for name in MACHINES] == [0.01, 1.0, math.inf]
    assert made["dkm-nu1"].model_copy(update={"nu": 0.01}) == made["dkm"]
    usual = {"kernel": "arc-cosine", "inducing_scale": "none", "data_scale": "none"}
    changed = made["dkm"].model_copy(update={**usual, "nu": math.inf})
    assert made["inducing-nngp"] == changed


@pytest.mark.parametrize(
    ("dataset", "side", "crop"),
    [("cifar10", s, c) for s, c in ((32, 4), (28, 4), (16, 2), (8, 1), (2, 0))]
    + [("mnist", s, c) for s, c in ((28, 2), (14, 1), (8, 1), (4, 0))]
    + [("digits", 8, 0), ("/a/folder", 224, 4)],
)
def test_images_made_smaller_are_cropped_in_proportion(dataset, side, crop):
    setting = Setting(dataset, side=side)
    assert setting.augmentation["crop"] == crop
    for name in ("dkm", "dkm-nu1", "inducing-nngp", "cnn", "conv-gp", "conv-dgp", "ckn-supervised"):
        assert method(name).build(setting).config.training.crop == crop


@pytest.mark.parametrize(("side", "size"), [(32, 9), (28, 7), (8, 3), (4, 1)])
def test_the_window_of_local_pooling_is_a_quarter_of_the_image(side, size):
    baseline = method("nngp-lap-flip").build(Setting("cifar10", side=side))
    assert baseline.kernel.architecture.top.size == size


@pytest.mark.parametrize(
    "name",
    ["dkm", "inducing-nngp", "cnn", "conv-gp", "conv-gp-sovi", "conv-dgp", "ckn-supervised"],
)
def test_few_images_are_gone_through_more_often(name):
    def recipe(size):
        return method(name).build(Setting("cifar10", size=size)).config.training

    usual, few = recipe(None), recipe(500)
    assert recipe(50_000) == usual
    steps = -(-500 // few.batch_size)
    assert (few.epochs - 1) * steps < STEPS <= few.epochs * steps
    assert few.epochs > usual.epochs
    assert few == usual.model_copy(update={"epochs": few.epochs})


def test_an_unknown_method_suggests_the_nearest():
    with pytest.raises(InvalidInputError, match="Did you mean 'myrtle5'"):
        method("mytrle5")
    with pytest.raises(InvalidInputError, match="Did you mean 'kernels'"):
        chosen(["kernals"])


def test_a_method_that_is_another_without_flips_is_not_compared_twice():
    for group in ("all", "kernels"):
        left_out = set(chosen([group])) - set(chosen([group], flip=False))
        assert left_out == {"nngp-gap-da"}
    assert chosen(["kernels", "nngp-gap-da"], flip=False) == chosen(["kernels"])
    images, labels = torch.randn(12, 1, 8, 8), torch.arange(12) % 3
    setting = Setting("mnist", side=8)
    assert not setting.flip
    one, other = (method(name).build(setting) for name in ("nngp-gap-da", "nngp-gap"))
    for machine in (one, other):
        machine.fit(images, labels)
    assert torch.equal(one.scores(images), other.scores(images))


def test_groups_stand_for_their_methods_each_once_and_in_order():
    assert chosen(None) == QUICK
    assert chosen(["all"]) == NAMES
    assert chosen(["cnn", "machines", "dkm"]) == ("dkm", "dkm-nu1", "inducing-nngp", "cnn")
    assert set(chosen(["kernels"])) == set(KERNELS)
    parts = [GROUPS[each] for each in ("machines", "networks", "kernels", "processes")]
    assert sorted(name for part in parts for name in part) == sorted(NAMES)
    assert all(method(name).extra is None for name in QUICK)


def test_classes_are_there_by_name_and_nothing_slow_is_imported_for_a_list():
    code = (
        "import sys, convdkm.lab.baselines as baselines, convdkm.lab.baselines.methods\n"
        "assert 'torch' not in sys.modules\n"
        "from convdkm.lab.baselines import *\n"
        "assert all(name in globals() for name in baselines.__all__)\n"
        "assert issubclass(CNN, Baseline) and issubclass(ConvolutionalGP, Baseline)\n"
        "assert 'gpytorch' not in sys.modules\n"
        "try: baselines.Nothing\n"
        "except AttributeError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "No convdkm.lab.baselines attribute Nothing\n"
