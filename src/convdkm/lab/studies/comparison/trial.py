"""A trial, in a process of its own: one method fitted, and the test images predicted."""

from __future__ import annotations

import multiprocessing
import re
import shutil
import signal
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convdkm.errors import InvalidInputError
from convdkm.lab.baselines.methods import method
from convdkm.lab.baselines.setting import Setting

if TYPE_CHECKING:
    from torch import Tensor

    from convdkm.lab.baselines.base import Baseline


METRICS = ("accuracy", "log_likelihood", "ece", "brier")


@dataclass(frozen=True)
class TrialTask:
    """A trial.

    Attributes:
        setting: that the method is built for; blocks of kernels go to its folder.
        minutes: that the fit may take, and the prediction of the test images again; None for any.
        images: file of the images.
        result: file that takes the result.
    """

    name: str
    method: str
    setting: Setting
    minutes: float | None
    images: str
    result: str
    log: str | None = None

    def __call__(self) -> dict[str, Any]:
        """The result, which is in the file by then."""
        if multiprocessing.parent_process() is not None:
            # There is nothing to save but blocks of kernels, which are whole or not there.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        from convdkm.lab.studies.comparison.folder import TrialResult
        from convdkm.lab.studies.comparison.images import Split
        from convdkm.lab.studies.comparison.measuring import forget_peak, memory_now, peak_memory
        from convdkm.runtime.allocator import keep_freed_memory
        from convdkm.storage.files import write_json
        from convdkm.training.cost import if_countable
        from convdkm.training.environment import environment

        keep_freed_memory()
        split = Split.read(Path(self.images))
        notes, blocks = Notes(), self.setting.folder
        baseline = method(self.method).build(self.setting)
        baseline.minutes, baseline.tell = self.minutes, notes.add
        baseline.foresee(split.train_images, split.train_labels)
        if self.minutes is not None:
            check_time(baseline, split.train_images, len(split.test_images), self.minutes)
        resumed = blocks is not None and any(blocks.glob("block-*.npy"))
        forget_peak()
        before, start, cpu_start = memory_now(), time.perf_counter(), time.process_time()
        baseline.fit(split.train_images, split.train_labels)
        fitted, cpu_fitted = time.perf_counter(), time.process_time()
        probabilities = baseline.probabilities(split.test_images)
        predicted = baseline.predict(split.test_images) if probabilities is None else None
        done, peak = time.perf_counter(), peak_memory()
        count = partial(baseline.flops, split.train_images, split.train_labels)
        result = TrialResult(
            state="finished",
            metrics=figures(probabilities, predicted, split.test_labels),
            fit_seconds=fitted - start,
            fit_cpu_seconds=cpu_fitted - cpu_start,
            fit_flops=if_countable(count, notes.add),
            predict_seconds=done - fitted,
            peak_memory=peak,
            added_memory=max(0, peak - before),
            parameters=baseline.parameters,
            train_images=len(split.train_images),
            test_images=len(split.test_images),
            cut_short=baseline.cut_short,
            resumed=resumed,
            notes=tuple(notes.kept.values()),
            environment=environment(),
        )
        content = result.model_dump(mode="json")
        write_json(Path(self.result), content)
        if blocks is not None:
            shutil.rmtree(blocks, ignore_errors=True)
        return content


def check_time(baseline: Baseline, images: Tensor, predicted: int, minutes: float) -> None:
    """Raise where predictions are known to take longer than ``minutes``."""
    from convdkm.lab.baselines.kernels.progress import duration

    expected = baseline.expected_seconds(images, predicted)
    if expected is None or expected[1] <= 60 * minutes:
        return
    fits = int(predicted * 60 * minutes / expected[1])
    raise InvalidInputError(
        f"predicting {predicted:,} test images takes about {duration(expected[1])}, more than the"
        f" {minutes:g} min allowed; use --test-size {fits} or less, fewer training images, or more"
        " time (--budget)"
    )


def figures(
    probabilities: Tensor | None, predicted: Tensor | None, labels: Tensor
) -> dict[str, float]:
    """Metrics of probabilities, or where there are none the accuracy of predicted classes.

    Raises:
        NumericalError: probabilities are not finite.
    """
    import torch

    from convdkm.errors import NumericalError
    from convdkm.prediction import ClassPrediction
    from convdkm.training.metrics import classification_metrics

    if probabilities is None:
        assert predicted is not None
        return {"accuracy": float((predicted.cpu() == labels).double().mean())}
    values = probabilities.detach().double().cpu()
    bad = int((~values.isfinite()).any(1).sum())
    if bad:
        raise NumericalError(f"the probabilities of {bad} of {len(values)} images are not finite")
    log_probs = values.clamp(min=torch.finfo(values.dtype).tiny).log()
    nothing = torch.zeros_like(log_probs)
    found = classification_metrics(ClassPrediction(nothing, nothing, log_probs, None), labels)
    return {name: found[name] for name in METRICS}


class Notes:
    """Lines that a method tells, printed as they come; the last of each kind is kept.

    Two lines are of one kind if they differ in numbers alone, up to their colon: all epochs, and
    all shares of a kernel.
    """

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}
        self._start = time.monotonic()

    def add(self, text: str) -> None:
        print(f"{time.monotonic() - self._start:9.1f} s  {text}", flush=True)
        kind = re.sub(r"\d+", "0", text.partition(":")[0])
        self.kept.pop(kind, None)
        self.kept[kind] = text
