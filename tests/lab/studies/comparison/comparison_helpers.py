"""Comparisons whose figures are made up."""

from convdkm.lab.studies.comparison.folder import (
    ComparisonFolder,
    Record,
    Scale,
    TrialResult,
    product,
)

CIFAR = Scale(dataset="cifar10", preset="quick", whitening="zca", test_size=100, minutes=10)
DIGITS = Scale(dataset="digits", preset="quick", whitening="scale", minutes=10)
ONE = {"processor": "one", "threads": 2, "packages": {"convdkm": "0.1.0"}, "git": None}


def finished(accuracy, **more):
    """The result of a trial; its other figures follow from its accuracy."""
    values = {
        "state": "finished",
        "metrics": {
            "accuracy": accuracy,
            "log_likelihood": accuracy - 1,
            "ece": 0.05,
            "brier": 0.2,
        },
        "fit_seconds": 20.0,
        "predict_seconds": 0.5,
        "fit_cpu_seconds": 30.0,
        "fit_flops": 2e12,
        "peak_memory": 600 * 2**20,
        "added_memory": 100 * 2**20,
        "parameters": 1234,
        "train_images": 500,
        "test_images": 100,
        "environment": ONE,
    }
    return TrialResult(**(values | more))


def made_up(path, methods, *, sizes=(500,), seeds=2, scale=CIFAR, results=None):
    """A folder in which every trial is finished, but for what ``results`` says of a place.

    Keys are methods, or methods with a seed; a value None leaves a trial out.
    """
    folder = ComparisonFolder(path)
    record = folder.add(Record(scale=scale, plan=product(methods, sizes, seeds)))
    for number, trial in enumerate(record.planned()):
        given = results or {}
        usual = finished(0.5 + 0.01 * number + trial.size / 10_000)
        result = given.get((trial.method, trial.seed), given.get(trial.method, usual))
        if result is not None:
            folder.write(trial, result)
    return folder
