#!/usr/bin/env bash
# Build patched torch and torch_xla wheels: ./build.sh --target cpu
#
# Makes .venv from ci/requirements.lock, once for each state of that file, and hands over to
# `castoff build`. PYTHON names the Python to make it with (python3 if not set).
#
#   --docker   build in a container instead, with docker, podman or buildah: this machine then needs no compiler
#              and no newer Python than 3.8. Also: --engine NAME, --base IMAGE.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=$root/.venv
lock=$root/ci/requirements.lock
python=${PYTHON:-python3}

fail() { # exit code, summary, expected, found, next step
  printf 'error    %s\nexpected   %s\n   found   %s\n    next   %s\n' "$2" "$3" "$4" "$5" >&2
  exit "$1"
}

if [[ " $* " == *" --docker "* ]]; then
  for argument; do
    shift
    [[ $argument == --docker ]] || set -- "$@" "$argument"
  done
  PYTHONPATH=$root exec "$python" -m castoff.container build "$@"
fi

# What .venv has to be made of: the lock file, and the place (its scripts name it).
wanted=$(cat "$lock" <(echo "$venv") | sha256sum | cut -d' ' -f1)

is_ready() { [[ -f $venv/made-from && $(<"$venv/made-from") == "$wanted" ]]; }

show_progress() { # standard input: what pip says. A line a package on a terminal, in place; elsewhere some lines
  local line count=0 total
  total=$(grep -c '^[a-z0-9].*==' "$lock")
  while IFS= read -r line; do
    case $line in
      Collecting\ * | Processing\ *) # a name from an index, a file from a folder
        count=$((count + 1))
        line=${line#* }
        line=${line%%[ ;]*}
        if [[ -t 2 ]]; then
          printf '\r\033[K         package %d of %d: %s' "$count" "$total" "${line##*/}" >&2
        elif ((count % 20 == 0)); then
          echo "         $count of $total packages" >&2
        fi
        ;;
      Installing\ collected*)
        [[ ! -t 2 ]] || printf '\r\033[K' >&2
        echo "         installing $total packages" >&2
        ;;
    esac
  done
}

make_venv() {
  local found
  found=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || found=none
  case $found in
    3.1[1-9] | 3.[2-9][0-9]) ;;
    *) fail 19 'castoff needs a newer Python' 'CPython 3.11 or later' "$python is $found" \
      'Install one, or name it: PYTHON=python3.11 ./build.sh …' ;;
  esac
  echo 'venv     making .venv, once: the tools of the build and its tests, from ci/requirements.lock' >&2
  rm -rf "$venv"
  "$python" -m venv "$venv" >"$venv.log" 2>&1 ||
    fail 19 '.venv could not be made' "$python -m venv works" "$(tail -n 5 "$venv.log")" \
      'Install the venv module (Debian and Ubuntu: apt-get install python3-venv).'
  "$venv/bin/python" -m pip install --require-hashes --only-binary=:all: --disable-pip-version-check \
    --no-input --progress-bar off -r "$lock" 2>&1 | tee "$venv.log" | show_progress ||
    fail 11 'the build tools could not be installed' 'pip installs ci/requirements.lock' \
      "$(tail -n 5 "$venv.log")" "Check the network and pip's index (pip config list). The whole log: $venv.log"
  # castoff itself runs from this tree: no package to build, nothing to fetch.
  "$venv/bin/python" -c 'import pathlib, sys, sysconfig
pathlib.Path(sysconfig.get_path("purelib"), "castoff.pth").write_text(sys.argv[1] + "\n")' "$root"
  # shellcheck disable=SC2016  # it is the script that expands these
  printf '#!/bin/sh\nexec "$(dirname "$0")/python" -m castoff "$@"\n' >"$venv/bin/castoff"
  chmod +x "$venv/bin/castoff"
  rm -f "$venv.log"
  echo "$wanted" >"$venv/made-from"
  echo "         $SECONDS s" >&2
}

# Every build that uses .venv holds its lock, shared, until the end (the descriptor stays open across
# exec); a build that makes it again holds it alone. So it never changes under a running build.
command -v flock >/dev/null ||
  fail 19 'flock is missing' 'flock is installed' 'no such command' 'Install util-linux.'
exec 9>>"$venv.lock" ||
  fail 21 "$root cannot be written" "$venv.lock can be written" 'it cannot' 'Use a copy of the tree that can.'
flock --shared 9
if ! is_ready; then
  flock --unlock 9
  flock --nonblock 9 || {
    echo 'venv     waiting for another build that uses .venv' >&2
    flock 9
  }
  is_ready || make_venv
  flock --shared 9
fi

CASTOFF_CALLED_AS=./build.sh exec "$venv/bin/castoff" build "$@"
