# shellcheck shell=bash
# Sourced by ci/test.sh: functions side by side.

started_lanes=()

lanes() { # functions: runs them at once, the name before each line; the first that fails stops the others
  local lane pid status=0
  local -A names=()
  set -m # a process group for each, for stop_lanes
  for lane in "$@"; do
    # No `||` here: it would switch `set -e` off in the function.
    (
      set -o pipefail
      "$lane" 2>&1 | sed -u "s/^/$lane | /"
    ) &
    names[$!]=$lane
    started_lanes+=("$!")
  done
  set +m
  for lane in "$@"; do
    wait -n -p pid || status=$?
    if [[ $status != 0 ]]; then
      stop_lanes
      echo "FAILED: ${names[$pid]}, as it says above" >&2
      return "$status"
    fi
  done
  started_lanes=()
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
