#!/usr/bin/env bash
# Holds the topics against torch's later releases and upstream's main branches, and runs their tests on the wheels of
# those releases and on torch's nightly ones.
#
#   ./ci/drift.sh OUT [arguments of ci/drift.py in the place of the branches and the wheels]
#
# OUT gets report.md, table.md and drift.json; one that is there already is what it is compared with. Exit status 1 if a topic
# fares otherwise than then, 2 if an upstream could not be looked at.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[[ $# -ge 1 ]] || { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2 && exit 2; }
out=$1
shift
[[ $# -gt 0 ]] ||
  set -- torch=2.10 torch=2.11 torch=2.12 torch=2.13 torch=2.14 torch=2.15 torch=main torch_xla=master \
    --tests --index https://download.pytorch.org/whl/cpu --wheels torch=https://download.pytorch.org/whl/nightly/cpu

./build.sh --help >/dev/null # makes .venv
status=0
.venv/bin/python ci/drift.py "$out" --before "$out" "$@" || status=$?
[[ -z ${GITHUB_STEP_SUMMARY:-} || ! -f $out/report.md ]] || cat "$out/report.md" >>"$GITHUB_STEP_SUMMARY"
exit "$status"
