#!/usr/bin/env bash
#
#   ci/lint.sh
#
# Every static check of the tree, with the tools of the lock file. ./build.sh makes them. All of them run; at the
# end those that found something are listed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=$PWD/.venv/bin
[[ -x $bin/ruff ]] || ./build.sh --help >/dev/null

failed=()
check() { # name, command
  local name=$1
  shift
  echo "== $name"
  "$@" || failed+=("$name")
}

mapfile -t cpp < <(find castoff patches -path '*/upstream' -prune -o \( -name '*.cpp' -o -name '*.h' \) -print | sort)
mapfile -t scripts < <(find . -path ./.venv -prune -o -path ./.git -prune -o -path ./dist -prune -o -name '*.sh' -print | sort)
[[ -f .ci/run ]] && scripts+=(.ci/run)
scripts+=(examples/cluster/slurm.sbatch)

check 'ruff check' "$bin/ruff" check .
check 'ruff format' "$bin/ruff" format --check .
check mypy "$bin/mypy" --strict castoff
check import-linter "$bin/lint-imports" --no-cache --no-logo
check 'castoff lint' "$bin/castoff" lint
check clang-format "$bin/clang-format" --dry-run -Werror "${cpp[@]}"
check shellcheck "$bin/shellcheck" "${scripts[@]}"
check hadolint "$bin/hadolint" docker/*.Dockerfile
check manifests "$bin/python" ci/check_manifests.py examples/cluster/jobset.yaml
check 'schema of the workflows' \
  "$bin/check-jsonschema" --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
check zizmor "$bin/zizmor" --offline --quiet --no-progress .github/workflows
check actionlint "$bin/actionlint" -shellcheck "$bin/shellcheck"

if [[ ${#failed[@]} -gt 0 ]]; then
  printf 'lint: %d of the checks above found problems:\n' "${#failed[@]}"
  printf '  %s\n' "${failed[@]}"
  exit 1
fi
echo 'lint: no problems found'
