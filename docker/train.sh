#!/usr/bin/env bash
# Makes the training image from the wheels in dist/, with docker, podman or buildah:
#
#   ./build.sh --target tpu && docker/train.sh --target tpu
#
# PYTHON names the Python to run it with (python3 if not set), 3.8 or later.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PYTHONPATH=$root exec "${PYTHON:-python3}" -m castoff.container train "$@"
