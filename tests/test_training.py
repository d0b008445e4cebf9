"""Training end to end, in single precision, on real images."""

import copy

import pytest
import torch

import convdkm as dkm
from convdkm.data import ZCA, load_cifar10, load_digits


def train(model, images, labels, *, steps, batch, rate):
    """Adam as in the paper, the rate rising and falling; returns the objective of every step."""
    optimiser = torch.optim.Adam(model.parameters(), lr=rate, betas=(0.8, 0.9))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps)
    curve = []
    for _ in range(steps):
        chosen = torch.randint(len(images), (batch,))
        objective = model.objective(images[chosen], labels[chosen], num_data=len(images))
        optimiser.zero_grad()
        (-objective.total).backward()
        optimiser.step()
        schedule.step()
        curve.append(objective.total.item())
    return curve


def test_a_small_machine_learns_the_digits():
    data = load_digits()
    scale = data.train_images.std()
    images, test_images = data.train_images / scale, data.test_images / scale
    model = dkm.resnet(
        1,
        10,
        (16,),
        (1,),
        nu=0.1,
        strides=(2,),
        mixing="patches",
        centre=True,
        gram_parameterisation="whitened",
        gram_scale=100.0,
        head_parameterisation="whitened",
    )
    model.initialise(images, data.train_labels, seed=0)
    curve = train(model, images, data.train_labels, steps=120, batch=64, rate=0.1)
    assert sum(curve[-10:]) > sum(curve[:10])
    model.calibrate(images.split(256))
    prediction = model.eval().predict(test_images)
    assert float(prediction.accuracy(data.test_labels)) > 0.9
    assert float(prediction.log_prob(data.test_labels).mean()) > -0.4


def test_the_papers_recipe_trains_in_single_precision(data_folder):
    data = load_cifar10(data_folder)
    images, labels = data.train_images[:2000, :, 8:24, 8:24], data.train_labels[:2000]
    images = ZCA().fit(images)(images)
    model = dkm.resnet8(3, 10, (8, 12, 16), strides=(2, 2, 2)).initialise(images, labels, seed=0)
    curve = train(model, images, labels, steps=40, batch=64, rate=0.01)
    assert sum(curve[-5:]) / 5 > sum(curve[:5]) / 5 + 0.2


@pytest.mark.slow
def test_float32_follows_float64_through_the_first_steps(data_folder):
    data = load_cifar10(data_folder)
    images, labels = data.train_images[:4000], data.train_labels[:4000]
    images = ZCA().fit(images)(images)
    single = dkm.resnet20(3, 10, (16, 32, 64), strides=(2, 2, 2))
    single.initialise(images, labels, seed=0)
    double = copy.deepcopy(single).double()
    curves = []
    for model in (single, double):
        torch.manual_seed(1)
        curves.append(train(model, images, labels, steps=10, batch=256, rate=0.01))
    assert curves[0] == pytest.approx(curves[1], rel=1e-5)
