#!/usr/bin/env bash
# Runs one of these tests: run.sh PAGEZIP WRITE_TINY_MODEL TEST.py
set -euo pipefail
export PAGEZIP_BINARY=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export PAGEZIP_TINY_MODEL=$folder/tiny.gguf
"$2" "$PAGEZIP_TINY_MODEL"
clients=${PAGEZIP_CLIENTS:-${XDG_CACHE_HOME:-$HOME/.cache}/pagezip/clients}
if [ ! -x "$clients/bin/pytest" ]; then
  echo "there are no clients to test with: run scripts/setup.sh --tests and scripts/client_env.sh" >&2
  exit 1
fi
cd "$(dirname "${BASH_SOURCE[0]}")"
PYTHONDONTWRITEBYTECODE=1 "$clients/bin/pytest" -q -p no:cacheprovider --timeout 300 \
  --basetemp "$folder/pytest" "$3"
