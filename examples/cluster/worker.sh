#!/usr/bin/env bash
# One worker: runs train.py in the training image on this host. ssh.sh and slurm.sbatch start it on every host.
#
#   worker.sh start [arguments of train.py]
#   worker.sh stop
#
#   SHARED  a folder that all hosts see, with train.py and this script in it; the checkpoints go to SHARED/checkpoints
#   IMAGE   the training image
#   CACHE   a folder of this host for compiled graphs ($HOME/.cache/castoff-train)
#   ENGINE  docker, or podman
set -euo pipefail
: "${SHARED:?a folder that all hosts see}"
engine=${ENGINE:-docker}
name=castoff-train

# A worker whose launcher died may still hold the TPU.
stop() { "$engine" rm --force "$name" >/dev/null 2>&1 || true; }

case ${1:-} in
  start) shift ;;
  stop) stop && exit ;;
  *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2 && exit 2 ;;
esac

cache=${CACHE:-$HOME/.cache/castoff-train}
mkdir -p "$cache" "$SHARED/checkpoints"
stop
# A TPU needs its devices (privileged), pinned memory, and the network of its slice. The rest is locked up.
exec "$engine" run --rm --name "$name" --privileged --network host --ulimit memlock=-1 \
  --user "$(id -u):$(id -g)" --read-only --tmpfs /tmp \
  --volume "$cache:/cache" --volume "$SHARED:/shared" \
  "${IMAGE:?the training image}" python /shared/train.py --checkpoints /shared/checkpoints "$@"
