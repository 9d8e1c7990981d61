#!/bin/sh
# The training image's entry point, /usr/local/bin/castoff.
#
#   castoff doctor [options]   whether the wheels, the topics and the TPU are well (python -m castoff_doctor)
#   castoff health             whether the cache can be written and the training goes on; the image's health check
#   castoff COMMAND…           runs it
set -eu

usage() { sed -n '4,6s/^# *//p' "$0"; }

# All that is written goes below the cache: the rest of the file system may be read-only.
prepare() {
  mkdir -p "$CASTOFF_CACHE/tmp" "$XLA_PERSISTENT_CACHE_PATH" 2>/dev/null || {
    echo "expected a cache folder that user $(id -u) can write, found $CASTOFF_CACHE closed; mount one: -v FOLDER:$CASTOFF_CACHE" >&2
    exit 21
  }
}

# Who never touches the heartbeat file is not asked for it; who stops touching it hangs.
health() {
  [ -w "$CASTOFF_CACHE" ] || { echo "$CASTOFF_CACHE cannot be written" && exit 1; }
  [ -e "$CASTOFF_HEARTBEAT" ] || exit 0
  age=$(($(date +%s) - $(stat -c %Y "$CASTOFF_HEARTBEAT")))
  [ "$age" -le "$CASTOFF_HEARTBEAT_SECONDS" ] || { echo "no step for $age s" && exit 1; }
}

case ${1:-} in
  '' | -h | --help) usage ;;
  health) health ;;
  doctor) shift && prepare && exec python -m castoff_doctor "$@" ;;
  *) prepare && rm -f "$CASTOFF_HEARTBEAT" && exec "$@" ;;
esac
