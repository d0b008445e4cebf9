#!/usr/bin/env bash
# Make tests/golden/nngp.npz by neural-tangents; arguments go to make_golden_nngp.py.
exec "$(dirname "${BASH_SOURCE[0]}")/neural_tangents.sh" make_golden_nngp.py "$@"
