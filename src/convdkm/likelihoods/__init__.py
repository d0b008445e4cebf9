r"""Likelihoods: from marginals of the top-layer functions to training signal and predictions."""

from __future__ import annotations

from convdkm.likelihoods.base import Likelihood
from convdkm.likelihoods.categorical import Categorical
from convdkm.likelihoods.gaussian import Gaussian

__all__ = ["Categorical", "Gaussian", "Likelihood"]
