#!/usr/bin/env bash
# Runs a compiler and keeps what it says beside the object: the registers and spills that
# tests/cuda/resources.py reads.
set -uo pipefail

object=
for ((i = 1; i < $#; i++)); do
  if [ "${!i}" = -o ]; then
    next=$((i + 1))
    object=${!next}
  fi
done
[ -n "$object" ] || exec "$@"
"$@" >"$object.log" 2>&1
status=$?
grep -v -e '^ptxas info' -e 'bytes stack frame' "$object.log" >&2
exit "$status"
