# shellcheck shell=bash
# Sourced by ci/test.sh: functions side by side.

started_lanes=()

lanes() { # number, functions: runs so many at once, the name before each line; the first that fails stops the others
  local free=$1 lane pid status=0
  local -A names=()
  shift
  set -m # a process group for each, for stop_lanes
  for lane in "$@" ''; do
    # A lane for the next one, or, at the end, all of them.
    while [[ $free == 0 || (-z $lane && ${#names[@]} != 0) ]]; do
      wait -n -p pid || status=$?
      if [[ $status != 0 ]]; then
        stop_lanes
        echo "FAILED: ${names[$pid]}, as it says above" >&2
        return "$status"
      fi
      unset "names[$pid]"
      started_lanes=("${!names[@]}")
      free=$((free + 1))
    done
    [[ -n $lane ]] || break
    # No `||` here: it would switch `set -e` off in the function.
    (
      set -o pipefail
      "$lane" 2>&1 | sed -u "s/^/$lane | /"
    ) &
    names[$!]=$lane
    started_lanes=("${!names[@]}")
    free=$((free - 1))
  done
  set +m
}

stop_lanes() { # for a trap: when it returns they have ended
  local lane signal
  # INT lets Python clean up, but is ignored by whatever a script has started with `&`.
  for signal in INT TERM; do
    for lane in "${started_lanes[@]}"; do kill -"$signal" -- "-$lane" 2>/dev/null || true; done
    for _ in {1..20}; do
      [[ -n $(jobs -rp) ]] || break
      sleep 0.5
    done
  done
  wait
  started_lanes=()
}
