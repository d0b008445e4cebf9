"""Skip connections and white noise."""

from __future__ import annotations

import numpy as np

from oracle.blocks import Blocks
from oracle.kernels import apply_kernel


def skip(short: Blocks, body: Blocks, weight: float) -> Blocks:
    """The Gram of concatenated features ``[√(1−w) F_short, √w F_body]``."""
    return Blocks(*((1 - weight) * s + weight * b for s, b in zip(short, body, strict=True)))


def jitter(kernel, gram: Blocks, relative: float, absolute: float) -> Blocks:
    """The kernel of noisy points, but for the images' own variances."""
    noisy = apply_kernel(kernel, add_noise(gram, relative, absolute))
    return Blocks(noisy.ii, noisy.it, apply_kernel(kernel, gram).tt)


def add_noise(gram: Blocks, relative: float, absolute: float) -> Blocks:
    """Every point gets an independent noise of variance ``relative · G_xx + absolute``."""
    own = np.diag(gram.ii)
    return Blocks(
        gram.ii + np.diag(relative * own + absolute),
        gram.it,
        gram.tt + relative * gram.tt + absolute,
    )
