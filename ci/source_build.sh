#!/usr/bin/env bash
# torch and torch_xla 2.6 from source, with castoff's topics: upstream's own build, step by step.
#
#   ci/source_build.sh WORK [PYTHON]
#
#   WORK    a folder with 80 GB free; it stays. The same command again goes on where it stopped
#   PYTHON  the CPython to build for, with its headers (python3.11)
#
# The wheels are left in WORK/pytorch/dist and WORK/pytorch/xla/dist. Nobody has run this whole yet:
# docs/source-build.md says which parts have been. Some 45 core hours are a guess.
#
# Only pin 2.6 has C++ hunks, which compile torch's topics into libtorch_cpu.so; the others need the overlay.
set -euo pipefail

[[ $# -ge 1 ]] || { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2 && exit 2; }
castoff=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
mkdir -p "$1"
work=$(cd "$1" && pwd)
python=${2:-python3.11}
pin=2.6
environment=$work/environment
torch=$work/pytorch
xla=$torch/xla # its build looks for torch's tree in the folder above

for program in git g++ patch bazel "$python"; do # bazel: bazelisk, which runs the Bazel of xla/.bazelversion
  command -v "$program" >/dev/null || { echo "expected $program on PATH, found none; install it" >&2 && exit 19; }
done

# The version of the wheels, as castoff's own builds have it: 2.6.0+castoff.N.
version=$(cd "$castoff" && .venv/bin/python -c 'from castoff.version import VERSION; print(f"2.6.0+castoff.{VERSION}")')
jobs() { # memory in GB that one compiler may need: as many of them as there is memory for, at most one a core
  local most=$(($(awk '/^MemTotal/ {print $2}' /proc/meminfo) / 1000000 / $1)) cores
  cores=$(nproc)
  echo $((most < 1 ? 1 : most < cores ? most : cores))
}
set -x

# 1. Upstream's trees, with a commit for each topic, and the repositories that they include.
for project in torch:$torch torch_xla:$xla; do
  "$castoff/.venv/bin/castoff" checkout --update --pin "$pin" --project "${project%%:*}" "${project#*:}"
  git -C "${project#*:}" submodule sync --recursive
  git -C "${project#*:}" submodule update --init --recursive --depth=1 --jobs=4
done

# 2. An environment with what upstream's build needs, in versions that this release still builds with.
# MKL, linked statically, is the BLAS of upstream's wheels.
"$castoff/.venv/bin/uv" venv --no-project --allow-existing --python "$python" "$environment"
printf '%s\n' 'cmake<4' 'setuptools<80' >"$work/constraints.txt"
install=("$castoff/.venv/bin/uv" pip install --python "$environment/bin/python")
"${install[@]}" --constraint "$work/constraints.txt" --requirement "$torch/requirements.txt" \
  wheel pip ninja mkl-static mkl-include
PATH=$environment/bin:$PATH

# 3. torch, by CMake and ninja. Without BLAS=MKL it would be built with no BLAS at all, silently.
launcher=$(command -v ccache || command -v sccache || true)
(cd "$torch" && env PYTORCH_BUILD_VERSION="$version" PYTORCH_BUILD_NUMBER=1 _GLIBCXX_USE_CXX11_ABI=0 \
  USE_CUDA=0 USE_ROCM=0 USE_XPU=0 BUILD_TEST=0 \
  CMAKE_PREFIX_PATH="$environment" BLAS=MKL USE_STATIC_MKL=1 MAX_JOBS="$(jobs 2)" \
  ${launcher:+CMAKE_C_COMPILER_LAUNCHER="$launcher" CMAKE_CXX_COMPILER_LAUNCHER="$launcher"} \
  python setup.py bdist_wheel)
"${install[@]}" --reinstall-package torch "$torch/dist/torch-$version"-*.whl

# 4. The C++ of torch_xla's topics, which needs torch's headers alone. torch_xla/_castoff.py loads it into the
# builds of torch and torch_xla that it names, and setup.py puts it into the wheel.
include=$(cd / && python -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parent / "include")')
mkdir -p "$xla/torch_xla/lib"
# shellcheck disable=SC2016 # $ORIGIN is the loader's
g++ -std=c++17 -O2 -DNDEBUG -fPIC -shared -fvisibility=hidden -fvisibility-inlines-hidden -D_GLIBCXX_USE_CXX11_ABI=0 \
  -DCASTOFF_TORCH_GIT_VERSION="\"$(git -C "$torch" rev-parse HEAD)\"" \
  -DCASTOFF_TORCH_XLA_GIT_VERSION="\"$(git -C "$xla" rev-parse HEAD)\"" \
  -I "$xla" -isystem "$include" -isystem "$include/torch/csrc/api/include" "$xla"/torch_xla/csrc/castoff/*.cpp \
  -L "$include/../lib" -ltorch_cpu -lc10 -Wl,--disable-new-dtags,-rpath,'$ORIGIN/../../torch/lib' \
  -o "$xla/torch_xla/lib/libcastoff_torch_xla.so"

# 5. torch_xla, by Bazel: one wheel for CPU and TPU, like upstream's own. XLA and LLVM need more memory.
(cd "$xla" && env TORCH_XLA_VERSION="$version" GIT_VERSIONED_XLA_BUILD=0 VERSIONED_XLA_BUILD=0 CXX_ABI=0 \
  HERMETIC_PYTHON_VERSION="$(python -c 'import sys; print("%d.%d" % sys.version_info[:2])')" \
  TPUVM_MODE=1 BUNDLE_LIBTPU=0 BUILD_CPP_TESTS=0 BAZEL_JOBS="$(jobs 4)" python setup.py bdist_wheel)
"${install[@]}" --reinstall-package torch_xla "$xla/dist/torch_xla-$version"-*.whl

# 6. Whether the environment works, and which topics are on.
PJRT_DEVICE=CPU "$castoff/.venv/bin/castoff" doctor --python "$environment/bin/python"
