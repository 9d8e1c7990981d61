#!/usr/bin/env bash
#
#   ci/relock.sh
#
# Renew the lock files: the newest versions, each with the hashes of its wheels for Linux on x86-64, for every CPython
# that they may be installed in. They name no index: the installing machine uses its own.
#   ci/requirements.lock   the build and its tests, from ci/requirements.in
#   ci/models.lock         the models that are audited, from ci/models.in
#   ci/sign.lock           what signs releases, from ci/sign.in
#   bench/chart.lock       what the README's charts are drawn with, from bench/chart.in
#   docs/requirements.lock what the site is built with, from docs/requirements.in
#   castoff/upstream/upstream_tests.lock what upstream's own tests run with, from the .in beside it
#   docker/*.lock          what the training image is installed from and with, from the .in beside each
#   docker/*.packages      Debian's packages in the images; on Debian 12 only, whose archive says the versions
#   pins/*-tpu*.lock       the TPU compilers of each pin: the libtpu, jax and jaxlib under [runtime], and those under
#                          [tpu.generations] for what that libtpu does not know
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

lock() { # input, output, more options; $oldest is the first CPython that it is for
  local input=$1 output=$2 oldest=${oldest:-3.11}
  shift 2
  .venv/bin/uv pip compile --upgrade --universal --python-version "$oldest" --format pylock.toml --quiet \
    "$input" --output-file "$work/pylock.toml" "$@"
  .venv/bin/python ci/hashes.py "$work/pylock.toml" "$oldest" >"$output"
}

relist() { # list of Debian's packages, a name=version a line
  local name candidate lines=()
  while IFS='=' read -r name _; do
    candidate=$(apt-cache policy "$name" | sed -n 's/^  Candidate: //p')
    [[ -n $candidate ]] || { echo "expected $name in Debian 12, found nothing; apt-get update?" >&2 && exit 11; }
    lines+=("$name=$candidate")
  done <"$1"
  printf '%s\n' "${lines[@]}" >"$1"
}

lock ci/requirements.in ci/requirements.lock
# Without torch, which comes with the pin.
lock ci/models.in ci/models.lock --constraint ci/requirements.lock --override <(echo "torch ; python_version < '3'")
lock ci/sign.in ci/sign.lock
lock bench/chart.in bench/chart.lock
lock docs/requirements.in docs/requirements.lock
# Earlier pins have CPython 3.10, too.
oldest=3.10 lock castoff/upstream/upstream_tests.in castoff/upstream/upstream_tests.lock
lock docker/tools.in docker/tools.lock
lock docker/train.in docker/train.lock
# shellcheck source=/dev/null
if [[ $(. /etc/os-release && echo "$ID $VERSION_ID") == 'debian 12' ]]; then
  for list in docker/*.packages; do relist "$list"; done
else
  echo "docker/*.packages stay as they are: this is not Debian 12" >&2
fi
while read -r output wanted; do
  tr ' ' '\n' <<<"$wanted" | lock - "pins/$output"
done < <(.venv/bin/python - pins/*.toml <<'EOF'
import sys, tomllib
for path in sys.argv[1:]:
    pin = tomllib.load(open(path, "rb"))
    if "tpu" in pin:
        for part in (pin["tpu"] | pin["runtime"], *pin["tpu"].get("generations", {}).values()):
            print(part["compiler"], *(f"{name}=={part[name]}" for name in pin["runtime"]))
EOF
)
