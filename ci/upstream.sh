#!/usr/bin/env bash
# On pin 2.6, whose upstream tree any Debian mirror has: proves the C++ hunks, runs upstream's own tests on
# stock and on patched wheels, which must end alike, and stages torch's topics as for a pull request.
#
#   ci/upstream.sh STOCK PATCHED WORK [--all]
#
#   STOCK, PATCHED  environments of pin 2.6 (castoff env stock|patched --pin 2.6)
#   WORK            a folder on their file system
#   --all           all of upstream's tests that are known, and not only those for which CI has time; takes hours
#
# Objects and the outcomes on stock wheels are kept in castoff's cache, by hash.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[[ $# -ge 3 ]] || { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2 && exit 2; }
stock=$1 patched=$2 work=$3
shift 3
outcomes=${CASTOFF_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/castoff}/upstream-tests
checkout=$work/torch
rm -rf "$checkout"
.venv/bin/castoff checkout --pin 2.6 --project torch "$checkout"
.venv/bin/python ci/hunk_proof.py --pin 2.6 --stock "$stock" --patched "$patched" --work "$work" \
  --checkout "$checkout" --outcomes "$outcomes"
.venv/bin/castoff verify dist/2.6-cpu --upstream-tests --environments "$stock/bin/python" "$patched/bin/python" \
  --checkout "$checkout" --outcomes "$outcomes" "$@"
# data-setter stands on grad-dtype: a stack of both.
GIT_AUTHOR_NAME=CI GIT_AUTHOR_EMAIL=ci@localhost .venv/bin/castoff stage data-setter --onto "$checkout" \
  --python "$patched/bin/python" --stock "$stock/bin/python" --out "$work/staged"
