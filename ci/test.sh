#!/usr/bin/env bash
# Installs what ./build.sh built into fresh environments and tests it.
#
#   ./build.sh --target cpu && ./ci/test.sh [--all [--everything]] [--keep-going] [--keep DIR] [--pins LIST [--only]]
#
# Without --all: the default pin. The linters, the unit tests, the tests of every topic on CPU-XLA and on the TPU
# compiler, and on stock wheels those that must fail there; without tests that are marked slow.
#
#   --all        also everything else that CI proves: slow tests, such as those of each topic's switch in a process of
#                its own; other pins, upstream's own tests, the C++ hunks, audits of models, benchmarks, types,
#                companions, releases, the programs in README and docs
#   --everything with --all: all parts of what runs in parts, those of a day (tests/slices.py), and on stock wheels also
#                the tests that tests/stock.json knows, which is written anew; a workflow does that each week
#   --keep-going when a section fails, go on with the next one, and list at the end which failed
#   --keep DIR   put the environments into DIR and leave them there, to run one test by hand
#   --pins LIST  the pins that are built and tested beside the default one, with every test, on stock wheels, too; "" for
#                none. Unless said otherwise that of the day, with a sixth of the cases (tests/earlier_pins.py) and without
#                stock wheels but those of 2.1. With 2.6 the C++ hunks are proven and upstream's own tests are run
#   --only       with --pins: these pins, and nothing else
#
# Besides what the build needs it needs valgrind and Chromium, and installs them with apt-get if it may.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=ci/section.sh
. ci/section.sh
# shellcheck source=ci/lanes.sh
. ci/lanes.sh
# shellcheck source=ci/from_lock.sh
. ci/from_lock.sh
# Many tests start Pythons of their own, and torch is a lot of Python to compile each time.
unset PYTHONDONTWRITEBYTECODE
# Every wheel here is one exact release, most by hash. A cap on torch in pip's configuration, as machines have that
# keep some releases on their disk, could only refuse it.
export PIP_CONSTRAINT=/dev/null

usage() { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; }

work=
all=
pins='of the day'
whole=()
only=
keep_going=
# Stock wheels do not change: a test that was seen to fail there as it is now is not run there again. Few are left, and
# take less than more processes do that import torch.
known=(--unrecorded -n 0)
# What takes long runs in parts, others each day, and whole where something has changed.
of_the_day=(-p tests.of_the_day --of-the-day)
seventh=(-p tests.of_the_day --seventh)
others=(-p tests.of_the_day --others)
while [[ $# -gt 0 ]]; do
  case $1 in
    --all) all=yes ;;
    --everything) export CASTOFF_DAY=all && known=(--record) ;;
    --keep) work=${2:?--keep wants a folder} && shift ;;
    --pins) pins=${2?--pins wants a list} && whole=(--whole) && shift ;;
    --only) only=yes ;;
    --keep-going) keep_going=yes ;;
    -h | --help) usage && exit ;;
    *) usage >&2 && exit 2 ;;
  esac
  shift
done

[[ -x .venv/bin/castoff ]] || ./build.sh --help >/dev/null
# One day for all that runs here: midnight may come meanwhile, and environments need no git.
CASTOFF_DAY=${CASTOFF_DAY:-$(.venv/bin/python tests/slices.py)}
export CASTOFF_DAY
[[ $pins != 'of the day' ]] || pins=$(.venv/bin/python tests/earlier_pins.py)
read -ra with_llama <<<"${pins/2.1/}"
llama_pins=$(.venv/bin/python tests/slices.py "${with_llama[@]}")
echo "== the parts of $CASTOFF_DAY (CASTOFF_DAY=$CASTOFF_DAY runs the same; with --everything: all)"
for package in valgrind chromium; do
  if ! command -v "$package" >/dev/null; then
    [[ $EUID == 0 ]] || { echo "expected $package, found none; install it: apt-get install $package" >&2 && exit 19; }
    echo "== $package"
    { apt-get update && apt-get install --yes --no-install-recommends "$package"; } >/dev/null
  fi
done

# Beside uv's cache, so that environments are hard links and cost no disk.
if [[ -z $work ]]; then
  cache=${CASTOFF_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/castoff}
  mkdir -p "$cache"
  work=$(mktemp -d "$cache/test.XXXXXX")
  trap 'stop_lanes; rm -rf "$work"' EXIT
else
  trap stop_lanes EXIT
fi
mkdir -p "$work"
work=$(cd "$work" && pwd)
rm -f "$work/untested" "$work/failed"

environment() { # kind, or kind-pin
  rm -rf "${work:?}/$1"
  case $1 in
    *-*) .venv/bin/castoff env "${1%-*}" "$work/$1" --pin "${1#*-}" ;;
    *) .venv/bin/castoff env "$1" "$work/$1" ;;
  esac
}

in_environment() { # kind, arguments of pytest
  local kind=$1
  shift
  # Each process that compiles a graph of unknown sizes would try out by a C++ compiler which vectors this CPU has.
  TORCHINDUCTOR_VEC_ISA_OK=1 PJRT_DEVICE=CPU XLA_FLAGS="${XLA_FLAGS-} $(in_one_piece "$kind")" \
    "$work/$kind/bin/python" -m pytest -q -n 2 -p no:cacheprovider "$@"
}

in_one_piece() { # kind, or kind-pin. Most of a test is the compilation of small programs, which XLA:CPU splits.
  case $1 in
    *-2.15 | *-2.1 | oracle) ;; # no XLA, or none that splits
    *) echo --xla_cpu_parallel_codegen_split_count=1 ;;
  esac
}

unoptimized() { # command. With XLA's own optimizations a test takes twice as long: each day another seventh has them.
  XLA_FLAGS="${XLA_FLAGS-} --xla_backend_optimization_level=0" "$@"
}

without_emitters() { # command. XLA:CPU compiles in a third of the time without its new emitters of fusions, by the old.
  XLA_FLAGS="${XLA_FLAGS-} --xla_cpu_use_fusion_emitters=false" "$@"
}

chart() {
  from_lock "$work/chart" bench/chart.lock
  "$work/chart/bin/python" bench/chart.py --check
}

make_compiler() { # pin; exports CASTOFF_TPU_PYTHON and CASTOFF_TPU_RESULTS
  local lines line
  lines=$(.venv/bin/castoff tpu environment --pin "$1")
  while IFS= read -r line; do export "${line?}"; done <<<"$lines"
}

on_tpu_compiler() { # kind, arguments of pytest. One process: the compiler's worker is one, too.
  local kind=$1
  shift
  PJRT_DEVICE=CPU "$work/$kind/bin/python" -m pytest -q -p no:cacheprovider "$@" tests/tpu
}

on_tpu_compiler_of() ( # pin; in a subshell, which keeps its compiler to itself
  make_compiler "$1"
  section "pin $1: TPU HLO on v5e, v5p and v6e, patched wheels" on_tpu_compiler "patched-$1" --whole
)

must_fail_on_stock() { # 'slow' or 'not slow'
  section "$1: stock wheels, what proves a difference must fail" \
    unoptimized in_environment stock -m "$1" --stock "${known[@]}" --tb=native tests/ir tests/torch
}

tpu_hlo_on_both_wheels() { # 'slow' or 'not slow'. No slow test of the TPU compiler must fail on stock wheels.
  section "$1: TPU HLO on v5e, v5p and v6e, patched wheels" on_tpu_compiler patched "${of_the_day[@]}" -m "$1"
  [[ $1 == slow ]] || section "$1: TPU HLO on v5e, v5p and v6e, stock wheels, what proves a difference must fail" \
    on_tpu_compiler stock -m "$1" --stock "${known[@]}"
}

tests_for_a_tpu() { # on a machine that has one, ci/tpu.sh runs them in earnest
  local report=$work/tpu.xml
  local status=0
  "$work/patched/bin/python" -m pytest -q -p no:cacheprovider -rs --device tpu --junitxml="$report" \
    tests/ir tests/tpu || status=$?
  [[ $status == 5 ]] # pytest's word for "no test ran"
  grep -qE 'errors="0" failures="0" skipped="([0-9]+)" tests="\1"' "$report"
}

test_pin() { # pin. Says so in untested if this machine has no CPython for it.
  local pin=$1 plan status=0 kind
  plan=$(.venv/bin/castoff build --target cpu --pin "$pin" --dry-run 2>&1) || status=$?
  if [[ $status == 19 ]]; then
    printf '== NOT TESTED: pin %s\n%s\n' "$pin" "$plan"
    echo -n " $pin" >>"$work/untested"
    return
  elif [[ $status != 0 ]]; then
    printf '%s\n' "$plan" >&2
    exit "$status"
  fi
  [[ -d dist/$pin-cpu ]] || section "pin $pin: build" ./build.sh --target cpu --pin "$pin"
  for kind in patched stock; do
    section "pin $pin: environment: $kind" environment "$kind-$pin"
  done
  local wheels=(tests/wheels)
  # Stubs and castoff install are a matter of the build's code, and proven on the default pin.
  [[ ${#whole[@]} != 0 ]] || wheels+=(-m 'not slow')
  section "pin $pin: the wheels" env CASTOFF_PIN="$pin" .venv/bin/python -m pytest -q -n 2 "${wheels[@]}"
  # A pin of torch alone has no XLA.
  local tests=(tests/torch) with_xla=
  ! compgen -G "dist/$pin-cpu/torch_xla-*.whl" >/dev/null || { tests+=(tests/ir) && with_xla=yes; }
  section "pin $pin: patched wheels" unoptimized in_environment "patched-$pin" "${whole[@]}" "${tests[@]}"
  # What fails on stock 2.9 fails on stock releases before it, with --pins as seen.
  [[ $pin == 2.[678] && ${#whole[@]} == 0 ]] || section "pin $pin: stock wheels: what proves a difference must fail" \
    unoptimized in_environment "stock-$pin" "${whole[@]}" --stock "${known[@]}" --tb=native "${tests[@]}"
  # A Llama is trained on one of the pins that have one, another one each day.
  [[ $pin == 2.1 || -z $with_xla || (${#whole[@]} == 0 && " $llama_pins " != *" $pin "*) ]] ||
    section "pin $pin: a gradient's error, and a Llama" .venv/bin/python bench/pins.py --pins "$pin"
  [[ ! -f pins/$pin-tpu.lock || ${#whole[@]} == 0 ]] || on_tpu_compiler_of "$pin"
  section "pin $pin: castoff doctor" .venv/bin/castoff doctor --python "$work/patched-$pin/bin/python"
  [[ $pin != 2.6 ]] || section "pin 2.6: the hunks are proven; upstream's own tests end alike" \
    ci/upstream.sh "$work/stock-2.6" "$work/patched-2.6" "$work/upstream"
}

all_went_well() { # with --keep-going: whether each section did
  [[ ! -s ${failed_sections-} ]] || { echo "these sections failed, in $SECONDS s:" && cat "$failed_sections" && exit 1; }
}

# ---- the default pin

units() {
  section 'unit tests of every stage' .venv/bin/python -m pytest -q -n 2 tests/unit
}

house() {
  section 'lint' ci/lint.sh
  section 'the wheels' .venv/bin/python -m pytest -q -n 2 -m 'not slow' tests/wheels
  section 'castoff doctor' .venv/bin/castoff doctor --python "$work/patched/bin/python"
}

topics() {
  section 'not slow: patched wheels, a seventh' \
    in_environment patched "${seventh[@]}" -m 'not slow' tests/torch tests/ir
  must_fail_on_stock 'not slow'
}

other_topics() {
  [[ $CASTOFF_DAY == all ]] || section "not slow: patched wheels, the rest without XLA's optimizations" \
    without_emitters unoptimized in_environment patched "${others[@]}" -m 'not slow' tests/torch tests/ir
}

tpu_hlo() {
  tpu_hlo_on_both_wheels 'not slow'
}

# ---- the rest of the default pin, for --all: functions that share nothing

slow_tests() {
  section 'slow: patched wheels' unoptimized in_environment patched "${of_the_day[@]}" -m slow tests/torch tests/ir
  must_fail_on_stock slow
  tpu_hlo_on_both_wheels slow
  section 'patched wheels, switched off: as stock' env CASTOFF_DISABLE=all PJRT_DEVICE=CPU "$work/patched/bin/python" \
    -m pytest -q -n 2 -p no:cacheprovider --stock tests/torch/test_grad_dtype_conformance.py \
    tests/torch/test_data_setter.py tests/ir/test_issue_3718.py
  CASTOFF_RANDOM_GRAPHS=10000 section 'ten thousand random programs, those of the day, with every cache on' \
    unoptimized in_environment patched tests/ir/test_random_graphs.py
}

docs() {
  section 'the programs and commands in README and docs, those of the day and new ones' \
    in_environment patched "${of_the_day[@]}" tests/docs
  section "stock wheels: the programs of docs/why.md must fail" \
    in_environment stock --stock "${known[@]}" tests/docs
  section "the charts of README and docs" chart
  section 'the site' ci/site.sh "$work/site"
}

wheels() {
  section 'the wheels: types, companions, a second build, a release' \
    .venv/bin/python -m pytest -q -n 2 "${of_the_day[@]}" -m slow tests/wheels
}

audits() {
  section 'castoff audit: patched wheels' unoptimized in_environment patched "${of_the_day[@]}" tests/audit
  section 'castoff audit: stock wheels, what proves a difference must fail' \
    unoptimized in_environment stock --stock "${known[@]}" tests/audit
  section 'the casts of five models' .venv/bin/python bench/audit_models.py --check \
    --stock "$work/stock/bin/python" --patched "$work/patched/bin/python"
}

operators() { # those of the day: their samples, or samples that are made
  local half halves
  halves=$(.venv/bin/python tests/slices.py samples made_samples)
  for half in $halves; do "$half"; done
}

samples() {
  section "torch's samples of the day's operators: what differs is what is recorded" \
    .venv/bin/python bench/operator_sweep.py --check --patched "$work/patched/bin/python"
  section "operators of the day: what leaves the device is recorded" \
    .venv/bin/python bench/leaves_device.py --check --patched "$work/patched/bin/python"
  section 'random training programs, those of the day, traced and replayed' \
    .venv/bin/python bench/replay_sweep.py --check --patched "$work/patched/bin/python"
}

made_samples() {
  section "special values in the day's operators: what differs is what is recorded" \
    .venv/bin/python bench/made_samples.py special --check --patched "$work/patched/bin/python"
  section "a tensor in another dtype in the day's operators: what differs is what is recorded" \
    .venv/bin/python bench/made_samples.py other --check --patched "$work/patched/bin/python"
}

programs() {
  section 'programs as people write them, those of the day' in_environment patched tests/programs tests/docstrings
  section 'models, those of the day, beside what is recorded' .venv/bin/python bench/models.py --check \
    --patched "$work/patched/bin/python"
}

upstream() {
  section 'environment: oracle' environment oracle
  section 'torch with its own grad_dtype: the same conformance tests' \
    in_environment oracle tests/torch/test_grad_dtype_conformance.py
  section "torch_xla's recipes for upstream: their tests" env PJRT_DEVICE=CPU "$work/patched/bin/python" \
    -m pytest -q -p no:cacheprovider patches/torch_xla/*/upstream/tree/test
}

tpus() {
  section 'layers of two models for TPUs: the programs are the recorded ones' .venv/bin/python bench/tpu_models.py \
    --check --layer pre-norm --layer Llama --stock "$work/stock/bin/python" --patched "$work/patched/bin/python"
  section 'programs as people write them, for TPUs: those of the day are the recorded ones' \
    .venv/bin/python bench/tpu_corpus.py --check --stock "$work/stock/bin/python" --patched "$work/patched/bin/python"
  [[ $CASTOFF_DAY != all ]] || section 'operators of on-device for TPUs, beside JAX' \
    .venv/bin/python bench/on_device_cycles.py --patched "$work/patched/bin/python"
  section 'a step function on the TPU compiler' .venv/bin/castoff tpu compile bench/tpu_step.py:step \
    --topology v5e:2x2 --python "$work/patched/bin/python"
  section 'castoff audit of a step function, beside stock and on the TPU compiler' .venv/bin/castoff audit \
    bench/tpu_step.py:step --python "$work/patched/bin/python" --stock-python "$work/stock/bin/python" --tpu v5e:2x2 \
    --max-casts 0
  section 'without a TPU, tests for one are skipped and say why' tests_for_a_tpu
}

trainings() {
  section 'the examples for clusters: killed, and started again' in_environment patched "${of_the_day[@]}" tests/cluster
  section 'what float32 gradients gain: the order of the errors' .venv/bin/python bench/training.py --check \
    --patched "$work/patched/bin/python"
}

costs() {
  local name names options
  names=$(.venv/bin/python tests/slices.py \
    unused_topics graph_identity exact_casts wide_weight_grad forward_instructions audit_speed)
  for name in $names; do
    options=(--stock "$work/stock/bin/python")
    case $name in
      forward_instructions) options+=(--check) ;;
      audit_speed) options=() ;;
    esac
    section "what it costs: bench/$name.py" .venv/bin/python "bench/$name.py" \
      --patched "$work/patched/bin/python" "${options[@]}"
  done
}

# ---- the other pins

other_pins() {
  for pin in $pins; do test_pin "$pin"; done
  [[ -n $only ]] || before_and_after
}

before_and_after() {
  local on_2_1=()
  [[ ! -d $work/patched-2.1 ]] ||
    on_2_1=(--stock-2.1 "$work/stock-2.1/bin/python" --patched-2.1 "$work/patched-2.1/bin/python")
  section 'README and docs: before and after' .venv/bin/python bench/before_after.py --check \
    --stock "$work/stock/bin/python" --patched "$work/patched/bin/python" "${on_2_1[@]}"
}

if [[ -n $only ]]; then
  other_pins
  if [[ -s $work/untested ]]; then
    echo "NOT TESTED: pin$(<"$work/untested"), because its CPython is missing"
    exit 1
  fi
  echo "no problems found on pin $pins, in $SECONDS s"
  exit
fi
for kind in patched stock; do
  section "environment: $kind" environment "$kind"
done
section 'the TPU compiler: environment' make_compiler 2.9
[[ -z $keep_going ]] || failed_sections=$work/failed
# Some of it takes one core; what takes longest goes first.
lanes 2 other_topics topics units house tpu_hlo
if [[ -n $all ]]; then
  # Much of it takes one core; what takes longest goes first, so that both lanes end at about the same time.
  lanes 2 other_pins slow_tests docs audits wheels costs tpus operators programs trainings upstream
fi
all_went_well
if [[ -s $work/untested ]]; then
  echo "NOT TESTED: pin$(<"$work/untested"), because its CPython is missing. The rest has no problems, in $SECONDS s"
else
  echo "no problems found, in $SECONDS s"
fi
