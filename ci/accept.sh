#!/usr/bin/env bash
# Write what programs give now into the tests that state it, format it, and run the tests again:
#
#   ci/accept.sh PYTHON TEST... [options of pytest]
#
#   PYTHON  that of the environment: .venv/bin/python for tests/unit, else one with the patched wheels
#
# Read the changes (git diff) before you commit them: this accepts whatever there is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ $# -ge 2 ]] || { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2 && exit 2; }
python=$1
shift
export PJRT_DEVICE=${PJRT_DEVICE:-CPU}
EXPECTTEST_ACCEPT=1 "$python" -m pytest -q -p no:cacheprovider "$@" || true # a test that fails otherwise fails below
find tests -name '*.py.bak' -delete # expecttest's copies
.venv/bin/ruff format --quiet tests
"$python" -m pytest -q -p no:cacheprovider "$@"
