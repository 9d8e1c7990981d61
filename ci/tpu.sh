#!/usr/bin/env bash
# Builds the wheels for a TPU host, installs them here as the README says, and runs the tests on the TPU.
#
#   ./ci/tpu.sh [arguments of ./build.sh]
#
# A TPU runner has to have a TPU: where none is found this fails, it does not skip.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

./build.sh --target tpu "$@"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
.venv/bin/castoff env tpu "$work/tpu"
python=$work/tpu/bin/python
"$python" -m castoff_doctor --require-tpu
# One process: the TPU belongs to one at a time.
"$python" -m pytest -q -p no:cacheprovider -rs --device tpu tests/ir tests/tpu
