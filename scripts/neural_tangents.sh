#!/usr/bin/env bash
# Run a script of this folder with neural-tangents, in a temporary virtual environment:
# neural_tangents.sh make_golden_stax.py [ARGUMENTS]. PYTHON chooses the interpreter (3.11).
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
script="$1"
shift
env_dir="$(mktemp -d)"
trap 'rm -rf "$env_dir"' EXIT

"${PYTHON:-python3.11}" -m venv "$env_dir"
"$env_dir/bin/pip" install --quiet jax==0.5.3 jaxlib==0.5.3 frozendict numpy scipy
# Without its dependencies: they include TensorFlow packages that the kernels do not need.
"$env_dir/bin/pip" install --quiet --no-deps neural-tangents==0.6.5

JAX_PLATFORMS=cpu "$env_dir/bin/python" "$here/$script" "$@"
