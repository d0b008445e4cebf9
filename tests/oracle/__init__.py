"""The paper's equations, written out naively in float64 NumPy.

Nothing here knows the library it is compared with: sums are loops, inverses are inverses, and every
function names the equation or appendix it spells out. ``adapter`` and ``cases``, which are not
imported from here, read the parameters of the library's layers and list what is compared.
"""

from oracle.blocks import Blocks, deviation, gram_of_features
from oracle.compose import add_noise, jitter, skip
from oracle.conv import convolve, mix
from oracle.gram_layer import gaussian_kl, predict_gram
from oracle.head import head_kl, head_marginals
from oracle.inputs import patch_gram, vector_gram
from oracle.kernels import apply_kernel
from oracle.likelihood import (
    gaussian_class_probabilities,
    gaussian_expected_log_likelihood,
    objective,
    softmax_expectations,
)
from oracle.norm import centre, data_variance, inducing_mean, normalise, running_average
from oracle.pool import average_pool, flatten, global_average_pool
from oracle.windows import same_padding, windows

__all__ = [
    "Blocks",
    "add_noise",
    "apply_kernel",
    "average_pool",
    "centre",
    "convolve",
    "data_variance",
    "deviation",
    "flatten",
    "gaussian_class_probabilities",
    "gaussian_expected_log_likelihood",
    "gaussian_kl",
    "global_average_pool",
    "gram_of_features",
    "head_kl",
    "head_marginals",
    "inducing_mean",
    "jitter",
    "mix",
    "normalise",
    "objective",
    "patch_gram",
    "predict_gram",
    "running_average",
    "same_padding",
    "skip",
    "softmax_expectations",
    "vector_gram",
    "windows",
]
