#!/usr/bin/env bash
# Make ci/requirements.lock anew from ci/requirements.in: the newest versions, each with its hashes,
# for every CPython that castoff runs on. No index is named in it: whoever installs uses their own.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
.venv/bin/uv pip compile --upgrade --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-emit-find-links --no-header --no-annotate --quiet \
  ci/requirements.in --output-file ci/requirements.lock
