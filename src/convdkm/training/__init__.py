"""Training: the loop, its records and checkpoints, and runs as folders."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from convdkm.architectures import build_model
    from convdkm.training.batches import Batches
    from convdkm.training.checkpoint import CheckpointError, CheckpointStore, Progress
    from convdkm.training.fit import fit, resume
    from convdkm.training.loop import Trainer, TrainingFailedError
    from convdkm.training.metrics import prediction_metrics, reliability
    from convdkm.training.run import Run
    from convdkm.training.sinks import CsvSink, MemorySink, Sink, TensorBoardSink
    from convdkm.training.view import TerminalSink

_HOME = {
    "Batches": "batches",
    "CheckpointError": "checkpoint",
    "CheckpointStore": "checkpoint",
    "CsvSink": "sinks",
    "MemorySink": "sinks",
    "Progress": "checkpoint",
    "Run": "run",
    "Sink": "sinks",
    "TensorBoardSink": "sinks",
    "TerminalSink": "view",
    "Trainer": "loop",
    "TrainingFailedError": "loop",
    "build_model": "build",
    "fit": "fit",
    "prediction_metrics": "metrics",
    "reliability": "metrics",
    "resume": "fit",
}

__all__ = [
    "Batches",
    "CheckpointError",
    "CheckpointStore",
    "CsvSink",
    "MemorySink",
    "Progress",
    "Run",
    "Sink",
    "TensorBoardSink",
    "TerminalSink",
    "Trainer",
    "TrainingFailedError",
    "build_model",
    "fit",
    "prediction_metrics",
    "reliability",
    "resume",
]


def __getattr__(name: str) -> Any:
    """Load a public name where it is first used, so that the command line starts quickly."""
    if name not in _HOME:
        raise AttributeError(f"module 'convdkm.training' has no attribute {name!r}")
    value = getattr(import_module(f"convdkm.training.{_HOME[name]}"), name)
    globals()[name] = value
    return value
