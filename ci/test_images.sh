#!/usr/bin/env bash
# Builds the builder and the training images, and tests them: with buildah, no daemon, and no registry.
#
#   ci/test_images.sh [--keep DIR] [--base TAR] [--index URL]
#
#   --keep DIR   work in DIR, and leave there what was made
#   --base TAR   the root file system of Debian 12 to start from, made before (mmdebstrap makes it otherwise)
#   --index URL  as of ./build.sh: where it has torch's CPU build, the images are tested as they are for others
#
# Needs root, Debian's packages (installs buildah and mmdebstrap itself), a package index, and 12 GB of disk. The base
# image, which a user's engine pulls, is made here from Debian's packages, under the same name.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=ci/section.sh
. ci/section.sh
unset PYTHONDONTWRITEBYTECODE

PIN=2.9
BASE_NAME=$(sed -n 's/^ARG BASE=//p' docker/train.Dockerfile)

work=
base=
build=(--pin "$PIN" --python 3.11) # Debian 12's
while [[ $# -gt 0 ]]; do
  case $1 in
    --keep) work=${2:?--keep wants a folder} && shift ;;
    --base) base=$(realpath "${2:?--base wants a file}") && shift ;;
    --index) build+=(--index "${2:?--index wants a URL}") && shift ;;
    *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2 && exit 2 ;;
  esac
  shift
done
[[ $EUID == 0 ]] || { echo 'expected root, which makes root file systems and mounts them; sudo ci/test_images.sh' >&2 && exit 19; }

cleanup() {
  buildah rm --all >/dev/null 2>&1 || true
  if [[ -z $keep ]]; then
    buildah rmi --all --force >/dev/null 2>&1 || true
    rm -rf "$work"
  fi
}

install_tools() {
  local missing=()
  command -v buildah >/dev/null || missing+=(buildah crun)
  command -v mmdebstrap >/dev/null || missing+=(mmdebstrap)
  [[ -f /usr/share/keyrings/debian-archive-keyring.gpg ]] || missing+=(debian-archive-keyring)
  [[ ${#missing[@]} == 0 ]] ||
    { apt-get update && apt-get install --yes --no-install-recommends "${missing[@]}"; } >/dev/null
}

# A storage of our own. Overlays where the kernel lets us: vfs copies every layer whole.
make_storage() {
  local driver=vfs try=$work/try
  mkdir -p "$try"/{lower,upper,work,merged}
  if mount -t overlay overlay -o "lowerdir=$try/lower,upperdir=$try/upper,workdir=$try/work" "$try/merged" 2>/dev/null; then
    umount "$try/merged"
    driver=overlay
  fi
  rm -rf "$try"
  printf '[storage]\ndriver = "%s"\ngraphroot = "%s/storage"\nrunroot = "%s/run"\n' "$driver" "$work" "$work" >"$work/storage.conf"
  echo "   storage driver: $driver"
}

make_base() {
  local container
  if [[ -z $base ]]; then
    base=$work/base.tar
    # As the official slim image: the same suite with its updates, less manuals and translations.
    # shellcheck disable=SC2016  # it is mmdebstrap's shell that expands $1
    mmdebstrap --quiet --variant=minbase --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr --include=usr-is-merged \
      --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
      --dpkgopt='path-exclude=/usr/share/doc/*' \
      --dpkgopt='path-include=/usr/share/doc/*/copyright' \
      --customize-hook='rm -f "$1/etc/resolv.conf" "$1/etc/hostname"' bookworm "$base"
  fi
  container=$(buildah from scratch)
  buildah add --quiet "$container" "$base" >/dev/null
  buildah commit --quiet --rm "$container" "$BASE_NAME" >/dev/null
}

# The wheels that the builder makes, with a cache that has upstream's wheels only: it has to compile.
build_inside() {
  mkdir -p "$work/cache/castoff"
  cp -al "$cache/sha256" "$work/cache/castoff/sha256" 2>/dev/null || cp -a "$cache/sha256" "$work/cache/castoff/sha256"
  XDG_CACHE_HOME=$work/cache CASTOFF_CACHE='' ./build.sh --docker --engine buildah --target tpu "${build[@]}" \
    --no-verify-install --out "$work/inside"
}

compare_with_outside() {
  .venv/bin/python ci/image_checks.py builder
  .venv/bin/python ci/image_checks.py same "dist/$PIN-cpu" "$work/inside/$PIN-tpu"
  .venv/bin/castoff verify "$work/inside/$PIN-tpu" --no-verify-install
  [[ -n $keep ]] || { buildah images --format '{{.Name}}:{{.Tag}}' | grep castoff-builder | xargs buildah rmi >/dev/null && rm -rf "$work/cache"; }
}

# What the tests need beside the image, and what the image does without where only a CUDA build of torch is to be had.
make_side_folders() {
  .venv/bin/castoff env tools "$work/tools" --pin "$PIN"
  side=$(echo "$work"/tools/lib/python3.*/site-packages)
  if [[ ${#cuda[@]} != 0 ]]; then
    .venv/bin/castoff env stock "$work/stock" --pin "$PIN"
  fi
}

is_cuda_build() { .venv/bin/python ci/image_checks.py cuda "dist/$PIN-cpu"; }

refuse_altered_wheel() {
  mkdir -p "$work/altered/$PIN-tpu"
  cp -al "$work/inside/$PIN-tpu/." "$work/altered/$PIN-tpu/"
  local wheel
  wheel=$(echo "$work/altered/$PIN-tpu"/torch_xla-*.whl)
  cp --remove-destination "$work/inside/$PIN-tpu/$(basename "$wheel")" "$wheel"
  printf x | dd of="$wheel" bs=1 seek=1000 conv=notrunc status=none
  if docker/train.sh --engine buildah --target tpu --dist "$work/altered" --tag localhost/altered "${cuda[@]}" >"$work/altered.log" 2>&1; then
    echo 'expected an altered wheel to be refused, and it was taken' >&2
    return 1
  fi
  grep -q "$(basename "$wheel") is not the wheel that was built" "$work/altered.log" || { tail -n 20 "$work/altered.log" >&2 && return 1; }
  rm -rf "$work/altered"
}

# Runs a command in an image as its user, by its entry point and with its environment. The root file system is
# read-only; /cache is a folder of ours, and the tree and the side folder are under /mnt.
in_image() { # NAME=VALUE… command…
  .venv/bin/python ci/image_checks.py run --mount "$PWD:/mnt/castoff" --mount "$side:/mnt/side" \
    --mount "$work/image-cache:/cache" "${mounts[@]}" "$rootfs" "$work/config.json" "$@"
}

open_image() { # target: sets rootfs, mounts
  local container
  container=$(buildah from "localhost/castoff-train:$PIN-$1")
  rootfs=$(buildah mount "$container")
  buildah inspect --type image "localhost/castoff-train:$PIN-$1" >"$work/config.json"
  rm -rf "$work/image-cache"
  install -d -o 10001 -g 10001 "$work/image-cache"
  mounts=()
  if [[ ${#cuda[@]} != 0 ]]; then
    mounts+=(--mount "$(echo "$work"/stock/lib/python3.*/site-packages/nvidia):/opt/castoff/lib/python3.11/site-packages/nvidia")
  fi
}

check_image() { # target, dist folder
  .venv/bin/python ci/image_checks.py image "$rootfs" "$work/config.json" "$2/$PIN-$1"
  in_image | grep -q 'castoff doctor'
  in_image PJRT_DEVICE=CPU doctor
  in_image health
  # shellcheck disable=SC2016  # it is the image's shell that expands this
  in_image sh -c 'touch -d "1 hour ago" /cache/heartbeat && ! castoff health && touch /cache/heartbeat && castoff health'
  # shellcheck disable=SC2016
  in_image sh -c 'test "$(id -u)" = 10001 && ! touch /opt/x /usr/x /tmp/x 2>/dev/null && touch /cache/x'
}

train_in_image() {
  in_image PJRT_DEVICE=CPU CPU_NUM_DEVICES=4 python /mnt/castoff/examples/cluster/train.py --checkpoints /cache/run \
    --steps 3 --width 32 --layers 1 --batch 16
}

# Those that state the IR of a graph. The others, on numbers, ci/test.sh runs on the same wheels.
test_in_image() {
  local names
  mapfile -t names < <(.venv/bin/python ci/image_checks.py expect tests/ir)
  in_image PJRT_DEVICE=CPU PYTHONPATH=/mnt/side python -m pytest -q -n 2 -p no:cacheprovider "${names[@]/#//mnt/castoff/}"
}

keep=$work
cache=${CASTOFF_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/castoff}
mkdir -p "$cache"
work=${work:-$(mktemp -d "$cache/images.XXXXXX")}
mkdir -p "$work"
work=$(realpath "$work")
export CONTAINERS_STORAGE_CONF=$work/storage.conf BUILDAH_ISOLATION=chroot TMPDIR=$work/tmp
mkdir -p "$TMPDIR"
trap cleanup EXIT

section 'buildah and mmdebstrap' install_tools
make_storage
section "the wheels, built outside" ./build.sh --target cpu "${build[@]}"
section "the base image, $BASE_NAME" make_base
section 'the builder makes the wheels' build_inside
section 'they are byte for byte those made outside, and need no newer system than their tag says' compare_with_outside
cuda=()
if is_cuda_build; then
  echo '   torch is a CUDA build here: the images are made without the packages for GPUs, which are mounted'
  cuda=(--cuda-packages leave-out)
fi
section 'what goes beside the image' make_side_folders
section 'an altered wheel is refused' refuse_altered_wheel
for target in tpu cpu; do
  dist=$PWD/dist
  [[ $target == cpu ]] || dist=$work/inside
  section "$target: the image" docker/train.sh --engine buildah --target "$target" --pin "$PIN" --dist "$dist" "${cuda[@]}"
  open_image "$target"
  section "$target: what it is, and is not" check_image "$target" "$dist"
  [[ $target == tpu ]] || section "$target: the training of examples/cluster, on 4 devices" train_in_image
  [[ $target == tpu ]] || section "$target: the IR-expect tests" test_in_image
  buildah rm --all >/dev/null
  [[ -n $keep ]] || buildah rmi "localhost/castoff-train:$PIN-$target" >/dev/null
done
echo "the images are well, in $SECONDS s"
