# shellcheck shell=bash
# Sourced by the scripts that need an environment of one lock file.

from_lock() { # folder, lock file: an environment of .venv's Python with what the file lists, by hash
  .venv/bin/uv venv --quiet --clear --python .venv/bin/python "$1"
  .venv/bin/uv pip install --quiet --python "$1/bin/python" --require-hashes --requirement "$2"
}
