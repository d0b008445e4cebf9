"""Deep kernel machines as scikit-learn estimators."""

from convdkm.estimators.images import ConvDKMClassifier
from convdkm.estimators.vectors import DKMClassifier, DKMRegressor

__all__ = ["ConvDKMClassifier", "DKMClassifier", "DKMRegressor"]
