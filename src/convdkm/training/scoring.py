"""The figures of a run, after an epoch and at its end: work that can be watched, and stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from torch import Tensor

from convdkm.data import Dataset
from convdkm.training.build import augmented
from convdkm.training.run import Run, class_metrics, parts_of
from convdkm.training.sinks import Sink

NAMES = {"train": "training", "test": "test", "validation": "validation"}


class ScoringStoppedError(Exception):
    """Some images are not scored, since the user asked to stop."""


class Scorer:
    """Works out the figures of a run; training images may be cropped and flipped for it.

    Args:
        run: whose machine is asked.
        dataset: the images.
        held_out: those that are held out for validation, and their labels.
        sinks: told how far it has come.
        stop: asked after every batch whether to stop there.
    """

    def __init__(
        self,
        run: Run,
        dataset: Dataset,
        held_out: tuple[Tensor, Tensor] | None,
        *,
        sinks: Sink,
        stop: Callable[[], bool],
    ) -> None:
        self.run, self.sinks, self.stop = run, sinks, stop
        self.parts = parts_of(dataset)
        if held_out is not None:
            self.parts["validation"] = held_out

    def after_epoch(self) -> dict[str, float]:
        """Figures of all but the training images."""
        return self._figures(part for part in ("validation", "test") if part in self.parts)

    def at_the_end(self, **training: float) -> dict[str, float]:
        """Figures of all images, and of the run: those given, and how large it is."""
        counts = {part: len(labels) for part, (_, labels) in self.parts.items()}
        named = ", ".join(f"{count:,} {NAMES[part]}" for part, count in counts.items())
        self.sinks.message(f"scoring {named} images")
        return {
            **self._figures(self.parts),
            **training,
            **{f"{part}_images": counts.get(part, 0) for part in ("train", "test")},
            "parameters": sum(p.numel() for p in self.run.model.parameters()),
        }

    def _figures(self, parts: Iterable[str]) -> dict[str, float]:
        values: dict[str, float] = {}
        for part in parts:
            images, labels = self.parts[part]
            if part == "train":
                images = augmented(self.run.config.training, images)
            watch = partial(self._watch, f"scoring {NAMES[part]} images")
            watch(0, len(images))
            values |= class_metrics(part, self.run.evaluate(images, labels, watch=watch))
        return values

    def _watch(self, what: str, done: int, total: int) -> None:
        self.sinks.progress(what, done, total)
        if done < total and self.stop():
            raise ScoringStoppedError(f"{what}: {done:,} of {total:,} were done")
