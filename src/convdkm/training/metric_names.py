"""What the figures of an evaluation are called where a person reads them."""

METRIC_NAMES = {
    "accuracy": "accuracy",
    "log_likelihood": "log-likelihood",
    "brier": "Brier score",
    "ece": "calibration error",
    "entropy": "mean entropy",
    "mutual_information": "mean mutual information",
}
