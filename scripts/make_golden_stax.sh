#!/usr/bin/env bash
# Make tests/golden/stax.npz by neural-tangents; arguments go to make_golden_stax.py.
exec "$(dirname "${BASH_SOURCE[0]}")/neural_tangents.sh" make_golden_stax.py "$@"
