"""Every check that scikit-learn has for estimators."""

import os

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from convdkm.estimators import ConvDKMClassifier, DKMClassifier, DKMRegressor

# Few and full batches: the checks are about the interface, not about the machine.
QUICK = {"batch_size": 1000, "learning_rate": 0.2}
ESTIMATORS = [
    DKMClassifier(inducing=8, depth=1, epochs=10, **QUICK),
    DKMRegressor(inducing=8, depth=1, epochs=15, **QUICK),
    # The checks ask of equal rows to give predictions that are equal to 1e-7.
    ConvDKMClassifier(inducing=(8,), epochs=10, precision="float64", **QUICK),
]


@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn_check(estimator, check):
    if "array_api" in str(check) and "SCIPY_ARRAY_API" not in os.environ:
        pytest.skip("SCIPY_ARRAY_API is not set")
    check(estimator)
