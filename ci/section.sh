# shellcheck shell=bash
# Sourced by the scripts that test.

section() { # title, command: says what runs and how long it took
  local start=$SECONDS
  echo "== $1"
  shift
  "$@"
  echo "   $((SECONDS - start)) s"
}
