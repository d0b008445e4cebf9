"""Machines frozen for prediction: constant weights and small modules, nothing to train.

A :class:`Predictor` is what :meth:`convdkm.DeepKernelMachine.folded` makes of a machine. It can be
saved to one file and loaded without the machine, and exported to other programs.
"""

from convdkm.predicting import earlier as earlier  # files may name what it knows
from convdkm.predicting.predictor import Predictor
from convdkm.predicting.saving import PredictorFileError, load_predictor

__all__ = ["Predictor", "PredictorFileError", "load_predictor"]
