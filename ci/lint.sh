#!/usr/bin/env bash
# Every static check of the tree, with the tools of the lock file. ./build.sh makes them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=$PWD/.venv/bin
[[ -x $bin/ruff ]] || ./build.sh --help >/dev/null

"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/mypy" --strict castoff
"$bin/lint-imports" --no-cache --no-logo
"$bin/castoff" lint

mapfile -t cpp < <(find castoff patches -path '*/upstream' -prune -o \( -name '*.cpp' -o -name '*.h' \) -print | sort)
"$bin/clang-format" --dry-run -Werror "${cpp[@]}"

mapfile -t scripts < <(find . -path ./.venv -prune -o -path ./.git -prune -o -path ./dist -prune -o -name '*.sh' -print | sort)
[[ -f .ci/run ]] && scripts+=(.ci/run)
scripts+=(examples/cluster/slurm.sbatch)
"$bin/shellcheck" "${scripts[@]}"

"$bin/hadolint" docker/*.Dockerfile
"$bin/python" ci/check_manifests.py examples/cluster/jobset.yaml

"$bin/check-jsonschema" --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
"$bin/zizmor" --offline --quiet --no-progress .github/workflows
"$bin/actionlint" -shellcheck "$bin/shellcheck"
echo 'lint: all is well'
