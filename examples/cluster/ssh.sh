#!/usr/bin/env bash
# Starts train.py on every worker of a TPU slice over ssh, and starts all again when one dies.
#
#   cp examples/cluster/{train.py,worker.sh} "$SHARED"
#   SHARED=/mnt/shared IMAGE=castoff-train:2.9-tpu examples/cluster/ssh.sh 'host1 host2 host3 host4' [arguments of train.py]
#
#   RESTARTS  how often at most (10)
#
# The rest is said in worker.sh. No worker is told its number: libtpu learns it from the TPU host.
set -euo pipefail
: "${SHARED:?a folder that all hosts see}" "${IMAGE:?the training image}"
[[ $# -gt 0 ]] || { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2 && exit 2; }
read -ra hosts <<<"$1"
shift

on() { # host, arguments of worker.sh
  local host=$1 command variable
  shift
  command=
  for variable in SHARED IMAGE CACHE ENGINE; do
    [[ -z ${!variable:-} ]] || command+=$(printf '%s=%q ' "$variable" "${!variable}")
  done
  ssh -o BatchMode=yes -o ServerAliveInterval=15 "$host" "$command$(printf '%q ' "$SHARED/worker.sh" "$@")"
}

stop_all() {
  local host
  for host in "${hosts[@]}"; do on "$host" stop & done
  wait
}
trap 'trap - EXIT; stop_all' EXIT
trap 'exit 130' INT TERM

run_all() { # waits until all are done, or one has failed
  local host number=0
  for host in "${hosts[@]}"; do
    on "$host" start "$@" &
  done
  for ((; number < ${#hosts[@]}; number++)); do wait -n || return; done
}

for ((try = 0; ; try++)); do
  if run_all "$@"; then
    trap - EXIT
    exit
  fi
  [[ $try -lt ${RESTARTS:-10} ]] || { echo "a worker died, $try restarts did not help" >&2 && exit 1; }
  echo "a worker died: all start again from the newest checkpoint" >&2
  stop_all
done
