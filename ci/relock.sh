#!/usr/bin/env bash
# Make the lock files anew: the newest versions, each with its hashes, for every CPython that they may
# be installed in. No index is named in them: whoever installs uses their own.
#   ci/requirements.lock   the build and its tests, from ci/requirements.in
#   ci/models.lock         the models that are audited, from ci/models.in
#   pins/*-tpu.lock        the TPU compiler of each pin: the libtpu, jax and jaxlib under [runtime]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

lock() { # input, output, more options
  local input=$1 output=$2
  shift 2
  .venv/bin/uv pip compile --upgrade --universal --python-version 3.11 --generate-hashes \
    --no-emit-index-url --no-emit-find-links --no-header --no-annotate --quiet \
    "$input" --output-file "$output" "$@"
}

lock ci/requirements.in ci/requirements.lock
lock ci/models.in ci/models.lock --constraint ci/requirements.lock
for pin in pins/*.toml; do
  wanted=$(.venv/bin/python - "$pin" <<'EOF'
import sys, tomllib
pin = tomllib.load(open(sys.argv[1], "rb"))
if "tpu" in pin:
    print(*(f"{name}=={version}" for name, version in pin["runtime"].items()), sep="\n")
EOF
  )
  [[ -z $wanted ]] || lock - "${pin%.toml}-tpu.lock" <<<"$wanted"
done
