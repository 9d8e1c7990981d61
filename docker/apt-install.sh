#!/bin/sh
# Installs the packages of a list, a name=version a line, in a build step of an image, and leaves no trace of apt.
set -eu
if [ -f /run/secrets/network ]; then
  # shellcheck source=/dev/null
  . /run/secrets/network
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update --quiet=2
# shellcheck disable=SC2046  # the list is one word a package
apt-get install --quiet=2 --yes --no-install-recommends $(cat "$1") >/dev/null || {
  echo "expected Debian to have the versions in $(basename "$1"); it keeps the newest only: run ci/relock.sh to renew them" >&2
  exit 11
}
apt-get clean
rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log /var/log/alternatives.log /var/cache/ldconfig/aux-cache
