# shellcheck shell=bash
# Sourced by the scripts that test.

section() { # title, command: says what runs, how long it took, and how much of the processors
  local title=$1 start=$SECONDS before used
  echo "== $title"
  shift
  set_used && before=$used
  if [[ -n ${failed_sections-} ]]; then
    keep_going "$title" "$@"
  else
    "$@"
  fi
  set_used
  echo "   $((SECONDS - start)) s, $((used - before)) s of processors"
}

keep_going() { # title, command: if it fails, writes the title into the file failed_sections
  local title=$1 status
  shift
  # No `||` here: it would switch `set -e` off in a function.
  set +e
  (set -e && "$@")
  status=$?
  set -e
  if [[ $status != 0 ]]; then
    echo "FAILED: $title" | tee -a "$failed_sections"
  fi
}

set_used() { # used: the seconds that this shell's children, as far as they have ended, have had of processors
  local fields
  read -r fields </proc/$BASHPID/stat
  read -ra fields <<<"${fields##*) }"
  used=$(((fields[13] + fields[14]) / $(getconf CLK_TCK)))
}
