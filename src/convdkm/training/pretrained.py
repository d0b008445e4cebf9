"""Machines that somebody else has trained, by their names."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, overload

from convdkm.predicting.predictor import Predictor
from convdkm.pretrained import find
from convdkm.training.run import Run


@overload
def load_pretrained(
    name: str,
    *,
    folded: Literal[True] = True,
    folder: str | Path | None = None,
    device: str | None = None,
) -> Predictor: ...


@overload
def load_pretrained(
    name: str,
    *,
    folded: Literal[False],
    folder: str | Path | None = None,
    device: str | None = None,
) -> Run: ...


def load_pretrained(
    name: str,
    *,
    folded: bool = True,
    folder: str | Path | None = None,
    device: str | None = None,
) -> Predictor | Run:
    """A machine that is trained already; ``convdkm pretrained`` lists them.

    Its file is looked for in ``folder``, in the package, in the folder ``pretrained`` of the clone
    that the package runs from, and in ``~/.cache/convdkm/pretrained``; if it is nowhere, it is
    fetched from the release. Its SHA-256 has to be the published one, and there is no pickle in it.

    Args:
        name: of the machine, such as ``"digits"``.
        folded: give a :class:`convdkm.Predictor`, which takes images as they were loaded and has
            the names of the classes. Otherwise the :class:`convdkm.Run`: settings, figures,
            whitening and the machine itself.
        folder: where to look first; ``$CONVDKM_PRETRAINED`` by default. It may have an
            ``index.json`` of its own, which lists other machines.
        device: where to put it; as in training, or the CPU if that is absent.

    Example:
        >>> from convdkm.data import load_digits
        >>> predictor = load_pretrained("digits")
        >>> predictor.predict(load_digits().test_images).probs.shape
        torch.Size([360, 10])
    """
    run = Run.load(find(name, folder), device=device)
    return run.predictor() if folded else run
