# shellcheck shell=bash
# Sourced by the scripts that test.

section() { # title, command: says what runs, how long it took, and how much of the processors
  local start=$SECONDS before used
  echo "== $1"
  shift
  set_used && before=$used
  "$@"
  set_used
  echo "   $((SECONDS - start)) s, $((used - before)) s of processors"
}

set_used() { # used: the seconds that this shell's children, as far as they have ended, have had of processors
  local fields
  read -r fields </proc/$BASHPID/stat
  read -ra fields <<<"${fields##*) }"
  used=$(((fields[13] + fields[14]) / $(getconf CLK_TCK)))
}
