#!/usr/bin/env bash
# Make tests/golden/baseline_kernels.npz by neural-tangents; arguments go to make_golden_baselines.py.
exec "$(dirname "${BASH_SOURCE[0]}")/neural_tangents.sh" make_golden_baselines.py "$@"
