"""Training steps recorded once and played again: see :mod:`convdkm.recording.gradients`."""
