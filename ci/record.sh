#!/usr/bin/env bash
# Brings tests/stock.json up to date, which says what tests were seen on stock wheels, where those must fail that prove a
# difference: runs the tests that it does not know as they are now, and adds them.
#
#   ci/record.sh [FILE…]   these files of tests; without any, all of the default pin
#
# One that does not fail as it must is shown, and is not added. CI runs what is not in the record, too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

stock=$(.venv/bin/castoff env stock)
environment=$(.venv/bin/castoff tpu environment)
while IFS= read -r line; do export "${line?}"; done <<<"$environment"
export PJRT_DEVICE=CPU
[[ $# -gt 0 ]] || set -- tests/ir tests/torch tests/tpu tests/audit tests/docs
failed=0
for tests in "$@"; do
  # As in ci/test.sh: programs are compiled fast, but for the TPU compiler, whose worker is one.
  how=(env "XLA_FLAGS=--xla_cpu_parallel_codegen_split_count=1 --xla_backend_optimization_level=0")
  [[ $tests != tests/docs* && $tests != tests/tpu* ]] || how=(env)
  "${how[@]}" "$stock" -m pytest -q -p no:cacheprovider --tb=native --stock --unrecorded --record "$tests" || failed=1
done
exit "$failed"
