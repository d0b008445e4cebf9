#!/usr/bin/env bash
# Time kernel entries beside neural-tangents, which is installed in a temporary virtual environment.
# Arguments go to benchmarks/kernel_entries.py. PYTHON chooses the interpreter of that environment
# (3.11), CONVDKM_PYTHON the one that has convdkm. NEURAL_TANGENTS names an environment that is there
# already, and is then left alone.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
env_dir="${NEURAL_TANGENTS:-}"
if [[ -z "$env_dir" ]]; then
    env_dir="$(mktemp -d)"
    trap 'rm -rf "$env_dir"' EXIT
    "${PYTHON:-python3.11}" -m venv "$env_dir"
    "$env_dir/bin/pip" install --quiet jax==0.5.3 jaxlib==0.5.3 frozendict numpy scipy
    # Without its dependencies: they include TensorFlow packages that the kernels do not need.
    "$env_dir/bin/pip" install --quiet --no-deps neural-tangents==0.6.5
fi

"${CONVDKM_PYTHON:-python}" "$here/../benchmarks/kernel_entries.py" --other "$env_dir/bin/python" "$@"
