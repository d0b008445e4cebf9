r"""Learning rate, weight of the KL and size of images, by the share of training that is done."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from convdkm.config import Recipe


def learning_rate(config: Recipe, step: int, total: int) -> float:
    r"""The rate of step ``step`` (from 0) of ``total``.

    With t the share of training that is done, w the warm-up and r the peak rate:

    * ``steps`` (the paper): r times ``decay`` for every milestone that t has reached;
    * ``one-cycle``: from r/25 up to r by half a cosine while t < w, then down to r/250 000 (the
      same as torch's OneCycleLR);
    * ``cosine``: linearly up to r while t < w, then down to 0 by half a cosine;
    * ``constant``: r.

    A function of the step alone: there is no state to save.
    """
    peak = config.learning_rate
    if config.schedule == "constant":
        return peak
    if config.schedule == "steps":
        passed = sum(step >= round(place * total) for place in config.milestones)
        return peak * config.decay**passed
    if config.schedule == "one-cycle":
        top = config.warmup * total - 1
        if step < top:
            return _half_cosine(peak / 25, peak, step / top)
        return _half_cosine(peak, peak / 25e4, (step - top) / max(total - 1 - top, 1))
    top = config.warmup * total
    if step < top:
        return peak * (step + 1) / (top + 1)
    return _half_cosine(peak, 0.0, (step - top) / max(total - top, 1))


def nu_factor(config: Recipe, step: int, total: int) -> float:
    r"""What every ν is multiplied by in step ``step`` (from 0) of ``total``.

    .. math:: s^{\max(0,\,1 - t/w)}, \qquad t = \frac{\text{step}}{\text{total} - 1},

    with s the recipe's ``nu_start`` and w its ``nu_warmup``: from s in the first step to 1, by the
    same factor in every step, and 1 from there on. The last step is always by ν itself.
    """
    done = step / (total - 1) if total > 1 else 1.0
    return config.nu_start ** max(0.0, 1 - done / config.nu_warmup)


def image_scale(config: Recipe, step: int, total: int) -> float:
    """What the sides of images are multiplied by in step ``step`` (from 0) of ``total``."""
    return config.early_scale if step < round(config.early_share * total) else 1.0


def _half_cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * min(share, 1.0))) / 2
