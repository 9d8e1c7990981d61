#!/usr/bin/env bash
# Builds the site, strictly: a broken link or a name that the API page does not find is an error.
#
#   ci/site.sh DIR        the site is in DIR/html, and what it is built with in DIR/environment
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=${1:?wants a folder}
[[ -x .venv/bin/uv ]] || ./build.sh --help >/dev/null
mkdir -p "$work"
work=$(cd "$work" && pwd)

.venv/bin/uv venv --quiet --clear --python .venv/bin/python "$work/environment"
.venv/bin/uv pip install --quiet --python "$work/environment/bin/python" \
  --require-hashes --requirement docs/requirements.lock
NO_MKDOCS_2_WARNING=1 "$work/environment/bin/mkdocs" build --strict --site-dir "$work/html"
