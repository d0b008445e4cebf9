"""What scikit-learn calls by other names in older versions."""

from __future__ import annotations

from typing import Any

__all__ = ["validate_data"]

try:
    from sklearn.utils.validation import validate_data
except ImportError:  # before 1.6

    def validate_data(_estimator: Any, /, *arrays: Any, **options: Any) -> Any:
        """As that of scikit-learn 1.6: check arrays, and remember or compare their features."""
        return _estimator._validate_data(*arrays, **options)
