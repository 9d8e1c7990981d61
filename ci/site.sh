#!/usr/bin/env bash
# Builds the site, strictly: a broken link or a name that the API page does not find is an error.
#
#   ci/site.sh DIR        the site is in DIR/html, and what it is built with in DIR/environment
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=ci/from_lock.sh
. ci/from_lock.sh
work=${1:?wants a folder}
[[ -x .venv/bin/uv ]] || ./build.sh --help >/dev/null
mkdir -p "$work"
work=$(cd "$work" && pwd)

from_lock "$work/environment" docs/requirements.lock
NO_MKDOCS_2_WARNING=1 "$work/environment/bin/mkdocs" build --strict --site-dir "$work/html"
