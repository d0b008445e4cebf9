"""Skip connections and white noise."""

from __future__ import annotations

import numpy as np

from oracle.blocks import Blocks


def skip(short: Blocks, body: Blocks, weight: float) -> Blocks:
    """The Gram of concatenated features ``[√(1−w) F_short, √w F_body]``."""
    return Blocks(*((1 - weight) * s + weight * b for s, b in zip(short, body, strict=True)))


def add_noise(gram: Blocks, relative: float, absolute: float) -> Blocks:
    """Every point gets an independent noise of variance ``relative · G_xx + absolute``."""
    own = np.diag(gram.ii)
    return Blocks(
        gram.ii + np.diag(relative * own + absolute),
        gram.it,
        gram.tt + relative * gram.tt + absolute,
    )
